"""Best-of-N within a token budget: critiques only for candidates that can still win.

The budget counts the tokens that the judge generates: they are the cost of a critique and depend on
no cache. Prompt tokens are reported as well. Full judging means k critiques of every distinct
response. The budget is `share` (over 0, at most 1) of its tokens, at the mean critique length of
this query so far.

A critique, or one order of a comparison, starts only if the budget has one mean critique left. So
their number is at most `share` of full judging's critiques, less the cost of the cheap pass.
Exception: while no candidate has a value, the next one gets its first critique. In tokens the limit
is exact as far as lengths are equal. A judgement that failed before the judge wrote anything costs
nothing.

1. Copies (identical texts) are judged once, as the first of them.
2. Cheap pass: the expected rating at the slot right after the prompt, for every distinct response.
3. Critiques follow in waves, highest cheap rating first. The first wave is one critique, whose
   length tells the cost of the cheap pass in critiques. Each later wave is half of what the budget
   still allows. After a wave, a waiting candidate is abandoned if it cannot win: its upper bound
   (`bounds.Bound`) is below the best rating so far, less that one's error if k > 1. When the budget
   is used up, all waiting candidates are abandoned. Candidates without a readable cheap rating come
   last.
4. With k > 1, the waves ask for one critique each and use half of the budget, but at least two
   candidates' critiques. Then the best mean, and all means less than `Bound.z` standard errors of
   the difference below it, get one more critique each. This repeats until no other mean is that
   close, k is reached or the budget is used up.
5. `tie_break.choose` selects the best of the judged candidates. `pairwise` plays matches while the
   budget lasts, and a match that it does not allow decides nothing. If `pairwise` is the first
   rule, a quarter of the budget is reserved for it.

A share of 1 is full judging: no cheap pass, copies judged separately, nothing abandoned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from autoj_reward.config import View, Vote
from autoj_reward.errors import ConfigError
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.bounds import Bound, slot_variance, spread_of_means
from autoj_reward.questions.compare import Compare
from autoj_reward.questions.rate import Rate, vote_of
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
"""Share of the budget reserved for comparisons if `pairwise` is the first tie-break rule."""
FIRST = 0.5
"""Share of the budget for first critiques if k > 1; the rest repeats critiques of the best."""


def require_cheap_pass(views: frozenset[View]) -> None:
    """Raise ConfigError unless the judge gives the rating distribution right after the prompt."""
    if "direct" not in views:
        raise ConfigError(
            "budget needs the rating distribution right after the prompt, and this judge's "
            "endpoint does not tell it (vLLM and SGLang do): leave budget out, or name "
            "judge.tokenizer"
        )


class Fate(StrEnum):
    """Outcome of a candidate in a selection within a budget."""

    JUDGED = "judged"
    """Got at least one critique."""
    CANNOT_WIN = "cannot_win"
    """Abandoned after its cheap rating, since it could not win."""
    OUT_OF_BUDGET = "out_of_budget"
    """Abandoned after its cheap rating, since the budget was used up."""
    COPY = "copy"
    """Has the same text as an earlier candidate."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Result for one candidate of a selection within a budget."""

    fate: Fate
    cheap: float | None = None
    """Expected rating right after the prompt; None if not requested or not readable."""
    critiques: int = 0
    """Number of critiques."""
    why: str = ""
    """Reason for an abandoned candidate or a copy; else empty."""
    copy_of: int | None = None
    """Index of the candidate whose judgement it shares."""


@dataclass(frozen=True, slots=True)
class Spending:
    """Cost of a selection, and of full judging for comparison. The budget counts generated tokens.

    Judgements in which the judge wrote nothing, for example because it was unreachable, do not
    count towards the mean behind `full_tokens`.
    """

    cheap: Usage
    """Cost of the cheap ratings."""
    critiques: Usage
    """Cost of the critiques."""
    comparisons: Usage
    """Cost of the comparisons."""
    readings: int
    """Number of cheap ratings."""
    asked: int
    """Number of critiques."""
    orders: int
    """Number of judged orders of comparisons."""
    skipped: int
    """Critiques that full judging would have requested in addition."""
    full_tokens: float
    """Estimated tokens of full judging: the mean critique's length times the critiques of all
    distinct responses."""

    @property
    def usage(self) -> Usage:
        """Total cost."""
        return self.cheap + self.critiques + self.comparisons


