"""Search for verdicts in the texts that a judge is shown, however they are spelled."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

from autoj_reward.formats.fold import OTHER, SYMBOLS, fold, views
from autoj_reward.formats.number_words import (
    ANY,
    BETWEEN,
    END,
    HALF,
    ZEROS,
    english_words,
    find_numbers,
    make_number_pattern,
    make_word_pattern,
)

Labels = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of verdicts, each with its spellings."""
Patterns = tuple[tuple[str, re.Pattern[str]], ...]
"""Names of verdicts, each with a pattern of all its spellings."""
Names = tuple[frozenset[str], ...]
"""Names of the verdicts that follow each of several openings."""

BEGIN = 3
"""Number of an opening's first letters that are searched for first."""
REMEMBERED = 16_384
"""Maximum length in characters of a text whose result is cached."""
MAX_PATTERN_WORD = 10
"""Largest number whose words are in the pattern of its label."""
_HALF = re.compile(r"([0-9]+)\.5")
_NUMBER = re.compile(r"[0-9]+(?:\.5)?")


class _Opened:
    """The verdicts after one opening. Patterns are compiled once a text holds such a verdict."""

    def __init__(self, pattern: str, labels: _LabelPatterns) -> None:
        self._pattern = pattern
        self._labels = labels
        self.count = sum(map(len, labels.each))

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        return re.compile(f"(?:{self._pattern})(?={self._labels.any})")

    @cached_property
    def _word_opening(self) -> re.Pattern[str]:
        return re.compile(f"(?:{self._pattern})(?={ANY})")

    def find_names_at(self, text: str, start: int) -> Iterator[str]:
        """Yield the names of the verdicts whose opening begins at a place of a folded text."""
        if opened := self._opening.match(text, start):
            for labels in self._labels.each:
                yield from _match_labels(labels, text, opened.end())
        numbers = self._labels.numbers
        if numbers and (opened := self._word_opening.match(text, start)):
            found = find_numbers(text, opened.end())
            yield from (numbers[number] for number in found if number in numbers)


@dataclass(frozen=True, eq=False, slots=True)
class _Search:
    """Search for the verdicts after several openings, in one pass over a text."""

    begins: tuple[re.Pattern[str], ...]
    """Patterns of the first letters of each opening. A text without a match contains no verdict."""
    opening: re.Pattern[str]
    """Pattern of any of the openings that a label follows."""
    each: tuple[_Opened | None, ...]
    """The verdicts after each opening. None for an opening that cannot be searched for."""

    def find_names(self, text: str) -> Names:
        """Return the names of the verdicts in a text, read in both directions."""
        names: list[set[str]] = [set() for _ in self.each]
        pending = {n: opened for n, opened in enumerate(self.each) if opened}
        for folded in set(map(fold, views(text))):
            for direction in (folded, folded[::-1]):
                starts = [
                    match.start() for begin in self.begins if (match := begin.search(direction))
                ]
                match = self.opening.search(direction, min(starts)) if starts else None
                while match and pending:
                    # Openings may begin alike or overlap, so that each is tried at each place.
                    for n, opened in tuple(pending.items()):
                        names[n].update(opened.find_names_at(direction, match.start()))
                        if len(names[n]) == opened.count:
                            del pending[n]
                    match = self.opening.search(direction, match.start() + 1)
        return tuple(map(frozenset, names))


def _match_labels(labels: Patterns, text: str, start: int) -> Iterator[str]:
    """Yield the name of the first label that stands at a place, and of each that ends earlier."""
    end = len(text) + 1
    for name, pattern in labels:
        match = pattern.match(text, start)
        if match and match.end() < end:
            end = match.end()
            yield name


def find_planted_names(
    texts: Sequence[str], openings: Sequence[str], labels: Labels
) -> frozenset[str]:
    """Return the names of the verdicts that stand in texts after an opening of the verdict slot.

    `openings` are written like the judge's own (`Rating: [[`). See `find_planted_after`.
    """
    wanted = tuple((fold(opening), labels) for opening in dict.fromkeys(openings))
    return frozenset[str]().union(
        *chain.from_iterable(find_planted_after(t, wanted) for t in texts)
    )


def find_planted_after(text: str, wanted: tuple[tuple[str, Labels], ...]) -> Names:
    """Return the names of the verdicts that stand in a text after each of several openings.

    `text` is untrusted, in any spelling and read in both directions. It is searched once for all
    openings, in time linear in its length. `wanted`: folded openings, each with the labels that may
    follow. An opening of brackets alone needs the closing ones after a number in digits or in
    English, since a matrix begins like a slot. An opening without words or brackets matches
    nothing: the verdict is then a bare label.
    """
    search = _make_search(wanted)
    if search is None:
        return (frozenset(),) * len(wanted)
    # The texts of one query recur, so their results are cached.
    return _find_names(search, text) if len(text) <= REMEMBERED else search.find_names(text)


@lru_cache(maxsize=1024)
def _find_names(search: _Search, text: str) -> Names:
    return search.find_names(text)


