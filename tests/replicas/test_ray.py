"""Ray's processes on the real stack with a scripted judge.

A Ray that somebody else started stays untouched, and nothing of a Ray of this package's is left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.support.ports import free_port
from tests.watched import Watched

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

JOB = """
import asyncio, json, sys, time
import ray
from ray import serve
from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.config import JudgeConfig
from autoj_reward.errors import ConfigError
from autoj_reward.models.spec import judge_spec
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.types import Candidate

cluster = Cluster()
try:
    script = {"ratings": {"a": 3}}
    config = JudgeConfig(kind="fake", script=script, serve={"replicas": 1, "num_cpus": 0.1})
    backend = cluster.deploy_judge(judge_spec(config))
    client = JudgeClient(backend, limits=ClientLimits(deadline_s=120))
    [said] = asyncio.run(client.rate([Candidate("q", "a")]))
    where = ray.get_runtime_context().gcs_address
    names = list(serve.status().applications)
    print(json.dumps([where, said.view("rating"), names, asyncio.run(backend.check())]), flush=True)
    if sys.argv[1] == "wait":
        time.sleep(600)
except ConfigError as error:
    print(json.dumps(str(error)), flush=True)
finally:
    cluster.close()
"""


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Yield an environment with a temporary folder for Ray, in which it keeps its cluster's
    address."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    inherited = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "RANK")}
    # Ray's workers would run at niceness 15: on a busy machine, hardly at all.
    settings = {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    settings |= {"RAY_AUTH_MODE": "disabled"}  # a token is one user's on one machine
    yield inherited | settings | {"PYTHONPATH": str(ROOT)}
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def stranger(environment: dict[str, str]) -> Iterator[str]:
    """Yield the address of a cluster that somebody else has started on this machine."""
    port = free_port()
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += [f"--port={port}", "--include-dashboard=false", "--num-cpus=1"]
    command += [f"--ray-client-server-port={free_port()}", "--object-store-memory=100000000"]
    address = Path(environment["RAY_TMPDIR"]) / "ray/ray_current_cluster"
    with Watched(command, env=environment) as started:
        deadline = time.monotonic() + 600
        while not (address.is_file() and any("raylet" in p.name() for p in list_alive(started))):
            assert started.process.poll() is None and time.monotonic() < deadline, started.stderr
            time.sleep(0.2)
        before = {p.pid for p in list_alive(started) if "raylet" in p.name() or "gcs" in p.name()}
        yield address.read_text(encoding="utf-8")
        assert before and before <= {p.pid for p in list_alive(started)}, "its processes still run"


def list_alive(started: Watched) -> list[psutil.Process]:
    return [
        p
        for p in list(started.seen.values())
        if p.is_running() and p.status() != psutil.STATUS_ZOMBIE
    ]


def run_job(environment: dict[str, str]) -> tuple[Any, list[str]]:
    """Return the output of a job, and the processes that it leaves."""
    with Watched([sys.executable, "-c", JOB, "end"], env=environment) as job:
        assert job.process.stdout is not None
        line = job.process.stdout.readline()
        code, remaining = job.end()
        assert code == 0, job.stderr[-3000:]
        return json.loads(line), remaining


def test_a_stranger_s_ray_is_left_alone(stranger: str, environment: dict[str, str]) -> None:
    output, remaining = run_job(environment)
    assert output[1:] == [3.0, ["judge"], 1] and output[0] != stranger
    assert remaining == []


def test_a_ray_that_is_named_is_joined_and_goes_on(
    stranger: str, environment: dict[str, str]
) -> None:
    output, _ = run_job(environment | {"RAY_ADDRESS": stranger})
    assert not isinstance(output, str), output
    address, rating, [name], replicas = output
    assert (address, rating, replicas) == (stranger, 3.0, 1)
    assert str(name).startswith("judge-")  # another run may have its judge there


def test_a_named_ray_that_is_not_there(environment: dict[str, str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    output, remaining = run_job(environment | {"RAY_ADDRESS": address})
    assert isinstance(output, str) and output.startswith(f"RAY_ADDRESS names {address}, and no Ray")
    assert remaining == []


@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)], ids=str)
def test_nothing_is_left_after_signals(
    environment: dict[str, str], number: signal.Signals, times: int
) -> None:
    with Watched([sys.executable, "-c", JOB, "wait"], env=environment) as job:
        assert job.process.stdout is not None and job.process.stdout.readline()
        for _ in range(times):
            job.process.send_signal(number)
            time.sleep(0.5)
        code, remaining = job.end()
        assert (remaining, code != 0, len(job.seen) > 5) == ([], True, True), job.stderr[-3000:]
