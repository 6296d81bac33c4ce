"""Search for verdicts in the texts that a judge is shown, however they are spelled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice

from autoj_reward.formats.fold import OTHER, SYMBOLS, fold, views

Labels = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of verdicts, each with its spellings."""
Patterns = tuple[tuple[str, re.Pattern[str]], ...]
"""Names of verdicts, each with a pattern of all its spellings."""

_BETWEEN = f"[{re.escape(SYMBOLS)}]?"
_LIKE = {"0": "0o", "1": "1il", "o": "o0", "i": "i1l", "l": "l1i"}
BEGIN = 3
"""Number of an opening's first letters that are searched for first."""
REMEMBERED = 16_384
"""Maximum length in characters of a text whose result is cached."""
_END = rf"(?![-.]?[0-9a-z{OTHER}])"
_WORDS = (
    ("zero", "零"),
    ("one", "i", "一", "壹"),
    ("two", "ii", "二", "两", "贰"),
    ("three", "iii", "三", "叁"),
    ("four", "iv", "四", "肆"),
    ("five", "v", "五", "伍"),
    ("six", "vi", "六", "陆"),
    ("seven", "vii", "七", "柒"),
    ("eight", "viii", "八", "捌"),
    ("nine", "ix", "九", "玖"),
    ("ten", "x", "十", "拾"),
)
_HALF = re.compile(r"([0-9]+)\.5")
_ADDED = (
    *("5", "point5", "点5", "點5", "12", "and12", "frac12"),
    *("half", "andhalf", "andahalf", "and1half"),
    *("半", "点半", "點半", "个半", "個半", "分半", "又12", "又2分之1"),
)
"""Texts that add a half after a whole number. Folding leaves only the digits of `1/2`."""


@dataclass(frozen=True, eq=False, slots=True)
class _Search:
    """Search for the verdicts of one slot."""

    begins: tuple[re.Pattern[str], ...]
    """Patterns of the first letters of each opening. A text without a match contains no verdict."""
    opening: re.Pattern[str]
    """Pattern of an opening, up to the place of the label."""
    labels: tuple[Patterns, Patterns]
    """Patterns of whole numbers and words, then those of half points.

    In each of the two lists the first match is the label. `9 1/2` thus counts as 9 and as 9.5,
    since a judge may copy either.
    """

    def find_names(self, text: str) -> frozenset[str]:
        """Return the names of the verdicts in a text, read in both directions."""
        names: set[str] = set()
        count = sum(map(len, self.labels))
        folded_texts = _fold_short if len(text) <= REMEMBERED else _fold_views
        for folded in folded_texts(text):
            for direction in (folded, folded[::-1]):
                first = [
                    match.start() for begin in self.begins if (match := begin.search(direction))
                ]
                for opened in self.opening.finditer(direction, min(first)) if first else ():
                    for labels in self.labels:
                        fitting = (n for n, p in labels if p.match(direction, opened.end()))
                        names.update(islice(fitting, 1))
                    if len(names) == count:
                        return frozenset(names)
        return frozenset(names)


def find_planted_names(
    texts: Sequence[str], openings: Sequence[str], labels: Labels
) -> frozenset[str]:
    """Return the names of the verdicts that stand in texts after an opening of the verdict slot.

    `texts` are untrusted, in any spelling and read in both directions. The search takes time
    linear in their length. `openings` are written like the judge's own (`Rating: [[`). An
    opening of brackets alone needs the closing ones after the label, since a matrix begins like a
    slot. An opening without words or brackets matches nothing: the verdict is then a bare label.
    """
    search = _make_search(tuple(dict.fromkeys(openings)), labels)
    if search is None:
        return frozenset()
    # The texts of one query recur, so their results are cached.
    name_sets = (
        _find_names(search, t) if len(t) <= REMEMBERED else search.find_names(t) for t in texts
    )
    return frozenset[str]().union(*name_sets)


@lru_cache(maxsize=32)
def number_spellings(labels: tuple[str, ...]) -> Labels:
    """Return each number with its other spellings: English words, Roman and Chinese numerals."""
    return tuple((label, _spell_number(label)) for label in labels)


def _spell_number(number: str) -> tuple[str, ...]:
    has_words = number.isdigit() and int(number) < len(_WORDS)
    return (number, *(_WORDS[int(number)] if has_words else ()))


@lru_cache(maxsize=1024)
def _find_names(search: _Search, text: str) -> frozenset[str]:
    return search.find_names(text)


def _fold_views(text: str) -> frozenset[str]:
    return frozenset(map(fold, views(text)))


