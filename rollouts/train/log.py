"""The judge's health and words in a run's TensorBoard, whatever the trainer logs itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerCallback

from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.stats import batch_figures, health_figures


class JudgeLog(TrainerCallback):
    """At every log entry: the `judge/…` figures and the seconds waited for the judge since the
    last one, fallbacks so far, one critique.

    done: steps of earlier runs that the trainer does not count.
    """

    def __init__(self, model: RewardModel, folder: Path, done: int = 0) -> None:
        self._model = model
        self._done = done
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._waited = 0.0

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write what the judge did since the last call, on the main process alone."""
        recent = self._model.recent()
        if not recent or not state.is_world_process_zero:
            return
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder))
        step = self._done + state.global_step
        candidates, rewards = zip(*recent, strict=True)
        figures = batch_figures(rewards, candidates) | health_figures(self._model.health)
        for name, value in figures.items():
            if not math.isnan(value):
                self._writer.add_scalar(name, value, step)
        self._writer.add_scalar("judge/fallbacks", self._model.fallbacks, step)
        self._writer.add_scalar("judge/wait_seconds", self._model.waited_s - self._waited, step)
        self._waited = self._model.waited_s
        candidate, reward = recent[0]
        text = (
            f"{candidate.query}\n\n---\n\n{candidate.response}\n\n---\n\n"
            f"{reward.judgement.critique}\n\nreward {reward.value}, raw {reward.raw}, "
            f"{reward.judgement.outcome.value}"
        )
        # TensorBoard renders markdown; indented, untrusted text stays text.
        shown = "\n".join(f"    {line}" for line in text.splitlines())
        self._writer.add_text("judge/sample", shown, step)
        self._writer.flush()
