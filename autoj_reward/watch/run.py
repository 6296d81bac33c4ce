"""Files of a run: finds its journals, summary, config and trainer logs, and reads them as they
grow."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from autoj_reward.client.judging import SCORED_BY
from autoj_reward.config import Vote
from autoj_reward.errors import ConfigError, JournalError
from autoj_reward.io.claims import CLAIM, claim_path, holder
from autoj_reward.journal.reading import Entry, Reader
from autoj_reward.types import MAX_FLOAT
from autoj_reward.watch.index import Index, TextPlace

AT_ONCE = 500
"""Judgements that are read at a time."""
JOURNALS = ("*.sqlite", "*/*.sqlite", "*/*/*.sqlite")
SETTLE_S = 1.0
"""Seconds between two updates of statistics while many judgements are read."""
MOST_JSON = 2**24
"""Maximum bytes of a summary or config file."""
POINTS = 600
"""Maximum points of a trainer's curve; with more steps, only the last of several is kept."""
TAGS = 400
"""Maximum curves of a trainer."""
FILES = ("events.out.tfevents*", "*/events.out.tfevents*", "*/*/events.out.tfevents*")


class Run:
    """Record of a run. One thread reads it with `refresh`, others query it. The caller closes it.

    Raises ConfigError if the path holds no run.
    """

    def __init__(self, path: Path) -> None:
        """Find the run's files. path: its output folder or file, or its journal."""
        self.path = _require_run(path)
        self.lock = threading.Lock()
        self.trouble = ""
        """Errors of the last read, as text; empty if there were none."""
        self.read_all = False
        """Whether all judgements so far have been read."""
        self.curves = Curves(self.path) if self.path.is_dir() else None
        self._settled = 0.0
        self._readers: dict[Path, Reader] = {}
        self.index = Index()
        """Index of the judgements; use it only while holding `lock`."""

    def close(self) -> None:
        """Delete the index, which nothing may use any more."""
        self.index.close()

    def refresh(self) -> bool:
        """Read a batch of new data. Return whether there may be more right now."""
        more = False
        troubles = []
        for path in self._open_journals():
            number = list(self._readers).index(path)
            try:
                more |= self._take(number, self._readers[path])
            except JournalError as error:
                troubles.append(str(error))
        now = time.monotonic()
        if not more or now > self._settled + SETTLE_S:
            vote = self.vote()
            with self.lock:
                self.index.use_vote(vote)
                self.index.settle()
            self._settled = now
        if self.curves and not more:
            self.curves.read()
        self.trouble, self.read_all = "; ".join(troubles[:3]), not more
        return more

    def _take(self, number: int, reader: Reader) -> bool:
        def find_times(keys: Sequence[str]) -> dict[str, float]:
            with self.lock:
                return self.index.find_times(number, keys)

        entries = reader.newer(AT_ONCE, find_times)
        with self.lock:
            self.index.add(number, entries)
        return len(entries) == AT_ONCE

    def _open_journals(self) -> list[Path]:
        for path in _find_journals(self.path):
            if path not in self._readers:
                self._readers[path] = Reader(path)
        return list(self._readers)

    @property
    def recorded(self) -> bool:
        """Whether the run has a journal."""
        return bool(self._readers)

    @property
    def damaged(self) -> int:
        """Number of journal rows that differ from what was written."""
        return sum(len(reader.damaged) for reader in self._readers.values())

    def texts(self, places: Sequence[TextPlace]) -> dict[TextPlace, Entry]:
        """Return the judgements at these locations that still exist."""
        readers, entries = list(self._readers.values()), {}
        for number in {place.journal for place in places}:
            keys = [place.key for place in places if place.journal == number]
            for key, entry in readers[number].entries(keys).items():
                entries[TextPlace(number, key)] = entry
        return entries

    def summary(self) -> dict[str, Any] | None:
        """Return the summary that the job wrote at its end, or None."""
        in_folder = self.path / "summary.json"
        return _read(in_folder if self.path.is_dir() else Path(f"{self.path}.summary.json"))

    def config(self) -> dict[str, Any] | None:
        """Return the config of a training run, or None."""
        return _read(self.path / "config.json") if self.path.is_dir() else None

    @property
    def _claim(self) -> Path:
        return claim_path(self.path, in_folder=self.path.is_dir())

    def total(self) -> int:
        """Return the number of inputs of each judge that the run expects; 0 if unknown.

        A run that ranks by a view does not count the comparisons of its tie-breaks, since their
        number is not known before.
        """
        total = (_read(self._claim) or {}).get("total")
        return total if isinstance(total, int) else 0

    def scored_by(self) -> str | None:
        """Return what scores responses in place of a view, as in `summary.json`; None if nothing
        does."""
        method = (_read(self._claim) or {}).get("scored_by")
        return method if method in SCORED_BY else None

    @property
    def panel(self) -> bool:
        """Whether a panel of judges rates each response of the run."""
        return bool((_read(self._claim) or {}).get("panel"))

    def vote(self) -> Vote:
        """Return how the ratings of several critiques make one: by the claim, or else by the config
        of a training. A journal alone does not tell, and stands for the mean."""
        judge = ((self.config() or {}).get("reward") or {}).get("judge") or {}
        recorded_vote = (_read(self._claim) or {}).get("vote") or judge.get("vote")
        votes: tuple[Vote, ...] = get_args(Vote)
        return next((vote for vote in votes if vote == recorded_vote), "mean")

    def state(self) -> str:
        """Return `running`, `finished` or `stopped`; `unknown` if the output has no claim."""
        if holder(self._claim):
            return "running"
        if self.summary() is not None or (_read(self._claim) or {}).get("finished"):
            return "finished"
        return "stopped" if self._claim.is_file() else "unknown"


