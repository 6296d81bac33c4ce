"""A command, and every process that it had, to see that none outlives it."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil  # type: ignore[import-untyped]


class Watched:
    """A running command. seen: all processes that it has had, by id; titles: their names."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        pipe = subprocess.PIPE
        # A shell's background job ignores SIGINT, and what it starts would too.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **options)
        finally:
            signal.signal(signal.SIGINT, before)
        self.seen: dict[int, psutil.Process] = {}
        self.titles: set[str] = set()
        self._stderr_lines: list[str] = []
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _watch(self) -> None:
        main = psutil.Process(self.process.pid)
        while main.is_running() and self.process.returncode is None:
            try:
                self.seen |= {p.pid: p for p in main.children(recursive=True)}
                self.titles |= {_describe(p) for p in self.seen.values()}
            except psutil.NoSuchProcess:
                break
            time.sleep(0.1)

    def _read(self) -> None:
        assert self.process.stderr is not None
        self._stderr_lines.extend(self.process.stderr)

    @property
    def stderr(self) -> str:
        return "".join(self._stderr_lines)

    def end(self, timeout: float = 300) -> tuple[int, list[str]]:
        """Wait for its end."""
        code = self.process.wait(timeout)
        self._watching.join()
        return code, [line for process in self.seen.values() if (line := _describe(process))]

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *exception: object) -> None:
        """End it and all that it started, if they still run."""
        for process in self.seen.values():
            if _describe(process):
                process.kill()
        self.process.kill()
        self.process.wait()
        self._reading.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def _describe(process: psutil.Process) -> str:
    """The command line of a process that runs; a zombie holds nothing."""
    try:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return " ".join(process.cmdline())[:80] or process.name()
    except psutil.NoSuchProcess:
        return ""
