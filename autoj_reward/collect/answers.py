"""The record of every answer that was paid for: JSON lines, on disk before an answer is used.

A line holds the fields of the authors' released critiques (`output`, `cost`, `finish_reason`,
`meta`) besides the key of the question and the tokens. `finish_reason` is `stop`, `length`, or
`rejected` for a question that the teacher will never take.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoj_reward.errors import JournalError
from autoj_reward.formats.render import Prompt
from autoj_reward.io.files import text_digest


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens as billed, or estimated where the endpoint does not tell, and US dollars."""

    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.usd + other.usd,
        )

    def __neg__(self) -> Cost:
        return Cost(-self.tokens_in, -self.tokens_out, -self.usd)

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and what it cost."""

    text: str
    finish_reason: str
    cost: Cost = Cost()


class AnswerLog:
    """One open file of answers; a line that a kill cut short is dropped. One process at a time."""

    def __init__(self, path: Path) -> None:
        """Raises JournalError for a file that is no such log or cannot be written."""
        self.path = path
        self.spent = Cost()
        """Cost of all answers in the file."""
        self._known: dict[str, Answer] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            end = self._load() if path.exists() else 0
            self._file = path.open("ab")
            self._file.truncate(end)
        except OSError as error:
            raise JournalError(f"{path}: cannot be opened: {error.strerror}") from error

    def get(self, key: str) -> Answer | None:
        return self._known.get(key)

    def put(self, key: str, answer: Answer, meta: dict[str, Any]) -> None:
        """Store an answer; on disk when this returns."""
        record = {
            "key": key,
            "output": answer.text,
            "cost": answer.cost.usd,
            "finish_reason": answer.finish_reason,
            "tokens_in": answer.cost.tokens_in,
            "tokens_out": answer.cost.tokens_out,
            "meta": meta,
            "at": time.time(),
        }
        try:
            self._file.write(json.dumps(record).encode("ascii") + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise JournalError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._keep(key, answer)

    def close(self) -> None:
        self._file.close()

    def _keep(self, key: str, answer: Answer) -> None:
        self._known[key] = answer
        self.spent += answer.cost

    def _load(self) -> int:
        """Read what is there; returns where the last whole line ends."""
        end = 0
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break
            try:
                r = json.loads(line)
                cost = Cost(r["tokens_in"], r["tokens_out"], r["cost"])
                self._keep(r["key"], Answer(r["output"], r["finish_reason"], cost))
            except (ValueError, KeyError, TypeError) as error:
                raise JournalError(
                    f"{self.path}:{number}: not a recorded answer: {error!r}; name another output, "
                    "or move the file away"
                ) from error
            end += len(line)
        return end


def question_key(teacher: str, prompt: Prompt) -> str:
    """SHA-256 over everything that can change the answer."""
    text = json.dumps([teacher, *([m.role, m.text] for m in prompt)], ensure_ascii=False)
    return text_digest(text).hex()
