from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.errors import EngineError
from experiments.speed import asker
from experiments.speed.asker import PEERS, PeerWork
from experiments.speed.endpoint import EXPECTED, endpoint
from experiments.speed.peers import main, peer_figures


def row(peer: str, cpu_s: float, wall_s: float) -> dict[str, Any]:
    return {"top": 0, "peer": peer, "cpu_s": cpu_s, "wall_s": wall_s, "start_cpu_s": 1.0}


def test_ratios_are_of_the_same_round() -> None:
    ours, plain = peer_figures(
        [
            row("autoj-reward", 1, 2),
            row("AsyncOpenAI", 4, 2),
            row("AsyncOpenAI", 10, 4),
            row("autoj-reward", 2, 4),
            row("autoj-reward", 3, 6),
            row("AsyncOpenAI", 6, 8),
        ]
    )
    assert (ours["cpu_s"], ours["cpu_ratio"], ours["rounds_cpu_s"]) == (2, 1, [1, 2, 3])
    assert (plain["cpu_ratio"], plain["wall_ratio"]) == (0.25, 1)


def test_every_peer_reads_what_the_endpoint_says(tmp_path: Path) -> None:
    config = tmp_path / "peers.yaml"
    few = {"judgements": 40, "in_flight": 8, "rounds": 1, "latency_s": 0.001}
    config.write_text(json.dumps(few | {"output": str(tmp_path / "out")}), encoding="utf-8")
    assert main(["--config", str(config)]) == 0
    found = json.loads((tmp_path / "out/peers.json").read_text(encoding="utf-8"))
    assert {(run["peer"], run["top"]) for run in found["rounds"]} == {
        (peer, top) for peer in PEERS for top in (0, 20)
    }
    assert all(run["cpu_s"] > 0 for run in found["rounds"])
    assert "| AsyncOpenAI |" in (tmp_path / "out/peers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("peer", PEERS)
async def test_a_reading_that_is_not_the_endpoints_is_an_error(
    peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with endpoint(0.0) as address:
        work = PeerWork(address, judgements=2, in_flight=2, top=20)
        assert (await asker.measure_peer(peer, work))["cpu_s"] > 0
        monkeypatch.setattr(asker, "EXPECTED", EXPECTED + 0.01)
        with pytest.raises(EngineError, match="not the endpoint's"):
            await asker.measure_peer(peer, work)
        await asker.measure_peer(peer, replace(work, top=0))
