"""The comparison of group judges, without a server."""

from __future__ import annotations

import asyncio

import pytest

from autoj_reward.errors import EngineError
from experiments.speed.group_judges import JUDGES, GroupScore, GroupWork, score_groups
from experiments.speed.group_peers import summarise_judges
from experiments.speed.vllm_server import sum_counter

WORK = GroupWork("http://127.0.0.1:9/v1", "none", [("q", ["a", "b"])] * 5, 16, 2)


async def test_groups_are_scored_in_order_and_at_most_two_at_a_time() -> None:
    running, most = 0, 0
    both_running = asyncio.Event()

    async def score(query: str, responses: list[str]) -> GroupScore:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            both_running.set()
        await both_running.wait()  # both are in flight before either ends
        running -= 1
        return [1.0, None], 1, 0

    result = await score_groups(WORK, score)
    assert result.scores == [[1.0, None]] * 5
    assert (most, result.failed, result.invented) == (2, 5, 0)


def test_a_counter_is_summed_over_its_series() -> None:
    text = (
        '# HELP vllm:request_success_total Count.\nvllm:request_success_total{reason="stop"} 3.0\n'
        'vllm:request_success_total{reason="length"} 2.0\nvllm:request_success_created{} 9.0\n'
    )
    assert sum_counter(text, "request_success_total") == 5
    with pytest.raises(EngineError, match="counts no vllm:prompt_tokens_total"):
        sum_counter(text, "prompt_tokens_total")


def test_figures_are_medians_and_failures_sums() -> None:
    rows = [
        {
            "judge": name,
            "scores": [[0.5, 0.5, None], [0.1, 0.2, 0.3]],
            "failed": 2,
            "invented": 1,
            "seconds": seconds,
            "requests": 7,
            "tokens_in": 100,
            "tokens_cached": 50,
            "tokens_out": 10,
        }
        for name in JUDGES
        for seconds in (1.0, 3.0, 8.0)
    ]
    for row in summarise_judges(rows):
        assert (row["seconds"], row["failed"], row["missing"], row["invented"]) == (3.0, 6, 3, 3)
        assert row["ties"] == 1 / 4
