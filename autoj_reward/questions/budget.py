"""Best-of-N for less: critiques only for candidates that can still win, within a token budget.

Judge tokens are those that the judge writes: they are what a critique costs, they depend on
no cache, and reading is reported beside them. Full judging is k critiques of every response
that differs. The budget is `share` (over 0, at most 1) of its tokens, every critique taken at
the mean length of this query's so far. Nothing is started that would not fit: neither a
critique nor one order of a comparison, each taken as one mean critique. So there are never
more of them than `share` of full judging's critiques, less what the cheap pass wrote; but as
long as no candidate has a value, the next one gets its first critique. In tokens that is exact
as far as lengths are equal. What the judge never wrote, since it failed before, costs nothing.

1. Copies, the very same text, are judged once, as the first of them.
2. Cheap pass: the expected rating at the slot right after the prompt, of every original.
3. Critiques in waves, highest cheap rating first: one, whose length tells what the cheap pass
   was worth, then each time half of what the budget still allows. After a wave, whoever waits
   is abandoned if it cannot win: its upper bound (`bounds.Bound`) is below the best rating so
   far, less that one's own error where k > 1. When the budget is used up, the rest is
   abandoned. Unreadable candidates wait last.
4. With k > 1, the waves ask one critique each, for half of the budget but of two candidates;
   then the best by mean and all whose mean is less than `Bound.z` standard errors of the
   difference below it get one more, until there is no such other, k is reached or the budget
   is used up.
5. The best is chosen by `tie_break.choose` among those that were judged; `pairwise` plays
   while the budget lasts, and a match that it does not allow decides nothing. Where it is the
   first rule, a quarter of the budget is kept for it.

A share of 1 is full judging: no cheap pass, no copies, nothing abandoned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from autoj_reward.config import View
from autoj_reward.errors import ConfigError
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.bounds import Bound, slot_variance, spread_of_means
from autoj_reward.questions.compare import Compare
from autoj_reward.questions.rate import Rate, mean_of_critiques
from autoj_reward.types import (
    Candidate,
    Comparison,
    JudgeInput,
    Judgement,
    Outcome,
    Usage,
    Verdict,
)

FINALS = 0.25
"""Share of the budget kept for comparisons where `pairwise` is the first tie-break."""
FIRST = 0.5
"""Share of the budget for first critiques where k > 1; the rest repeats critiques at the top."""


def require_cheap_pass(views: frozenset[View]) -> None:
    """Raise ConfigError unless the judge gives the rating distribution right after the prompt."""
    if "direct" not in views:
        raise ConfigError(
            "budget needs the rating distribution right after the prompt, and this judge's "
            "endpoint does not tell it (vLLM and SGLang do): leave budget out, or name "
            "judge.tokenizer"
        )


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
    """The candidates of one query on their way, and what has been spent on them.

    share: of full judging's tokens, over 0 and at most 1. k: critiques of a response. view: the
    number that ranks. finals: whether a part of the budget is kept for comparisons.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        ask: Ask,
        share: float,
        k: int,
        view: str,
        finals: bool,
    ) -> None:
        self._candidates, self._k, self._view = candidates, k, view
        self._asked, self._known = ask, dict[JudgeInput, Judgement]()
        self._kept = FINALS if finals else 0.0
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

    async def run(self) -> None:
        """Read and criticise within the budget, less what is kept for comparisons."""
        if self._share >= 1:
            await self._critique([(i, s) for i in self.entrants for s in range(self._k)])
            return
        await self._glance()
        await self._waves(1 - (1 - self._kept) * (FIRST if self._k > 1 else 1))
        await self._repeat(self._kept)

    async def _ask(self, items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
        """Ask; what this race has asked for before costs nothing again."""
        known = {item: own for item in items if (own := self._known.get(item))}
        new = list(dict.fromkeys(item for item in items if item not in known))
        answers = await self._asked(new, view) if new else []
        self._known |= dict(zip(new, answers, strict=True))
        return [
            replace(known[item], usage=Usage()) if item in known else self._known[item]
            for item in items
        ]

    async def _glance(self) -> None:
        """The cheap pass."""
        asked = [Rate(self._candidates[i], direct=True).inputs()[0] for i in self.entrants]
        self._glances = dict(zip(self.entrants, await self._ask(asked), strict=True))
        self._slot = slot_variance(list(self._glances.values()))

    async def _critique(self, wanted: Sequence[tuple[int, int]]) -> None:
        """Ask for critiques, named by candidate and sample."""
        inputs = {i: Rate(self._candidates[i], self._k).inputs() for i, _ in wanted}
        answers = await self._ask([inputs[i][sample] for i, sample in wanted])
        for (index, _), answer in zip(wanted, answers, strict=True):
            self.samples.setdefault(index, []).append(answer)

    async def _waves(self, kept: float) -> None:
        """First critiques, of the most promising first."""
        waiting = sorted(self.entrants, key=lambda i: -self._cheap(i, -math.inf))
        size = 1
        while waiting and size > 0:
            await self._critique([(i, 0) for i in waiting[:size]])
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

    async def _repeat(self, kept: float) -> None:
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
            await self._critique(wanted)

    async def compare(self, question: Compare) -> Comparison:
        """Compare two candidates, or FAILED if the budget does not allow both orders."""
        if self._room() < 2:
            return Comparison(Verdict.FAILED, (), "the budget was used up")
        comparison = await question.answer(self._ask)
        self._orders += comparison.orders
        return comparison

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