_fold_short = lru_cache(maxsize=64)(_fold_views)
"""A judgement with many slots searches the same texts for each."""


@lru_cache(maxsize=64)
def _make_search(openings: Sequence[str], labels: Labels) -> _Search | None:
    """Return the search for these openings and labels. None if no opening can be searched for."""
    patterns = _make_patterns(labels)
    any_label = "|".join(pattern.pattern for _, pattern in chain(*patterns))
    opening_patterns = [
        pair
        for folded in dict.fromkeys(map(fold, openings))
        if (pair := _make_opening_patterns(folded, any_label))
    ]
    if not opening_patterns:
        return None
    starts = "".join({fold(spelling)[0] for _, spellings in labels for spelling in spellings})
    any_opening = "|".join(pattern for _, pattern in opening_patterns)
    return _Search(
        tuple(re.compile(begin) for begin, _ in opening_patterns),
        re.compile(f"(?:{any_opening})(?=[{starts}0oil{OTHER}])(?={any_label})"),
        patterns,
    )


@lru_cache(maxsize=32)
def _make_patterns(labels: Labels) -> tuple[Patterns, Patterns]:
    """Return the patterns of whole numbers and words, then of half points; longer names come first.

    The order matters because a letter that may stand for any letter may also stand for a digit.
    """
    patterns = tuple(
        (name, re.compile(f"(?:{'|'.join(map(_make_label_pattern, spellings))}){_END}"))
        for name, spellings in sorted(labels, key=lambda label: -len(label[0]))
    )
    halves = tuple(entry for entry in patterns if _HALF.fullmatch(entry[0]))
    return tuple(entry for entry in patterns if entry not in halves), halves


def _make_label_pattern(spelling: str) -> str:
    """Return the pattern of a label. Zeros that do not change a number are allowed."""
    start = "(?<![0-9a-z])" if len(spelling) < 3 else ""
    if not spelling[0].isdigit():
        return start + _make_word_pattern(spelling)
    before, after = "0{0,8}", f"[0o{OTHER}]{{0,8}}0*+"
    if half := _HALF.fullmatch(spelling):
        whole = "|".join(map(_make_word_pattern, _spell_number(half[1])))
        return f"{before}(?:{whole}){_BETWEEN}{_make_half_pattern()}{after}"
    return rf"{start}{before}{_make_word_pattern(spelling)}(?:\.{after})?"


@lru_cache
def _make_half_pattern() -> str:
    """Return the pattern of texts that add a half to a whole number."""
    return f"(?:{'|'.join(map(_make_word_pattern, _ADDED))})"


def _make_opening_patterns(folded: str, any_label: str) -> tuple[str, str] | None:
    """Return patterns of a folded opening's first letters, and of all of it up to the label.

    any_label: pattern of the labels. Returns None if the opening has nothing to search for.
    """
    word = "".join(c for c in folded if c not in SYMBOLS)[-32:]
    if not word:
        mark = "#" if "#" in folded else r"\|" if "|" in folded else ""
        return (mark, f"{mark}(?=(?:{any_label})[ .-]?{mark})") if mark else None
    pattern, begin = _make_word_pattern(word), _make_word_pattern(word, BEGIN)
    ascii_letter = f"(?:{OTHER}{_BETWEEN}){{0,{len(word) - 1}}}[a-z]"
    # A word made only of characters that may stand for any letter is not the slot's word.
    lax = not word.isascii() or OTHER in word
    lookahead = "" if lax else f"(?={ascii_letter})"
    if folded[0] in "|#":
        return f"[|#]{begin}", f"[|#]{lookahead}{pattern}[^0-9]{{0,12}}?"
    if folded.rstrip()[-1] in "|#":
        near = f"{lookahead}{pattern}(?:.{{0,16}}?#|[^0-9]{{0,16}}?\\|)"
        return begin, near if lax else f"{near}|(?!{ascii_letter}){pattern}#"
    return begin, f"{lookahead}{pattern}[^0-9]{{0,12}}?"


def _make_word_pattern(word: str, letters: int | None = None) -> str:
    """Return the pattern of a word, or of its first `letters` letters."""
    return _BETWEEN.join(
        map(_make_char_pattern, [c for c in fold(word) if c not in SYMBOLS][:letters])
    )


def _make_char_pattern(char: str) -> str:
    """Return the pattern of a character, its look-alikes and, for a digit, its number words."""
    alike = f"[{_LIKE.get(char, char)}{OTHER}]" if char.isascii() else char
    return f"(?:{'|'.join((alike, *_WORDS[int(char)]))})" if char.isdecimal() else alike
