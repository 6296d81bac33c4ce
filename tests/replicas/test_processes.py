"""Processes are ended together with their children."""

from __future__ import annotations

import subprocess
import sys

import psutil  # type: ignore[import-untyped]

from autoj_reward.replicas.processes import end_processes, with_descendants

STARTING = """
import subprocess, sys, time
sys.stdin.readline()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_what_they_start_after_a_look_at_them_ends_with_them() -> None:
    """Example: a replica is about to start its engine when its Ray stops."""
    command, pipe = [sys.executable, "-c", STARTING], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as started:
        try:
            assert started.stdin is not None and started.stdout is not None
            processes = with_descendants([psutil.Process(started.pid)])
            started.stdin.write("\n")
            started.stdin.flush()
            child = psutil.Process(int(started.stdout.readline()))
            end_processes(processes, 0.0)
            assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        finally:
            end_processes(with_descendants([psutil.Process(started.pid)]), 0.0)
