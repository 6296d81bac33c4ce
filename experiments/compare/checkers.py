"""Grading by program: checks of a response that need no model, each 0..1 with partial credit.

A row of a query file holds them: {"query": ..., "kind": ..., "checks": [{"kind": "words", ...}]}.
The grade of a response is the weighted mean of its checks. A response without any word or number
gets 0, since it would otherwise pass every upper bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from autoj_reward.config import Block
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField
from autoj_reward.io.rows import Rows, read_rows

KINDS = ("format", "arithmetic", "extraction", "counting")
"""Kinds of queries."""
WRONG_CASE = 0.2
"""Share of words in the wrong case at which a case check scores 0.

In plain English about a tenth of the words are capitalised.
"""
_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
_BULLET = re.compile(r"^\s*[-*•]\s+\S", re.MULTILINE)
_NUMBERED = re.compile(r"^\s*(\d+)[.)]\s+\S", re.MULTILINE)
_FENCE = re.compile(r"^```\w*\n(.*?)\n?```$", re.DOTALL)
_EDGE = " \t\n\r.,;:!?\"'“”’*_"
Phrases = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
"""Words or phrases, at least one."""


class WeightedCheck(Block):
    """Base class of checks."""

    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Weight in the mean. It can put a right answer in the wrong form above a wrong one in the
    right form."""


class Range(WeightedCheck):
    """Check that a count lies in low..high.

    Outside the range the score falls in proportion to the missed bound.
    """

    low: int = Field(0, ge=0)
    high: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_order(self) -> Range:
        if self.low == 0 and self.high is None:
            raise ValueError("give low, high or both")
        if self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self

    def score_count(self, count: int) -> float:
        """Return the score of a count, 0..1."""
        bound = max(count, self.low)
        if self.high is not None:
            bound = min(bound, self.high)
        return max(0.0, 1 - abs(count - bound) / max(1, bound))


class Count(Range):
    """Check of the number of words, sentences, bullets or numbered lines.

    Hyphens and apostrophes may stand inside a word. A sentence has a word and ends in . ! or ?
    before a space, or with the text. A bullet is a line that begins with -, * or • and has text
    after it. Numbered lines have the numbers 1, 2, 3, ...; the count ends at the first wrong
    number.
    """

    kind: Literal["words", "sentences", "bullets", "numbered"]

    def score(self, response: str) -> float:
        return self.score_count(COUNTS[self.kind](response))


def _count_sentences(response: str) -> int:
    pieces = re.split(r"[.!?]+[\"'”’)]*(?=\s|$)", response)
    return sum(bool(_WORD.search(piece)) for piece in pieces)


def _count_numbered(response: str) -> int:
    numbers = [int(n) for n in _NUMBERED.findall(response)]
    return next((k for k, n in enumerate(numbers) if n != k + 1), len(numbers))


COUNTS: dict[str, Callable[[str], int]] = {
    "words": lambda response: len(_WORD.findall(response)),
    "sentences": _count_sentences,
    "bullets": lambda response: len(_BULLET.findall(response)),
    "numbered": _count_numbered,
}


class LetterCase(WeightedCheck):
    """Check that all letters are in one case.

    The score is 1 less the share of wrong words divided by WRONG_CASE, at least 0.
    """

    kind: Literal["case"]
    to: Literal["lower", "upper"]

    def score(self, response: str) -> float:
        words = [word for word in _WORD.findall(response) if word.lower() != word.upper()]
        if not words:
            return 0.0
        wrong_words = sum(
            word != (word.lower() if self.to == "lower" else word.upper()) for word in words
        )
        return max(0.0, 1 - wrong_words / len(words) / WRONG_CASE)


class JsonKeys(WeightedCheck):
    """Check that the whole response, without a code fence, is one JSON object with certain keys.

    The score is the number of shared keys over the number of keys in either.
    """

    kind: Literal["json"]
    keys: Phrases

    def score(self, response: str) -> float:
        text = response.strip()
        fence = _FENCE.match(text)
        try:
            value = json.loads(fence[1] if fence else text)
        except (ValueError, RecursionError):
            return 0.0
        if not isinstance(value, dict):
            return 0.0
        return len(value.keys() & set(self.keys)) / len(value.keys() | set(self.keys))


