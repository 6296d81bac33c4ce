"""Slots: places in a judge's output where a verdict stands, and the labels allowed there."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from autoj_reward.formats.places import JsonField, Opening, Row
from autoj_reward.formats.planted import Ending, Labels
from autoj_reward.formats.scale import Scale

_NUMBER = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)(?![\d.]*\d)", re.ASCII)
SAID_OUT = re.compile(
    r"\s+(?:is|was)\s+(?:the\s+)?(?:better|winner|best)(?:\s+(?:one|response|answer))?"
    r"|\s+between\s+(?:them|the\s+two|both)(?:\s+responses)?"
    r"|\s*(?:更好|更优|更佳|胜出|获胜)",
    re.IGNORECASE,
)
"""Pattern of words that say a label out, as in "Response 1 is better"."""
_LEAD = re.compile(r"""[\s*_`"'“‘(（\\$]*""")
"""Characters allowed between a slot's opening and its label: space, mark-up, quotes, a bracket."""
_WRAPPERS = {"[[": "]]", "[": "]", "【": "】", "boxed{": "}"}
"""Texts that may stand around a label, beside those that the format writes itself."""
_WRAPPER = re.compile("|".join(map(re.escape, _WRAPPERS)))
TRAIL = r"""[\s*_`"'”’)）\\$]*"""
"""Pattern of the characters allowed between a label and the text that closes its slot."""
_OPENING_BRACKET = re.compile(r"[\[({<（【［｛《][\s*_]*\Z")
_TRAIL = re.compile(TRAIL)
_CLOSING_BRACKET = re.compile(r"\\[])}]|[>）】］｝》]")
"""Pattern of a closing bracket in a regular expression."""
_WIDE = {code: code - 0x21 + 0xFF01 for code in range(0x21, 0x7F)}
_NARROW = {wide: code for code, wide in _WIDE.items() if chr(code).isalnum() or chr(code) in "./"}
_NEXT_OPTION = re.compile(r"\s*/")
_WORDLESS_END = re.compile(r"[^\w\s:：]+\Z")


@dataclass(frozen=True, slots=True)
class Label:
    """A label found in a judge's output."""

    name: str
    """Name of the label (`7.5`, `first`)."""
    start: int
    """Offset of the label's first character."""
    end: int
    """Offset after the label's last character."""
    until: int
    """Offset after the words that belong to the label, such as `is better` or `out of 10`."""
    value: float | None = None
    """Number of the label; None if it has none."""


@dataclass(frozen=True)
class Slot(ABC):
    """Base class of slots. A slot holds one verdict of a judge call."""

    name: str
    """Name of the slot's reading."""
    open: str
    """Regular expression of the text before the label in the judge's output."""
    close: str
    """Regular expression of the text after the label."""
    force: str
    """Text appended to an unfinished judgement so that the next token is the label."""
    remarks: bool = field(default=False, kw_only=True)
    """Whether the judge may go on with remarks once the verdict's sentence or line has ended."""
    open_any: str = field(default="", kw_only=True)
    """Regular expression of the openings of all slots beside this one too. Empty for a lone one."""
    place: JsonField | Row | None = field(default=None, kw_only=True)
    """Where the label stands, if `open` alone does not find it."""

    strict: bool = field(default=False, kw_only=True)
    """Whether any other earlier verdict makes a rating doubtful, and not only a lower one."""

    numeric: ClassVar[bool] = False
    """Whether the labels stand for numbers."""
    unopened: ClassVar[str] = "no final decision"
    """Failure reason for a text in which the slot never opens."""

    @cached_property
    def open_re(self) -> re.Pattern[str]:
        """Regular expression `open`, compiled."""
        return re.compile(self.open)

    @cached_property
    def close_re(self) -> re.Pattern[str]:
        """Regular expression `close`, compiled, with what may stand before it."""
        return re.compile(f"{TRAIL}(?:{self.close})")

    @cached_property
    def forced_opening(self) -> str:
        """The slot's opening as the format forces it; empty if the forced text has none."""
        match = self.open_re.search(self.force)
        return match.group() if match else ""

    @cached_property
    def openings(self) -> tuple[str, ...]:
        """The openings after which a prompt text is searched for verdicts.

        They are the forced one, and its brackets alone if the format accepts them without words.
        """
        brackets = _WORDLESS_END.search(self.forced_opening)
        openings = [self.forced_opening]
        if brackets and self.open_re.fullmatch(brackets.group()):
            openings.append(brackets.group())
        return tuple(dict.fromkeys(filter(None, openings)))

    @property
    def force_next(self) -> str:
        """Text that leads to the label from the label of the slot before this one."""
        return self.place.force_next if self.place else self.force

    def find_openings(self, text: str) -> list[Opening]:
        """Return every place of a text in which the slot is opened, in order."""
        if self.place:
            return self.place.find(text)
        return [_make_opening(match) for match in self.open_re.finditer(text)]

    @property
    def comes_first(self) -> bool:
        """Whether the verdict begins the judge's output, so that its reason follows."""
        if self.place:
            return self.place.comes_first
        return self.open.startswith(r"\A")

    @cached_property
    def _opens_bracket(self) -> bool:
        return bool(self.close) and _OPENING_BRACKET.search(self.forced_opening) is not None

    def is_plainer(self, opening: Opening) -> bool:
        """Return whether an opening lacks the bracket with which the format opens its slot."""
        return self._opens_bracket and _OPENING_BRACKET.search(opening.text) is None

    def needs_close(self, opening: Opening) -> bool:
        """Return whether `close` must follow a label after this opening."""
        return bool(self.close) and not self.is_plainer(opening)

    def ending_after(self, opening: str) -> Ending:
        """Return what must follow the label after an opening text."""
        if isinstance(self.place, JsonField):
            return "word"
        is_plainer = self._opens_bracket and _OPENING_BRACKET.search(opening) is None
        if self.close and not is_plainer:
            return "bracket" if _CLOSING_BRACKET.search(self.close) else "word"
        return "word" if self.remarks else "line"

    @property
    def high(self) -> float:
        """Return the highest number that the slot may hold; NaN for a slot of labels."""
        return math.nan

    @property
    def missing(self) -> str:
        """Failure reason for an open slot without a label."""
        return "not a verdict after the final decision"

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Labels whose probabilities are read at the slot.

        Empty if no single slot holds the verdict. Such a verdict cannot be forced and has no
        distribution.
        """

    @abstractmethod
    def labels_beside(self, name: str, written: str) -> tuple[str, ...]:
        """Return the labels whose probabilities are read at a label that the judge wrote.

        `name` is the name of the written label, and `written` its spelling in the text.
        """

    def labels_near(self, name: str) -> tuple[str, ...]:
        """Return the labels whose probabilities are read if the judge wrote none.

        `name` is the most probable label so far.
        """
        return self.labels

    def by_name(self, probs: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
        """Return the probabilities of labels from `labels_beside` or `labels_near` by the labels'
        names."""
        return probs

    def value(self, name: str) -> float | None:
        """Return the number of a label; None if labels are no numbers."""
        return None

    def distribution(self, probs: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
        """Return the probabilities of labels by name as a reading holds them. For a rating they are
        those of the labels' numbers."""
        return probs

    @property
    @abstractmethod
    def spelled(self) -> Labels:
        """Return the verdicts' names, each with the spellings that a prompt text may contain."""

    @property
    def json_value(self) -> dict[str, Any]:
        """JSON schema of the slot's value."""
        return {"type": "string", "enum": list(self.labels)}

    @abstractmethod
    def labels_at(self, text: str, opened: int) -> Iterator[Label | str]:
        """Yield the labels that may stand in the slot opened at offset `opened`, most likely first.

        Yields the failure reason as a text if the slot holds no valid label.
        """

    def _skip_lead(self, text: str, opened: int) -> tuple[int, str]:
        """Return where the label begins that follows an opening, and what must close its wrapper.

        A field of JSON holds the label alone.
        """
        start = _skip(_LEAD, text, opened)
        wrapper = None if isinstance(self.place, JsonField) else _WRAPPER.match(text, start)
        if wrapper is None:
            return start, ""
        return _skip(_LEAD, text, wrapper.end()), _WRAPPERS[wrapper.group()]

    def against(self, name: str, earlier: Collection[str], planted: Collection[str]) -> set[str]:
        """Return the names of earlier verdicts that make the verdict `name` doubtful.

        Those are other verdicts that do not stand in a policy's text. For a rating they are the
        lower ones, unless it is `strict`.
        """
        return set(earlier) - set(planted) - {name}


@dataclass(frozen=True)
class RatingSlot(Slot):
    """Slot of a number on the scale, or of a word that stands for one."""

    scale: Scale

    numeric: ClassVar[bool] = True
    unopened: ClassVar[str] = "no rating slot"

    @property
    def high(self) -> float:
        return float(self.scale.high)

    @property
    def missing(self) -> str:
        words = ", ".join(self.scale.words)
        return f"not {f'one of {words}' if words else 'a number'} in the rating slot"

    @property
    def labels(self) -> tuple[str, ...]:
        return self.scale.labels

    @property
    def json_value(self) -> dict[str, Any]:
        if self.scale.words:
            return super().json_value
        numbers = sorted(float(step) for step in self.scale.steps)
        if all(number.is_integer() for number in numbers):
            return {"type": "integer", "enum": [int(number) for number in numbers]}
        return {"type": "number", "enum": numbers}

    def labels_beside(self, name: str, written: str) -> tuple[str, ...]:
        labels = self.scale.beside(self.scale.value(name))  # "5.5" begins like "5"
        return labels if written.isascii() else tuple(label.translate(_WIDE) for label in labels)

    def labels_near(self, name: str) -> tuple[str, ...]:
        return self.scale.near(self.scale.value(name))

    def by_name(self, probs: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
        # Few labels are full-width.
        if all(label.isascii() for label, _ in probs):
            return probs
        return tuple((narrow(label), p) for label, p in probs)

    def value(self, name: str) -> float:
        return self.scale.value(name)

    def distribution(self, probs: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
        return self.scale.numbered(probs)

    @cached_property
    def spelled(self) -> Labels:
        return tuple((step, (step,)) for step in self.scale.steps)

    @cached_property
    def _out_of(self) -> re.Pattern[str]:
        return re.compile(rf"\s*(?:/|out of)\s*{self.scale.high}(?!\d)")

    def _skip_share(self, text: str, end: int) -> int:
        """Return where a number ends that ends at `end`, with the `/10` that may follow it."""
        share = self._out_of.match(text, end)
        return share.end() if share else end

    def labels_at(self, text: str, opened: int) -> Iterator[Label | str]:
        start, closing = self._skip_lead(text, opened)
        if self.scale.words:
            # If two words match, the longer one is meant.
            for word in sorted(self.scale.words, key=len, reverse=True):
                if match := compile_label(word).match(text, start):
                    until = _skip_closing(text, match.end(), closing)
                    if until is not None:
                        yield Label(word, start, match.end(), until, self.scale.value(word))
                    return
            return
        number = _NUMBER.match(text, start)
        if number is None:
            return
        until = _skip_closing(text, self._skip_share(text, number.end()), closing)
        if until is None:
            return
        value = float(number.group())
        if self.scale.admits(value):
            until = self._skip_share(text, until)
            yield Label(f"{value:g}", start, number.end(), until, value)
        else:
            scale = f"{self.scale.low} to {self.scale.high}"
            yield f"rating {number.group()} is not on the scale {scale}"

    def against(self, name: str, earlier: Collection[str], planted: Collection[str]) -> set[str]:
        if self.strict:
            return super().against(name, earlier, planted)
        value = self.scale.value(name)
        return {other for other in earlier if self.scale.value(other) < value}


@dataclass(frozen=True)
class ChoiceSlot(Slot):
    """Slot of one of several named labels."""

    choices: tuple[tuple[str, tuple[str, ...]], ...]
    """Names of the labels with their spellings, the canonical one first."""

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(spellings[0] for _, spellings in self.choices)

    def labels_beside(self, name: str, written: str) -> tuple[str, ...]:
        """Return the label as the judge spelled it, and the others in the matching spelling."""
        label_spellings = dict(self.choices)[name]
        place = next(
            (n for n, s in enumerate(label_spellings) if compile_label(s).fullmatch(written)), 0
        )
        return tuple(
            written if other == name else spellings[min(place, len(spellings) - 1)]
            for other, spellings in self.choices
        )

    def by_name(self, probs: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
        return tuple((name, p) for (name, _), (_, p) in zip(self.choices, probs, strict=True))

    @property
    def spelled(self) -> Labels:
        return self.choices

    def labels_at(self, text: str, opened: int) -> Iterator[Label | str]:
        start, closing = self._skip_lead(text, opened)
        for name, spellings in self.choices:
            for spelling in spellings:
                match = compile_label(spelling).match(text, start)
                if match is None:
                    continue
                if _NEXT_OPTION.match(text, match.end()):
                    yield "the decision repeats the list of options"
                    return
                until = _skip_closing(text, match.end(), closing)
                if until is None:
                    continue
                said_out = SAID_OUT.match(text, until)
                yield Label(name, start, match.end(), said_out.end() if said_out else until)


def _make_opening(match: re.Match[str]) -> Opening:
    return Opening(match.start(), match.end(), match.group())


def find_openings(slots: Sequence[Slot], text: str) -> Iterator[tuple[Slot, Opening]]:
    """Yield every opening of several slots in a text, which is searched once for all of them."""
    alike = defaultdict[str, list[Slot]](list)
    for slot in slots:
        if slot.place:
            yield from ((slot, opening) for opening in slot.find_openings(text))
        else:
            alike[slot.open_any or slot.open].append(slot)
    for pattern, slots_alike in alike.items():
        opened = re.compile(pattern)
        match = opened.search(text)
        while match:
            for slot in slots_alike:
                if opening := slot.open_re.match(text, match.start()):
                    yield slot, _make_opening(opening)
            # An opening may begin inside another one.
            match = opened.search(text, match.start() + 1)


def _skip_closing(text: str, end: int, closing: str) -> int | None:
    """Return where the wrapper of a label ends. None if nothing closes it."""
    if not closing:
        return end
    place = _skip(_TRAIL, text, end)
    return place + len(closing) if text.startswith(closing, place) else None


def _skip(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return where a pattern ends that begins at `start`."""
    match = pattern.match(text, start)
    return match.end() if match else start


def narrow(text: str) -> str:
    """Return a text of the same length with its full-width letters, digits, points and slashes as
    those of ASCII."""
    return text if text.isascii() else text.translate(_NARROW)


@lru_cache
def compile_label(spelling: str) -> re.Pattern[str]:
    """Return the pattern of a label: in any case, with any space between words.

    No letter or digit may follow the label.
    """
    words = r"\s*".join(map(re.escape, spelling.split()))
    return re.compile(words + r"(?![0-9A-Za-z])", re.IGNORECASE)
