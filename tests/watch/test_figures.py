"""Figures that are kept up, against figures that are worked out from all."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from autoj_reward.watch.figures import NAMES, RATING, SLOTS, Figures, Mark, Series
from autoj_reward.watch.standing import Totals, standers, standing


def mark(
    rating: float | None = 5.0,
    at: float = 1000.0,
    *,
    kind: str = RATING,
    outcome: str = "ok",
    reason: str = "",
    expected: float | None = None,
    direct: float | None = None,
    flags: tuple[str, ...] = (),
    forced: bool = False,
) -> Mark:
    return Mark(
        kind, at, outcome, reason, rating, expected, direct, None, forced, flags, 100, 40, 10, 0.5,
        1.5,
    )  # fmt: skip


def test_time_is_kept_in_few_slots_however_long_it_is() -> None:
    series = Series()
    for second in range(0, 86_400, 7):
        series.add(mark(4.0 if second < 43_200 else 6.0, 1e9 + second))
    points = list(series.points())
    assert len(points) <= SLOTS
    assert sum(point["judged"] for point in points) == len(range(0, 86_400, 7))
    assert (points[0]["mean"], points[-1]["mean"]) == (4.0, 6.0)
    assert series.seconds == 1024  # 86,400 s in 120 slots of a power of two


def test_mean_spread_and_shares() -> None:
    figures = Figures()
    for value in (2.0, 4.0, 9.0):
        figures.add(mark(value, flags=("planted_verdict",)))
    figures.add(mark(None, 1010.0, outcome="unparsable", reason="no rating slot"))
    told = figures.told(now=1011.0)
    assert told["mean"] == 5.0
    assert told["spread"] == pytest.approx(statistics.pstdev([2, 4, 9]))
    assert (told["judged"], told["failed"], told["rated"]) == (4, 1, 3)
    assert told["reasons"] == {"no rating slot": 1}
    assert told["flags"] == {"planted_verdict": 3}
    assert (told["tokens_in"], told["tokens_cached"], told["tokens_out"]) == (400, 160, 40)
    assert (told["latency_s"], told["queued_s"]) == (0.5, 1.5)
    assert told["lately"] == pytest.approx(4 / 11)


def test_what_is_taken_back_leaves_no_trace() -> None:
    figures = Figures()
    figures.add(mark(3.0))
    failed = mark(None, outcome="unavailable", reason="gone", flags=("a",))
    figures.add(failed)
    figures.add(failed, -1)
    told = figures.told(now=1000.0)
    assert told["outcomes"] == {"ok": 1}
    assert (told["reasons"], told["flags"], told["failed"]) == ({}, {}, 0)


def test_names_from_outside_cannot_grow_without_end() -> None:
    figures = Figures()
    for n in range(1000):
        figures.add(mark(None, outcome="unparsable", reason=f"reason {n}"))
    assert len(figures.reasons) == NAMES + 1
    assert figures.reasons["others"] == 1000 - NAMES


def test_what_happened_long_ago_is_not_lately() -> None:
    figures = Figures()
    figures.add(mark(3.0, 1000.0))
    assert figures.told(now=5000.0)["lately"] == 0


def standing_of(*values: float | None):
    marks = [mark(v, outcome="ok" if v is not None else "unparsable") for v in values]
    return standing(standers((n, n, m) for n, m in enumerate(marks)), 0)


def test_ties_best_and_worst_of_a_query() -> None:
    found = standing_of(8, 8, 3, None, 3, 3)
    assert found is not None
    assert (found.rated, found.best, found.worst, found.mean) == (5, 8, 3, 5.0)
    assert (found.pairs, found.tied, found.top) == (10, 1 + 3, 2)
    assert standing_of(None) is None


def test_a_candidate_is_the_mean_of_its_critiques_and_keeps_its_glance() -> None:
    marks = [(1, 7, mark(4.0, expected=4.5)), (2, 7, mark(6.0, expected=5.5))]
    marks.append((3, 7, mark(None, kind="reading", direct=5.2)))
    [found] = standers(marks)
    assert found.values == (5.0, 5.0, 5.2)


def test_totals_over_queries() -> None:
    totals = Totals()
    added = [standing_of(8, 8, 2), standing_of(9, 3), standing_of(5)]
    for found in added:
        assert found is not None
        totals.add(found)
    told = totals.told()
    assert told == {
        "queries": 3,
        "several": 2,
        "tie_rate": 1 / 2,
        "pair_tie_rate": 1 / 4,
        "gain": ((8 - 6) + (9 - 6)) / 2,
    }
    for found in added:
        assert found is not None
        totals.add(found, -1)
    assert Counter(totals.told()) == Counter(Totals().told())
