"""What one pass over rows leaves for the next one, on disk."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import Generic, TypeVar

T = TypeVar("T")


class Spool(Generic[T]):
    """Records in a temporary file: read, once all are there, anew each time and in their order."""

    def __init__(self) -> None:
        self._file, self._count = TemporaryFile(), 0  # noqa: SIM115, it lives as long as this
        weakref.finalize(self, self._file.close)

    def add(self, record: T) -> None:
        pickle.dump(record, self._file, pickle.HIGHEST_PROTOCOL)
        self._count += 1

    def __iter__(self) -> Iterator[T]:
        at = 0
        for _ in range(self._count):
            self._file.seek(at)  # another reader may be elsewhere
            record = pickle.load(self._file)
            at = self._file.tell()
            yield record
