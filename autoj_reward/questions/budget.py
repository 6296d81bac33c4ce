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
        self._ask_judge, self._judgements_by_input = ask, dict[JudgeInput, Judgement]()
        self._reserved_share = FINALS if finals else 0.0
        self._texts = texts = [(c.response, c.context) for c in candidates]
        # Only identical texts are copies: one word may make a response right or wrong.
        first_places = {text: i for i, text in reversed(list(enumerate(texts)))}
        self._originals = [first_places[t] if share < 1 else i for i, t in enumerate(texts)]
        self.entrants = sorted(set(self._originals))
        self._full_critiques = k * len(first_places)
        self._share = share
        self._cheap_judgements: dict[int, Judgement] = {}
        self._slot_variance = 0.0
        self.samples: dict[int, list[Judgement]] = {}
        self._abandoned_candidates: dict[int, tuple[Fate, str]] = {}
        self._judged_orders: list[Judgement] = []

    def _count_allowed_critiques(self, reserve: float = 0.0) -> int:
        """Return the mean critiques that the budget still allows.

        reserve: share of the budget to hold back.
        """
        if self._share >= 1:
            return self._full_critiques
        critiques = self._collect_critiques()
        mean_tokens = _compute_mean_tokens(critiques)
        cheap_cost = (
            sum(j.usage.tokens_out for j in self._cheap_judgements.values()) / mean_tokens
            if mean_tokens
            else 0.0
        )
        started_count = len(_select_written([*critiques, *self._judged_orders]))
        return math.floor(
            self._share * (1 - reserve) * self._full_critiques - cheap_cost - started_count + 1e-9
        )

    async def run(self) -> None:
        """Make the cheap pass and the critiques, leaving the part reserved for comparisons."""
        if self._share >= 1:
            await self._critique([(i, s) for i in self.entrants for s in range(self._k)])
            return
        await self._make_cheap_pass()
        await self._critique_in_waves(
            1 - (1 - self._reserved_share) * (FIRST if self._k > 1 else 1)
        )
        await self._repeat_critiques(self._reserved_share)

    async def _ask(self, items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
        """Judge inputs. Inputs that this selection has judged before are reused at no cost."""
        earlier_judgements = {
            item: judgement for item in items if (judgement := self._judgements_by_input.get(item))
        }
        new_inputs = list(dict.fromkeys(item for item in items if item not in earlier_judgements))
        answers = await self._ask_judge(new_inputs, view) if new_inputs else []
        self._judgements_by_input |= dict(zip(new_inputs, answers, strict=True))
        return [
            replace(earlier_judgements[item], usage=Usage())
            if item in earlier_judgements
            else self._judgements_by_input[item]
            for item in items
        ]

    async def _make_cheap_pass(self) -> None:
        """Make the cheap pass."""
        inputs = [Rate(self._candidates[i], direct=True).inputs()[0] for i in self.entrants]
        self._cheap_judgements = dict(zip(self.entrants, await self._ask(inputs), strict=True))
        self._slot_variance = slot_variance(list(self._cheap_judgements.values()))

    async def _critique(self, requests: Sequence[tuple[int, int]]) -> None:
        """Request critiques, given as (candidate, sample) pairs."""
        inputs = {i: Rate(self._candidates[i], self._k).inputs() for i, _ in requests}
        answers = await self._ask([inputs[i][sample] for i, sample in requests])
        for (index, _), answer in zip(requests, answers, strict=True):
            self.samples.setdefault(index, []).append(answer)

    async def _critique_in_waves(self, reserve: float) -> None:
        """Request first critiques in waves, most promising candidates first."""
        waiting_candidates = sorted(
            self.entrants, key=lambda i: -self._get_cheap_rating(i, -math.inf)
        )
        size = 1
        while waiting_candidates and size > 0:
            await self._critique([(i, 0) for i in waiting_candidates[:size]])
            waiting_candidates = self._keep_possible_winners(waiting_candidates[size:])
            allowed_critiques = self._count_allowed_critiques(reserve)
            if len(self.samples) < 2:  # repeats and comparisons need two candidates
                allowed_critiques = max(allowed_critiques, min(1, self._count_allowed_critiques()))
            size = -(-allowed_critiques // 2) if self._compute_means() else 1
        out_of_budget = Fate.OUT_OF_BUDGET, "the budget was used up"
        self._abandoned_candidates |= dict.fromkeys(waiting_candidates, out_of_budget)

    def _get_cheap_rating(self, index: int, default: float = math.nan) -> float:
        rating = (
            self._cheap_judgements[index].view("expected")
            if index in self._cheap_judgements
            else None
        )
        return default if rating is None else rating

    def _keep_possible_winners(self, waiting_candidates: list[int]) -> list[int]:
        """Return the waiting candidates that can still win; record why the others cannot."""
        means = self._compute_means()
        if not means:
            return waiting_candidates
        best = max(means, key=means.__getitem__)
        threshold = means[best] - Bound.z * self._compute_standard_errors().get(best, 0.0)
        rating_pairs = [
            (c, means[i]) for i in means if not math.isnan(c := self._get_cheap_rating(i))
        ]
        bound = Bound.fitted(rating_pairs, self._slot_variance)
        open_candidates = []
        for i in waiting_candidates:
            upper = bound.upper(self._get_cheap_rating(i))
            if upper < threshold:
                why = f"at most {upper:.2f} by its bound, below {threshold:.2f}"
                self._abandoned_candidates[i] = Fate.CANNOT_WIN, why
            else:
                open_candidates.append(i)
        return open_candidates

    def _compute_means(self) -> dict[int, float]:
        """Return the mean of the ranking view of each candidate that has one."""
        votes = {
            i: vote_of(samples, self._vote).view(self._view) for i, samples in self.samples.items()
        }
        return {i: value for i, value in votes.items() if value is not None}

    def _compute_standard_errors(self) -> dict[int, float]:
        """Return the standard errors of the means; {} if k is 1, since critiques are not sampled
        then."""
        if self._k == 1:
            return {}
        sampled_values = {
            i: [v for j in samples if (v := j.view(self._view)) is not None]
            for i, samples in self.samples.items()
        }
        return spread_of_means(
            {i: values for i, values in sampled_values.items() if values}, self._slot_variance
        )

    async def _repeat_critiques(self, reserve: float) -> None:
        """Request more critiques while the best candidate is uncertain."""
        while self._k > 1 and (means := self._compute_means()):
            errors = self._compute_standard_errors()
            best = max(means, key=means.__getitem__)
            rivals = [
                i
                for i in sorted(means, key=lambda i: -means[i])
                if i != best
                and means[best] - means[i] < Bound.z * math.hypot(errors[best], errors[i])
            ]
            close_candidates = [best, *rivals] if rivals else []
            requests = [(i, n) for i in close_candidates if (n := len(self.samples[i])) < self._k]
            requests = requests[: max(0, self._count_allowed_critiques(reserve))]
            if not requests:
                return
            await self._critique(requests)

    async def compare(self, question: Compare) -> Comparison:
        """Compare two candidates. The verdict is FAILED if the budget does not allow both
        orders."""
        if self._count_allowed_critiques() < 2:
            return Comparison(Verdict.FAILED, (), "the budget was used up")
        comparison = await question.answer(self._ask)
        self._judged_orders += comparison.orders
        return comparison

    def judgements(self) -> list[Judgement]:
        """Return one judgement for each candidate, in order."""
        judgements = {i: self._build_judgement(i) for i in self.entrants}
        return [
            judgements[original] if original == i else _copy_judgement(judgements[original])
            for i, original in enumerate(self._originals)
        ]

    def _build_judgement(self, index: int) -> Judgement:
        cheap_judgement = self._cheap_judgements.get(index)
        if index not in self.samples:
            assert cheap_judgement is not None  # without a cheap pass, every candidate is judged
            if not cheap_judgement.ok:
                return replace(
                    cheap_judgement,
                    reason=f"cheap reading: {cheap_judgement.reason or cheap_judgement.outcome}",
                )
            return Judgement(
                Outcome.ABANDONED,
                reason=f"after the cheap reading: {self._abandoned_candidates[index][1]}",
                usage=cheap_judgement.usage,
                judge=cheap_judgement.judge,
                flags=cheap_judgement.flags,
            )
        judgement = vote_of(self.samples[index], self._vote).with_number(self._view)
        if cheap_judgement is None:
            return judgement
        if judgement.rating is not None and judgement.direct is None:
            return judgement.with_direct(cheap_judgement)
        return replace(judgement, usage=judgement.usage + cheap_judgement.usage)

    def standings(self) -> list[Standing]:
        """Return one standing for each candidate, in order."""
        standings = []
        for i, original in enumerate(self._originals):
            cheap_rating = (
                self._cheap_judgements[original].view("expected")
                if original in self._cheap_judgements
                else None
            )
            critique_count = len(self.samples.get(original, ()))
            if original != i:
                standings.append(
                    Standing(
                        Fate.COPY, cheap_rating, 0, f"a copy of candidate {original}", original
                    )
                )
            elif critique_count:
                standings.append(Standing(Fate.JUDGED, cheap_rating, critique_count))
            else:
                fate, why = self._abandoned_candidates[i]
                standings.append(Standing(fate, cheap_rating, 0, why))
        return standings

    def spending(self) -> Spending:
        """Return the cost so far."""
        critiques = self._collect_critiques()
        return Spending(
            cheap=sum((j.usage for j in self._cheap_judgements.values()), Usage()),
            critiques=sum((j.usage for j in critiques), Usage()),
            comparisons=sum((j.usage for j in self._judged_orders), Usage()),
            readings=len(self._cheap_judgements),
            asked=len(critiques),
            orders=len(self._judged_orders),
            skipped=self._full_critiques - len(critiques) if self._share < 1 else 0,
            full_tokens=_compute_mean_tokens(critiques) * self._full_critiques,
        )

    def _collect_critiques(self) -> list[Judgement]:
        """Return the critiques so far, counting identical texts once."""
        samples_by_text = {self._texts[i]: samples for i, samples in self.samples.items()}
        return [j for samples in samples_by_text.values() for j in samples]


def _select_written(judgements: Sequence[Judgement]) -> list[Judgement]:
    return [j for j in judgements if j.ok or j.usage.tokens_out]


def _compute_mean_tokens(judgements: Sequence[Judgement]) -> float:
    """Return the mean generated tokens of the judgements that the judge wrote; 0 without any."""
    written_judgements = _select_written(judgements)
    return (
        sum(j.usage.tokens_out for j in written_judgements) / len(written_judgements)
        if written_judgements
        else 0.0
    )


def _copy_judgement(judgement: Judgement) -> Judgement:
    flags = tuple(sorted({*judgement.flags, "copied_judgement"}))
    return replace(judgement, usage=Usage(), flags=flags)
