"""Ranking a group: what every way of judging responses beside each other has in common.

`Listwise` scores a group in one judgement, `Tournament` by comparisons of two. Both are questions
whose answer is a `Ranking`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from autoj_reward.errors import InputError
from autoj_reward.types import RATING, Candidate, Judgement, Outcome, Reading, Usage

STANDARD_ERROR, ORDER_SPREAD = "standard_error", "order_spread"
POSITION_CORRELATION = "position_correlation"
"""Slots of a response's judgement beside its rating; see `Ranking.as_judgements`."""


@dataclass(frozen=True, slots=True)
class Order:
    """One listwise judgement: the responses that it saw, as indices in the order shown, and the
    score that it gave each, 0..1 of the scale; None where it gave none."""

    shown: tuple[int, ...]
    scores: tuple[float | None, ...]
    forced: tuple[bool, ...]
    """Which scores were read at a forced slot."""


@dataclass(frozen=True, slots=True)
class PairScore:
    """One comparison: two responses by index, and the share that the first won, 0..1; None where
    the comparison failed. A reference that is no response of the group has the index -1."""

    first: int
    second: int
    won: float | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a group's responses are worth beside each other."""

    scores: tuple[float | None, ...]
    """A number of 0..1 for each response, in order; None where it abstains. Listwise: the share of
    the scale. By comparisons: the expected win rate against a random other response."""
    errors: tuple[float | None, ...]
    """Standard errors of the scores; None where they are unknown."""
    reasons: tuple[str, ...]
    """Why a response has no score; empty where it has one."""
    judgements: tuple[Judgement, ...]
    """Every judgement behind the scores, in the order in which they were asked for."""
    orders: tuple[Order, ...] = ()
    """Of a listwise ranking the orders that were judged."""
    matches: tuple[PairScore, ...] = ()
    """Of a ranking by comparisons the comparisons that were held."""
    critiques: tuple[str, ...] = field(default=(), repr=False)
    """For each response the first text in which the judge wrote about it."""

    @property
    def position_correlation(self) -> float | None:
        """The correlation of score with position over all orders, -1..1: how much the judge goes by
        the place. The mean score of each response is taken off first. None for one order."""
        points = [
            (place / (len(order.shown) - 1) - 0.5, score - own)
            for order in self.orders
            for place, (i, score) in enumerate(zip(order.shown, order.scores, strict=True))
            if score is not None and (own := self.scores[i]) is not None
        ]
        if len(self.orders) < 2 or len(points) < 3:
            return None
        x, y = fmean(p for p, _ in points), fmean(s for _, s in points)
        both = sum((p - x) * (s - y) for p, s in points)
        scale = sum((p - x) ** 2 for p, _ in points) * sum((s - y) ** 2 for _, s in points)
        return both / scale**0.5 if scale > 1e-12 else 0.0

    @property
    def spread(self) -> float | None:
        """The mean over responses of the range of their scores over the orders, 0..1. None for one
        order."""
        found: dict[int, list[float]] = {}
        for order in self.orders:
            for i, score in zip(order.shown, order.scores, strict=True):
                if score is not None:
                    found.setdefault(i, []).append(score)
        ranges = [max(own) - min(own) for own in found.values() if len(own) > 1]
        return fmean(ranges) if ranges else None

    @property
    def usage(self) -> Usage:
        """The cost of all judgements."""
        return sum((judgement.usage for judgement in self.judgements), Usage())

    def _was_forced(self, order: Order, i: int) -> bool:
        return i in order.shown and order.forced[order.shown.index(i)]

    def record(self) -> dict[str, Any]:
        """Return the scores and their evidence as JSON holds them, without the judgements."""
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
        """Return a judgement for each response whose rating is its score, for what takes ratings.

        Beside the rating its readings have the score's standard error, and of the group the spread
        over orders and the correlation with position. The cost of the group is shared out.
        """
        count, cost = len(self.scores), self.usage
        flags = tuple(sorted({flag for own in self.judgements for flag in own.flags}))
        judge = self.judgements[0].judge if self.judgements else ""
        failed = next((own for own in self.judgements if not own.ok), None)
        found = []
        for i, score in enumerate(self.scores):
            if score is None:
                outcome = failed.outcome if failed else Outcome.UNPARSABLE
                own = Judgement(outcome, reason=self.reasons[i])
            else:
                forced = any(self._was_forced(order, i) for order in self.orders)
                rating = Reading(RATING, f"{score:g}", score, expected=score, forced=forced)
                about = {
                    STANDARD_ERROR: self.errors[i],
                    ORDER_SPREAD: self.spread,
                    POSITION_CORRELATION: self.position_correlation,
                }
                more = (Reading(s, f"{v:g}", v) for s, v in about.items() if v is not None)
                own = Judgement(Outcome.OK, readings=(rating, *more))
            critique = self.critiques[i] if self.critiques else ""
            usage = Usage(
                _part(cost.tokens_in, i, count),
                _part(cost.tokens_cached, i, count),
                _part(cost.tokens_out, i, count),
                cost.latency_s / count,
                cost.queued_s / count,
            )
            found.append(replace(own, critique=critique, usage=usage, judge=judge, flags=flags))
        return found


def _part(total: int, place: int, count: int) -> int:
    return total // count + (place < total % count)


@dataclass(frozen=True, slots=True)
class Members:
    """The different responses of a group. Copies are judged once, and get the same score."""

    candidates: tuple[Candidate, ...]
    """The first candidate of each text."""
    places: tuple[tuple[int, ...], ...]
    """Of each text its places in the group."""
    count: int

    @property
    def copies(self) -> list[int]:
        """How often each text stands in the group."""
        return [len(own) for own in self.places]

    def spread_out(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the value of each member of the group, from those of the different texts."""
        found = dict[int, Any]()
        for own, value in zip(self.places, values, strict=True):
            found |= dict.fromkeys(own, value)
        return tuple(found[n] for n in range(self.count))

    def shuffled(self, seed: int) -> list[int]:
        """Return the texts' numbers in an order that the group's texts and the seed decide."""
        texts = (own.response for own in self.candidates)
        order = list(range(len(self.candidates)))
        random.Random("\0".join([str(seed), self.candidates[0].query, *texts])).shuffle(order)
        return order


def members_of(candidates: Sequence[Candidate]) -> Members:
    """Return the different responses of a group. InputError for a group of one, and for one whose
    responses answer different queries or have different contexts."""
    if len(candidates) < 2:
        raise InputError(
            f"a group of {len(candidates)}: responses are judged beside each other, so give two or "
            "more to a query, or rate them alone (leave `relative` out)"
        )
    first = candidates[0]
    if any((c.query, c.context) != (first.query, first.context) for c in candidates):
        raise InputError(
            "the responses of a group answer different queries or have different contexts: give "
            "each query a group of its own"
        )
    places: dict[str, list[int]] = {}
    for n, candidate in enumerate(candidates):
        places.setdefault(candidate.response, []).append(n)
    own = tuple(tuple(found) for found in places.values())
    return Members(tuple(candidates[n[0]] for n in own), own, len(candidates))


def all_alike(members: Members) -> Ranking:
    """Return the ranking of a group whose responses are all the same text: nobody need be asked."""
    n = members.count
    return Ranking((0.5,) * n, (0.0,) * n, ("",) * n, ())
