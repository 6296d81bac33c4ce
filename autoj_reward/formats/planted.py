"""Search for verdicts in the texts that a judge is shown, however they are spelled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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

BEGIN = 3
"""Number of an opening's first letters that are searched for first."""
REMEMBERED = 16_384
"""Maximum length in characters of a text whose result is cached."""
MAX_PATTERN_WORD = 10
"""Largest number whose words are in the pattern of its label."""
_HALF = re.compile(r"([0-9]+)\.5")
_NUMBER = re.compile(r"[0-9]+(?:\.5)?")


@dataclass(frozen=True, eq=False, slots=True)
class _Search:
    """Search for the verdicts of one slot."""

    begins: tuple[re.Pattern[str], ...]
    """Patterns of the first letters of each opening. A text without a match contains no verdict."""
    opening: re.Pattern[str]
    """Pattern of an opening, up to the place of the label."""
    word_opening: re.Pattern[str] | None
    """Pattern of an opening, up to the place of a number in words. None without `numbers`."""
    labels: tuple[Patterns, Patterns]
    """Patterns of whole numbers and words, then those of half points.

    In each of the two lists the first match is a label, and so is each shorter one. `9 1/2` thus
    counts as 9 and as 9.5, since a judge may copy either.
    """
    numbers: Mapping[str, str]
    """Names of labels by their number, if one is above ten. The patterns hold the other words."""

    def find_names(self, text: str) -> frozenset[str]:
        """Return the names of the verdicts in a text, read in both directions."""
        names: set[str] = set()
        count = sum(map(len, self.labels))
        for folded in _fold_views(text):
            for direction in (folded, folded[::-1]):
                starts = [
                    match.start() for begin in self.begins if (match := begin.search(direction))
                ]
                if not starts:
                    continue
                for opened in self.opening.finditer(direction, min(starts)):
                    for labels in self.labels:
                        names.update(_match_labels(labels, direction, opened.end()))
                    if len(names) == count:
                        return frozenset(names)
                if self.word_opening:
                    for opened in self.word_opening.finditer(direction, min(starts)):
                        numbers = find_numbers(direction, opened.end())
                        names.update(self.numbers[n] for n in numbers if n in self.numbers)
        return frozenset(names)


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

    `texts` are untrusted, in any spelling and read in both directions. The search takes time
    linear in their length. `openings` are written like the judge's own (`Rating: [[`). An
    opening of brackets alone needs the closing ones after a number in digits or in English, since
    a matrix begins like a slot. An opening without words or brackets matches nothing: the verdict
    is then a bare label.
    """
    search = _make_search(tuple(dict.fromkeys(openings)), labels)
    if search is None:
        return frozenset()
    # The texts of one query recur, so their results are cached.
    name_sets = (
        _find_names(search, t) if len(t) <= REMEMBERED else search.find_names(t) for t in texts
    )
    return frozenset[str]().union(*name_sets)


@lru_cache(maxsize=1024)
def _find_names(search: _Search, text: str) -> frozenset[str]:
    return search.find_names(text)


@lru_cache(maxsize=64)
def _fold_views(text: str) -> frozenset[str]:
    # A judgement with many slots searches the same texts for each of them, long ones too.
    return frozenset(map(fold, views(text)))


@lru_cache(maxsize=64)
def _make_search(openings: Sequence[str], labels: Labels) -> _Search | None:
    """Return the search for these openings and labels. None if no opening can be searched for."""
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
    bare_label = "|".join(bare_numbers) or any_label
    opening_patterns = [
        pair
        for folded in dict.fromkeys(map(fold, openings))
        if (pair := _make_opening_patterns(folded, bare_label))
    ]
    if not opening_patterns:
        return None
    any_opening = "|".join(pattern for _, pattern in opening_patterns)
    return _Search(
        tuple(re.compile(begin) for begin, _ in opening_patterns),
        re.compile(f"(?:{any_opening})(?={any_label})"),
        re.compile(f"(?:{any_opening})(?={ANY})") if numbers else None,
        patterns,
        numbers,
    )


@lru_cache(maxsize=32)
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
