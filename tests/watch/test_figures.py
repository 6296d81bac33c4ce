"""Statistics that are updated step by step, against statistics computed from all judgements."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from typing import Any

import pytest

from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.io.claims import judged_by
from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement, Outcome, Usage
from autoj_reward.watch.answers import Answers
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
from tests.watch.conftest import JUDGE, OpenRun, Record


def make_mark(
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


def make_judgement(value: float | None, **other: Any) -> Judgement:
    if value is None:
        return Judgement(Outcome.UNPARSABLE, **({"reason": "no slot"} | other))
    return rated(value, **other)


def count_queries(queries: Iterable[Iterable[Judgement]]) -> RunStatistics:
    run_statistics = RunStatistics()
    for query in queries:
        run_statistics.add([result_of(judgement) for judgement in query])
    return run_statistics


def test_time_is_kept_in_few_slots_however_long_it_is() -> None:
    series = Series()
    for second in range(0, 86_400, 7):
        series.add(make_mark(4.0 if second < 43_200 else 6.0, 1e9 + second))
    points = list(series.points())
    assert len(points) <= SLOTS
    assert sum(point["judged"] for point in points) == len(range(0, 86_400, 7))
    assert (points[0]["mean"], points[-1]["mean"]) == (4.0, 6.0)
    assert series.seconds == 1024  # 86,400 s in 120 slots of a power of two


def test_rows_of_a_journal_by_time() -> None:
    timeline = Timeline()
    for value in (2.0, 4.0, 9.0):
        timeline.add(make_mark(value))
    timeline.add(make_mark(None, 1010.0, outcome="unparsable", reason="no rating slot"))
    metrics = timeline.as_json(now=1011.0)
    assert (metrics["judged"], metrics["failed"]) == (4, 1)
    assert metrics["failures"] == {"no rating slot": 1}
    assert (metrics["tokens_in"], metrics["tokens_cached"], metrics["tokens_out"]) == (400, 160, 40)
    assert (metrics["latency_s"], metrics["queued_s"]) == (0.5, 1.5)
    assert metrics["lately"] == pytest.approx(4 / 11)
    assert timeline.as_json(now=5000.0)["lately"] == 0


def test_a_row_that_is_taken_back_leaves_no_trace() -> None:
    timeline = Timeline()
    timeline.add(make_mark(3.0))
    failed = make_mark(None, outcome="unavailable", reason="gone")
    timeline.add(failed)
    timeline.add(failed, -1)
    metrics = timeline.as_json(now=1000.0)
    assert (metrics["judged"], metrics["failures"], metrics["failed"]) == (1, {}, 0)


def test_candidates_are_counted() -> None:
    queries = [
        [make_judgement(2), make_judgement(4), make_judgement(9), make_judgement(None)],
        [make_judgement(5, forced=True, flags=("planted_verdict",), usage=Usage(10, 4, 3))],
    ]
    metrics = count_queries(queries).as_json()
    assert (metrics["queries"], metrics["candidates"], metrics["mean_rating"]) == (2, 5, 5.0)
    assert (metrics["outcomes"]["ok"], metrics["outcomes"]["unparsable"]) == (4, 1)
    assert (metrics["ok_share"], metrics["forced"], metrics["forced_share"]) == (4 / 5, 1, 1 / 4)
    assert (metrics["reasons"], metrics["flags"]) == ({"no slot": 1}, {"planted_verdict": 1})
    assert metrics["usage"] == Usage(10, 4, 3) and metrics["cache_hit_rate"] == 0.4


def test_a_query_that_is_taken_back_leaves_no_trace() -> None:
    run_statistics = count_queries([[make_judgement(8), make_judgement(3)]])
    before = run_statistics.as_json()
    results = [
        result_of(make_judgement(v, flags=("a",), usage=Usage(1, 0, 1, 0.5))) for v in (7, None, 2)
    ]
    run_statistics.add(results)
    assert run_statistics.as_json() != before
    run_statistics.add(results, -1)
    assert run_statistics.as_json() == before


def test_names_from_outside_cannot_grow_without_end() -> None:
    run_statistics = count_queries(
        [[make_judgement(None, reason=f"reason {n}") for n in range(2 * NAMES)]]
    )
    reasons = run_statistics.as_json()["reasons"]
    assert len(reasons) == NAMES + 1 and reasons["others"] == NAMES


def test_ties_best_and_worst_of_a_query() -> None:
    standing = standing_of([8, 8, 3, 3, 3])
    assert (standing.rated, standing.best, standing.worst, standing.mean) == (5, 8, 3, 5.0)
    assert (standing.pairs, standing.tied, standing.top) == (10, 1 + 3, 2)
    assert standing.deviation == pytest.approx(statistics.pstdev([8, 8, 3, 3, 3]))


def test_totals_over_queries() -> None:
    totals = ViewTotals()
    standings = [standing_of([8, 8, 2]), standing_of([9, 3]), standing_of([5])]
    for standing in standings:
        totals.add(standing)
    assert totals.as_json() == {
        "queries": 3,
        "several": 2,
        "tie_rate": 1 / 2,
        "pair_tie_rate": 1 / 4,
        "spread": pytest.approx((statistics.pstdev([8, 8, 2]) + 3) / 2),
        "gain": ((8 - 6) + (9 - 6)) / 2,
    }
    for standing in standings:
        totals.add(standing, -1)
    assert totals.as_json() == ViewTotals().as_json()


def test_a_candidate_is_the_mean_of_its_critiques_and_keeps_its_glance(
    record: Record, open_run: OpenRun
) -> None:
    """A failed critique among several does not count, as in `vote_of`."""
    low = 5 - math.log((math.exp(0.5) + math.exp(-0.5)) / 2)  # the soft minimum of 4.5 and 5.5
    record.rate("q", "r", 4, expected=4.5, sample=0)
    run = open_run(record.folder)
    run.refresh()
    record.rate("q", "r", 6, expected=5.5, sample=1, flags=("odd",))
    record.rate("q", "r", sample=2)
    record_glance(record.journal, "q", "r", 5.2)
    while run.refresh():
        pass
    metrics = run.index.statistics[0].as_json()
    assert (metrics["candidates"], metrics["outcomes"]["ok"], metrics["mean_rating"]) == (1, 1, 5)
    assert metrics["flags"] == {"odd": 1, "partial_critiques": 1}
    [candidate] = Answers(run).answer("query", {"id": "1"})["candidates"]
    assert candidate["values"] == {
        "rating": 5,
        "expected": 5,
        "direct": 5.2,
        "pessimistic": pytest.approx(low),
    }


def test_a_run_that_goes_on_with_another_vote_is_counted_again(
    record: Record, open_run: OpenRun
) -> None:
    for sample, value in enumerate((1, 6, 8)):
        record.rate("q", "r", value, sample=sample)
    record.rate("other", "r", 3)
    run, result = open_run(record.folder), record.folder / "summary.json"

    def read_ratings() -> tuple[float, list[float]]:
        while run.refresh():
            pass
        rows = Answers(run).answer("queries", {"order": "highest"})["rows"]
        return run.index.statistics[0].as_json()["mean_rating"], [row["best"] for row in rows]

    assert read_ratings() == (4, [5, 3])
    with judged_by(JUDGE, record.folder, result, command="autoj best-of-n", vote="median"):
        assert read_ratings() == (4.5, [6, 3])
    with judged_by(JUDGE, record.folder, result, command="autoj best-of-n"):
        assert read_ratings() == (4, [5, 3])


def test_the_page_of_a_training_votes_as_its_config_says(record: Record, open_run: OpenRun) -> None:
    for sample, value in enumerate((1, 6, 8)):
        record.rate("q", "r", value, sample=sample)
    judge = JudgeConfig(kind="fake", critiques=3, temperature=0.7, vote="median")
    data = {"reward": RewardConfig(judge=judge).model_dump(mode="json"), "steps": 3}
    (record.folder / "config.json").write_text(json.dumps(data))
    run = open_run(record.folder)
    run.refresh()
    assert run.index.statistics[0].as_json()["mean_rating"] == 6


def record_glance(journal: Journal, query: str, response: str, expected: float) -> None:
    judgement = make_judgement(5, expected=expected, judge=JUDGE)
    journal.put(JUDGE, JudgeInput("single", query, (response,), direct=True), judgement)


FORCED, FLAT, TIES, FAILED, NONE = (
    "of the ratings were forced",
    "hardly tells the candidates of a query apart",
    "the tie-break decides most choices",
    "of the judgements failed",
    "a choice among them is arbitrary",
)


@pytest.mark.parametrize(
    ("judgements", "phrases"),
    [
        pytest.param([make_judgement(v) for v in (2, 5, 8)], [], id="healthy"),
        pytest.param([make_judgement(v, forced=True) for v in (2, 5, 8)], [FORCED], id="forced"),
        pytest.param([make_judgement(5)] * 4, [FLAT], id="no-spread"),
        pytest.param([make_judgement(5)] * 9 + [make_judgement(9)], [TIES], id="mostly-ties"),
        pytest.param(
            [make_judgement(2), make_judgement(8), make_judgement(None)], [FAILED], id="some-failed"
        ),
        pytest.param([make_judgement(None), make_judgement(None)], [NONE], id="none-rated"),
    ],
)
def test_a_reader_is_warned(judgements: list[Judgement], phrases: list[str]) -> None:
    run_statistics = count_queries([judgements])
    warnings = notices(run_statistics.as_json() | run_statistics.views[0].as_json(), "rating")
    assert len(warnings) == len(phrases)
    assert all(phrase in notice for phrase, notice in zip(phrases, warnings, strict=True))
