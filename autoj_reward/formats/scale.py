"""Rating scales: numbers, or words that stand for numbers."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cached_property
from typing import Any

from pydantic import Field, model_validator

from autoj_reward.config import Block

WORD = re.compile(r"[^\W_](?:.*[^\W_])?")
"""Pattern of a word on a scale: it begins and ends with a letter or digit."""
MAX_LABELS = 1000
"""Maximum number of labels of a slot. Each is searched for, and its probability is requested."""
ROUNDING = 1e-6
"""Amount by which a number of steps may differ from a whole one."""
MAX_LABEL_CHARS = 100
"""Maximum length of a label."""


def require_few(labels: Collection[str], what: str) -> None:
    """Raise ValueError if there are too many labels or one is too long.

    `what` names them in the error.
    """
    if len(labels) > MAX_LABELS:
        raise ValueError(f"{len(labels)} {what}: write at most {MAX_LABELS}")
    if long := [label for label in labels if len(label) > MAX_LABEL_CHARS]:
        raise ValueError(
            f"{long[0][:20]!r}... has {len(long[0])} characters: {what} have at most "
            f"{MAX_LABEL_CHARS} characters"
        )


class Scale(Block):
    """Ratings that a judge may give: whole numbers from low to high, or words."""

    low: int | float = 1
    """Lowest rating."""
    high: int | float = 10
    """Highest rating."""
    half_points: bool = False
    """Whether 5.5 and the like are allowed too."""
    tenths: bool = Field(False, exclude_if=lambda tenths: not tenths)
    """Whether steps of 0.1 are allowed."""
    words: dict[str, int | float] = Field(default_factory=dict, exclude_if=lambda words: not words)
    """Labels that the judge writes in place of numbers, each with its number.

    For example `{correct: 1, incorrect: 0}`. low and high follow from them. Several words may share
    a number.
    """

    @model_validator(mode="before")
    @classmethod
    def _derive_range(cls, data: Any) -> Any:
        words = data.get("words") if isinstance(data, dict) else None
        if not isinstance(words, dict) or not words:
            return data
        if any(isinstance(word, bool) for word in words):
            raise ValueError("YAML takes yes and no for truth values: write the words in quotes")
        if both := sorted(set(data) - {"words"}):
            raise ValueError(f"words bring their own numbers: leave out {', '.join(both)}")
        numbers = [n for n in words.values() if isinstance(n, int | float)]
        return {**data, "low": min(numbers), "high": max(numbers)} if numbers else data

    @model_validator(mode="after")
    def _check_size(self) -> Scale:
        require_few(self.words, "words")
        if self.half_points and self.tenths:
            raise ValueError("tenths have the half points among them: leave out half_points")
        count = (self.high - self.low) * self._parts + 1
        # The parser reads at most three digits.
        if not self.words and (count > MAX_LABELS or self.high >= MAX_LABELS):
            raise ValueError(
                f"scale {self.low}..{self.high} is too long: it has at most {MAX_LABELS} labels, "
                f"all steps among them, and ends at {MAX_LABELS - 1} at the latest"
            )
        return self

    @model_validator(mode="after")
    def _check_order(self) -> Scale:
        if not self.low < self.high or not (self.words or self.low >= 0):
            raise ValueError(f"scale {self.low}..{self.high} is not a rising range from 0 up")
        if not self.words and not (float(self.low).is_integer() and float(self.high).is_integer()):
            raise ValueError(f"scale {self.low}..{self.high} has ends that are no whole numbers")
        if bad := [word for word in self.words if not WORD.fullmatch(word)]:
            raise ValueError(f"{bad[0]!r} is no word of a scale: it begins and ends in a letter")
        if len({word.casefold() for word in self.words}) < len(self.words):
            raise ValueError(f"two of the words {list(self.words)} differ by their case alone")
        return self

    @property
    def _parts(self) -> int:
        """Number of steps from one whole number to the next."""
        return 10 if self.tenths else 1 + self.half_points

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Return the whole numbers or words of the scale, as text."""
        whole = range(int(self.low), int(self.high) + 1)
        return tuple(self.words) or tuple(str(n) for n in whole)

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """All ratings that a judge may write: labels and, if allowed, the steps between them."""
        whole = () if self.words else range(int(self.low), int(self.high))
        between: list[str] = []
        for number in whole:
            between += self._between(number)
        return (*self.labels, *between)

    def _between(self, number: int) -> tuple[str, ...]:
        """Return the steps between a whole number and the next."""
        return tuple(f"{number + n / self._parts:g}" for n in range(1, self._parts))

    def value(self, label: str) -> float:
        """Return the number of a label."""
        return float(self.words[label] if self.words else label)

    def numbered(self, probs: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
        """Return probabilities of labels as probabilities of their numbers, in the same order."""
        if not self.words:
            return probs
        probs_by_number: dict[float, float] = {}
        for label, p in probs:
            number = self.value(label)
            probs_by_number[number] = probs_by_number.get(number, 0.0) + p
        return tuple((_write_number(number), p) for number, p in probs_by_number.items())

    def beside(self, value: float) -> tuple[str, ...]:
        """Return the labels, and the steps that a written number is or may have been: a half point
        itself, or all tenths that begin like it."""
        if self.tenths:
            return self.near(value)
        is_step = self._parts > 1 and self.admits(value) and not value.is_integer()
        return (*self.labels, f"{value:g}") if is_step else self.labels

    def near(self, value: float) -> tuple[str, ...]:
        """Return the labels, and the steps that begin like a number (5.5 begins like 5)."""
        return (*self.labels, *(self._between(int(value)) if int(value) < self.high else ()))

    def admits(self, value: float) -> bool:
        """Return whether a number is on the scale."""
        if self.words:
            return value in self.words.values()
        steps = value * self._parts
        return self.low <= value <= self.high and abs(steps - round(steps)) < ROUNDING


def _write_number(number: float) -> str:
    """Return the shortest text that reads back as exactly this number."""
    text = f"{number:g}"
    return text if float(text) == number else repr(number)
