"""Training by TRL's GRPO, RLOO and online DPO trainers, from start to saved policy.

GRPO and RLOO compare the responses to a query with each other. Online DPO samples two responses,
and the judge says which is better. PPO has a module of its own.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerCallback

from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.stats import batch_metrics, health_figures, tag_metrics
from autoj_reward.trainer.trl import GRPOReward, OnlineDPOReward
from autoj_reward.training.saving import train_on
from rollouts.train.learner import (
    Learner,
    TrainConfig,
    load_policy,
    lora,
    model_options,
    trainer_arguments,
)


def train_grpo(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Train with TRL's GRPOTrainer to the end, from the last checkpoint if there is one."""
    from trl import GRPOConfig, GRPOTrainer

    _train_groups(config, learner, reward, (GRPOTrainer, GRPOConfig))


def train_rloo(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Train with TRL's RLOOTrainer to the end, from the last checkpoint if there is one."""
    from trl import RLOOConfig, RLOOTrainer

    _train_groups(config, learner, reward, (RLOOTrainer, RLOOConfig))


def _train_groups(
    config: TrainConfig, learner: Learner, reward: RewardModel, kind: tuple[Any, Any]
) -> None:
    extra_arguments = {
        "num_generations": config.group,
        "max_completion_length": config.learner.max_response_tokens,
        "model_init_kwargs": model_options(config.learner),
    }
    # By name, since RLOO loads its reference by the policy's name.
    model, judge = learner.path, GRPOReward(reward).judge
    run_trainer(config, learner, reward, kind, extra_arguments, model=model, reward_funcs=judge)


def train_online_dpo(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Train with TRL's OnlineDPOTrainer on decided pairs; resume from the last checkpoint."""
    from trl.experimental.online_dpo import OnlineDPOConfig

    from autoj_reward.trainer.online_dpo import DecidedPairsTrainer

    adapter, limits = OnlineDPOReward(reward), config.learner
    extra_arguments = {
        "max_new_tokens": limits.max_response_tokens,
        "max_length": limits.max_prompt_tokens + limits.max_response_tokens,
    }
    run_trainer(
        config,
        learner,
        reward,
        (DecidedPairsTrainer, OnlineDPOConfig),
        extra_arguments,
        model=load_policy(config.learner, learner.path, learner.tokenizer),
        reward_funcs=adapter.compare if config.pairwise else adapter.judge,
    )


def run_trainer(
    config: TrainConfig,
    learner: Learner,
    reward: RewardModel,
    kind: tuple[Any, Any],
    extra_arguments: dict[str, Any],
    **parts: Any,
) -> None:
    """Train to the end, from the last checkpoint if there is one, and save the policy.

    kind: the trainer's class and the class of its arguments. extra_arguments:
    arguments that only this trainer has.
    parts: `model` and `reward_funcs` of the trainer.
    """
    make, make_arguments = kind
    args = trainer_arguments(config) | {
        "max_steps": config.steps,
        "temperature": config.learner.temperature,
        "beta": config.kl,
        **extra_arguments,
        **config.trainer,
    }
    trainer = make(
        args=make_arguments(**args),
        train_dataset=Dataset.from_dict(learner.rows),
        processing_class=learner.tokenizer,
        peft_config=lora(config.learner),
        **parts,
    )
    JudgeLog(reward, config.output / "logs").attach(trainer)
    train_on(trainer, config.output)
    trainer.save_model(str(config.output / "policy"))


class JudgeLog(TrainerCallback):
    """Callback that adds the judge's metrics to every log entry of the trainer.

    They are the `judge/…` metrics and the seconds waited since the last entry, and the fallbacks so
    far. TensorBoard gets them here, with one critique; other trackers of `report_to` as part of the
    entry. earlier_steps: steps of earlier runs that the trainer does not count.
    """

    def __init__(self, model: RewardModel, folder: Path, earlier_steps: int = 0) -> None:
        self._model = model
        self._earlier_steps = earlier_steps
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._waited = 0.0

    def attach(self, trainer: Any) -> None:
        """Make the trainer call this before the callbacks that report its log entries."""
        trainer.callback_handler.callbacks.insert(0, self)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        """Add the judge's metrics since the last call, on the main process only."""
        recent = self._model.recent()
        if not recent or not state.is_world_process_zero:
            return
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder))
        step = self._earlier_steps + state.global_step
        candidates, rewards = zip(*recent, strict=True)
        figures = batch_metrics(rewards, candidates, self._model.config) | tag_metrics(rewards)
        figures |= health_figures(self._model.health)
        figures["judge/fallbacks"] = self._model.fallbacks
        figures["judge/wait_seconds"] = self._model.waited_s - self._waited
        self._waited = self._model.waited_s
        finite_figures = {name: value for name, value in figures.items() if not math.isnan(value)}
        for name, value in finite_figures.items():
            self._writer.add_scalar(name, value, step)
        if set(args.report_to) - {"tensorboard"}:
            for name, value in finite_figures.items():
                logs.setdefault(name, value)  # TRL averages its own over all processes
        candidate, reward = recent[0]
        text = (
            f"{candidate.prompt.text}\n\n---\n\n{candidate.response.text}\n\n---\n\n"
            f"{reward.judgement.critique}\n\nreward {reward.value}, raw {reward.raw}, "
            f"{reward.judgement.outcome.value}"
        )
        # TensorBoard renders markdown; indented, untrusted text stays text.
        quoted_text = "\n".join(f"    {line}" for line in text.splitlines())
        self._writer.add_text("judge/sample", quoted_text, step)
        self._writer.flush()