@lru_cache(maxsize=64)
def _make_search(wanted: tuple[tuple[str, Labels], ...]) -> _Search | None:
    """Return the search for these openings and labels. None if no opening can be searched for."""
    begins = dict[str, None]()
    alike = defaultdict[_LabelPatterns, list[str]](list)
    each = list[_Opened | None]()
    for folded, labels in wanted:
        label_patterns = _make_label_patterns(labels)
        pair = _make_opening_patterns(folded, label_patterns.bare)
        if pair is None:
            each.append(None)
            continue
        begin, pattern = pair
        begins[begin] = None
        alike[label_patterns].append(pattern)
        each.append(_Opened(pattern, label_patterns))
    if not begins:
        return None
    openings = []
    for label_patterns, patterns in alike.items():
        any_label = label_patterns.any + (f"|{ANY}" if label_patterns.numbers else "")
        openings.append(f"(?:{'|'.join(patterns)})(?={any_label})")
    # Most places of a text are left after one look at the first letters.
    any_opening = f"(?={'|'.join(begins)})(?:{'|'.join(openings)})"
    return _Search(tuple(map(re.compile, begins)), re.compile(any_opening), tuple(each))


@dataclass(frozen=True, eq=False, slots=True)
class _LabelPatterns:
    """Patterns of the labels of a slot."""

    each: tuple[Patterns, Patterns]
    """Patterns of whole numbers and words, then those of half points.

    In each of the two lists the first match is a label, and so is each shorter one. `9 1/2` thus
    counts as 9 and as 9.5, since a judge may copy either.
    """
    any: str
    """Pattern of any of them."""
    bare: str
    """Pattern of those that brackets without words may hold."""
    numbers: Mapping[str, str]
    """Names of labels by their number, if one is above ten. The patterns hold the other words."""


@lru_cache(maxsize=32)
def _make_label_patterns(labels: Labels) -> _LabelPatterns:
    numbers = {
        spelling: name
        for name, spellings in labels
        for spelling in spellings
        if _NUMBER.fullmatch(spelling)
    }
    if not any(float(number) > MAX_PATTERN_WORD for number in numbers):
        numbers = {}
    patterns = _make_patterns(labels, with_words=not numbers)
    any_label = "|".join(pattern.pattern for _, pattern in chain(*patterns))
    # Code is full of brackets: `x[[i]]` is no Roman one, and `[[5], [6]]` no five and a half.
    bare_numbers = []
    for _, spellings in labels:
        for spelling in filter(_NUMBER.fullmatch, spellings):
            bare_numbers.append(rf"0{{0,8}}{re.escape(spelling)}(?:\.0*+)?")
            bare_numbers += english_words(spelling)
    return _LabelPatterns(patterns, any_label, "|".join(bare_numbers) or any_label, numbers)


def _make_patterns(labels: Labels, with_words: bool) -> tuple[Patterns, Patterns]:
    """Return the patterns of whole numbers and words, then of half points; longer names come first.

    The order matters because a letter that may stand for any letter may also stand for a digit.
    """
    entries = []
    for name, spellings in sorted(labels, key=lambda label: -len(label[0])):
        spelled = (_make_label_pattern(spelling, with_words) for spelling in spellings)
        entries.append((name, re.compile(f"(?:{'|'.join(spelled)}){END}")))
    patterns = tuple(entries)
    halves = tuple(entry for entry in patterns if _HALF.fullmatch(entry[0]))
    return tuple(entry for entry in patterns if entry not in halves), halves


def _make_label_pattern(spelling: str, with_words: bool) -> str:
    """Return the pattern of a label. Zeros that do not change a number are allowed."""
    start = "(?<![0-9a-z])" if len(spelling) < 3 else ""
    if not spelling[0].isdigit():
        return start + make_word_pattern(spelling)
    if half := _HALF.fullmatch(spelling):
        return f"0{{0,8}}{make_number_pattern(half[1], with_words)}{HALF}"
    return rf"{start}0{{0,8}}{make_number_pattern(spelling, with_words)}(?:\.{ZEROS})?"


def _make_opening_patterns(folded: str, bare_label: str) -> tuple[str, str] | None:
    """Return patterns of a folded opening's first letters, and of all of it up to the label.

    bare_label: pattern of the labels that brackets without words may hold. Returns None if the
    opening has nothing to search for.
    """
    word = "".join(c for c in folded if c not in SYMBOLS)[-32:]
    if not word:
        mark = "#" if "#" in folded else r"\|" if "|" in folded else ""
        return (mark, f"{mark}(?=(?:{bare_label})[ .-]?{mark})") if mark else None
    pattern, begin = make_word_pattern(word), make_word_pattern(word, BEGIN)
    ascii_letter = f"(?:{OTHER}{BETWEEN}){{0,{len(word) - 1}}}[a-z]"
    # A word made only of characters that may stand for any letter is not the slot's word.
    lax = not word.isascii() or OTHER in word
    lookahead = "" if lax else f"(?={ascii_letter})"
    if folded[0] in "|#":
        return f"[|#]{begin}", f"[|#]{lookahead}{pattern}[^0-9]{{0,12}}?"
    if folded.rstrip()[-1] in "|#":
        near = f"{lookahead}{pattern}(?:.{{0,16}}?#|[^0-9]{{0,16}}?\\|)"
        return begin, near if lax else f"{near}|(?!{ascii_letter}){pattern}#"
    return begin, f"{lookahead}{pattern}[^0-9]{{0,12}}?"
