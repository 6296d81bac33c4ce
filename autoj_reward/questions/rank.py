"""Ranking a group of responses: the answer, and the group's distinct members.

Two questions rank a group. `Listwise` scores it in one judgement, and `Tournament` by comparisons
of two responses. The answer of both is a `Ranking`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from autoj_reward.conversation import Response
from autoj_reward.errors import InputError, InputRejected
from autoj_reward.formats.render import require_readable_response
from autoj_reward.types import (
    PLANTED_FLAG,
    RATING,
    Candidate,
    Judgement,
    Outcome,
    Reading,
    Usage,
    planted_flag,
)

STANDARD_ERROR, ORDER_SPREAD = "standard_error", "order_spread"
POSITION_CORRELATION = "position_correlation"
"""Names of the readings that `Ranking.as_judgements` adds to a rating."""
ALONE = "no other response of its group can be judged"
"""Reason why the only readable response of a group has no score."""
LONE = "The only answer of its group: it gets 0.5 without a judgement, and responses without one 0."
"""Text in place of a critique where all other responses of a group hold no answer."""


@dataclass(frozen=True, slots=True)
class Order:
    """One listwise judgement."""

    shown: tuple[int, ...]
    """Indices of the responses in the order shown."""
    scores: tuple[float | None, ...]
    """Score of each, as a share of the scale (0 to 1); None if it has none."""
    forced: tuple[bool, ...]
    """Whether each score was read at a forced slot."""


@dataclass(frozen=True, slots=True)
class PairScore:
    """One comparison of two responses."""

    first: int
    """Index of the first response; -1 for a reference answer."""
    second: int
    """Index of the second response; -1 for a reference answer."""
    won: float | None
    """Share of the comparison that the first response won, 0 to 1; None if it failed."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores of the responses of a group, with their evidence."""

    scores: tuple[float | None, ...]
    """Score of each response in order, 0 to 1; None if the judge abstains on it. Listwise: a share
    of the scale. By comparisons: the expected win rate against a random other response."""
    errors: tuple[float | None, ...]
    """Standard errors of the scores; None if unknown."""
    reasons: tuple[str, ...]
    """Reason why a response has no score; empty if it has one."""
    judgements: tuple[Judgement, ...]
    """All judgements behind the scores, in the order of asking."""
    orders: tuple[Order, ...] = ()
    """Orders that were judged; empty for comparisons."""
    matches: tuple[PairScore, ...] = ()
    """Comparisons that were made; empty for a listwise ranking."""
    critiques: tuple[str, ...] = field(default=(), repr=False)
    """For each response the first critique that covers it."""
    rejected: tuple[int, ...] = ()
    """Indices of responses that were left out, because no judge can read them or nothing is left to
    judge them beside."""
    planted: tuple[bool, ...] = ()
    """Whether each response contains a whole verdict. Empty if the ranking needed no judgement."""
    unanswered: tuple[int, ...] = ()
    """Indices of responses without an answer. They get score 0, and were not judged."""

    @property
    def position_correlation(self) -> float | None:
        """Return the correlation of score and position over all orders, -1 to 1.

        It measures the position bias. The score of each response in the ranking is subtracted
        first. None for a single order.
        """
        points = [
            (place / (len(order.shown) - 1) - 0.5, score - ranking_score)
            for order in self.orders
            for place, (i, score) in enumerate(zip(order.shown, order.scores, strict=True))
            if score is not None and (ranking_score := self.scores[i]) is not None
        ]
        if len(self.orders) < 2 or len(points) < 3:
            return None
        mean_place, mean_score = fmean(p for p, _ in points), fmean(s for _, s in points)
        covariance = sum((p - mean_place) * (s - mean_score) for p, s in points)
        scale = sum((p - mean_place) ** 2 for p, _ in points) * sum(
            (s - mean_score) ** 2 for _, s in points
        )
        return covariance / scale**0.5 if scale > 1e-12 else 0.0

    @property
    def spread(self) -> float | None:
        """Return the mean range of a response's scores over the orders; None for one order."""
        scores_by_response: dict[int, list[float]] = {}
        for order in self.orders:
            for i, score in zip(order.shown, order.scores, strict=True):
                if score is not None:
                    scores_by_response.setdefault(i, []).append(score)
        ranges = [
            max(scores) - min(scores) for scores in scores_by_response.values() if len(scores) > 1
        ]
        return fmean(ranges) if ranges else None

    @property
    def usage(self) -> Usage:
        """Return the total cost of all judgements."""
        return sum((judgement.usage for judgement in self.judgements), Usage())

    def _list_forced(self) -> set[int]:
        """Return the responses with a score that was read at a forced slot."""
        forced = set[int]()
        for order in self.orders:
            forced.update(
                i for i, was_forced in zip(order.shown, order.forced, strict=True) if was_forced
            )
        return forced

    def record(self) -> dict[str, Any]:
        """Return scores and evidence as JSON values, without the judgements."""
        return {
            "scores": list(self.scores),
            "errors": list(self.errors),
            "reasons": list(self.reasons),
            "orders": [{name: getattr(o, name) for name in Order.__slots__} for o in self.orders],
            "matches": [
                {name: getattr(m, name) for name in PairScore.__slots__} for m in self.matches
            ],
            "order_spread": self.spread,
            "position_correlation": self.position_correlation,
        }

    def as_judgements(self) -> list[Judgement]:
        """Return one judgement a response, whose rating is its score.

        Further readings are the score's standard error, and the group's spread over orders and
        position correlation. Each judgement carries an equal part of the group's cost.
        """
        count, cost = len(self.scores), self.usage
        all_flags = {flag for judgement in self.judgements for flag in judgement.flags}
        shared_flags = {flag for flag in all_flags if not flag.startswith(PLANTED_FLAG)}
        judge = self.judgements[0].judge if self.judgements else ""
        failure = next((judgement for judgement in self.judgements if not judgement.ok), None)
        spread, correlation = self.spread, self.position_correlation
        forced = self._list_forced()
        judgements = []
        for i, score in enumerate(self.scores):
            if i in self.unanswered:
                judgement = Judgement(Outcome.NO_ANSWER, reason=self.reasons[i])
            elif score is None:
                outcome = failure.outcome if failure else Outcome.UNPARSABLE
                outcome = Outcome.INPUT_REJECTED if i in self.rejected else outcome
                judgement = Judgement(outcome, reason=self.reasons[i])
            else:
                rating = Reading(RATING, f"{score:g}", score, expected=score, forced=i in forced)
                statistics = {
                    STANDARD_ERROR: self.errors[i],
                    ORDER_SPREAD: spread,
                    POSITION_CORRELATION: correlation,
                }
                extra_readings = (
                    Reading(s, f"{v:g}", v) for s, v in statistics.items() if v is not None
                )
                judgement = Judgement(Outcome.OK, readings=(rating, *extra_readings))
            critique = self.critiques[i] if self.critiques else ""
            # A plant is flagged, and may cost, only where it stands.
            own_flags = {PLANTED_FLAG} if self.planted and self.planted[i] else set()
            flags = tuple(sorted(shared_flags | own_flags))
            usage = Usage(
                _compute_part(cost.tokens_in, i, count),
                _compute_part(cost.tokens_cached, i, count),
                _compute_part(cost.tokens_out, i, count),
                cost.latency_s / count,
                cost.queued_s / count,
            )
            judgements.append(
                replace(judgement, critique=critique, usage=usage, judge=judge, flags=flags)
            )
        return judgements


