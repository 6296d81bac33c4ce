"""Thinking of models: the marks around a block of it, and where such a block begins and ends.

One table serves judges and policies. A mark is recognised in any case, and with blanks inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


class Marks(NamedTuple):
    """Texts around a block of thinking."""

    open: str
    """Text before the thinking. Empty if the prompt's template writes it."""
    close: str
    """Text after the thinking."""


KNOWN_MARKS = (
    Marks("<think>", "</think>"),
    Marks("<thinking>", "</thinking>"),
    Marks("<thought>", "</thought>"),
    Marks("<thoughts>", "</thoughts>"),
    Marks("<reasoning>", "</reasoning>"),
    Marks("<analysis>", "</analysis>"),
    Marks("<seed:think>", "</seed:think>"),
    Marks("<longcat_think>", "</longcat_think>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("◁think▷", "◁/think▷"),
    Marks("<|begin_of_thought|>", "<|end_of_thought|>"),
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),
    Marks("<|inner_prefix|>", "<|inner_suffix|>"),
    Marks("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    Marks("<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    Marks("<|channel>thought", "<channel|>"),
)
"""Marks that models put around their thinking."""
INVISIBLE = r"\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff"
"""Characters that show nothing, as in a class of a regular expression."""
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters that end a line, as in `str.splitlines`."""
UNSEEN = " \t\xa0\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff"
"""Blanks and invisible characters that may stand before a mark in its line."""
TAIL = 256
"""Characters at the end of a prompt in which an opening mark is looked for."""
NOTHING = re.compile(rf"(?:[{INVISIBLE}]|<\|\w+\|>|</?s>)*+")
"""Text that shows nothing: blanks, invisible characters and control tokens."""


_STOP_TOKEN = re.compile(r"(?:<[|｜][\w▁]{1,30}[|｜]>|</s>|<eos>|<end_of_turn>|<turn\|>)\Z")
"""A stop token at the end of a text."""
_LONGEST_STOP_TOKEN = 34


@dataclass(frozen=True, slots=True)
class Block:
    """A leading block of thinking in a text."""

    marks: Marks
    end: int
    """Index of the first character after the block and the blanks that follow it."""
    closed: bool
    """Whether the block has an end. One without takes the whole text."""


def is_blank(text: str) -> bool:
    """Return whether a text shows nothing."""
    return NOTHING.fullmatch(text) is not None


def without_stop_tokens(text: str) -> str:
    """Return a text without the stop tokens at its end, as a server leaves them that decodes them.

    A text without any is returned as it is.
    """
    kept = end = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        token = _STOP_TOKEN.search(text, max(0, end - _LONGEST_STOP_TOKEN), end)
        if token is None:
            return text[:kept]
        kept = end = token.start()


def find_block(
    text: str, table: Sequence[Marks] = KNOWN_MARKS, opened_by: Marks | None = None
) -> Block | None:
    """Return the block of thinking that a text begins with. None if it begins with none.

    opened_by: marks of the block that the prompt opened. Without them, or marks of the table that
    have no opening text, a closing mark alone ends no block.
    """
    patterns = _compile(tuple(table))
    opening = patterns.leading.match(text)
    marks = patterns.choose(opening) if opening else opened_by or patterns.opened_by
    if marks is None:
        return None
    start = opening.end() if opening else 0
    closing = _compile_close(marks).search(text, start)
    if closing is None:
        return Block(marks, len(text), False)
    return Block(marks, len(text) - len(text[closing.end() :].lstrip()), True)


def opened_at_end(prompt: str, table: Sequence[Marks] = KNOWN_MARKS) -> Marks | None:
    """Return the marks whose opening text a prompt ends with. None if it ends with none."""
    patterns = _compile(tuple(table))
    end = prompt[-TAIL:].rstrip()
    if end[-1:].lower() not in patterns.last_signs:
        return None  # most prompts end otherwise
    opening = patterns.trailing.search(end)
    return patterns.choose(opening) if opening else None


def without_opening(text: str, table: Sequence[Marks] = KNOWN_MARKS) -> str:
    """Return a text without the opening mark that it begins with."""
    opening = _compile(tuple(table)).leading.match(text)
    return text[opening.end() :].strip() if opening else text.strip()


def opened_in_lines(text: str, table: Sequence[Marks] = KNOWN_MARKS) -> list[Marks]:
    """Return the marks whose opening text begins a line, in the order of the lines."""
    patterns = _compile(tuple(table))
    found = []
    for opening in patterns.find_all(patterns.opening, text):
        start = opening.start()
        while start and text[start - 1] in UNSEEN:
            start -= 1
        if not start or text[start - 1] in LINE_ENDS:
            found.append(patterns.choose(opening))
    return found


def last_close(text: str, table: Sequence[Marks]) -> tuple[int, int]:
    """Return where the last closing mark begins and ends; (0, 0) without one."""
    place = (0, 0)
    patterns = _compile(tuple(dict.fromkeys(table)))
    for closing in patterns.find_all(patterns.closing, text):
        place = closing.span()
    return place


@dataclass(frozen=True, slots=True)
class _Patterns:
    table: tuple[Marks, ...]
    leading: re.Pattern[str]
    trailing: re.Pattern[str]
    opening: re.Pattern[str]
    closing: re.Pattern[str]
    first_sign: re.Pattern[str]
    """The first characters of all marks."""
    last_signs: frozenset[str]
    """The last characters of opening marks."""

    def find_all(self, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
        """Yield the marks in a text, by a search for their first characters, which is fast."""
        for sign in self.first_sign.finditer(text):
            if mark := pattern.match(text, sign.start()):
                yield mark

    def choose(self, opening: re.Match[str]) -> Marks:
        assert opening.lastgroup is not None
        return self.table[int(opening.lastgroup[1:])]

    @property
    def opened_by(self) -> Marks | None:
        return next((marks for marks in self.table if not marks.open), None)


@lru_cache(maxsize=64)
def _compile(table: tuple[Marks, ...]) -> _Patterns:
    # An empty table, and marks without an opening text, never match.
    openings = [f"(?P<m{n}>{_spell(marks.open)})" for n, marks in enumerate(table) if marks.open]
    opening = "|".join(openings) or "(?!)"
    closing = "|".join(dict.fromkeys(_spell(marks.close) for marks in table)) or "(?!)"
    return _Patterns(
        table,
        leading=re.compile(f"[{INVISIBLE}]*+(?:{opening})", re.IGNORECASE),
        trailing=re.compile(f"(?:{opening})$", re.IGNORECASE),
        opening=re.compile(opening, re.IGNORECASE),
        closing=re.compile(closing, re.IGNORECASE),
        first_sign=re.compile(_spell_class(mark[0] for pair in table for mark in pair if mark)),
        last_signs=frozenset(marks.open[-1].lower() for marks in table if marks.open),
    )


def _spell_class(signs: Iterable[str]) -> str:
    """Return a pattern of any of these characters, in either case."""
    cases = {case for sign in signs for case in (sign, sign.lower(), sign.upper())}
    return "|".join(sorted(map(re.escape, cases))) or "(?!)"


@lru_cache(maxsize=256)
def _compile_close(marks: Marks) -> re.Pattern[str]:
    return re.compile(_spell(marks.close), re.IGNORECASE)


def _spell(mark: str) -> str:
    """Return a pattern of a mark, with blanks between its words and signs."""
    return r"[ \t]*+".join(map(re.escape, re.findall(r"\w+|[^\w\s]", mark)))
