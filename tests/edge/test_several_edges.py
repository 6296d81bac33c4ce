"""`autoj serve` with several edges behind one port."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
import yaml
from pydantic import ValidationError

from autoj_reward.edge.server import EdgeConfig, listen
from autoj_reward.edge.several import Several
from autoj_reward.edge.sharing import Plan, serve
from autoj_reward.errors import EngineError
from autoj_reward.prompts.format import FORMATS
from experiments.faults.chaos.server import free_port
from tests.edge.test_service_life import (
    HEADERS,
    ROOT,
    edited,
    lines,
    running,
    score,
    until,
    written,
)
from tests.watched import Watched

pytestmark = pytest.mark.timeout(600)


def two(folder: Path, port: int, script: dict[str, Any], **more: Any) -> Path:
    path = written(folder, port, script, **more)
    config = yaml.safe_load(path.read_text(encoding="utf-8")) | {"edges": 2}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def answered_by(log: Path) -> set[int]:
    """The processes that have answered a call."""
    return {line["process"] for line in lines(log, "request") if line["route"] == "/v1/score"}


def burst(address: str, calls: int = 24) -> list[dict[str, Any]]:
    """Calls at the same time, each on a connection of its own."""
    with ThreadPoolExecutor(calls) as pool:
        return list(pool.map(lambda _: score(address), range(calls)))


def edges(process: psutil.Process) -> set[int]:
    found = set()
    for child in process.children():
        if "resource_tracker" not in " ".join(child.cmdline()):
            found.add(child.pid)
    return found


def counted(address: str, metric: str) -> float:
    page = httpx.get(f"{address}/metrics", headers=HEADERS).text
    [line] = [line for line in page.splitlines() if line.startswith(metric)]
    return float(line.rpartition(" ")[2])


@contextmanager
def asking(address: str, callers: int) -> Iterator[list[str]]:
    """Callers that ask one after the other, each with one call under way; what failed."""
    over, failed = threading.Event(), list[str]()

    def ask() -> None:
        while not over.is_set():
            try:
                score(address)
            except (httpx.TransportError, AssertionError) as error:
                failed.append(repr(error))

    with ThreadPoolExecutor(callers) as pool:
        for _ in range(callers):
            pool.submit(ask)
        try:
            yield failed
        finally:
            over.set()


def test_two_edges_over_their_life(tmp_path: Path) -> None:
    port = free_port()
    mine = tmp_path / "mine"
    shutil.copytree(FORMATS / "autoj-en", mine)
    config = two(tmp_path, port, {"ratings": {"a": 3}, "latency_s": 0.1}, format=str(mine))
    with running(config, port) as (process, address, log):
        asked = 0

        def both_answer() -> bool:
            nonlocal asked
            asked += len(burst(address))
            return len(answered_by(log)) == 2

        until(both_answer)
        first = answered_by(log)
        assert first == edges(psutil.Process(process.pid)) and process.pid not in first
        # Whoever is asked tells what all have done.
        all_calls = 'autoj_requests_total{route="/v1/score",status="200"}'
        until(lambda: counted(address, all_calls) == asked)

        with asking(address, 8) as failed:
            killed = min(first)
            os.kill(killed, signal.SIGKILL)
            until(lambda: len(answered_by(log) - first) == 1)
        assert len(failed) <= 8, failed  # what it had under way
        [told] = lines(log, "an edge has died")
        assert told["edge"] == killed and counted(address, all_calls) >= asked

        # Both of them take the new judge with its template, and so does one that starts later.
        edited(mine / "single.txt", "[BEGIN DATA]", "[BE STRICT]\n[BEGIN DATA]")
        two(tmp_path, port, {"ratings": {"a": 8}, "latency_s": 1.0}, format=str(mine))
        process.send_signal(signal.SIGHUP)
        until(lambda: lines(log, "judge replaced"))
        [replaced] = lines(log, "judge replaced")
        until(lambda: {j["judge"] for j in burst(address)} == {replaced["judge"]})

        last: list[dict[str, Any]] = []
        waiting = threading.Thread(target=lambda: last.append(score(address)))
        waiting.start()
        until(lambda: counted(address, "autoj_requests_in_flight ") == 1)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        waiting.join()
        assert last[0]["rating"]["value"] == 8
        assert process.wait(60) == 0
        until(lambda: not any(child.is_running() for child in children))
        assert "secret" not in log.read_text() and "Traceback" not in log.read_text()


def test_edges_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    port = free_port()
    config = two(tmp_path, port, {"latency_s": 0.1})
    with running(config, port) as (process, address, log):
        until(lambda: burst(address) and len(answered_by(log)) == 2)
        children = psutil.Process(process.pid).children(recursive=True)
        [folder] = {
            child.environ()["PROMETHEUS_MULTIPROC_DIR"]
            for child in children
            if child.pid in edges(psutil.Process(process.pid))
        }
        process.kill()
        until(lambda: not any(child.is_running() for child in children))
        assert not Path(folder).exists() and "Traceback" not in log.read_text()


def test_an_edge_that_nobody_waits_for_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that started it was killed before it was ready."""
    (tmp_path / "counted").mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "counted"))
    config = EdgeConfig.model_validate({"reward": {"judge": {"kind": "fake"}}, "edges": 2})
    context = get_context("spawn")
    here, there = context.Pipe()
    with listen("127.0.0.1", free_port()) as listening:
        plan = Plan(config, "secret", listening, {})
        process = context.Process(target=serve, args=(plan, there))
        process.start()
        here.close()
        there.close()
        process.join()
    assert process.exitcode == 0 and not (tmp_path / "counted").exists()


