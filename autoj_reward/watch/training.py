"""The figures that a trainer logs, read as they come: TensorBoard's files, or a checkpoint's."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

POINTS = 600
"""Most points of one figure that are kept: the last one of as many steps as it takes."""
TAGS = 400
FILES = ("events.out.tfevents*", "*/events.out.tfevents*", "*/*/events.out.tfevents*")


class _Curve:
    """One figure: a point for every so many steps."""

    def __init__(self) -> None:
        self._steps = 1
        self._points: dict[int, tuple[int, float]] = {}

    def add(self, step: int, value: float) -> None:
        self._points[step // self._steps] = step, value
        if len(self._points) > POINTS:
            self._steps *= 2
            self._points = {point[0] // self._steps: point for point in self.points()}

    def points(self) -> list[tuple[int, float]]:
        """(step, value), in order."""
        return sorted(self._points.values())


class Curves:
    """Every figure of a run's folder by its step. step: the last one that anything is logged of.
    without_events: there are TensorBoard files, and the package that reads them is not here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaders: dict[Path, Any] = {}
        self._curves: dict[str, _Curve] = {}
        self.step = 0
        self._state: tuple[Path, int] | None = None
        self.without_events = False

    def read(self) -> None:
        """Take in what has come since the last time."""
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
        """What the trainer's last checkpoint says, where nothing else does."""
        found = list(self._folder.glob("checkpoint-*/trainer_state.json"))
        if not found:
            return
        path = max(found, key=lambda own: own.stat().st_mtime_ns)
        if self._state == (stamp := (path, path.stat().st_mtime_ns)):
            return
        try:
            history = json.loads(path.read_text(encoding="utf-8"))["log_history"]
            logged = [(entry.pop("step"), entry) for entry in history]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # half written: it is whole at the next look
        self._state = stamp
        for step, entry in logged:
            for name, value in entry.items():
                if isinstance(value, int | float):
                    self._keep(name, step, float(value))

    def _keep(self, name: str, step: int, value: float) -> None:
        name = name[:200]
        if math.isfinite(value) and (name in self._curves or len(self._curves) < TAGS):
            self._curves.setdefault(name, _Curve()).add(step, value)
            self.step = max(self.step, step)

    def told(self) -> dict[str, list[tuple[int, float]]]:
        """(step, value) by name, in order."""
        return {name: own.points() for name, own in sorted(self._curves.items())}
