"""One query's candidates on their way through a budget: what was read and written, what is left."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from autoj_reward.questions.aggregate import mean_of_critiques, swap_consistent
from autoj_reward.questions.bounds import Bound, slot_variance, spread_of_means
from autoj_reward.types import (
    SINGLE,
    Candidate,
    Comparison,
    Contest,
    JudgeInput,
    Judgement,
    Outcome,
    Usage,
    Verdict,
)

Ask = Callable[[Sequence[JudgeInput]], Awaitable[list[Judgement]]]
"""One judgement an input, in order."""


class Fate(StrEnum):
    """What became of a candidate: judged in full, abandoned after its cheap reading because it
    could not win or because the budget was used up, or the same text as another."""

    JUDGED = "judged"
    CANNOT_WIN = "cannot_win"
    OUT_OF_BUDGET = "out_of_budget"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a candidate ended, and why.

    cheap: expected rating right after the prompt; None if it was not asked for or not readable.
    critiques: written of it. copy_of: index of the candidate whose judgement it shares.
    """

    fate: Fate
    cheap: float | None = None
    critiques: int = 0
    why: str = ""
    copy_of: int | None = None


@dataclass(frozen=True, slots=True)
class Spending:
    """What a selection cost beside full judging. Tokens of the budget are those written.

    cheap, critiques, comparisons: cost of each kind. readings, asked, orders: how many of each
        were asked for, comparisons by order. skipped: critiques that full judging would have asked
        for besides.
    full_tokens: estimate of what full judging would have written: the mean critique that was
        written here, times the critiques of all responses that differ. A judgement that was never
        written, since the judge could not be reached, say, counts in none of this.
    """

    cheap: Usage
    critiques: Usage
    comparisons: Usage
    readings: int
    asked: int
    orders: int
    skipped: int
    full_tokens: float

    @property
    def usage(self) -> Usage:
        return self.cheap + self.critiques + self.comparisons


