"""Alarms of a judge in training: verdicts that have collapsed, and outputs that hold none."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from autoj_reward.training.judge.outputs import JudgedOutput
from autoj_reward.training.judge.questions import COMPARED, PREFERRED, RANKED, RATED
from autoj_reward.training.judge.rewards import find_leaders
from autoj_reward.types import Verdict

WINDOW = 256
"""Last outputs that an alarm looks at."""
LEAST = 32
"""Outputs from which on it does."""
COLLAPSED = 0.95
"""Share of one verdict, or of one rating, from which on an alarm is raised."""
FEW = 0.5
"""Share of outputs with a verdict of their own below which an alarm is raised."""


class Alarms(TrainerCallback, ExportableState):
    """Watch for outputs that fall into one verdict, rating or place, or hold no verdict.

    An alarm is printed when it begins and when it ends. As a callback of the trainer it has
    its alarms kept in checkpoints, so that `raised` lists those before a resume too.
    """

    def __init__(self, window: int = WINDOW, prints: bool = True) -> None:
        """window: last outputs that are looked at. prints: whether this process prints, as one of
        several does."""
        self._prints = prints
        self._recent: deque[JudgedOutput] = deque(maxlen=window)
        self.active: dict[str, str] = {}
        """Alarms that hold now: name and text."""
        self.raised: list[str] = []
        """Texts of all alarms so far."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"args": {}, "attributes": {"raised": self.raised}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add the alarms of the checkpoint, if the run resumes from one."""
        kept = state.stateful_callbacks.get(type(self).__name__)
        if state.global_step and kept:
            self.raised = list(kept["attributes"]["raised"])

    def look(self, outputs: Sequence[JudgedOutput], step: int) -> None:
        """Take the outputs of a step into account, and print what begins or ends."""
        self._recent.extend(outputs)
        found = dict(self._find())
        for name, text in found.items():
            if name not in self.active:
                # No setting of the training is to blame for what it starts from.
                when = f"step {step}" if step else "step 0, before any training"
                self.raised.append(f"{when}: {text}")
                self._print(f"alarm at {when}: {text}")
        for name in self.active.keys() - found.keys():
            self._print(f"step {step}: the alarm {name!r} has ended")
        self.active = found

    def _print(self, text: str) -> None:
        if self._prints:
            tqdm.write(text, file=sys.stderr)

    def _find(self) -> Iterator[tuple[str, str]]:
        """Yield the name and text of each alarm that the last outputs raise."""
        outputs = list(self._recent)
        if len(outputs) < LEAST:
            return
        parsed = [output for output in outputs if output.parsed]
        if len(parsed) < FEW * len(outputs):
            yield (
                "parse_rate",
                f"{len(parsed)} of the last {len(outputs)} outputs end with a verdict of their "
                "own: raise max_tokens or rewards.ended (method: grpo), or start from a judge that "
                "knows the format (method: sft)",
            )
        compared = [output for output in parsed if output.question.part == COMPARED]
        if len(compared) >= LEAST:
            yield from _find_one_verdict(compared)
        rated = [output for output in parsed if output.question.part in (RATED, PREFERRED)]
        if len(rated) >= LEAST:
            yield from _find_one_rating(rated)
        ranked = [output for output in parsed if output.question.part == RANKED]
        if len(ranked) >= LEAST:
            yield from _find_one_leader(ranked)


def _find_one_verdict(outputs: Sequence[JudgedOutput]) -> Iterator[tuple[str, str]]:
    labels = Counter(output.question.label for output in outputs)
    verdicts = Counter(output.judgement.verdict for output in outputs)
    [(verdict, count)] = verdicts.most_common(1)
    share = count / len(outputs)
    # Labels that are nearly all ties make such verdicts right.
    if share < COLLAPSED or labels[verdict] >= COLLAPSED * len(outputs):
        return
    name = "tie" if verdict is Verdict.TIE else "position"
    yield (
        name,
        f"{share:.0%} of the last {len(outputs)} comparisons decide for {verdict}, whatever the "
        "responses are: lower learning_rate, raise rewards.both_orders or kl (method: grpo) or "
        "beta (dpo), or go back to an earlier checkpoint",
    )


def _find_one_rating(outputs: Sequence[JudgedOutput]) -> Iterator[tuple[str, str]]:
    ratings = Counter(output.judgement.rating for output in outputs)
    [(rating, count)] = ratings.most_common(1)
    references = {output.question.rating for output in outputs if output.question.part == RATED}
    ask_for_one = len(references) == 1 and all(o.question.part == RATED for o in outputs)
    share = count / len(outputs)
    if share < COLLAPSED or ask_for_one:
        return
    yield (
        "rating",
        f"{share:.0%} of the last {len(outputs)} ratings are {rating:g}: lower learning_rate, set "
        "expected: true (method: grpo), so that equal ratings have a signal too, or go back to an "
        "earlier checkpoint",
    )


def _find_one_leader(outputs: Sequence[JudgedOutput]) -> Iterator[tuple[str, str]]:
    leaders = [find_leaders(output) for output in outputs]
    [(leader, count)] = Counter(leaders).most_common(1)
    share = count / len(outputs)
    # Groups that are asked again and again may all have their best response at one place.
    right = sum(len(leader) == 1 and leader[0] in output.question.best for output in outputs)
    if share < COLLAPSED or right >= COLLAPSED * len(outputs):
        return
    places = ", ".join(str(place + 1) for place in leader)
    yield (
        "group",
        f"{share:.0%} of the last {len(outputs)} groups have their best score at place {places}, "
        "whatever the responses are: lower learning_rate, raise kl (method: grpo) or beta (dpo), "
        "or go back to an earlier checkpoint",
    )
