"""Structured logs: one JSON object per line, with the id of the request that it belongs to.

Texts and tokens are never logged.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar

LOG = logging.getLogger("autoj_reward")
"""Logger of this package."""
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the current request; empty outside of requests."""
REQUEST = "request"
"""Message of the log line of an authorized request."""
_PLAIN = re.compile(r"[\w.-]{1,64}", re.ASCII)


class JsonLines(logging.Formatter):
    """Formatter: time (Unix seconds), level, logger, message, request id and the record's
    `facts`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": REQUEST_ID.get(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Sparing(logging.Filter):
    """Filter that limits how many records of one message pass in a second.

    Without it, unauthorized clients could fill the disk. The next record that passes has the number
    dropped as `left_out`. Log lines of authorized requests always pass.
    """

    def __init__(self, most: int = 5, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most, self._now = most, now
        self._counts: dict[str, tuple[int, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg == REQUEST:
            return True
        message, now = str(record.msg).partition("\n")[0], int(self._now())
        second, count, left_out = self._counts.get(message, (now, 0, 0))
        count = count if second == now else 0
        if count == self._most:
            self._counts[message] = now, count, left_out + 1
            return False
        if left_out:
            record.facts = {**getattr(record, "facts", {}), "left_out": left_out}
        if len(self._counts) > 256:
            self._counts.clear()
        self._counts[message] = now, count + 1, 0
        return True


def log_to_stderr() -> None:
    """Write the logs of this package, uvicorn and asyncio to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(Sparing())
    for name in ("autoj_reward", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel("INFO" if name == "autoj_reward" else "WARNING")


def announce(line: str) -> None:
    """Show the user a line.

    It is logged at INFO if a handler accepts that, as in a service. Otherwise it goes to stderr,
    between progress bars. A higher level of this package's logger silences it.
    """
    if LOG.level > logging.INFO:
        return
    if LOG.isEnabledFor(logging.INFO) and LOG.hasHandlers():
        LOG.info("%s", line)
        return
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)


def new_request_id(caller_id: str) -> str:
    """Return the caller's own id if it is a plain word, so that logs of both sides match; else a
    new id."""
    return caller_id if _PLAIN.fullmatch(caller_id) else uuid.uuid4().hex
