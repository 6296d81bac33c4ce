"""Several judgements into one: k sampled critiques of a response, two orders of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from autoj_reward.types import (
    PLANTED,
    Comparison,
    Judgement,
    Outcome,
    Reading,
    Verdict,
    concurrent_usage,
)


def mean_of_critiques(samples: Sequence[Judgement]) -> Judgement:
    """One judgement from k sampled critiques of the same response.

    Values, expected values, distributions, outside and unknown mass of every slot are means over
    the critiques that are ok; the critique kept is the one whose rating lies nearest the mean.
    Flagged `partial_critiques` when some abstained; abstains when all did, with the first's
    outcome, and when one did over text with a planted verdict, which must not choose the critiques
    that count.
    """
    if len(samples) == 1:
        return samples[0]
    usage = concurrent_usage([s.usage for s in samples])
    good = [(s, s.rating) for s in samples if s.rating is not None]
    planted = [s for s in samples if not s.ok and PLANTED in s.flags]
    if planted or not good:
        return replace((planted or samples)[0], usage=usage)
    names = dict.fromkeys(own.slot for s, _ in good for own in s.readings)
    means = tuple(
        _mean_reading([own for s, _ in good if (own := s.reading(name))]) for name in names
    )
    value = fmean(rating for _, rating in good)
    nearest = min(good, key=lambda pair: abs(pair[1] - value))[0]
    seen = {flag for s in samples for flag in s.flags}
    seen |= {"partial_critiques"} if len(good) < len(samples) else set()
    return replace(nearest, readings=means, usage=usage, flags=tuple(sorted(seen)))


def _mean_reading(readings: Sequence[Reading]) -> Reading:
    """The mean of what several critiques say in one slot of numbers."""
    told = [own for own in readings if own.distribution is not None]
    value = _mean([own.value for own in readings])
    return Reading(
        readings[0].slot,
        "" if value is None else f"{value:g}",
        value,
        distribution=_mean_distribution(told) if told else None,
        expected=_mean([own.expected for own in readings]),
        outside=_mean([own.outside for own in told]),
        unknown=_mean([own.unknown for own in told]) or 0.0,
        forced=any(own.forced for own in readings),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def _mean_distribution(readings: Sequence[Reading]) -> tuple[tuple[str, float], ...]:
    tables = [dict(own.distribution or ()) for own in readings]
    labels = sorted({label for table in tables for label in table}, key=float)
    return tuple((label, fmean(t.get(label, 0.0) for t in tables)) for label in labels)


def swap_consistent(forward: Judgement, backward: Judgement | None) -> Comparison:
    """Join the judgements of (first, second) and (second, first).

    Both must name the same response, or both say tie; otherwise the comparison is INCONSISTENT,
    which is neither a tie nor a failure. FAILED when either order has no verdict.
    backward None: only one order was asked for, and it decides alone.
    """
    orders = (forward,) if backward is None else (forward, backward)
    failed = [o for o in orders if o.outcome is not Outcome.OK or o.verdict is None]
    if failed:
        return Comparison(Verdict.FAILED, orders, "; ".join(o.why for o in failed))
    verdicts = {
        o.verdict if k == 0 else o.verdict.swapped() for k, o in enumerate(orders) if o.verdict
    }
    if len(verdicts) == 1:
        return Comparison(verdicts.pop(), orders)
    return Comparison(Verdict.INCONSISTENT, orders, "the two orders disagree")
