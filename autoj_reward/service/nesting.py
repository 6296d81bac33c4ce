"""Limits on the number and depth of the values in a JSON text, checked before it is parsed.

One megabyte of `[],[]` takes 12 megabytes and a second of work to parse. Chunks are counted as they
arrive, in linear time, and the first value beyond a limit is refused.
"""

from __future__ import annotations

from autoj_reward.service.bodies import Refused

MAX_VALUES = 2**17
"""Limit on the values, names and closing brackets of one text: 128 for each of 1,024 judge
inputs."""
MAX_DEPTH = 64
"""Limit on nested levels."""
_STRUCTURE = b'"[]{},:'
_TEXT = bytes(set(range(256)) - set(_STRUCTURE))
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))


class Nesting:
    """Counts the values and levels of a JSON text in chunks. Invalid JSON is left to the parser."""

    def __init__(self) -> None:
        self._values = self._depth = self._in_string = 0
        self._cut = b""

    def read(self, chunk: bytes) -> None:
        """Count a chunk. Raises Refused if the text so far exceeds a limit."""
        chunk = self._cut + chunk
        self._cut = b""
        if chunk.endswith(b"\\") and _odd_end(chunk):
            chunk, self._cut = chunk[:-1], b"\\"
        if b"\\" in chunk:  # an even number of backslashes does not escape the quote that follows
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
