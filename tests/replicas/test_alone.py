"""A Ray that this package starts: isolation and replacement of its judge.

It is reachable from this machine only, its token is readable by this user only, and its judge is
replaced without a failed request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.models.spec import judge_spec
from autoj_reward.replicas.backend import RayBackend
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.replicas.isolation import loopback_only
from autoj_reward.replicas.processes import with_descendants
from autoj_reward.types import Judgement
from tests.replicas.scripted import make_candidates, make_judge


@pytest.fixture(scope="module")
def backend() -> Iterator[RayBackend]:
    cluster = Cluster()
    try:
        yield cluster.deploy_judge(judge_spec(make_judge(3)))
    finally:
        cluster.close()


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_ray_of_our_own_listens_on_the_loopback(backend: RayBackend) -> None:
    addresses = [
        connection.laddr.ip
        for process in with_descendants([psutil.Process()])
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(addresses) > 5
    for address in map(ipaddress.ip_address, addresses):
        mapped = getattr(address, "ipv4_mapped", None) or address
        assert mapped.is_loopback, address
    token = Path.home() / ".ray" / "auth_token"
    assert not token.exists() or token.stat().st_mode & 0o077 == 0


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_another_judge_takes_over_without_a_failed_request(backend: RayBackend) -> None:
    old = backend.judge
    client = JudgeClient(backend, limits=ClientLimits(deadline_s=120))

    async def run() -> tuple[list[Judgement], list[Judgement]]:
        during: list[Judgement] = []

        async def keep_asking() -> None:
            for start in range(0, 200, 10):
                during.extend(await client.rate(make_candidates(start, 10)))

        task = asyncio.create_task(keep_asking())
        await asyncio.sleep(0.5)
        await backend.update(judge_spec(make_judge(8)))
        after = await client.rate(make_candidates(300, 20))
        await task
        return during, after

    during, after = asyncio.run(run())
    new = backend.judge
    assert new != old
    assert {(j.judge, j.view("rating")) for j in during} <= {(old, 3.0), (new, 8.0)}
    assert {(j.judge, j.view("rating")) for j in after} == {(new, 8.0)}


def test_the_token_is_private_and_the_environment_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    before = dict(os.environ)
    token = tmp_path / ".ray" / "auth_token"
    with loopback_only():
        assert token.parent.stat().st_mode & 0o777 == 0o700
        token.write_text("secret")
        token.chmod(0o644)
        assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert token.stat().st_mode & 0o777 == 0o600
    assert dict(os.environ) == before


def test_a_call_that_comes_late_starts_no_ray() -> None:
    """Whichever module of this package is imported first, in a process without Ray."""
    script = (
        "import autoj_reward.replicas.backend, ray\n"
        "try: ray.put(1)\n"
        "except ray.exceptions.RaySystemError as error: print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "Ray has not been started" in result.stdout, result.stderr