class Words(WeightedCheck):
    """Check that words or phrases occur (`contains`) or do not occur (`avoids`).

    The score is the share that does. They match as whole words, in any case.
    """

    kind: Literal["contains", "avoids"]
    words: Phrases

    def score(self, response: str) -> float:
        share = fmean(_occurs(word, response) for word in self.words)
        return share if self.kind == "contains" else 1 - share


class TextEdge(WeightedCheck):
    """Check that the response starts or ends with a text, in any case.

    Punctuation and space around both are ignored.
    """

    kind: Literal["starts", "ends"]
    text: str = Field(min_length=1)

    def score(self, response: str) -> float:
        content, edge = _strip_edges(response), _strip_edges(self.text)
        starts = self.kind == "starts"
        return float(content.startswith(edge) if starts else content.endswith(edge))


class Number(WeightedCheck):
    """Check of the last number in digits, so that listing numbers does not pass.

    The score is 1 for the value. Otherwise it is a quarter of 1 less the relative error, at least
    0.
    """

    kind: Literal["number"]
    value: float = Field(allow_inf_nan=False)

    def score(self, response: str) -> float:
        numbers = _NUMBER.findall(response)
        if not numbers:
            return 0.0
        last = float(numbers[-1].replace(",", "").replace("−", "-"))
        error = abs(last - self.value)
        return 1.0 if error < 1e-9 else max(0.0, 1 - error / max(1.0, abs(self.value))) / 4


class Names(WeightedCheck):
    """Check that the response names the values and none of the others.

    The score is the number of values named over the number of values plus others named. Repeating
    the whole text thus earns little.
    """

    kind: Literal["names"]
    values: Phrases
    others: tuple[Annotated[str, Field(min_length=1)], ...] = ()

    def score(self, response: str) -> float:
        named_values = sum(_occurs(value, response) for value in self.values)
        named_others = sum(_occurs(other, response) for other in self.others)
        return named_values / (len(self.values) + named_others)


Check = Annotated[
    Count | LetterCase | JsonKeys | Words | TextEdge | Number | Names, Field(discriminator="kind")
]
_CHECKS: TypeAdapter[tuple[Check, ...]] = TypeAdapter(
    Annotated[tuple[Check, ...], Field(min_length=1)]
)


@dataclass(frozen=True, slots=True)
class Checkable:
    """Query whose responses a program can grade."""

    line: int
    """Line of the row in its file."""
    query: str
    kind: str
    """One of KINDS."""
    checks: tuple[Check, ...]


def grade_response(response: str, checks: Sequence[Check]) -> float:
    """Return the weighted mean of the checks, 0..1; 0 for a response without any word or number."""
    if not _WORD.search(response):
        return 0.0
    scores = [item.score(response) for item in checks]
    return fmean(scores, weights=[item.weight for item in checks])


def read_checkable(source: str) -> Rows[Checkable]:
    """Read queries with their checks. Malformed rows are left out and named by line.

    A check of an unknown kind or with wrong parameters makes its row malformed. Raises InputError
    if the source as a whole cannot be read.
    """

    def build(line: int, value: Any) -> Checkable:
        row = check.own_fields(value)
        query = check.text(row, "query", blank=False)
        kind = check.text(row, "kind")
        if kind not in KINDS:
            raise BadField("kind", f"{check.show(kind)} is none of {', '.join(KINDS)}")
        return Checkable(line, query, kind, parse_checks(row))

    return read_rows(source, build)


def parse_checks(row: dict[str, Any]) -> tuple[Check, ...]:
    """Return the checks of a row. Raises BadField if one is invalid."""
    try:
        return _CHECKS.validate_json(json.dumps(row.get("checks")), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
        why = f"{first['msg'].removeprefix('Value error, ')} (value: {check.show(first['input'])})"
        raise BadField(f"checks{place}", why) from None


def _occurs(phrase: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE) is not None


def _strip_edges(text: str) -> str:
    return text.strip(_EDGE).lower()
