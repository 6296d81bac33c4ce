"""What a scalar reward model makes of held-out pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import TrainerCallback

from autoj_reward.evaluate.statistics import Estimate, bootstrap, difference, share
from autoj_reward.models.classifier import scores
from autoj_reward.training.scalar.pairs import Preference

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Validation:
    """Readings on held-out pairs, with intervals by bootstrap over queries.

    accuracy: share of pairs whose chosen response has the higher reward, equal ones counting half.
    length_accuracy: the same with the response's length in characters for a reward, on the same
        pairs; over_length: the difference of the two. margin: mean reward of the chosen response
        less that of the rejected. loss: Bradley-Terry, without margin and centring. mean_reward,
        reward_sd: of all responses.
    """

    accuracy: Estimate
    length_accuracy: Estimate
    over_length: Estimate
    margin: Estimate
    loss: float
    mean_reward: float
    reward_sd: float


def validate(chosen: Numbers, rejected: Numbers, pairs: Sequence[Preference]) -> Validation:
    """The readings of the rewards of the pairs' two sides, one number a pair each."""
    queries = [pair.query for pair in pairs]
    gaps = chosen - rejected
    right = share(wins(gaps))
    longer = share(wins(np.array([pair.extra_characters for pair in pairs], dtype=float)))
    everything = np.concatenate([chosen, rejected])
    return Validation(
        accuracy=bootstrap(right, len(pairs), groups=queries),
        length_accuracy=bootstrap(longer, len(pairs), groups=queries),
        over_length=bootstrap(difference(right, longer), len(pairs), groups=queries),
        margin=bootstrap(lambda rows: float(gaps[rows].mean()), len(pairs), groups=queries),
        loss=float(np.logaddexp(0, -gaps).mean()),
        mean_reward=float(everything.mean()),
        reward_sd=float(everything.std()),
    )


def wins(gaps: Numbers) -> Numbers:
    """1 for each positive number, a half for 0."""
    return np.where(gaps == 0, 0.5, gaps > 0)


def rewards(model: Any, rows: Sequence[Sequence[int]], pad: int, batch_size: int) -> Numbers:
    """The rewards of token sequences, in their order. Leaves the model in evaluation mode."""
    model.eval()
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    found = np.empty(len(rows))
    for start in range(0, len(order), batch_size):
        some = order[start : start + batch_size]
        found[some] = scores(model, [rows[row] for row in some], pad, use_cache=False)
    return found


def rewards_of(
    model: Any, pairs: Sequence[Preference], pad: int, batch_size: int
) -> tuple[Numbers, Numbers]:
    """Rewards of the chosen and of the rejected responses, in the pairs' order."""
    sides = [pair.chosen_ids for pair in pairs] + [pair.rejected_ids for pair in pairs]
    found = rewards(model, sides, pad, batch_size)
    return found[: len(pairs)], found[len(pairs) :]


class EveryEpoch(TrainerCallback):
    """Validates after the last step of each epoch, before the Trainer's checkpoint of that step,
    so that a run that goes on from it knows the reading.

    TRL's own evaluation averages over batches, whatever their size, and knows no queries.
    """

    def __init__(self, pairs: Sequence[Preference], steps: int) -> None:
        self.pairs, self.steps = pairs, steps
        self.trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.pairs and state.global_step % self.steps == 0:
            found = self.read()
            shown = {
                "accuracy": found.accuracy.value,
                "accuracy_low": found.accuracy.low,
                "accuracy_high": found.accuracy.high,
                "loss": found.loss,
                "margin": found.margin.value,
            }
            # Logged in evaluation mode, TRL does not mix it with its figures of the training.
            self.trainer.log({f"eval_{k}": v for k, v in shown.items() if v is not None})
            self.trainer.model.train()

    def read(self) -> Validation:
        """What the model in training makes of the pairs now."""
        trainer = self.trainer
        pad, size = trainer.processing_class.pad_token_id, trainer.args.per_device_eval_batch_size
        with trainer.accelerator.autocast():
            return validate(*rewards_of(trainer.model, self.pairs, pad, size), self.pairs)
