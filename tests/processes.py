"""Processes that a test started (the machine may run another Ray), and waiting for them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]


def run_two_ranks(script: str, *arguments: str | Path, path: str = str(ROOT)) -> list[str]:
    """Run a script as ranks 0 and 1 of one training, and return what each printed.

    arguments: passed after the rank. path: PYTHONPATH. Fails if a rank fails.
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, rank, *arguments],
            env=os.environ | {"PYTHONPATH": path, "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    outputs = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    return [out for out, _ in outputs]


def processes(title: str) -> list[psutil.Process]:
    """Those below this process that have the title in their command line."""
    matches = []
    for process in psutil.Process().children(recursive=True):
        try:
            if title in " ".join(process.cmdline()):
                matches.append(process)
        except psutil.NoSuchProcess:
            continue
    return matches


def wait_until(condition: Callable[[], object], seconds: float = 600) -> None:
    """Wait until a condition holds. Fails after so many seconds: nothing takes so long, however
    busy the machine is."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)
