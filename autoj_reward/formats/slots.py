"""Slots: the places in a judge's text where a verdict stands, and the labels that may be there."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

from autoj_reward.formats.planted import Labels, number_spellings
from autoj_reward.formats.scale import Scale

_NUMBER = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)(?![\d.]*\d)", re.ASCII)
_SAID_OUT = re.compile(
    r"\s+(?:is|was)\s+(?:the\s+)?(?:better|winner|best)(?:\s+(?:one|response|answer))?"
    r"|\s+between\s+(?:them|the\s+two|both)(?:\s+responses)?"
    r"|\s*(?:更好|更优|更佳|胜出|获胜)",
    re.IGNORECASE,
)
_LEAD = re.compile(r"""[\s*_`"'“‘(（\\]*""")
"""What may stand between a slot's opening and its label: space, mark-up, quotes, a bracket."""
_NEXT_OPTION = re.compile(r"\s*/")


@dataclass(frozen=True, slots=True)
class Label:
    """A label in a text.

    name: what it means. start, end: of the label. value: the number that it stands for; NaN if
    none. until: where what belongs to it ends, such as `is better` or `out of 10`. alone: whether
    it has a line for itself, so that nothing need close its slot.
    """

    name: str
    start: int
    end: int
    until: int
    value: float = math.nan
    alone: bool = False


@dataclass(frozen=True)
class Slot(ABC):
    """One verdict of a judge call.

    name: of its reading. open, close: regular expressions around the label in the judge's own
    text. force: text that brings an unfinished judgement to the label.
    """

    name: str
    open: str
    close: str
    force: str

    numeric: ClassVar[bool] = False
    """Whether the names of labels are numbers."""
    unopened: ClassVar[str] = "no final decision"
    """Why a text in which the slot never opens has no verdict."""

    @cached_property
    def open_re(self) -> re.Pattern[str]:
        return re.compile(self.open)

    @property
    def comes_first(self) -> bool:
        """Whether the verdict opens the judge's text, so that its reason follows."""
        return self.open.startswith(r"\A")

    @property
    def missing(self) -> str:
        """Why an open slot without a label has no verdict."""
        return "not a verdict after the final decision"

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The labels whose probabilities are read at the slot. Empty where no one slot knows the
        verdict: then it can neither be forced nor has a distribution."""

    @abstractmethod
    def labels_beside(self, name: str, written: str) -> tuple[str, ...]:
        """Return the labels to be told apart where the judge wrote one. name: of what it wrote."""

    def labels_near(self, name: str) -> tuple[str, ...]:
        """Return the labels to be told apart where nothing is written and this name is the
        likeliest."""
        return self.labels

    @abstractmethod
    def by_name(
        self, labels: Sequence[str], shares: Sequence[float]
    ) -> tuple[tuple[str, float], ...]:
        """Return the probabilities of labels, as `labels_beside` or `labels_near` gives them, by
        the names of the labels."""

    @property
    @abstractmethod
    def spelled(self) -> Labels:
        """Every name with its spellings, as they may be planted in what the judge was shown."""

    @abstractmethod
    def labels_at(self, text: str, opened: int) -> Iterator[Label | str]:
        """Yield the labels that may stand in the slot whose opening ends at a place of the judge's
        text, the likeliest first, or why none can."""

    def against(self, name: str, earlier: Collection[str], planted: Collection[str]) -> set[str]:
        """Return the names of verdicts before this one that it cannot outweigh."""
        return set(earlier) - set(planted) - {name}


@dataclass(frozen=True)
class RatingSlot(Slot):
    """A number of the scale, or a word that stands for one."""

    scale: Scale

    numeric: ClassVar[bool] = True
    unopened: ClassVar[str] = "no rating slot"

    @property
    def missing(self) -> str:
        words = ", ".join(self.scale.words)
        return f"not {f'one of {words}' if words else 'a number'} in the rating slot"

    @property
    def labels(self) -> tuple[str, ...]:
        return self.scale.labels

    def labels_beside(self, name: str, written: str) -> tuple[str, ...]:
        return self.scale.with_half(self.scale.value(name))  # 5.5 begins like 5

    def labels_near(self, name: str) -> tuple[str, ...]:
        return self.scale.with_half(float(name) + 0.5)

    def by_name(
        self, labels: Sequence[str], shares: Sequence[float]
    ) -> tuple[tuple[str, float], ...]:
        return self.scale.numbered(tuple(zip(labels, shares, strict=True)))

    @property
    def spelled(self) -> Labels:
        return number_spellings(self.scale.steps)

    def labels_at(self, text: str, opened: int) -> Iterator[Label | str]:
        start = _after_lead(text, opened)
        if self.scale.words:
            # Of two words that fit, the longer.
            for word in sorted(self.scale.words, key=len, reverse=True):
                if found := label_re(word).match(text, start):
                    yield Label(word, start, found.end(), found.end(), self.scale.value(word))
                    return
            return
        number = _NUMBER.match(text, start)
        if number is None:
            return
        share = re.compile(rf"\s*(?:/|out of)\s*{self.scale.high}(?!\d)").match(text, number.end())
        value = float(number.group())
        if self.scale.admits(value):
            yield Label(f"{value:g}", start, number.end(), (share or number).end(), value)
        else:
            scale = f"{self.scale.low} to {self.scale.high}"
            yield f"rating {number.group()} is not on the scale {scale}"

    def against(self, name: str, earlier: Collection[str], planted: Collection[str]) -> set[str]:
        value = self.scale.value(name)
        return {other for other in earlier if self.scale.value(other) < value}


@dataclass(frozen=True)
class ChoiceSlot(Slot):
    """One of several named labels. choices: every name with its spellings, the canonical first."""

    choices: tuple[tuple[str, tuple[str, ...]], ...]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(spellings[0] for _, spellings in self.choices)

    def labels_beside(self, name: str, written: str) -> tuple[str, ...]:
        """The written one as the judge spelled it, the others in the spelling of the same place."""
        own = dict(self.choices)[name]
        place = next((n for n, one in enumerate(own) if label_re(one).fullmatch(written)), 0)
        return tuple(
            written if other == name else spellings[min(place, len(spellings) - 1)]
            for other, spellings in self.choices
        )

    def by_name(
        self, labels: Sequence[str], shares: Sequence[float]
    ) -> tuple[tuple[str, float], ...]:
        return tuple((name, p) for (name, _), p in zip(self.choices, shares, strict=True))

    @property
    def spelled(self) -> Labels:
        return self.choices

    def labels_at(self, text: str, opened: int) -> Iterator[Label | str]:
        start = _after_lead(text, opened)
        for name, spellings in self.choices:
            for spelling in spellings:
                found = label_re(spelling).match(text, start)
                if found is None:
                    continue
                if _NEXT_OPTION.match(text, found.end()):
                    yield "the decision repeats the list of options"
                    return
                until = (_SAID_OUT.match(text, found.end()) or found).end()
                yield Label(name, start, found.end(), until)


@dataclass(frozen=True)
class ScoresSlot(Slot):
    """Two numbers of the scale, alone on their line; the higher one wins. between: the regular
    expression of what stands between them."""

    scale: Scale
    between: str

    labels: ClassVar[tuple[str, ...]] = ()
    spelled: ClassVar[Labels] = ()

    @property
    def missing(self) -> str:
        return "no number of the scale for each response"

    def labels_beside(self, name: str, written: str) -> tuple[str, ...]:
        return ()

    def by_name(
        self, labels: Sequence[str], shares: Sequence[float]
    ) -> tuple[tuple[str, float], ...]:
        return ()

    def labels_at(self, text: str, opened: int) -> Iterator[Label | str]:
        number = r"(\d{1,3}(?:\.\d{1,3})?)"
        line = re.compile(rf"{number}(?:{self.between}){number}[ \t]*(?=\n|\Z)")
        found = line.match(text, opened)
        if found is None or not all(self.scale.admits(float(n)) for n in found.groups()):
            return
        first, second = map(float, found.groups())
        name = "tie" if first == second else "first" if first > second else "second"
        yield Label(name, found.start(), found.end(), found.end(), alone=True)


def _after_lead(text: str, opened: int) -> int:
    lead = _LEAD.match(text, opened)
    return lead.end() if lead else opened


@lru_cache
def label_re(spelling: str) -> re.Pattern[str]:
    """Return the pattern of a label in any case, its words any space apart, that no letter or digit
    follows."""
    words = r"\s*".join(map(re.escape, spelling.split()))
    return re.compile(words + r"(?![0-9A-Za-z])", re.IGNORECASE)