def _compute_part(total: int, place: int, count: int) -> int:
    return total // count + (place < total % count)


@dataclass(frozen=True, slots=True)
class Members:
    """Distinct responses of a group that can be judged. Copies are judged once and get the same
    score."""

    candidates: tuple[Candidate, ...]
    """First candidate of each distinct text."""
    places: tuple[tuple[int, ...], ...]
    """Indices in the group of each distinct text."""
    count: int
    """Number of candidates in the group, copies included."""
    rejections: Mapping[int, str] = field(default_factory=dict)
    """Reasons why responses cannot be judged, by their index in the group. They cost the others
    nothing."""
    unanswered: Mapping[int, str] = field(default_factory=dict)
    """Reasons why responses hold no answer, by their index in the group."""

    @property
    def copies(self) -> list[int]:
        """Return how often each text occurs in the group."""
        return [len(places) for places in self.places]

    def spread_out(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return one value a candidate from one value a distinct text; None where a response was
        rejected."""
        values_by_place = dict[int, Any]()
        for places, value in zip(self.places, values, strict=True):
            values_by_place |= dict.fromkeys(places, value)
        return tuple(values_by_place.get(n) for n in range(self.count))

    def make_ranking(
        self,
        scores: Sequence[float | None],
        errors: Sequence[float | None],
        reasons: Sequence[str],
        judgements: Sequence[Judgement],
        critiques: Sequence[str],
        planting_texts: Collection[int] = (),
        **evidence: Any,
    ) -> Ranking:
        """Return the ranking of the group from one value a distinct text.

        planting_texts: numbers of the texts that contain a whole verdict. evidence: `orders` or
        `matches` of the ranking.
        """
        planted = [text in planting_texts for text in range(len(self.candidates))]
        left_out = {**self.rejections, **self.unanswered}
        return Ranking(
            self._spread_scores(scores),
            self._spread_scores(errors),
            tuple(left_out.get(n, reason) for n, reason in enumerate(self.spread_out(reasons))),
            tuple(judgements),
            critiques=tuple(text or "" for text in self.spread_out(critiques)),
            rejected=tuple(self.rejections),
            planted=tuple(flag is True for flag in self.spread_out(planted)),
            unanswered=tuple(self.unanswered),
            **evidence,
        )

    def _spread_scores(self, scores: Sequence[float | None]) -> tuple[float | None, ...]:
        """Return one score a candidate; 0 for a response without an answer."""
        return tuple(
            0.0 if n in self.unanswered else score
            for n, score in enumerate(self.spread_out(scores))
        )

    def shuffle_texts(self, seed: int) -> list[int]:
        """Return the texts' numbers in a random order that the texts and the seed determine."""
        texts = [candidate.response.text for candidate in self.candidates]
        order = list(range(len(texts)))
        if texts:
            key = "\0".join([str(seed), self.candidates[0].prompt.text, *texts])
            # The query may hold half of a surrogate pair; then the judge rejects the group.
            random.Random(key.encode("utf-8", "surrogatepass")).shuffle(order)
        return order


def share_prompt(candidates: Sequence[Candidate]) -> bool:
    """Return whether all candidates have the same prompt, context and rubric."""
    return len({(c.prompt, c.context, c.rubric) for c in candidates}) == 1


def find_members(candidates: Sequence[Candidate]) -> Members:
    """Return the distinct responses of a group that a judge can read and that hold an answer.

    Raises InputError for a group of one, and for responses to different queries or contexts.
    """
    if len(candidates) < 2:
        raise InputError(
            f"a group of {len(candidates)}: responses are judged beside each other, so give two or "
            "more to a query, or rate them alone (leave `relative` out)"
        )
    rejections: dict[int, str] = {}
    for n, candidate in enumerate(candidates):
        if candidate.prompt.unreadable:
            rejections[n] = candidate.prompt.unreadable
    if rejections:
        return Members((), (), len(candidates), rejections)
    if not share_prompt(candidates):
        raise InputError(
            "the responses of a group answer different queries or have different contexts: give "
            "each query a group of its own"
        )
    places_by_text: dict[Response, list[int]] = {}
    unanswered: dict[int, str] = {}
    for n, candidate in enumerate(candidates):
        if candidate.response.unanswered:
            unanswered[n] = candidate.response.unanswered
            continue
        try:
            require_readable_response(candidate.response)
        except InputRejected as error:
            rejections[n] = str(error)
        else:
            places_by_text.setdefault(candidate.response, []).append(n)
    readable = list(places_by_text.values())
    if len(readable) == 1 and len(readable[0]) == 1 and not unanswered:
        # what is left is alone, and has no score
        rejections[readable.pop()[0]] = ALONE
    places = tuple(map(tuple, readable))
    texts = tuple(candidates[indices[0]] for indices in places)
    return Members(texts, places, len(candidates), rejections, unanswered)


def find_planting_texts(
    shown: Sequence[Sequence[int]], judgements: Sequence[Judgement]
) -> set[int]:
    """Return the texts that contain a whole verdict, by number.

    shown: numbers of the texts that each judgement shows, in the order shown.
    """
    return {
        text
        for texts, judgement in zip(shown, judgements, strict=True)
        for place, text in enumerate(texts, 1)
        if planted_flag(place, len(texts)) in judgement.flags
    }


def rank_copies(members: Members) -> Ranking:
    """Return the ranking of a group without two different answers, which needs no judgement."""
    count = len(members.candidates)
    note = LONE if members.unanswered else ""
    return members.make_ranking([0.5] * count, [0.0] * count, [""] * count, (), [note] * count)
