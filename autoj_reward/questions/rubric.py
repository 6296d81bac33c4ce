"""Score of one response by the items of a rubric.

The score is the sum of points times the share of each item, divided by the sum of positive points,
as in HealthBench. The share of an item is the probability that its criterion holds, or the
verdict's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from autoj_reward.config import RubricConfig, Vote
from autoj_reward.models.facts import Asks, JudgeFacts
from autoj_reward.questions.ask import Ask, ask_answered
from autoj_reward.questions.rate import Rate
from autoj_reward.rubric_items import RUBRIC, RubricItem
from autoj_reward.types import (
    CHECKLIST,
    RATING,
    Candidate,
    JudgeInput,
    Judgement,
    Outcome,
    Reading,
    concurrent_usage,
)

MET, ABSTAINED, TAG = f"{RUBRIC}/met", f"{RUBRIC}/abstained", f"{RUBRIC}/tag/"
"""Names of the readings that `RubricScore.as_judgement` adds to a rating: mean share of the items
with positive points, share of items without a verdict, and mean share of the items of a tag."""
HELD = 0.5
"""Share from which a criterion counts as holding, for a gate."""
NO_ITEMS = "no rubric items: give the row a list of them under `rubric`, or the run a file of them"


@dataclass(frozen=True, slots=True)
class ItemVerdict:
    """What the judge found on one item."""

    item: RubricItem
    share: float | None
    """Share of the item's points, 0 to 1; None if the judge abstains on it."""
    answer: str = ""
    """The judge's answer, one of the item's choices. Empty if it abstains."""
    reason: str = ""
    """Why it abstains. Empty if it does not."""

    def record(self) -> dict[str, Any]:
        """Return the item and the verdict on it as JSON data."""
        verdict = {"answer": self.answer, "share": self.share, "reason": self.reason}
        return self.item.record() | verdict


@dataclass(frozen=True, slots=True)
class RubricScore:
    """Score of a response by its rubric, with its evidence."""

    score: float | None
    """The score, 0 to 1 unless `clip` is false; None if the judge abstains on the response."""
    reason: str
    """Why there is no score. Empty if there is one."""
    verdicts: tuple[ItemVerdict, ...]
    """Verdict on each item, in the rubric's order. Empty for an overall rating."""
    judgements: tuple[Judgement, ...] = field(repr=False)
    """All judgements behind the score, in the order of asking."""
    gated: bool = False
    """Whether a failed item capped the score."""

    @property
    def abstained(self) -> float:
        """Share of the items without a verdict, 0 to 1."""
        return fmean(verdict.share is None for verdict in self.verdicts) if self.verdicts else 0.0

    @property
    def critique(self) -> str:
        """Texts that the judge wrote; numbered by item if each has its own."""
        texts = [judgement.critique for judgement in self.judgements]
        if len(texts) == 1:
            return texts[0]
        return "\n\n".join(f"{n}. {text}" for n, text in enumerate(texts, 1) if text)

    def record(self) -> dict[str, Any]:
        """Return score and verdicts as JSON values, without the judgements."""
        return {
            "score": self.score,
            "reason": self.reason,
            "items": [verdict.record() for verdict in self.verdicts],
            "abstained": self.abstained,
            "gated": self.gated,
        }

    def as_judgement(self) -> Judgement:
        """Return a judgement whose rating is the score.

        Its further readings are those named above, and one for each item (`item_1`, ...).
        """
        usage = concurrent_usage([judgement.usage for judgement in self.judgements])
        flags = tuple(sorted({flag for judgement in self.judgements for flag in judgement.flags}))
        judge = self.judgements[0].judge if self.judgements else ""
        if self.score is None:
            failure = next(
                (judgement.outcome for judgement in self.judgements if not judgement.ok), None
            )
            outcome = failure or (Outcome.UNPARSABLE if self.judgements else Outcome.INPUT_REJECTED)
            return Judgement(outcome, self.reason, self.critique, (), usage, judge, flags)
        is_forced = any(judgement.forced for judgement in self.judgements)
        rating = Reading(
            RATING, f"{self.score:g}", self.score, expected=self.score, forced=is_forced
        )
        readings = (rating, *self._yield_readings())
        return Judgement(Outcome.OK, "", self.critique, readings, usage, judge, flags)

    def _yield_readings(self) -> Iterator[Reading]:
        shares_by_name: dict[str, list[float]] = {}
        for n, verdict in enumerate(self.verdicts, 1):
            if verdict.share is None:
                continue
            yield Reading(f"item_{n}", verdict.answer, verdict.share)
            names = [MET] if verdict.item.points > 0 else []
            for name in (*names, *(TAG + tag for tag in verdict.item.tags)):
                shares_by_name.setdefault(name, []).append(verdict.share)
        means = {name: fmean(shares) for name, shares in shares_by_name.items()}
        if self.verdicts:
            means[ABSTAINED] = self.abstained
        yield from (Reading(name, f"{value:g}", value) for name, value in means.items())


