"""How many values a JSON text holds and how deep they lie, counted before anything is built of it.

A megabyte of `[],[]` is 12 megabytes once it is parsed, and a second of work. What comes in is
counted a chunk at a time, in time linear in its length, and refused at the first one too many.
"""

from __future__ import annotations

from autoj_reward.service.bodies import Refused

MAX_VALUES = 2**17
"""Values and names of one text, closing brackets included: 128 for each of 1,024 judge inputs."""
MAX_DEPTH = 64
_STRUCTURE = b'"[]{},:'
_TEXT = bytes(set(range(256)) - set(_STRUCTURE))
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))


class Nesting:
    """Reads a JSON text in chunks. What is no JSON is for the parser to find."""

    def __init__(self) -> None:
        self._values = self._depth = self._in_string = 0
        self._cut = b""

    def read(self, chunk: bytes) -> None:
        """Refused if the text so far holds too much."""
        chunk = self._cut + chunk
        self._cut = b""
        if chunk.endswith(b"\\") and _odd_end(chunk):
            chunk, self._cut = chunk[:-1], b"\\"
        if b"\\" in chunk:  # of an even number of them none escapes the quote that follows
            chunk = chunk.replace(b"\\\\", b"").replace(b'\\"', b"")
        quoted = chunk.translate(None, _TEXT).split(b'"', 2 * MAX_VALUES)
        outside = b"".join(quoted[self._in_string :: 2])
        self._in_string = (self._in_string + len(quoted) - 1) % 2
        self._values += len(outside) + len(quoted) // 2
        if self._values > MAX_VALUES:
            raise Refused(413, f"the body has more than {MAX_VALUES} values")
        for bracket in outside.translate(None, _NO_BRACKETS):
            self._depth += 1 if bracket in b"[{" else -1
            if self._depth > MAX_DEPTH:
                raise Refused(422, f"the body has more than {MAX_DEPTH} levels", "body")


def _odd_end(chunk: bytes) -> bool:
    return (len(chunk) - len(chunk.rstrip(b"\\"))) % 2 == 1
