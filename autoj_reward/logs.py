"""Structured logs: one JSON object a line, with the id of the request that it belongs to.

Neither texts nor tokens are ever logged.
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
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
REQUEST = "request"
"""The message of a request's line."""
_PLAIN = re.compile(r"[\w.-]{1,64}", re.ASCII)


class JsonLines(logging.Formatter):
    """Time (UTC, seconds), level, logger, message, request id and the record's `facts`."""

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
    """Lets so many records of one message through in a second, so that strangers fill no disk; the
    next one says how many were `left_out`. Lines of requests with the token all go through."""

    def __init__(self, most: int = 5, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most, self._now = most, now
        self._seen: dict[str, tuple[int, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg == REQUEST:
            return True
        message, now = str(record.msg).partition("\n")[0], int(self._now())
        second, count, left_out = self._seen.get(message, (now, 0, 0))
        count = count if second == now else 0
        if count == self._most:
            self._seen[message] = now, count, left_out + 1
            return False
        if left_out:
            record.facts = {**getattr(record, "facts", {}), "left_out": left_out}
        if len(self._seen) > 256:
            self._seen.clear()
        self._seen[message] = now, count + 1, 0
        return True


def log_to_stderr() -> None:
    """Write this package's logs, uvicorn's and asyncio's, to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(Sparing())
    for name in ("autoj_reward", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel("INFO" if name == "autoj_reward" else "WARNING")


def announce(line: str) -> None:
    """Tell the user a line: logged at INFO where a handler takes that, as a service's does, else on
    stderr, between progress bars. A higher level of the package's own logger silences it."""
    if LOG.level > logging.INFO:
        return
    if LOG.isEnabledFor(logging.INFO) and LOG.hasHandlers():
        LOG.info("%s", line)
        return
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)


def new_request_id(given: str) -> str:
    """The caller's own id if it is a plain word, so that logs of both sides join; or a new one."""
    return given if _PLAIN.fullmatch(given) else uuid.uuid4().hex
