"""A job and the service on a Slurm cluster of two nodes, which are both this machine."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
import yaml

from tests.processes import wait_until
from tests.service.test_service_life import score, write_config
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "configs/serve/slurm/ray.sbatch"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
FirstJobId={first_job}
MpiDefault=none
ProctrackType=proctrack/linuxproc
ReturnToService=2
SelectType=select/cons_tres
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
TaskPlugin=task/none
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=all Nodes=ALL Default=YES State=UP
"""
RESPONSES = ["It is painted.", "It scatters light."]
Slurm = Callable[..., str]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)),
        reason="no Slurm: as root, apt-get install munge slurmctld slurmd slurm-client",
    ),
]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """Start Slurm, and return a function that runs one of its commands and returns the output."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # munged refuses a socket that others cannot reach
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    config = CONFIG.format(
        host=socket.gethostname(),
        folder=folder,
        ports=[free_port() for _ in range(3)],
        first_job=free_port(),
    )
    (folder / "slurm.conf").write_text(config, encoding="utf-8")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n", encoding="utf-8")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    munge = {name: f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")}
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge.values()],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", "node0"],
        ["slurmd", "-D", "-N", "node1"],
    ]

    def run(*command: str) -> str:
        result = subprocess.run(command, capture_output=True, text=True)
        return result.stdout.strip()

    daemons = []
    for command in commands:
        quiet = subprocess.DEVNULL
        daemons.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))
        wait_until((folder / "munge.socket").exists)
    try:
        wait_until(lambda: run("sinfo", "--noheader", "--format=%D %T") == "2 idle")
        yield run
    finally:
        run("scancel", "--user=root")
        wait_until(lambda: run("squeue", "--noheader") == "")
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(600)
        shutil.rmtree(folder)


def count_raylets(ray: Path) -> int:
    """Count the Ray nodes whose files are in a folder."""
    lines = [process.info["cmdline"] or [""] for process in psutil.process_iter(["cmdline"])]
    return sum(line[0].endswith("/raylet") and str(ray) in " ".join(line) for line in lines)


def test_an_allocation_runs_a_job_and_then_the_service(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    row = {"query": "Why is the sky blue?", "responses": RESPONSES}
    rows.write_text(json.dumps(row) + "\n", encoding="utf-8")
    job = {
        "input": str(rows),
        "output": str(tmp_path / "chosen"),
        "judge": {"kind": "fake", "script": {"ratings": {RESPONSES[1]: 9, RESPONSES[0]: 2}}},
        "ray_data": {"shards": 1, "concurrency": 1},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    port, log = free_port(), tmp_path / "log"
    serve = write_config(tmp_path, port, {"ratings": {"a": 7}})
    both = f"autoj best-of-n --config {tmp_path}/job.yaml && exec autoj serve --config {serve}"
    options = ("--parsable", "--nodes=2", f"--output={log}")
    number = slurm("sbatch", *options, str(SCRIPT), "bash", "-c", both)

    def is_ready() -> bool:
        assert slurm("squeue", "--noheader", f"--jobs={number}"), log.read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(is_ready)
    [chosen] = (tmp_path / "chosen/selections.jsonl").read_text(encoding="utf-8").splitlines()
    assert f'"{RESPONSES[1]}"' in chosen
    ray = Path(f"/tmp/autoj-{number}")
    assert count_raylets(ray) == 2
    assert score(f"http://127.0.0.1:{port}")["rating"]["value"] == 7

    # As Slurm does before the time limit. The service drains, and then Ray ends on both nodes.
    slurm("scancel", "--batch", "--signal=TERM", number)
    wait_until(lambda: slurm("squeue", "--noheader", f"--jobs={number}") == "")
    state = slurm("scontrol", "show", "job", number)
    assert "JobState=COMPLETED" in state and "ExitCode=0:0" in state, log.read_text()
    assert count_raylets(ray) == 0
    shutil.rmtree(ray)
