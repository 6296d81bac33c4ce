"""Statistics that are updated step by step, against statistics computed from all judgements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

import pytest

from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement, Outcome, Usage
from autoj_reward.watch.answers import Answers
from autoj_reward.watch.run import Run
from autoj_reward.watch.statistics import (
    NAMES,
    RunStatistics,
    ViewTotals,
    notices,
    result_of,
    standing_of,
)
from autoj_reward.watch.timeline import RATING, SLOTS, Mark, Series, Timeline
from tests.judgements import rated
from tests.watch.conftest import JUDGE, Record


def mark(
    rating: float | None = 5.0,
    at: float = 1000.0,
    *,
    outcome: str = "ok",
    reason: str = "",
    flags: tuple[str, ...] = (),
) -> Mark:
    return Mark(
        RATING,
        at,
        outcome,
        reason,
        rating,
        None,
        None,
        None,
        None,
        (),
        False,
        flags,
        100,
        40,
        10,
        0.5,
        1.5,
    )


def judged(value: float | None, **other: Any) -> Judgement:
    if value is None:
        return Judgement(Outcome.UNPARSABLE, **({"reason": "no slot"} | other))
    return rated(value, **other)


def counted(queries: Iterable[Iterable[Judgement]]) -> RunStatistics:
    found = RunStatistics()
    for query in queries:
        found.add([result_of(judgement) for judgement in query])
    return found


def test_time_is_kept_in_few_slots_however_long_it_is() -> None:
    series = Series()
    for second in range(0, 86_400, 7):
        series.add(mark(4.0 if second < 43_200 else 6.0, 1e9 + second))
    points = list(series.points())
    assert len(points) <= SLOTS
    assert sum(point["judged"] for point in points) == len(range(0, 86_400, 7))
    assert (points[0]["mean"], points[-1]["mean"]) == (4.0, 6.0)
    assert series.seconds == 1024  # 86,400 s in 120 slots of a power of two


def test_rows_of_a_journal_by_time() -> None:
    timeline = Timeline()
    for value in (2.0, 4.0, 9.0):
        timeline.add(mark(value))
    timeline.add(mark(None, 1010.0, outcome="unparsable", reason="no rating slot"))
    found = timeline.as_json(now=1011.0)
    assert (found["judged"], found["failed"]) == (4, 1)
    assert found["failures"] == {"no rating slot": 1}
    assert (found["tokens_in"], found["tokens_cached"], found["tokens_out"]) == (400, 160, 40)
    assert (found["latency_s"], found["queued_s"]) == (0.5, 1.5)
    assert found["lately"] == pytest.approx(4 / 11)
    assert timeline.as_json(now=5000.0)["lately"] == 0


def test_a_row_that_is_taken_back_leaves_no_trace() -> None:
    timeline = Timeline()
    timeline.add(mark(3.0))
    failed = mark(None, outcome="unavailable", reason="gone")
    timeline.add(failed)
    timeline.add(failed, -1)
    found = timeline.as_json(now=1000.0)
    assert (found["judged"], found["failures"], found["failed"]) == (1, {}, 0)


def test_candidates_are_counted() -> None:
    queries = [
        [judged(2), judged(4), judged(9), judged(None)],
        [judged(5, forced=True, flags=("planted_verdict",), usage=Usage(10, 4, 3))],
    ]
    found = counted(queries).as_json()
    assert (found["queries"], found["candidates"], found["mean_rating"]) == (2, 5, 5.0)
    assert (found["outcomes"]["ok"], found["outcomes"]["unparsable"]) == (4, 1)
    assert (found["ok_share"], found["forced"], found["forced_share"]) == (4 / 5, 1, 1 / 4)
    assert (found["reasons"], found["flags"]) == ({"no slot": 1}, {"planted_verdict": 1})
    assert found["usage"] == Usage(10, 4, 3) and found["cache_hit_rate"] == 0.4


def test_a_query_that_is_taken_back_leaves_no_trace() -> None:
    found = counted([[judged(8), judged(3)]])
    before = found.as_json()
    other = [result_of(judged(v, flags=("a",), usage=Usage(1, 0, 1, 0.5))) for v in (7, None, 2)]
    found.add(other)
    assert found.as_json() != before
    found.add(other, -1)
    assert found.as_json() == before


def test_names_from_outside_cannot_grow_without_end() -> None:
    found = counted([[judged(None, reason=f"reason {n}") for n in range(2 * NAMES)]])
    reasons = found.as_json()["reasons"]
    assert len(reasons) == NAMES + 1 and reasons["others"] == NAMES


def test_ties_best_and_worst_of_a_query() -> None:
    found = standing_of([8, 8, 3, 3, 3])
    assert (found.rated, found.best, found.worst, found.mean) == (5, 8, 3, 5.0)
    assert (found.pairs, found.tied, found.top) == (10, 1 + 3, 2)
    assert found.deviation == pytest.approx(statistics.pstdev([8, 8, 3, 3, 3]))


def test_totals_over_queries() -> None:
    totals = ViewTotals()
    added = [standing_of([8, 8, 2]), standing_of([9, 3]), standing_of([5])]
    for found in added:
        totals.add(found)
    assert totals.as_json() == {
        "queries": 3,
        "several": 2,
        "tie_rate": 1 / 2,
        "pair_tie_rate": 1 / 4,
        "spread": pytest.approx((statistics.pstdev([8, 8, 2]) + 3) / 2),
        "gain": ((8 - 6) + (9 - 6)) / 2,
    }
    for found in added:
        totals.add(found, -1)
    assert totals.as_json() == ViewTotals().as_json()


def test_a_candidate_is_the_mean_of_its_critiques_and_keeps_its_glance(record: Record) -> None:
    """A failed critique among several does not count, as in `vote_of`."""
    low = 5 - math.log((math.exp(0.5) + math.exp(-0.5)) / 2)  # the soft minimum of 4.5 and 5.5
    record.rate("q", "r", 4, expected=4.5, sample=0)
    run = Run(record.folder)
    run.refresh()
    record.rate("q", "r", 6, expected=5.5, sample=1, flags=("odd",))
    record.rate("q", "r", sample=2)
    glance(record.journal, "q", "r", 5.2)
    while run.refresh():
        pass
    found = run.index.statistics[0].as_json()
    assert (found["candidates"], found["outcomes"]["ok"], found["mean_rating"]) == (1, 1, 5)
    assert found["flags"] == {"odd": 1, "partial_critiques": 1}
    [own] = Answers(run).answer("query", {"id": "1"})["candidates"]
    assert own["values"] == {
        "rating": 5,
        "expected": 5,
        "direct": 5.2,
        "pessimistic": pytest.approx(low),
    }


def glance(journal: Journal, query: str, response: str, expected: float) -> None:
    said = judged(5, expected=expected, judge=JUDGE)
    journal.put(JUDGE, JudgeInput("single", query, (response,), direct=True), said)


FORCED, FLAT, TIES, FAILED, NONE = (
    "of the ratings were forced",
    "hardly tells the candidates of a query apart",
    "the tie-break decides most choices",
    "of the judgements failed",
    "a choice among them is arbitrary",
)


@pytest.mark.parametrize(
    ("judgements", "said"),
    [
        pytest.param([judged(v) for v in (2, 5, 8)], [], id="healthy"),
        pytest.param([judged(v, forced=True) for v in (2, 5, 8)], [FORCED], id="forced"),
        pytest.param([judged(5)] * 4, [FLAT], id="no-spread"),
        pytest.param([judged(5)] * 9 + [judged(9)], [TIES], id="mostly-ties"),
        pytest.param([judged(2), judged(8), judged(None)], [FAILED], id="some-failed"),
        pytest.param([judged(None), judged(None)], [NONE], id="none-rated"),
    ],
)
def test_a_reader_is_warned(judgements: list[Judgement], said: list[str]) -> None:
    statistics = counted([judgements])
    found = notices(statistics.as_json() | statistics.views[0].as_json(), "rating")
    assert len(found) == len(said)
    assert all(phrase in notice for phrase, notice in zip(said, found, strict=True))
