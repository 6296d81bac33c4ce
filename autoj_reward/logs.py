"""Structured logs: one JSON object a line, with the id of the request that it belongs to.

Neither texts nor tokens are ever logged.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import uuid
from contextvars import ContextVar

LOG = logging.getLogger("autoj_reward")
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
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


def log_to_stderr(level: str = "INFO") -> None:
    """Write this package's logs, and uvicorn's, to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("autoj_reward", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if name == "autoj_reward" else "WARNING")


def new_request_id(given: str) -> str:
    """The caller's own id if it is a plain word, so that logs of both sides join; or a new one."""
    return given if _PLAIN.fullmatch(given) else uuid.uuid4().hex
