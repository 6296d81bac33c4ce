"""The figures that a trainer logs, read as they come: TensorBoard's files, or a checkpoint's."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

POINTS = 600
"""Most points of one figure that are kept: beyond it every second one is left out."""
TAGS = 400
FILES = ("events.out.tfevents*", "*/events.out.tfevents*", "*/*/events.out.tfevents*")


class Curves:
    """Every figure of a run's folder by its step. without_events: there are TensorBoard files that
    cannot be read here, since its package is not installed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaders: dict[Path, Any] = {}
        self._values: dict[str, dict[int, float]] = {}
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
        if not math.isfinite(value) or (name not in self._values and len(self._values) >= TAGS):
            return
        own = self._values.setdefault(name[:200], {})
        own[step] = value
        if len(own) > POINTS:
            for skipped in sorted(own)[1:-1:2]:
                del own[skipped]

    @property
    def step(self) -> int:
        """The last one that anything is logged of."""
        return max((max(own) for own in self._values.values()), default=0)

    def told(self) -> dict[str, list[tuple[int, float]]]:
        """(step, value) by name, in order."""
        return {name: sorted(own.items()) for name, own in sorted(self._values.items())}