def _require_run(path: Path) -> Path:
    """Return the path if it holds a run: its results, or its journal."""
    if not path.exists() and not _find_journals(path):
        raise ConfigError(
            f"{path}: no run is there: name the output of best-of-n or score, the folder of a "
            "training, or a journal"
        )
    return path


def _find_journals(path: Path) -> list[Path]:
    """Return the journals of a run: one, or one for each shard or round."""
    if path.suffix == ".sqlite":
        return [path]
    file_journal = Path(f"{path}.journal.sqlite")
    if not path.is_dir():
        return [file_journal] if file_journal.is_file() else []
    journals = {journal for pattern in JOURNALS for journal in path.glob(pattern)}
    trainer_journal = ((_read(path / "config.json") or {}).get("reward") or {}).get("journal")
    claimed_journal = (_read(path / CLAIM) or {}).get("journal")
    journals |= {
        Path(n)
        for n in (trainer_journal, claimed_journal)
        if isinstance(n, str) and Path(n).is_file()
    }
    return sorted(journals)


def _read(path: Path) -> dict[str, Any] | None:
    """Return a JSON object; None if the file is missing, too large or incomplete."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_JSON:
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


class _Curve:
    """One metric over training steps, with one point for every `_steps` steps."""

    def __init__(self) -> None:
        self._steps = 1
        self._points: dict[int, tuple[int, float]] = {}

    def add(self, step: int, value: float) -> None:
        self._points[step // self._steps] = step, value
        if len(self._points) > POINTS:
            self._steps *= 2
            self._points = {point[0] // self._steps: point for point in self.points()}

    def points(self) -> list[tuple[int, float]]:
        """Return a metric's (step, value) pairs in order."""
        return sorted(self._points.values())


class Curves:
    """All metrics that a trainer logged in a folder, by step.

    They are read from TensorBoard's files as these grow, or else from the last checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaders: dict[Path, Any] = {}
        self._curves: dict[str, _Curve] = {}
        self.step = 0
        """Last step with a logged metric."""
        self._state: tuple[Path, int] | None = None
        self.without_events = False
        """Whether there are TensorBoard files, but the package that reads them is missing."""

    def read(self) -> None:
        """Read what was logged since the last call."""
        files = sorted({path for pattern in FILES for path in self._folder.glob(pattern)})
        self.without_events = bool(files) and find_spec("tensorboard") is None
        if files and not self.without_events:
            for path in files:
                self._read_events(path)
        else:
            self._read_state()

    def _read_events(self, path: Path) -> None:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray

        if path not in self._loaders:
            self._loaders[path] = EventFileLoader(str(path))
        for event in self._loaders[path].Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    name = value.tag.removeprefix("train/")
                    self._keep(name, event.step, float(make_ndarray(value.tensor)))

    def _read_state(self) -> None:
        """Read the log of the trainer's last checkpoint."""
        states = list(self._folder.glob("checkpoint-*/trainer_state.json"))
        if not states:
            return
        path = max(states, key=lambda state: state.stat().st_mtime_ns)
        if self._state == (stamp := (path, path.stat().st_mtime_ns)):
            return
        try:
            history = json.loads(path.read_text(encoding="utf-8"))["log_history"]
            log_entries = [(entry.pop("step"), entry) for entry in history]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # incomplete; it is read again at the next call
        self._state = stamp
        for step, entry in log_entries:
            for name, value in entry.items():
                if isinstance(value, int | float) and abs(value) <= MAX_FLOAT:
                    self._keep(name, step, float(value))

    def _keep(self, name: str, step: int, value: float) -> None:
        name = name[:200]
        if math.isfinite(value) and (name in self._curves or len(self._curves) < TAGS):
            self._curves.setdefault(name, _Curve()).add(step, value)
            self.step = max(self.step, step)

    def list_points(self) -> dict[str, list[tuple[int, float]]]:
        """Return (step, value) pairs in order, by metric."""
        return {name: curve.points() for name, curve in sorted(self._curves.items())}
