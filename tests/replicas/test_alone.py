"""A Ray that we start is reached from this machine alone, and its token by this user alone."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoj_reward.replicas.alone import alone

LISTENING = """
import psutil
from autoj_reward.config import JudgeConfig
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.replicas.processes import family

cluster = Cluster()
try:
    cluster.deploy_judge(JudgeConfig.model_validate({"kind": "fake", "serve": {"replicas": 1}}))
    for process in family([psutil.Process()]):
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                print("LISTENS", connection.laddr.ip)
finally:
    cluster.close()
"""


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_ray_of_our_own_listens_on_the_loopback() -> None:
    told = subprocess.run(
        [sys.executable, "-c", LISTENING], capture_output=True, text=True, check=True
    )
    found = [line.split()[1] for line in told.stdout.splitlines() if line.startswith("LISTENS ")]
    assert len(found) > 5
    for address in map(ipaddress.ip_address, found):
        mapped = getattr(address, "ipv4_mapped", None) or address
        assert mapped.is_loopback, address
    token = Path.home() / ".ray" / "auth_token"
    assert not token.exists() or token.stat().st_mode & 0o077 == 0


def test_the_token_is_private_and_the_environment_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    before = dict(os.environ)
    token = tmp_path / ".ray" / "auth_token"
    with alone():
        assert token.parent.stat().st_mode & 0o777 == 0o700
        token.write_text("secret")
        token.chmod(0o644)
        assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert token.stat().st_mode & 0o777 == 0o600
    assert dict(os.environ) == before