@dataclass(frozen=True, slots=True)
class ScoreRubric:
    """Question: how much of its rubric does a response meet?"""

    candidate: Candidate
    items: tuple[RubricItem, ...]
    """Items of the rubric. Without any the judge abstains."""
    how: RubricConfig
    scale: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest rating of the judge's format, for an overall rating."""
    max_items: int = 1
    """Largest number of items in one judge call."""
    critiques: int = 1
    """Number of sampled critiques of an overall rating."""
    vote: Vote = "mean"
    """How their numbers make one."""

    def inputs(self) -> list[JudgeInput]:
        """Return the inputs for the judge."""
        if not self.items:
            return []
        candidate = self.candidate
        if self.how.by == "overall":
            return self._overall.inputs()
        return [
            JudgeInput(
                CHECKLIST,
                candidate.prompt,
                (candidate.response,),
                context=candidate.context,
                items=tuple(self.items[n].question for n in part),
                points=tuple(self.items[n].points for n in part),
            )
            for part in self._split_items()
        ]

    @property
    def most_inputs(self) -> int:
        """Return the number of judge inputs."""
        if self.items and self.how.by == "overall":
            return self.critiques
        return math.ceil(len(self.items) / self._size)

    @property
    def _size(self) -> int:
        """Return the largest number of items that one judgement shows."""
        return self.max_items if self.how.by == "checklist" else 1

    @property
    def _overall(self) -> Rate:
        """Return the rating of the response beside a text of all items."""
        rubric_text = "\n".join(_format_item(self.items[n]) for n in self._shuffle_items())
        candidate = Candidate(
            self.candidate.prompt,
            self.candidate.response,
            context={**self.candidate.context, RUBRIC: rubric_text},
        )
        return Rate(candidate, self.critiques, vote=self.vote)

    def _shuffle_items(self) -> list[int]:
        """Return the items' numbers in a random order that the items and the seed determine."""
        order = list(range(len(self.items)))
        key = "\0".join([str(self.how.seed), *(item.criterion for item in self.items)])
        # A criterion may hold half of a surrogate pair; then the judge rejects what shows it.
        random.Random(key.encode("utf-8", "surrogatepass")).shuffle(order)
        return order

    def _split_items(self) -> list[list[int]]:
        """Return the numbers of the items that each judgement shows, in the order shown."""
        order = (
            self._shuffle_items() if self.how.by == "checklist" else list(range(len(self.items)))
        )
        return [order[n : n + self._size] for n in range(0, len(order), self._size)]

    async def answer(self, ask: Ask) -> RubricScore:
        """Return the score and the verdicts behind it."""
        if not self.items:
            return RubricScore(None, NO_ITEMS, (), ())
        if self.how.by == "overall":
            return self._score_overall(await self._overall.answer(ask))
        answers = await ask_answered(ask, self.inputs())
        verdicts = dict[int, ItemVerdict]()
        for part, judgement in zip(self._split_items(), answers, strict=True):
            for place, n in enumerate(part, 1):
                verdicts[n] = read_item(self.items[n], judgement, place, self.how.hard)
        return self._score_items([verdicts[n] for n in range(len(self.items))], tuple(answers))

    def _score_overall(self, judgement: Judgement) -> RubricScore:
        if not judgement.ok:
            return RubricScore(None, judgement.reason, (), (judgement,))
        low, high = self.scale
        value = judgement.rating if self.how.hard else judgement.expected
        value = judgement.rating if value is None else value
        assert value is not None  # a rating that is ok has a number
        return RubricScore((value - low) / (high - low), "", (), (judgement,))

    def _score_items(
        self, verdicts: Sequence[ItemVerdict], judgements: tuple[Judgement, ...]
    ) -> RubricScore:
        item_shares = [
            (verdict.item, verdict.share) for verdict in verdicts if verdict.share is not None
        ]
        max_points = sum(item.points for item, _ in item_shares if item.points > 0)
        if 2 * len(item_shares) < len(verdicts) or max_points <= 0:
            why = next((verdict.reason for verdict in verdicts if verdict.share is None), "")
            reason = (
                f"{len(verdicts) - len(item_shares)} of {len(verdicts)} items have no verdict: "
                f"{why}"
            )
            return RubricScore(None, reason, tuple(verdicts), judgements)
        score = sum(item.points * share for item, share in item_shares) / max_points
        if self.how.clip:
            score = min(1.0, max(0.0, score))
        gate = self.how.gate
        if gate is None:
            return RubricScore(score, "", tuple(verdicts), judgements)
        passed = [_passes(verdict) for verdict in verdicts if verdict.item.kind == gate.kind]
        if False in passed:
            return RubricScore(min(score, gate.cap), "", tuple(verdicts), judgements, True)
        if None in passed:
            why = next(v.reason for v in verdicts if v.item.kind == gate.kind and v.share is None)
            reason = f"an item of the gate has no verdict, so that the gate is unknown: {why}"
            return RubricScore(None, reason, tuple(verdicts), judgements)
        return RubricScore(score, "", tuple(verdicts), judgements)


