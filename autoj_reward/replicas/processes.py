"""Processes of a Ray that this process started: find them by descent and end them.

When Ray stops, its agents and the engines' workers must notice by themselves that they are
orphaned. That takes seconds to minutes, during which a GPU's memory stays allocated.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

import psutil  # type: ignore[import-untyped]


def with_descendants(roots: Iterable[psutil.Process]) -> set[psutil.Process]:
    """Return the given processes and all their descendants that are still running."""
    family: set[psutil.Process] = set()
    for root in roots:
        if root not in family:
            with suppress(psutil.NoSuchProcess):
                family |= {root, *root.children(recursive=True)}
    return family


def end_processes(processes: set[psutil.Process], patience_s: float) -> None:
    """Wait until the processes and their new children have exited, then kill those that remain.

    New children matter because a replica may be about to start its engine. patience_s: seconds to
    wait before killing.
    """
    family = set(processes)
    try:
        _wait(family, patience_s)
    finally:  # an interrupt ends the wait at once
        family |= with_descendants(_list_alive(family))
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _wait(family, 10.0)


def _wait(processes: set[psutil.Process], seconds: float) -> None:
    """Wait at most `seconds` until none of the processes is alive. Adds their new children to
    `processes`."""
    deadline = time.monotonic() + seconds
    while (alive := _list_alive(processes)) and time.monotonic() < deadline:
        processes |= with_descendants(alive)
        time.sleep(0.05)


def _list_alive(processes: set[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    """Return whether a process is running and not a zombie: a zombie holds no resources."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
