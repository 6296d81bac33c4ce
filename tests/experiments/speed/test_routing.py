from __future__ import annotations

import json
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import RewardClient
from autoj_reward.config import JudgeConfig, load_config
from autoj_reward.engine.fake import latency_s
from autoj_reward.io.plain import plain
from autoj_reward.judge.make import make_judge
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.types import Candidate
from experiments.speed import routing
from experiments.speed.routing import (
    Pool,
    RoutingConfig,
    Seen,
    feed,
    figures,
    groups,
    makespan,
    measure,
    render,
)
from experiments.study import Study

ROOT = Path(__file__).parents[3]


def config(**given: Any) -> RoutingConfig:
    small: dict[str, Any] = {
        "ray": False,
        "replicas": 4,
        "concurrent": 8,
        "max_ongoing": 16,
        "candidates": 300,
    }
    small |= {"group": 16, "latency_s": 0.01, "latency_spread": 0.5, "output": "out"}
    return RoutingConfig.model_validate(small | given)


def test_the_stream_holds_every_candidate_once() -> None:
    found = list(groups(config(candidates=50, group=16)))
    assert [len(group) for group in found] == [16, 16, 16, 2]
    assert len({c.response for group in found for c in group}) == 50
    assert all(len({c.query for c in group}) == 1 for group in found)


async def test_every_candidate_is_answered_once() -> None:
    found = await measure(config())
    assert (found["answered"], found["told"], found["wrong"]) == (300, 300, 0)
    assert found["seconds"] >= found["ideal_s"] > 0
    assert found["scheduled_s"] >= found["ideal_s"]
    text = render(plain(Study(config()).head() | {"run": found}))
    assert "| candidates; answered, reported | 300; 300, 300 |" in text
    assert "| replicas | 4, this process |" in text
    assert f"| {found['seconds']:.1f}; {found['scheduled_s']:.1f}; {found['ideal_s']:.1f} |" in text
    assert "the ratio is to it" in text


async def test_only_a_window_of_the_stream_is_read_ahead() -> None:
    client = RewardClient(LocalBackend(JudgeReplica(make_judge(JudgeConfig(kind="fake")))))
    read, rated = 0, Seen()

    def stream() -> Any:
        nonlocal read
        for group in groups(config(candidates=320)):
            read += 1
            assert read - rated.answered // 16 <= 3 + 1  # the one at hand beside the window
            yield group

    await feed(client, stream(), 3, rated)
    assert (read, rated.answered, rated.wrong) == (20, 320, 0)


async def test_a_query_stays_on_one_replica_and_queries_are_balanced(tmp_path: Path) -> None:
    logs = [tmp_path / f"{n}.jsonl" for n in range(2)]
    judges = [JudgeConfig(kind="fake", script={"latency_s": 0.05, "log": str(log)}) for log in logs]
    client = RewardClient(Pool([LocalBackend(JudgeReplica(make_judge(judge))) for judge in judges]))
    wanted = [Candidate(f"q{q}", f"{q}/{n}") for q in range(8) for n in range(32)]
    found = await client.rate(wanted)
    assert all(j.ok for j in found)
    homes: dict[str, set[int]] = {}
    for replica, log in enumerate(logs):
        for line in log.read_text().splitlines():
            homes.setdefault(json.loads(line)[0].split("/")[0], set()).add(replica)
    assert all(len(home) == 1 for home in homes.values())
    assert Counter(min(home) for home in homes.values()) == {0: 4, 1: 4}


async def test_what_an_engine_has_no_place_for_waits() -> None:
    script = {"latency_s": 0.2, "concurrent": 2}
    replica = JudgeReplica(make_judge(JudgeConfig(kind="fake", script=script)))
    started = time.monotonic()
    found = await RewardClient(LocalBackend(replica)).rate([Candidate("q", str(n)) for n in "abcd"])
    assert all(j.ok for j in found)
    assert time.monotonic() - started > 0.39  # four in two turns; all at once take 0.2 s


@pytest.mark.parametrize(
    ("seconds", "places", "found"),
    [
        pytest.param([3, 1, 1, 4], 2, 6, id="the last one waits for the second place, free at 2"),
        pytest.param([4, 3, 1, 1], 2, 5, id="the order counts"),
        pytest.param([2, 7], 3, 7, id="places to spare"),
        pytest.param([1, 2, 3], 1, 6, id="one place"),
    ],
)
def test_a_schedule_by_hand(seconds: list[float], places: int, found: float) -> None:
    assert makespan(seconds, places) == found


def test_the_figures_by_hand() -> None:
    own = config(latency_spread=0)
    seen = Seen(answered=300, wrong=0, told=300, rss_mib=[50.0] * 10 + [60.0] * 90)
    found = figures(own, seen, 0.2, 0.5, [0.001] * 99 + [0.1])
    assert found["ideal_s"] == pytest.approx(300 * 0.01 / 32)
    assert found["scheduled_s"] == pytest.approx(0.1)  # 300 on 32 places: the tenth turn has 12
    assert found["ratio"] == pytest.approx(2)
    assert found["per_second"] == 1500
    assert found["added_p50_s"] == 0.001
    assert found["rss_mib"] == (60, 60)


def test_the_median_of_the_drawn_seconds_is_the_scripts() -> None:
    script = config(latency_s=2.0, latency_spread=0.3).judge.script
    drawn = sorted(latency_s(script, f"r{n}") for n in range(1001))
    assert drawn[500] == pytest.approx(2.0, rel=0.05)
    assert drawn[841] / drawn[500] == pytest.approx(1.35, rel=0.05)  # e^0.3: one sigma


def test_the_stated_rate_of_a_replica_is_that_of_the_config() -> None:
    own = load_config(RoutingConfig, ROOT / "configs/experiments/routing.yaml")
    mean = own.latency_s * math.exp(own.latency_spread**2 / 2)  # of the log-normal
    stated = (
        f"{mean:.2f} s by the mean, are {60 * own.concurrent / mean:.0f} a minute",
        f"{60 * own.concurrent / mean:.0f} judgements a minute each",
    )
    for path, said in zip(
        ("configs/experiments/routing.yaml", "docs/throughput.md"), stated, strict=True
    ):
        assert said in " ".join((ROOT / path).read_text().replace("\n# ", "\n").split())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "routing.yaml"
    path.write_text(config(output=str(tmp_path / "out"), candidates=64).model_dump_json())
    assert routing.main(["--config", str(path)]) == 0
    assert (tmp_path / "out/routing.md").read_text() in capsys.readouterr().out
    kept = json.loads((tmp_path / "out/routing.json").read_text())
    assert kept["run"]["answered"] == 64


@pytest.mark.engine
async def test_routing_over_ray(tmp_path: Path) -> None:
    found = await measure(config(ray=True, replicas=2, latency_s=0.05))
    assert (found["answered"], found["told"], found["wrong"]) == (300, 300, 0)
