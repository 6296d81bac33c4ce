"""What each algorithm's step takes of a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable

from autoj_reward.capacity.memory import Training
from autoj_reward.capacity.shape import ModelShape, find_shape
from rollouts.train.config import TrainConfig


def load(config: TrainConfig, algorithm: str, gpus: int) -> Training:
    """The load of a step on each of so many GPUs. Raises ModelError for a shape not known."""
    return LOADS[algorithm](config, find_shape(config.learner.model), gpus)


def _grouped(config: TrainConfig, shape: ModelShape, gpus: int) -> Training:
    """GRPO and RLOO sample a whole step at once, and keep the first policy beside full weights."""
    learner = config.learner
    return Training(
        shape,
        sequences=config.device_batch_size,
        length=learner.max_prompt_tokens + learner.max_response_tokens,
        lora_rank=learner.lora_rank,
        references=int(config.kl > 0 and learner.lora_rank is None),
        sampled=config.batch_size // gpus,
        written=learner.max_response_tokens,
    )


def _pairs(config: TrainConfig, shape: ModelShape, gpus: int) -> Training:
    """Online DPO samples two responses a prompt, a device's batch at a time."""
    learner, both = config.learner, 2 * config.device_batch_size
    return Training(
        shape,
        sequences=both,
        length=learner.max_prompt_tokens + learner.max_response_tokens,
        lora_rank=learner.lora_rank,
        references=int(learner.lora_rank is None),
        sampled=both,
        written=learner.max_response_tokens,
    )


def _with_value(config: TrainConfig, shape: ModelShape, gpus: int) -> Training:
    """PPO trains a value model beside the policy, and keeps the logits of all that a process
    samples for a step, once as they come and once padded."""
    learner = config.learner
    return Training(
        shape,
        sequences=config.device_batch_size,
        length=learner.max_prompt_tokens + learner.max_response_tokens,
        lora_rank=learner.lora_rank,
        learners=2,
        references=int(learner.lora_rank is None),
        sampled=config.batch_size // gpus,
        written=learner.max_response_tokens,
        scores=2,
    )


LOADS: dict[str, Callable[[TrainConfig, ModelShape, int], Training]] = {
    "grpo": _grouped,
    "rloo": _grouped,
    "online-dpo": _pairs,
    "ppo": _with_value,
}
