"""The processes of a Ray that this one started: found by descent, and ended for good.

Ray's own stop leaves its agents and the engines' workers to notice for themselves that they are
alone, which takes them seconds to minutes, with a GPU's memory held.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

import psutil  # type: ignore[import-untyped]


def family(roots: Iterable[psutil.Process]) -> set[psutil.Process]:
    """These processes, where they still run, and all that descend from them."""
    found: set[psutil.Process] = set()
    for root in roots:
        if root not in found:
            with suppress(psutil.NoSuchProcess):
                found |= {root, *root.children(recursive=True)}
    return found


def end(processes: set[psutil.Process], patience_s: float) -> None:
    """Wait until they are gone, and what they start meanwhile: a replica may just be about to start
    its engine. Kill those that still are there after so many seconds."""
    found = set(processes)
    try:
        _wait(found, patience_s)
    finally:  # whoever is interrupted waits no longer
        found |= family(_alive(found))
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _wait(found, 10.0)


def _wait(found: set[psutil.Process], seconds: float) -> None:
    """Until none is alive, for so many seconds at most; what they have started is added."""
    deadline = time.monotonic() + seconds
    while (alive := _alive(found)) and time.monotonic() < deadline:
        found |= family(alive)
        time.sleep(0.05)


def _alive(processes: set[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    """A zombie is none: it holds nothing, and who should collect it is not us."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
