"""The comparison of judges at the scripted endpoint. Those of others are run where installed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.errors import ConfigError, EngineError
from autoj_reward.io.provenance import describe_machine
from experiments.speed import peers
from experiments.speed.endpoint import EXPECTED, FORMS, endpoint, write_answer
from experiments.speed.peer_process import peer_python, peer_versions, run_peer
from experiments.speed.peers import (
    OURS,
    PeersConfig,
    cost_figures,
    markdown,
    measure_cost,
    measure_killed,
    measure_planted,
    rater_figures,
    real_sides,
)
from experiments.speed.raters import RATERS, RatedRows, RatingWork, rate_timed

HERE = [name for name in RATERS if name in (OURS, "AsyncOpenAI")]


def is_installed(name: str) -> bool:
    return peer_python(name, Path(".venv/peers")).exists()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PeersConfig:
    """Return a config of a small study of the judges that are installed."""
    there = {name: rate for name, rate in RATERS.items() if is_installed(name)}
    monkeypatch.setattr(peers, "RATERS", there)
    sides = [side for side in peers.SIDES if side[0] in there]
    monkeypatch.setattr(peers, "SIDES", sides)
    small = {"judgements": 40, "in_flight": 8, "rounds": 1, "latency_s": 0.001, "outage_s": 0.1}
    return PeersConfig.model_validate({"output": tmp_path, "server": {"model": "none"}} | small)


def test_ratios_are_of_the_same_round() -> None:
    def row(judge: str, cpu_s: float, wall_s: float) -> dict[str, Any]:
        return {"judge": judge, "top": 0, "cpu_s": cpu_s, "wall_s": wall_s, "start_cpu_s": 1.0}

    ours, plain = cost_figures(
        [
            row(OURS, 1, 2),
            row("AsyncOpenAI", 4, 2),
            row("AsyncOpenAI", 10, 4),
            row(OURS, 2, 4),
            row(OURS, 3, 6),
            row("AsyncOpenAI", 6, 8),
        ]
    )
    assert (ours["cpu_s"], ours["cpu_ratio"]) == (2, 1)
    assert ours["each"] == "1.00, 2.00, 3.00"
    assert (plain["cpu_ratio"], plain["wall_ratio"]) == (0.25, 1)


def test_every_judge_reads_what_the_endpoint_says(
    config: PeersConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = measure_cost(config)
    assert {(row["judge"], row["top"]) for row in rows} == set(peers.SIDES)
    assert all(row["cpu_s"] > 0 for row in rows)
    monkeypatch.setattr(peers, "EXPECTED", EXPECTED + 0.01)
    monkeypatch.setattr(peers, "SIDES", [side for side in peers.SIDES if side[1]][:1])
    with pytest.raises(EngineError, match="not the endpoint's"):
        measure_cost(config)


def test_this_package_loses_no_judgement_of_an_endpoint_that_comes_back(
    config: PeersConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "RATERS", {OURS: RATERS[OURS]})
    [ours] = measure_killed(config)
    assert (ours["rated"], ours["lost"], ours["invented"]) == (40, 0, 0)


def test_this_package_believes_no_planted_verdict(config: PeersConfig) -> None:
    rows = measure_planted(config)
    rows_by_side = {(row["judge"], row["says"]): row for row in rows}
    assert rows_by_side[OURS, "quote, verdict"]["own"] == rows_by_side[OURS, "quote"]["none"] == 32
    assert rows_by_side["AsyncOpenAI", "quote"]["believed"] == 32


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_quotes_the_best_verdict_and_may_end_there(name: str) -> None:
    form, plain = FORMS[name], write_answer(FORMS[name], "verdict")
    quoted = {says: write_answer(form, says) for says in ("quote, verdict", "quote")}
    assert quoted["quote, verdict"].startswith(quoted["quote"])
    assert len(quoted["quote, verdict"]) > len(plain)
    if name in ("openjudge", "its-hub", "verifiers"):
        content = json.loads(quoted["quote, verdict"])
        assert form.plant in json.dumps(content).replace('\\"', '"')
        assert json.loads(plain).keys() == content.keys()
    else:
        assert quoted["quote"].endswith(form.plant)


async def test_a_call_that_fails_is_counted_and_has_no_number() -> None:
    with endpoint(0.0) as server:
        nowhere = server.address("no form")  # the endpoint answers with an error
        work = RatingWork(nowhere, [("q", "a")] * 3, [], 2, 16)
        result = await rate_timed("AsyncOpenAI", work)
    assert result.readings == [(None, None)] * 3
    assert result.errors == {"InternalServerError": 3}


def test_the_report_has_the_parts_that_are_done() -> None:
    row = RatedRows([(70.0, 6.5), (70.0, 7.5), (None, None)], {"E": 1}, None, 1, 2, 3)
    tokens = {"tokens_in": 5, "tokens_cached": 4, "tokens_out": 3, "requests": 3}
    real = json.loads(json.dumps([{"judge": OURS, "scale": (1, 10)} | asdict(row) | tokens]))
    [figure] = rater_figures(real)
    assert (figure["rated"], figure["levels"], figure["off_scale"]) == (2, 1, 2)
    assert (figure["ties"], figure["expected_ties"]) == (1.0, 0.0)
    config = {"server": {"model": "m"}, "queries": 1, "running": 2, "max_tokens": 3}
    config |= {"judgements": 1, "in_flight": 1, "latency_s": 0, "rounds": 1, "outage_s": 1}
    head = {
        "command": "c",
        "at": "now",
        "machine": describe_machine(),
        "versions": {},
        "config": config,
    }
    text = markdown(head | {"steps": {"judge": real}, "peers": {"OpenJudge": "1"}})
    assert "| autoj-reward | 2 | 5 | 4 | 3 | 2 | 2 | 1 | 100% | 0% | 1 E |" in text
    assert "killed" not in text


def test_single_judges_are_measured_by_name() -> None:
    config = PeersConfig.model_validate(
        {"server": {"kind": "vllm", "model": "m"}, "judges": ["nobody"], "output": "o"}
    )
    with pytest.raises(ConfigError, match=r"judges: no \{'nobody'\}; there are"):
        list(real_sides(config))


def test_a_judge_or_environment_that_fails_is_an_error_that_says_why(tmp_path: Path) -> None:
    python = tmp_path / "its-hub/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
    python.chmod(0o755)
    work = RatingWork("http://127.0.0.1:9/v1", [], [], 1, 1)
    with pytest.raises(EngineError, match="its-hub failed: no such module"):
        run_peer("experiments.speed.raters", "its-hub", work, tmp_path)
    for name in ("its-hub", "OpenJudge"):
        with pytest.raises(EngineError, match="make peers"):
            peer_versions([name], tmp_path)