def test_an_edge_that_cannot_start_ends_the_service() -> None:
    config = EdgeConfig.model_validate({"reward": {"judge": {"kind": "fake"}}, "edges": 2})
    with listen("127.0.0.1", free_port()) as listening:
        several = Several(Plan(config, "", listening, {}))
        with pytest.raises(EngineError, match="needs a token that is not empty"):
            several.run()


def test_more_edges_than_requests() -> None:
    with pytest.raises(ValidationError, match="each edge takes at least one"):
        EdgeConfig.model_validate({"edges": 8, "max_requests": 4})


SERVED = """
import sys
from autoj_reward.config import EngineConfig

EngineConfig.on_replicas = True  # the scripted engine goes on Ray, too
if __name__ == "__main__":
    from autoj_reward.edge.service import main
    main(sys.argv[1])
"""


@pytest.mark.engine
def test_two_edges_ask_the_same_replicas(tmp_path: Path) -> None:
    port, program = free_port(), tmp_path / "served.py"
    program.write_text(SERVED, encoding="utf-8")
    path = two(tmp_path, port, {"ratings": {"a": 3}, "latency_s": 0.1})
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["reward"]["judge"]["serve"] = {"replicas": 1, "num_cpus": 0.1}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}
    with Watched([sys.executable, str(program), str(path)], env=environment) as served:
        own = psutil.Process(served.process.pid)

        def log() -> Path:
            (tmp_path / "log").write_text(served.stderr, encoding="utf-8")
            return tmp_path / "log"

        def ready() -> bool:
            assert served.process.poll() is None, served.stderr[-3000:]
            try:
                return httpx.get(f"{address}/readyz", timeout=30).status_code == 200
            except httpx.TransportError:
                return False

        def both_answer() -> bool:
            assert {j["rating"]["value"] for j in burst(address)} == {3}
            return len(answered_by(log())) == 2

        until(ready, 300)
        until(both_answer)
        first, [replica] = answered_by(log()), replicas(own)
        with asking(address, 8) as failed:
            os.kill(min(first), signal.SIGKILL)
            until(lambda: len(answered_by(log()) - first) == 1, 120)
        assert len(failed) <= 8, failed
        assert replicas(own) == [replica]  # it was not the edge's

        config["reward"]["judge"]["script"]["ratings"]["a"] = 8
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        served.process.send_signal(signal.SIGHUP)
        until(lambda: lines(log(), "judge replaced"), 120)
        until(lambda: {j["rating"]["value"] for j in burst(address)} == {8})

        served.process.send_signal(signal.SIGTERM)
        code, _ = served.end()
        assert code == 0, served.stderr[-3000:]
        until(lambda: not [p for p in served.seen.values() if runs(p)])
        assert "Traceback" not in served.stderr, served.stderr


def replicas(own: psutil.Process) -> list[int]:
    found = []
    for process in own.children(recursive=True):
        try:
            found += [process.pid] if "ServeReplica:judge" in " ".join(process.cmdline()) else []
        except psutil.NoSuchProcess:
            continue
    return found


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
