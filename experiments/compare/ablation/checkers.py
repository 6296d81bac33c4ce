"""Programmatic gold: checks of a response that need no model, each 0..1 with partial credit.

A row of a query file carries them: {"query": ..., "kind": ..., "checks": [{"kind": "words", ...}]}.
The score of a response is the weighted mean of its checks, and 0 for a response without any word or
number, which would else pass every "at most".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from autoj_reward.config import Block
from autoj_reward.errors import InputError
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, Limits
from autoj_reward.io.rows import Rows
from autoj_reward.io.sources import numbered
from autoj_reward.types import BadRow

KINDS = ("format", "arithmetic", "extraction", "counting")
LIMITS = Limits()
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


class WordCount(Range):
    """Words, hyphens and apostrophes inside them."""

    kind: Literal["words"]

    def score(self, response: str) -> float:
        return self.closeness(len(_WORD.findall(response)))


class Sentences(Range):
    """Sentences: stretches with a word that end in . ! or ? before a space, or with the text."""

    kind: Literal["sentences"]

    def score(self, response: str) -> float:
        pieces = re.split(r"[.!?]+[\"'”’)]*(?=\s|$)", response)
        return self.closeness(sum(bool(_WORD.search(piece)) for piece in pieces))


class Bullets(Range):
    """Lines that open with -, * or • and have something after it."""

    kind: Literal["bullets"]

    def score(self, response: str) -> float:
        return self.closeness(len(_BULLET.findall(response)))


class Numbered(Range):
    """Lines numbered 1, 2, 3 ...; a number out of turn ends the count."""

    kind: Literal["numbered"]

    def score(self, response: str) -> float:
        found = [int(n) for n in _NUMBERED.findall(response)]
        matching = (n == place for place, n in enumerate(found, start=1))
        return self.closeness(next((k for k, ok in enumerate(matching) if not ok), len(found)))


class Case(Weighted):
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


class Contains(Weighted):
    """Share of the words or phrases that occur, in any case, as whole words."""

    kind: Literal["contains"]
    words: Phrases

    def score(self, response: str) -> float:
        return fmean(_occurs(word, response) for word in self.words)


class Avoids(Weighted):
    """Share of the words or phrases that do not occur."""

    kind: Literal["avoids"]
    words: Phrases

    def score(self, response: str) -> float:
        return 1 - fmean(_occurs(word, response) for word in self.words)


class Starts(Weighted):
    """1 if the response starts with the text, in any case; marks around both aside."""

    kind: Literal["starts"]
    text: str = Field(min_length=1)

    def score(self, response: str) -> float:
        return float(_bare(response).startswith(_bare(self.text)))


class Ends(Weighted):
    """1 if the response ends with the text, in any case; marks around both aside."""

    kind: Literal["ends"]
    text: str = Field(min_length=1)

    def score(self, response: str) -> float:
        return float(_bare(response).endswith(_bare(self.text)))


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
    WordCount | Sentences | Bullets | Numbered | Case | JsonKeys | Contains | Avoids | Starts | Ends
    | Number | Names,
    Field(discriminator="kind"),
]  # fmt: skip
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


def grade(response: str, checks: Sequence[Check]) -> float:
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
    rows: list[Checkable] = []
    bad: list[BadRow] = []
    for line, load in numbered(source, ("query", "checks")):
        try:
            row = check.own_fields(load())
            query = check.text(row, "query", LIMITS, blank=False)
            kind = check.text(row, "kind", LIMITS)
            if kind not in KINDS:
                raise BadField("kind", f"{check.show(kind)} is none of {', '.join(KINDS)}")
            rows.append(Checkable(line, query, kind, _checks(row)))
        except BadField as why:
            bad.append(BadRow(source, line, why.field, why.reason))
    if not rows and not bad:
        raise InputError(f"{source} has no rows; give it at least one with query and checks")
    return Rows(tuple(rows), tuple(bad))


def _checks(row: dict[str, Any]) -> tuple[Check, ...]:
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
