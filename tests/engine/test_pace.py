"""Rate limits for requests and tokens, on a clock that moves only during waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.engine import endpoint as module
from autoj_reward.engine.endpoint import RateLimiter


class Clock:
    """Simulated clock."""

    def __init__(self) -> None:
        self.now, self.passes = 100.0, False
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.passes:
            self.now += seconds

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: fake.now))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=fake.sleep))
    for name in ("AUTOJ_PROCESSES", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return fake


async def measure_waits(pace: RateLimiter, clock: Clock, *tokens: int) -> list[float]:
    """Return the seconds that requests of these token counts wait if all arrive at once."""
    clock.waits.clear()
    await asyncio.gather(*(pace.take(size) for size in tokens))
    return list(clock.waits)


async def test_requests_that_come_together_are_spread_over_the_minute(clock: Clock) -> None:
    waits = await measure_waits(RateLimiter(30, None), clock, 5, 5_000, 5, 5)
    assert waits == [0, 2, 4, 6]


async def test_time_without_a_request_is_not_made_up_for(clock: Clock) -> None:
    pace = RateLimiter(30, None)
    await measure_waits(pace, clock, 1)
    clock.advance(60)
    assert await measure_waits(pace, clock, 1, 1) == [0, 2]
    clock.advance(1)
    assert await measure_waits(pace, clock, 1) == [3]


async def test_no_more_than_the_limit_in_any_minute(clock: Clock) -> None:
    clock.passes = True
    pace, sent = RateLimiter(120, 60_000), []
    for n in range(300):
        await pace.take(100 if n % 3 else 1_500)
        sent.append((clock.now, 100 if n % 3 else 1_500))
    for start, _ in sent:
        minute = [size for at, size in sent if start <= at < start + 60]
        assert len(minute) <= 120 and sum(minute) <= 60_000 + 1_500


async def test_a_request_waits_for_the_tokens_of_the_one_before(clock: Clock) -> None:
    waits = await measure_waits(RateLimiter(None, 6_000), clock, 100, 3_000, 50, 1)
    assert waits == [0, 1, 31, 31.5]


async def test_the_tighter_of_two_limits_counts(clock: Clock) -> None:
    waits = await measure_waits(RateLimiter(60, 6_000), clock, 1, 500, 1)
    assert waits == [0, 1, 6]


async def test_what_a_request_did_not_cost_is_given_back(clock: Clock) -> None:
    pace = RateLimiter(60, 6_000)
    await measure_waits(pace, clock, 1_000)
    pace.correct(1_000, 400)
    assert await measure_waits(pace, clock, 1) == [4]
    pace.correct(1_000, None)  # nobody tells: it may have cost all of them
    pace.correct(1_000, 2_000)
    assert await measure_waits(pace, clock, 1_000) == [5]
    pace.correct(1_000, 0)  # it was a request all the same
    assert await measure_waits(pace, clock, 1) == [6]


async def test_without_a_limit_nobody_waits(clock: Clock) -> None:
    assert await measure_waits(RateLimiter(None, None), clock, 10**6, 10**6) == []


@pytest.mark.parametrize(
    ("environment", "processes"),
    [
        pytest.param({}, 1, id="alone"),
        pytest.param({"WORLD_SIZE": "4"}, 4, id="training"),
        pytest.param({"AUTOJ_PROCESSES": "3"}, 3, id="job"),
        pytest.param({"AUTOJ_PROCESSES": "3", "WORLD_SIZE": "1"}, 3, id="both"),
        pytest.param({"WORLD_SIZE": ""}, 1, id="empty"),
    ],
)
async def test_the_processes_of_a_run_divide_the_limits(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], processes: int
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert await measure_waits(RateLimiter(60, None), clock, 1, 1) == [0, processes]
    assert await measure_waits(RateLimiter(None, 6_000), clock, 100, 1) == [0, processes]


@pytest.mark.parametrize("name", ["AUTOJ_PROCESSES", "WORLD_SIZE"])
@pytest.mark.parametrize("value", ["abc", "0", "-1", "1.5", "9" * 5000])
def test_a_number_of_processes_that_is_none_is_named(
    name: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    endpoint = ["--set", "judge.kind=openai", "--set", "judge.base_url=http://127.0.0.1:9/v1"]
    assert cli.main(["check", "--output", str(tmp_path / "check"), *endpoint]) == 1
    assert f"environment variable {name} is '" in capsys.readouterr().err
