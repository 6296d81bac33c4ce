"""Processes that a test started: the machine may run another Ray."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped]


def processes(title: str) -> list[psutil.Process]:
    """Those below this process that have the title in their command line."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if title in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