class Race:
    """Selection among one query's candidates within a budget, with its state and spending."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        ask: Ask,
        share: float,
        k: int,
        view: str,
        finals: bool,
        vote: Vote = "mean",
    ) -> None:
        """Prepare the selection; `run` carries it out.

        share: of full judging's tokens, over 0 and at most 1. k: critiques of each response. view:
        the number that ranks. finals: whether to reserve part of the budget for comparisons.
        vote: how the numbers of a response's critiques make one.
        """
        self._candidates, self._k, self._view, self._vote = candidates, k, view, vote
        self._asked, self._known = ask, dict[JudgeInput, Judgement]()
        self._kept = FINALS if finals else 0.0
        self._texts = texts = [(c.response, c.context) for c in candidates]
        # Only identical texts are copies: one word may make a response right or wrong.
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
        """Return the mean critiques that the budget still allows. kept: share of the budget to hold
        back."""
        if self._share >= 1:
            return self._full
        critiques = self._critiques()
        mean = _mean_written(critiques)
        cheap = sum(j.usage.tokens_out for j in self._glances.values()) / mean if mean else 0.0
        started = len(_written([*critiques, *self._orders]))
        return math.floor(self._share * (1 - kept) * self._full - cheap - started + 1e-9)

    async def run(self) -> None:
        """Make the cheap pass and the critiques, leaving the part reserved for comparisons."""
        if self._share >= 1:
            await self._critique([(i, s) for i in self.entrants for s in range(self._k)])
            return
        await self._glance()
        await self._waves(1 - (1 - self._kept) * (FIRST if self._k > 1 else 1))
        await self._repeat(self._kept)

    async def _ask(self, items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
        """Judge inputs. Inputs that this selection has judged before are reused at no cost."""
        known = {item: own for item in items if (own := self._known.get(item))}
        new = list(dict.fromkeys(item for item in items if item not in known))
        answers = await self._asked(new, view) if new else []
        self._known |= dict(zip(new, answers, strict=True))
        return [
            replace(known[item], usage=Usage()) if item in known else self._known[item]
            for item in items
        ]

    async def _glance(self) -> None:
        """Make the cheap pass."""
        asked = [Rate(self._candidates[i], direct=True).inputs()[0] for i in self.entrants]
        self._glances = dict(zip(self.entrants, await self._ask(asked), strict=True))
        self._slot = slot_variance(list(self._glances.values()))

    async def _critique(self, wanted: Sequence[tuple[int, int]]) -> None:
        """Request critiques, given as (candidate, sample) pairs."""
        inputs = {i: Rate(self._candidates[i], self._k).inputs() for i, _ in wanted}
        answers = await self._ask([inputs[i][sample] for i, sample in wanted])
        for (index, _), answer in zip(wanted, answers, strict=True):
            self.samples.setdefault(index, []).append(answer)

    async def _waves(self, kept: float) -> None:
        """Request first critiques in waves, most promising candidates first."""
        waiting = sorted(self.entrants, key=lambda i: -self._cheap(i, -math.inf))
        size = 1
        while waiting and size > 0:
            await self._critique([(i, 0) for i in waiting[:size]])
            waiting = self._able(waiting[size:])
            room = self._room(kept)
            if len(self.samples) < 2:  # repeats and comparisons need two candidates
                room = max(room, min(1, self._room()))
            size = -(-room // 2) if self._means() else 1
        out = Fate.OUT_OF_BUDGET, "the budget was used up"
        self._abandoned |= dict.fromkeys(waiting, out)

    def _cheap(self, index: int, unread: float = math.nan) -> float:
        found = self._glances[index].view("expected") if index in self._glances else None
        return unread if found is None else found

    def _able(self, waiting: list[int]) -> list[int]:
        """Return the waiting candidates that can still win; record why the others cannot."""
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
        """Return the mean of the ranking view of each candidate that has one."""
        found = {i: vote_of(own, self._vote).view(self._view) for i, own in self.samples.items()}
        return {i: value for i, value in found.items() if value is not None}

    def _errors(self) -> dict[int, float]:
        """Return the standard errors of the means; {} if k is 1, since critiques are not sampled
        then."""
        if self._k == 1:
            return {}
        drawn = {
            i: [v for j in own if (v := j.view(self._view)) is not None]
            for i, own in self.samples.items()
        }
        return spread_of_means({i: values for i, values in drawn.items() if values}, self._slot)

    async def _repeat(self, kept: float) -> None:
        """Request more critiques while the best candidate is uncertain."""
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
        """Compare two candidates. The verdict is FAILED if the budget does not allow both
        orders."""
        if self._room() < 2:
            return Comparison(Verdict.FAILED, (), "the budget was used up")
        comparison = await question.answer(self._ask)
        self._orders += comparison.orders
        return comparison

    def judgements(self) -> list[Judgement]:
        """Return one judgement for each candidate, in order."""
        found = {i: self._judgement(i) for i in self.entrants}
        return [
            found[own] if own == i else _copied(found[own]) for i, own in enumerate(self._original)
        ]

    def _judgement(self, index: int) -> Judgement:
        glance = self._glances.get(index)
        if index not in self.samples:
            assert glance is not None  # without a cheap pass, every candidate is judged
            if not glance.ok:
                return replace(glance, reason=f"cheap reading: {glance.reason or glance.outcome}")
            return Judgement(
                Outcome.ABANDONED,
                reason=f"after the cheap reading: {self._abandoned[index][1]}",
                usage=glance.usage,
                judge=glance.judge,
                flags=glance.flags,
            )
        own = vote_of(self.samples[index], self._vote).with_number(self._view)
        if glance is None:
            return own
        if own.rating is not None and own.direct is None:
            return own.with_direct(glance)
        return replace(own, usage=own.usage + glance.usage)

    def standings(self) -> list[Standing]:
        """Return one standing for each candidate, in order."""
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
        """Return the cost so far."""
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
        """Return the critiques so far, counting identical texts once."""
        by_text = {self._texts[i]: own for i, own in self.samples.items()}
        return [j for own in by_text.values() for j in own]


def _written(judgements: Sequence[Judgement]) -> list[Judgement]:
    return [j for j in judgements if j.ok or j.usage.tokens_out]


def _mean_written(judgements: Sequence[Judgement]) -> float:
    """Return the mean generated tokens of the judgements that the judge wrote; 0 without any."""
    written = _written(judgements)
    return sum(j.usage.tokens_out for j in written) / len(written) if written else 0.0


def _copied(judgement: Judgement) -> Judgement:
    flags = tuple(sorted({*judgement.flags, "copied_judgement"}))
    return replace(judgement, usage=Usage(), flags=flags)
