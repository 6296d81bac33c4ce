"""Programmatic gold: checks of a response that need no model, each 0..1 with partial credit.

A row of a query file carries them: {"query": ..., "kind": ..., "checks": [{"kind": "words", ...}]}.
The score of a response is the weighted mean of its checks, and 0 for a response without any word or
number, which would else pass every "at most".
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
WRONG_CASE = 0.2
"""Share of words in the wrong case at which a case check is lost: plain English has about a tenth
of its words capitalised."""
_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
_BULLET = re.compile(r"^\s*[-*•]\s+\S", re.MULTILINE)
_NUMBERED = re.compile(r"^\s*(\d+)[.)]\s+\S", re.MULTILINE)
_FENCE = re.compile(r"^```\w*\n(.*?)\n?```$", re.DOTALL)
_EDGE = " \t\n\r.,;:!?\"'“”’*_"
Phrases = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]


class Weighted(Block):
    """One check. weight: its share in the mean, so that a wrong answer in the right form stays
    below a right one in the wrong form."""

    weight: float = Field(1.0, gt=0, allow_inf_nan=False)


class Range(Weighted):
    """A count that must lie in low..high; outside it loses in proportion to the bound it misses."""

    low: int = Field(0, ge=0)
    high: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _order(self) -> Range:
        if self.low == 0 and self.high is None:
            raise ValueError("give low, high or both")
        if self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self

    def closeness(self, found: int) -> float:
        bound = max(found, self.low)
        if self.high is not None:
            bound = min(bound, self.high)
        return max(0.0, 1 - abs(found - bound) / max(1, bound))


class Count(Range):
    """A count of words, sentences, bullets or numbered lines.

    words: hyphens and apostrophes inside them. sentences: stretches with a word that end in . ! or
    ? before a space, or with the text. bullets: lines that open with -, * or • and have something
    after it. numbered: lines numbered 1, 2, 3 ...; a number out of turn ends the count.
    """

    kind: Literal["words", "sentences", "bullets", "numbered"]

    def score(self, response: str) -> float:
        return self.closeness(COUNTS[self.kind](response))


def _sentences(response: str) -> int:
    pieces = re.split(r"[.!?]+[\"'”’)]*(?=\s|$)", response)
    return sum(bool(_WORD.search(piece)) for piece in pieces)


def _in_turn(response: str) -> int:
    found = [int(n) for n in _NUMBERED.findall(response)]
    return next((k for k, n in enumerate(found) if n != k + 1), len(found))


COUNTS: dict[str, Callable[[str], int]] = {
    "words": lambda response: len(_WORD.findall(response)),
    "sentences": _sentences,
    "bullets": lambda response: len(_BULLET.findall(response)),
    "numbered": _in_turn,
}


class LetterCase(Weighted):
    """All letters in one case: 1 less the share of words that are not, over WRONG_CASE."""

    kind: Literal["case"]
    to: Literal["lower", "upper"]

    def score(self, response: str) -> float:
        words = [word for word in _WORD.findall(response) if word.lower() != word.upper()]
        if not words:
            return 0.0
        wrong = sum(
            word != (word.lower() if self.to == "lower" else word.upper()) for word in words
        )
        return max(0.0, 1 - wrong / len(words) / WRONG_CASE)


class JsonKeys(Weighted):
    """The whole response, a code fence aside, is one JSON object: keys shared over keys in all."""

    kind: Literal["json"]
    keys: Phrases

    def score(self, response: str) -> float:
        text = response.strip()
        fenced = _FENCE.match(text)
        try:
            value = json.loads(fenced[1] if fenced else text)
        except (ValueError, RecursionError):
            return 0.0
        if not isinstance(value, dict):
            return 0.0
        return len(value.keys() & set(self.keys)) / len(value.keys() | set(self.keys))


class Words(Weighted):
    """contains: share of the words or phrases that occur, in any case, as whole words. avoids:
    share of those that do not."""

    kind: Literal["contains", "avoids"]
    words: Phrases

    def score(self, response: str) -> float:
        share = fmean(_occurs(word, response) for word in self.words)
        return share if self.kind == "contains" else 1 - share


class TextEdge(Weighted):
    """1 if the response starts or ends with the text, in any case; marks around both aside."""

    kind: Literal["starts", "ends"]
    text: str = Field(min_length=1)

    def score(self, response: str) -> float:
        own, wanted = _bare(response), _bare(self.text)
        starts = self.kind == "starts"
        return float(own.startswith(wanted) if starts else own.endswith(wanted))


class Number(Weighted):
    """The answer is the last number in digits, so that listing numbers does not pass.

    1 if it is the value; otherwise a quarter of 1 less the relative error, at least 0.
    """

    kind: Literal["number"]
    value: float = Field(allow_inf_nan=False)

    def score(self, response: str) -> float:
        found = _NUMBER.findall(response)
        if not found:
            return 0.0
        last = float(found[-1].replace(",", "").replace("−", "-"))
        error = abs(last - self.value)
        return 1.0 if error < 1e-9 else max(0.0, 1 - error / max(1.0, abs(self.value))) / 4


class Names(Weighted):
    """Names the values and none of the others: values named over all values and others named.

    Repeating the whole text thus earns little.
    """

    kind: Literal["names"]
    values: Phrases
    others: tuple[Annotated[str, Field(min_length=1)], ...] = ()

    def score(self, response: str) -> float:
        right = sum(_occurs(value, response) for value in self.values)
        wrong = sum(_occurs(other, response) for other in self.others)
        return right / (len(self.values) + wrong)


Check = Annotated[
    Count | LetterCase | JsonKeys | Words | TextEdge | Number | Names, Field(discriminator="kind")
]
_CHECKS: TypeAdapter[tuple[Check, ...]] = TypeAdapter(
    Annotated[tuple[Check, ...], Field(min_length=1)]
)


@dataclass(frozen=True, slots=True)
class Checkable:
    """A query whose responses a program can grade; kind: one of KINDS."""

    line: int
    query: str
    kind: str
    checks: tuple[Check, ...]


def grade_response(response: str, checks: Sequence[Check]) -> float:
    """Weighted mean of the checks, 0..1; 0 for a response without any word or number."""
    if not _WORD.search(response):
        return 0.0
    scores = [item.score(response) for item in checks]
    return fmean(scores, weights=[item.weight for item in checks])


def read_checkable(source: str) -> Rows[Checkable]:
    """Queries with their checks; malformed rows are named by line and left out.

    Bad are also checks of an unknown kind or with wrong parameters. Raises InputError if the source
    as a whole cannot be read.
    """

    def build(line: int, value: Any) -> Checkable:
        row = check.own_fields(value)
        query = check.text(row, "query", blank=False)
        kind = check.text(row, "kind")
        if kind not in KINDS:
            raise BadField("kind", f"{check.show(kind)} is none of {', '.join(KINDS)}")
        return Checkable(line, query, kind, checks_of(row))

    return read_rows(source, build, ("query", "checks"))


def checks_of(row: dict[str, Any]) -> tuple[Check, ...]:
    """Return the checks of a row of a query file. Raises BadField."""
    try:
        return _CHECKS.validate_json(json.dumps(row.get("checks")), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
        why = f"{first['msg'].removeprefix('Value error, ')} (value: {check.show(first['input'])})"
        raise BadField(f"checks{place}", why) from None


def _occurs(phrase: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE) is not None


def _bare(text: str) -> str:
    return text.strip(_EDGE).lower()