def _passes(verdict: ItemVerdict) -> bool | None:
    """Return whether an item is passed, or for one with negative points avoided; None if that is
    unknown."""
    if verdict.share is None:
        return None
    return (verdict.share >= HELD) != (verdict.item.points < 0)


def read_item(
    item: RubricItem, judgement: Judgement, place: int, hard: bool = False
) -> ItemVerdict:
    """Return the verdict on an item in a judgement that shows it.

    place: number of the item in the judgement, from 1. hard: whether the written answer counts even
    if its probability is known.
    """
    reading = judgement.reading(f"item_{place}")
    shares_by_answer = dict(item.choices)
    if reading is None or reading.label not in shares_by_answer:
        reason = judgement.why if not judgement.ok else "the judge gave it no answer"
        if judgement.spoiled():  # no gain from a text that imitates a verdict
            shares = [share for _, share in item.choices]
            worst_share = min(shares) if item.points > 0 else max(shares)
            return ItemVerdict(item, worst_share, "", reason)
        return ItemVerdict(item, None, "", reason)
    expected_share = None if hard else reading.expected
    share = shares_by_answer[reading.label] if expected_share is None else expected_share
    return ItemVerdict(item, share, reading.label)


def _format_item(item: RubricItem) -> str:
    """Return an item as a line of the text that an overall rating shows."""
    worth = f"{item.points:+g} points"
    if item.choices[0][1] != 1 or len(item.choices) > 2:
        worth = ", ".join(f"{label}: {item.points * share:+g}" for label, share in item.choices)
    return f"- ({worth}) {' '.join(item.criterion.split())}"


def rubric_question(
    candidate: Candidate, facts: JudgeFacts, asks: Asks, how: RubricConfig | None = None
) -> ScoreRubric:
    """Return the question that scores a response by its rubric.

    The items are the candidate's, else those of the file `how.items`. Without any,
    the question abstains. how: None stands for `JudgeFacts.default_rubric`. Raises ConfigError if
    this judge cannot score that way.
    """
    how = how or facts.default_rubric
    facts.require_rubric(how, asks)
    shown_candidate = candidate.for_judge(asks)
    items = candidate.rubric or how.load()
    scale, max_items = facts.scale or (0.0, 1.0), facts.max_items or 1
    return ScoreRubric(shown_candidate, items, how, scale, max_items, asks.critiques, asks.vote)
