"""How far a job has come with its results, kept beside them so that a killed one goes on there.

Without it, or if anything of it does not fit, a job reads all its judgements from the journal again
and ends with the same results. It tells of jobs whose input brings the responses: which queries a
policy left unanswered may differ from start to start.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoj_reward.io.files import bytes_left, write_kept
from rollouts.best_of_n.group import GroupResult
from rollouts.best_of_n.sample import Sample
from rollouts.best_of_n.summary import Figures

FORM = 2
"""Raised by every change of what is kept."""
NAME = ".so_far"
RESULTS = ("selections.jsonl", "judgements.jsonl")
EVERY_S, SHARE = 5.0, 0.02
"""Seconds between two records of it, and the share of the time that they may take."""
KNOWN = {
    *(f"autoj_reward.{name}" for name in ("types", "context", "conversation")),
    *("autoj_reward.io.rows", "autoj_reward.io.histogram"),
    *(f"rollouts.best_of_n.{name}" for name in ("so_far", "curve", "group", "sample")),
    *("rollouts.best_of_n.summary", "rollouts.best_of_n.spending", "autoj_reward.select.race"),
    *("collections", "random"),
}
"""The modules whose classes the file may hold."""
UNREADABLE = (pickle.UnpicklingError, AttributeError, ImportError, TypeError, ValueError, EOFError)


@dataclass(slots=True)
class SoFar:
    """What is gathered of the queries whose results are written. sizes: bytes of RESULTS."""

    figures: Figures
    sample: Sample
    sizes: tuple[int, int] = (0, 0)

    @property
    def queries(self) -> int:
        return self.sample.total

    def add(self, group: GroupResult) -> None:
        self.figures.add(group)
        self.sample.add(group)


class Checkpoint:
    """The file that holds a `SoFar`. job: names all that decides about the results, which is asked
    for anew each time, or is empty where nothing is to be kept."""

    def __init__(self, folder: Path, job: Callable[[], str]) -> None:
        self._folder, self._path, self._job = folder, folder / NAME, job
        self._next = time.monotonic() + EVERY_S

    def read(self) -> SoFar | None:
        """What a killed run of the same job has left, if its results are there as well."""
        try:
            kept = self._path.read_bytes()
            sizes = tuple(bytes_left(self._folder / name) for name in RESULTS)
        except OSError:
            return None
        checksum, body = kept[:32], kept[32:]
        if not self._job() or checksum != self._sum(body):
            return None
        try:
            found = Records(io.BytesIO(body)).load()
        except UNREADABLE:
            return None
        whole = isinstance(found, SoFar) and all(map(int.__le__, found.sizes, sizes))
        return found if whole else None

    @property
    def due(self) -> bool:
        return time.monotonic() > self._next and bool(self._job())

    def write(self, so_far: SoFar) -> None:
        """Raises OutputError."""
        started = time.monotonic()
        body = pickle.dumps(so_far, pickle.HIGHEST_PROTOCOL)
        write_kept(self._path, self._sum(body) + body)
        now = time.monotonic()
        self._next = now + max(EVERY_S, (now - started) / SHARE)

    def remove(self) -> None:
        for left in (self._path, self._path.with_name(f".{NAME}.part")):
            left.unlink(missing_ok=True)

    def _sum(self, body: bytes) -> bytes:
        return hashlib.sha256(f"{FORM} {self._job()}\n".encode() + body).digest()


class Records(pickle.Unpickler):
    """Builds records of ours and nothing else: a file cannot make it run anything."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module in KNOWN else None
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(f"{module}.{name} is no record of a job")
        return found
