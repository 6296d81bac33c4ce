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
    Rating,
    Verdict,
    concurrent_usage,
)


def mean_of_critiques(samples: Sequence[Judgement]) -> Judgement:
    """One judgement from k sampled critiques of the same response.

    Rating, expected and direct rating, distribution, outside and unknown mass are means over the
    critiques that are ok; the critique kept is the one whose rating lies nearest the mean. Flagged
    `partial_critiques` when some abstained; abstains when all did, with the first's outcome, and
    when one did over text with a planted verdict, which must not choose the critiques that count.
    """
    if len(samples) == 1:
        return samples[0]
    usage = concurrent_usage([s.usage for s in samples])
    good = [(s, s.rating) for s in samples if s.rating is not None]
    planted = [s for s in samples if not s.ok and PLANTED in s.flags]
    if planted or not good:
        return replace((planted or samples)[0], usage=usage)
    ratings = [rating for _, rating in good]
    value = fmean(r.value for r in ratings)
    read = [r for r in ratings if r.distribution is not None]
    rating = Rating(
        value=value,
        distribution=_mean_distribution(read) if read else None,
        expected=_mean([r.expected for r in read]),
        direct=_mean([r.direct for r in ratings]),
        outside=_mean([r.outside for r in read]),
        forced=any(r.forced for r in ratings),
        unknown=_mean([r.unknown for r in read]) or 0.0,
    )
    nearest = min(good, key=lambda pair: abs(pair[1].value - value))[0]
    seen = {flag for s in samples for flag in s.flags}
    seen |= {"partial_critiques"} if len(good) < len(samples) else set()
    return replace(
        nearest, rating=rating, forced=rating.forced, usage=usage, flags=tuple(sorted(seen))
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def _mean_distribution(ratings: Sequence[Rating]) -> tuple[tuple[str, float], ...]:
    tables = [dict(r.distribution or ()) for r in ratings]
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
