"""`autoj serve` over a judge on replicas of Ray: a judge replaced, and nothing left at the end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.processes import wait_until
from tests.service.test_service_life import ROOT, score, write_config
from tests.support.ports import free_port
from tests.watched import Watched

SERVED = """
import sys
from autoj_reward.config import EngineConfig
from autoj_reward.service.serve import main

EngineConfig.on_replicas = True  # the scripted engine goes on Ray, as a model does
main(sys.argv[1])
"""


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_sighup_replaces_the_replicas_judge_and_sigterm_leaves_nothing(tmp_path: Path) -> None:
    port, program = free_port(), tmp_path / "served.py"
    program.write_text(SERVED, encoding="utf-8")
    serve = {"replicas": 1, "num_cpus": 0.1}
    config = write_config(tmp_path, port, {"ratings": {"a": 3}}, serve=serve)
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}
    with Watched([sys.executable, str(program), str(config)], env=environment) as service:

        def is_ready() -> bool:
            assert service.process.poll() is None, service.stderr[-3000:]
            try:
                return httpx.get(f"{address}/readyz", timeout=600).json() == {
                    "status": "ready",
                    "replicas": 1,
                }
            except httpx.TransportError:
                return False

        wait_until(is_ready)
        before = score(address)
        assert before["rating"]["value"] == 3

        write_config(tmp_path, port, {"ratings": {"a": 8}}, serve=serve)
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "judge replaced" in service.stderr)
        after = score(address)
        assert after["rating"]["value"] == 8 and after["judge"] != before["judge"]

        service.process.send_signal(signal.SIGTERM)
        code, _ = service.end()
        assert code == 0, service.stderr[-3000:]
        wait_until(lambda: not service.end()[1])
        assert "Traceback" not in service.stderr, service.stderr
