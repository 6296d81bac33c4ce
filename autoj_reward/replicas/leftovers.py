"""What a killed process of ours could not clean up, and its removal at the next start.

Who starts an engine or a Ray writes down its own processes and the shared memory they hold, in a
file of the cache folder. Of a file whose writer is dead, what it names and nothing else is removed:
processes that are still the same ones, and memory that no process has mapped any more.
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
from autoj_reward.replicas.processes import end, family

SHARED = Path("/dev/shm")
PROC = Path("/proc")
EVERY_S = 1.0
"""Seconds between two looks at the processes of an engine that starts."""


def record(roots: Iterable[psutil.Process] = ()) -> None:
    """Write down the descendants of this process and the `roots`, and what memory they share."""
    if (folder := _folder()) is None:
        return
    own = psutil.Process()
    ours = family([own, *roots])
    facts = {
        "processes": [[p.pid, _started(p.pid)] for p in ours if p != own],
        "shared": sorted(_mapped(p.pid for p in ours)),
    }
    write_text(folder / f"{own.pid}-{_started(own.pid)}.json", json.dumps(facts))


@contextmanager
def recording() -> Iterator[None]:
    """Around the start of an engine, whose processes are there long before it answers: `record`
    each second until it does, and once more."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(EVERY_S):
            record()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    record()


def clean() -> None:
    """Remove what dead writers have left."""
    if (folder := _folder()) is None:
        return
    for path in folder.glob("*.json"):
        writer, _, started = path.stem.partition("-")
        if not started or _started(int(writer)) == started:
            continue
        with suppress(OSError, ValueError, KeyError, TypeError):  # somebody cleans too
            _remove(json.loads(path.read_text(encoding="utf-8")))
        path.unlink(missing_ok=True)


def _remove(facts: dict[str, Any]) -> None:
    left = set()
    for pid, started in facts["processes"]:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)  # first: should the id change hands, it knows
            left |= {process} if started and _started(pid) == started else set()
    end(left, patience_s=0.0)
    for name in set(facts["shared"]) - _mapped(psutil.pids()):
        (SHARED / Path(name).name).unlink(missing_ok=True)


def _folder() -> Path | None:
    """Where the processes of this boot and name space write; None on a system without /proc."""
    if not (PROC / "self" / "stat").exists():
        return None
    boot = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    space = os.stat(PROC / "self" / "ns" / "pid").st_ino
    folder = cache_folder() / "running" / f"{boot}-{space}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _started(pid: int) -> str:
    """When a process began, in ticks since the boot; empty if there is none or it is a zombie."""
    try:
        facts = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if facts[0] in "ZX" else facts[19]


def _mapped(pids: Iterable[int]) -> set[str]:
    """Names of the shared memory of Python's `multiprocessing` that these processes have mapped."""
    found = set()
    for pid in pids:
        with suppress(OSError):  # gone meanwhile, or another user's, who cannot map ours
            text = (PROC / str(pid) / "maps").read_bytes()
            for line in text.splitlines():
                if b"/dev/shm/psm_" in line and not line.endswith(b"(deleted)"):
                    found.add(line.rpartition(b"/")[2].decode())
    return found
