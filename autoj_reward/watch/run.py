"""A run as it lies on the disk: which files are its own, and what they say as they grow."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoj_reward.errors import ConfigError, JournalError
from autoj_reward.io.claims import CLAIM, claim_path, holder
from autoj_reward.journal.reading import Entry, Reader
from autoj_reward.watch.index import Index, Place
from autoj_reward.watch.training import Curves

AT_ONCE = 500
"""Judgements taken in at a time."""
JOURNALS = ("*.sqlite", "*/*.sqlite", "*/*/*.sqlite")
SETTLE_S = 1.0
"""Seconds between two standings while there is much to take in."""
MOST_JSON = 2**24
"""Bytes of a summary or config that is read."""


class Run:
    """A run's record, read by `follow` and asked by many. path: the folder or file of its results,
    or its journal. Use `index` while holding `lock`.

    Raises ConfigError where there is nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = _results(path)
        self.index = Index()
        self.lock = threading.Lock()
        self.trouble = ""
        self.read_all = False
        self.curves = Curves(self.path) if self.path.is_dir() else None
        self._settled = 0.0
        self._readers: dict[Path, Reader] = {}

    def refresh(self) -> bool:
        """Take in some of what is new. Whether there may be more right now."""
        more = False
        troubles = []
        for path in self._journals():
            number = list(self._readers).index(path)
            try:
                more |= self._take(number, self._readers[path])
            except JournalError as error:
                troubles.append(str(error))
        now = time.monotonic()
        if not more or now > self._settled + SETTLE_S:
            with self.lock:
                self.index.settle()
            self._settled = now
        if self.curves and not more:
            self.curves.read()
        self.trouble, self.read_all = "; ".join(troubles[:3]), not more
        return more

    def _take(self, number: int, reader: Reader) -> bool:
        def known(keys: Sequence[str]) -> dict[str, float]:
            with self.lock:
                return self.index.known(number, keys)

        found = reader.newer(AT_ONCE, known)
        with self.lock:
            self.index.add(number, found)
        return len(found) == AT_ONCE

    def _journals(self) -> list[Path]:
        for path in _journals_of(self.path):
            if path not in self._readers:
                self._readers[path] = Reader(path)
        return list(self._readers)

    @property
    def damaged(self) -> int:
        """Rows of the journals that are not as they were written."""
        return sum(len(reader.damaged) for reader in self._readers.values())

    def texts(self, places: Sequence[Place]) -> dict[Place, Entry]:
        """What was judged at these places, as far as it is still there."""
        readers, found = list(self._readers.values()), {}
        for number in {place.journal for place in places}:
            keys = [place.key for place in places if place.journal == number]
            for key, entry in readers[number].entries(keys).items():
                found[Place(number, key)] = entry
        return found

    def summary(self) -> dict[str, Any] | None:
        """What the job wrote at its end."""
        in_folder = self.path / "summary.json"
        return _read(in_folder if self.path.is_dir() else Path(f"{self.path}.summary.json"))

    def config(self) -> dict[str, Any] | None:
        """The config of a training."""
        return _read(self.path / "config.json") if self.path.is_dir() else None

    @property
    def _claim(self) -> Path:
        return claim_path(self.path, in_folder=self.path.is_dir())

    def total(self) -> int:
        """Judge inputs that the job said it would ask for, comparisons aside; 0 if unknown."""
        found = (_read(self._claim) or {}).get("total")
        return found if isinstance(found, int) else 0

    def state(self) -> str:
        """`running`, `finished`, or `stopped`; `unknown` where nobody claimed the place."""
        if holder(self._claim):
            return "running"
        if self.summary() is not None or (self.path / "policy").is_dir():
            return "finished"
        return "stopped" if self._claim.is_file() else "unknown"


def _results(path: Path) -> Path:
    """The results of a run that is named by them, or by its journal."""
    if not path.exists() and not _journals_of(path):
        raise ConfigError(
            f"{path}: no run is there: name the output of best-of-n or score, the folder of a "
            "training, or a journal"
        )
    return path


def _journals_of(path: Path) -> list[Path]:
    """The journals beside a run's results: one, or one a shard or round."""
    if path.suffix == ".sqlite":
        return [path]
    beside = Path(f"{path}.journal.sqlite")
    if not path.is_dir():
        return [beside] if beside.is_file() else []
    found = {own for pattern in JOURNALS for own in path.glob(pattern)}
    trained = ((_read(path / "config.json") or {}).get("reward") or {}).get("journal")
    claimed = (_read(path / CLAIM) or {}).get("journal")
    found |= {Path(n) for n in (trained, claimed) if isinstance(n, str) and Path(n).is_file()}
    return sorted(found)


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is none, or not a whole one."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_JSON:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
