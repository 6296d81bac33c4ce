"""What each algorithm's step takes of a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autoj_reward.capacity.memory import Training
from autoj_reward.capacity.shape import ModelShape, find_shape
from rollouts.train.config import TrainConfig


def load(config: TrainConfig, algorithm: str, gpus: int) -> Training:
    """The load of a step on each of so many GPUs. Raises ModelError for a shape not known."""
    return LOADS[algorithm](config, find_shape(config.learner.model), gpus)


def _grouped(config: TrainConfig, shape: ModelShape, gpus: int) -> Training:
    """GRPO and RLOO sample a whole step at once, and keep the first policy beside full weights."""
    sampled, kept = config.batch_size // gpus, config.kl > 0
    return _load(config, shape, config.device_batch_size, sampled, kept)


def _pairs(config: TrainConfig, shape: ModelShape, gpus: int) -> Training:
    """Online DPO samples two responses a prompt, a device's batch at a time."""
    both = 2 * config.device_batch_size
    return _load(config, shape, both, both)


def _with_value(config: TrainConfig, shape: ModelShape, gpus: int) -> Training:
    """PPO trains a value model beside the policy, and keeps the logits of all that a process
    samples for a step, once as they come and once padded."""
    found = _load(config, shape, config.device_batch_size, config.batch_size // gpus)
    return replace(found, learners=2, scores=2)


def _load(
    config: TrainConfig, shape: ModelShape, sequences: int, sampled: int, kept: bool = True
) -> Training:
    """kept: the first policy stays beside the one that learns, unless that is an adapter on it."""
    learner = config.learner
    return Training(
        shape,
        sequences=sequences,
        length=learner.max_prompt_tokens + learner.max_response_tokens,
        lora_rank=learner.lora_rank,
        references=int(kept and learner.lora_rank is None),
        sampled=sampled,
        written=learner.max_response_tokens,
    )


LOADS: dict[str, Callable[[TrainConfig, ModelShape, int], Training]] = {
    "grpo": _grouped,
    "rloo": _grouped,
    "online-dpo": _pairs,
    "ppo": _with_value,
}
