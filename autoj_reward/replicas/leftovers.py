"""Clean-up after killed processes: their remaining child processes and shared memory are removed at
the next start.

A process that starts an engine or a Ray writes a record into the cache folder. It lists its child
processes and their shared memory. If the process that wrote a record is dead,
`remove_leftovers` removes what the record lists and nothing else. Processes must still be the same
ones, and shared memory must not be mapped by any process.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from autoj_reward.io.files import write_text
from autoj_reward.models.built_in import cache_folder
from autoj_reward.replicas.processes import end_processes, with_descendants

SHARED = Path("/dev/shm")
PROC = Path("/proc")
EVERY_S = 1.0
"""Seconds between two records while an engine starts."""


def record_processes(roots: Iterable[psutil.Process] = ()) -> None:
    """Record the descendants of this process and of `roots`, and the shared memory that
    they map."""
    if (folder := _find_folder()) is None:
        return
    this_process = psutil.Process()
    processes = with_descendants([this_process, *roots])
    facts = {
        "processes": [[p.pid, _read_start_time(p.pid)] for p in processes if p != this_process],
        "shared": sorted(_list_mapped(p.pid for p in processes)),
    }
    write_text(
        folder / f"{this_process.pid}-{_read_start_time(this_process.pid)}.json", json.dumps(facts)
    )


@contextmanager
def keep_recording() -> Iterator[None]:
    """Call `record_processes` every second while an engine starts within this context, and once
    more afterwards.

    The engine's processes exist long before it answers.
    """
    stop_event = threading.Event()

    def repeat() -> None:
        while not stop_event.wait(EVERY_S):
            record_processes()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop_event.set()
        thread.join()
    record_processes()


def remove_leftovers() -> None:
    """Remove the processes and shared memory that dead processes left behind."""
    if (folder := _find_folder()) is None:
        return
    for path in folder.glob("*.json"):
        writer, _, start_time = path.stem.partition("-")
        if not start_time or _read_start_time(int(writer)) == start_time:
            continue
        with suppress(OSError, ValueError, KeyError, TypeError):  # another process may clean too
            _remove(json.loads(path.read_text(encoding="utf-8")))
        path.unlink(missing_ok=True)


def _remove(facts: dict[str, Any]) -> None:
    leftovers = set()
    for pid, start_time in facts["processes"]:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)  # created first: it detects a reuse of the id
            leftovers |= {process} if start_time and _read_start_time(pid) == start_time else set()
    end_processes(leftovers, patience_s=0.0)
    for name in set(facts["shared"]) - _list_mapped(psutil.pids()):
        (SHARED / Path(name).name).unlink(missing_ok=True)


def _find_folder() -> Path | None:
    """Return the record folder of this boot and PID namespace; None on a system without /proc."""
    if not (PROC / "self" / "stat").exists():
        return None
    boot = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    space = os.stat(PROC / "self" / "ns" / "pid").st_ino
    folder = cache_folder() / "running" / f"{boot}-{space}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _read_start_time(pid: int) -> str:
    """Return a process's start time in ticks since boot; empty if it does not exist or is
    a zombie."""
    try:
        facts = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if facts[0] in "ZX" else facts[19]


def _list_mapped(pids: Iterable[int]) -> set[str]:
    """Return the names of Python `multiprocessing` shared memory that these processes map."""
    names = set()
    for pid in pids:
        with suppress(OSError):  # it has exited, or belongs to another user, who cannot map ours
            text = (PROC / str(pid) / "maps").read_bytes()
            for line in text.splitlines():
                if b"/dev/shm/psm_" in line and not line.endswith(b"(deleted)"):
                    names.add(line.rpartition(b"/")[2].decode())
    return names