class Race:
    """The candidates of one query on their way, and what has been spent on them."""

    def __init__(
        self, candidates: Sequence[Candidate], ask: Ask, share: float, k: int, view: str
    ) -> None:
        self._candidates, self._ask, self._k, self._view = candidates, ask, k, view
        self._texts = texts = [(c.response, c.context) for c in candidates]
        # Copies are the very same text: a word more or less may be all that is right or wrong.
        first = {text: i for i, text in reversed(list(enumerate(texts)))}
        self._original = [first[t] if share < 1 else i for i, t in enumerate(texts)]
        self.entrants = sorted(set(self._original))
        self._full = k * len(first)
        self._share = share
        self._glances: dict[int, Judgement] = {}
        self._slot = 0.0
        self.samples: dict[int, list[Judgement]] = {}
        self._abandoned: dict[int, tuple[Fate, str]] = {}
        self._orders: list[Judgement] = []

    def _room(self, kept: float = 0.0) -> int:
        """Mean critiques that the budget still allows, a share of it kept back."""
        if self._share >= 1:
            return self._full
        critiques = self._critiques()
        mean = _mean_written(critiques)
        cheap = sum(j.usage.tokens_out for j in self._glances.values()) / mean if mean else 0.0
        started = len(_written([*critiques, *self._orders]))
        return math.floor(self._share * (1 - kept) * self._full - cheap - started + 1e-9)

    async def glance(self) -> None:
        """The cheap pass."""
        asked = [self._input(i, direct=True) for i in self.entrants]
        self._glances = dict(zip(self.entrants, await self._ask(asked), strict=True))
        self._slot = slot_variance(list(self._glances.values()))

    def _input(self, index: int, sample: int = 0, direct: bool = False) -> JudgeInput:
        own = self._candidates[index]
        return JudgeInput(SINGLE, own.query, (own.response,), sample, direct, own.context)

    async def critique(self, wanted: Sequence[tuple[int, int]]) -> None:
        """Ask for critiques, named by candidate and sample."""
        answers = await self._ask([self._input(i, sample) for i, sample in wanted])
        for (index, _), answer in zip(wanted, answers, strict=True):
            self.samples.setdefault(index, []).append(answer)

    async def waves(self, kept: float) -> None:
        """First critiques, of the most promising first."""
        waiting = sorted(self.entrants, key=lambda i: -self._cheap(i, -math.inf))
        size = 1
        while waiting and size > 0:
            await self.critique([(i, 0) for i in waiting[:size]])
            waiting = self._able(waiting[size:])
            room = self._room(kept)
            if len(self.samples) < 2:  # one alone leaves nothing to repeat or to compare
                room = max(room, min(1, self._room()))
            size = -(-room // 2) if self._means() else 1
        out = Fate.OUT_OF_BUDGET, "the budget was used up"
        self._abandoned |= dict.fromkeys(waiting, out)

    def _cheap(self, index: int, unread: float = math.nan) -> float:
        found = self._glances[index].view("expected") if index in self._glances else None
        return unread if found is None else found

    def _able(self, waiting: list[int]) -> list[int]:
        """Those that can still win; why the others cannot is noted."""
        means = self._means()
        if not means:
            return waiting
        top = max(means, key=means.__getitem__)
        least = means[top] - Bound.z * self._errors().get(top, 0.0)
        known = [(c, means[i]) for i in means if not math.isnan(c := self._cheap(i))]
        bound = Bound.fitted(known, self._slot)
        left = []
        for i in waiting:
            upper = bound.upper(self._cheap(i))
            if upper < least:
                why = f"at most {upper:.2f} by its bound, below {least:.2f}"
                self._abandoned[i] = Fate.CANNOT_WIN, why
            else:
                left.append(i)
        return left

    def _means(self) -> dict[int, float]:
        """Mean view of those that have one."""
        found = {i: mean_of_critiques(own).view(self._view) for i, own in self.samples.items()}
        return {i: value for i, value in found.items() if value is not None}

    def _errors(self) -> dict[int, float]:
        """Standard errors of the means; none where k is 1, since nothing is drawn then."""
        if self._k == 1:
            return {}
        drawn = {
            i: [v for j in own if (v := j.view(self._view)) is not None]
            for i, own in self.samples.items()
        }
        return spread_of_means({i: values for i, values in drawn.items() if values}, self._slot)

    async def repeat(self, kept: float) -> None:
        """More critiques while the order at the top is uncertain."""
        while self._k > 1 and (means := self._means()):
            errors = self._errors()
            top = max(means, key=means.__getitem__)
            rivals = [
                i
                for i in sorted(means, key=lambda i: -means[i])
                if i != top and means[top] - means[i] < Bound.z * math.hypot(errors[top], errors[i])
            ]
            unsure = [top, *rivals] if rivals else []
            wanted = [(i, n) for i in unsure if (n := len(self.samples[i])) < self._k]
            wanted = wanted[: max(0, self._room(kept))]
            if not wanted:
                return
            await self.critique(wanted)

    async def compare(self, pairs: Sequence[Contest]) -> list[Comparison]:
        """Both orders of each, or FAILED if the budget does not allow them."""
        return [await self._compare(pair) for pair in pairs]

    async def _compare(self, pair: Contest) -> Comparison:
        if self._room() < 2:
            return Comparison(Verdict.FAILED, (), "the budget was used up")
        answers = await self._ask(pair.inputs())
        self._orders += answers
        return swap_consistent(*answers)

    def judgements(self) -> list[Judgement]:
        """One a candidate, in order."""
        found = {i: self._judgement(i) for i in self.entrants}
        return [
            found[own] if own == i else _copied(found[own]) for i, own in enumerate(self._original)
        ]

    def _judgement(self, index: int) -> Judgement:
        glance = self._glances.get(index)
        if index not in self.samples:
            assert glance is not None  # whom nobody glanced at was judged
            if not glance.ok:
                return replace(glance, reason=f"cheap reading: {glance.reason or glance.outcome}")
            return Judgement(
                Outcome.ABANDONED,
                reason=f"after the cheap reading: {self._abandoned[index][1]}",
                usage=glance.usage,
                judge=glance.judge,
                flags=glance.flags,
            )
        own = mean_of_critiques(self.samples[index]).with_number(self._view)
        if glance is None:
            return own
        if own.rating is not None and own.direct is None:
            return own.with_direct(glance)
        return replace(own, usage=own.usage + glance.usage)

    def standings(self) -> list[Standing]:
        """One a candidate, in order."""
        found = []
        for i, own in enumerate(self._original):
            cheap = self._glances[own].view("expected") if own in self._glances else None
            written = len(self.samples.get(own, ()))
            if own != i:
                found.append(Standing(Fate.COPY, cheap, 0, f"a copy of candidate {own}", own))
            elif written:
                found.append(Standing(Fate.JUDGED, cheap, written))
            else:
                fate, why = self._abandoned[i]
                found.append(Standing(fate, cheap, 0, why))
        return found

    def spending(self) -> Spending:
        """What has been spent so far."""
        critiques = self._critiques()
        return Spending(
            cheap=sum((j.usage for j in self._glances.values()), Usage()),
            critiques=sum((j.usage for j in critiques), Usage()),
            comparisons=sum((j.usage for j in self._orders), Usage()),
            readings=len(self._glances),
            asked=len(critiques),
            orders=len(self._orders),
            skipped=self._full - len(critiques) if self._share < 1 else 0,
            full_tokens=_mean_written(critiques) * self._full,
        )

    def _critiques(self) -> list[Judgement]:
        """Those asked for so far, of equal texts once."""
        by_text = {self._texts[i]: own for i, own in self.samples.items()}
        return [j for own in by_text.values() for j in own]


def _written(judgements: Sequence[Judgement]) -> list[Judgement]:
    return [j for j in judgements if j.ok or j.usage.tokens_out]


def _mean_written(judgements: Sequence[Judgement]) -> float:
    """Mean tokens of the judgements that were written; 0 without any."""
    written = _written(judgements)
    return sum(j.usage.tokens_out for j in written) / len(written) if written else 0.0


def _copied(judgement: Judgement) -> Judgement:
    flags = tuple(sorted({*judgement.flags, "copied_judgement"}))
    return replace(judgement, usage=Usage(), flags=flags)
