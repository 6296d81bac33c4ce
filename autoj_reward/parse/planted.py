"""Verdicts that stand in what the judge was shown, however they are spelled there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from autoj_reward.parse.fold import OTHER, SYMBOLS, fold, views

Labels = tuple[tuple[str, tuple[str, ...]], ...]
"""A name of each verdict with its spellings."""

_BETWEEN = f"[{re.escape(SYMBOLS)}]?"
_LIKE = {"0": "0o", "1": "1il", "o": "o0", "i": "i1l", "l": "l1i"}
BEGIN = 3
"""Letters of an opening that are looked for first."""
REMEMBERED = 16_384
"""Characters of a text whose verdicts are remembered."""
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


@dataclass(frozen=True, eq=False, slots=True)
class _Search:
    """The verdicts of one slot. begins: the first letters of its openings, which are found at once
    where there are none. names: of the groups of `whole`."""

    begins: tuple[re.Pattern[str], ...]
    whole: re.Pattern[str]
    names: tuple[str, ...]

    def names_in(self, text: str) -> frozenset[str]:
        seen: set[str] = set()
        for folded in set(map(fold, views(text))):
            for direction in (folded, folded[::-1]):
                first = [found.start() for each in self.begins if (found := each.search(direction))]
                for match in self.whole.finditer(direction, min(first)) if first else ():
                    seen.add(self.names[(match.lastindex or 1) - 1])
                    if len(seen) == len(self.names):
                        return frozenset(seen)
        return frozenset(seen)


def planted(shown: Sequence[str], openings: Sequence[str], labels: Labels) -> frozenset[str]:
    """Names of the verdicts that stand in a text, after one of the openings of a verdict slot.

    shown: untrusted texts, in any spelling and read in either direction; linear in their length.
    openings: as the judge writes them (`Rating: [[`). One without words or brackets, as where the
    verdict is a bare label, opens nothing.
    """
    search = _search(tuple(dict.fromkeys(openings)), labels)
    if search is None:
        return frozenset()
    # Texts of one query come again and again: those are looked through once.
    found = (_seen(search, t) if len(t) <= REMEMBERED else search.names_in(t) for t in shown)
    return frozenset[str]().union(*found)


@lru_cache(maxsize=32)
def numbers(labels: tuple[str, ...]) -> Labels:
    """Each number with its other spellings: words, Chinese, Roman."""
    return tuple(
        (label, (label, *_WORDS[int(label)]))
        if label.isdigit() and int(label) < len(_WORDS)
        else (label, (label,))
        for label in labels
    )


@lru_cache(maxsize=256)
def _seen(search: _Search, text: str) -> frozenset[str]:
    return search.names_in(text)


@lru_cache(maxsize=64)
def _search(openings: Sequence[str], labels: Labels) -> _Search | None:
    """None where the openings open nothing."""
    opened = [found for found in dict.fromkeys(map(_opening, map(fold, openings))) if found]
    if not opened:
        return None
    # The longer first, and 10 before 1.5: a letter that may be any may be a digit.
    ordered = sorted(labels, key=lambda label: ("." in label[0], -len(label[0])))
    alternatives = "|".join(f"({'|'.join(map(_label, each))})" for _, each in ordered)
    starts = "".join({fold(spelling)[0] for _, each in ordered for spelling in each})
    whole = "|".join(patterns for _, patterns in opened)
    return _Search(
        tuple(re.compile(begin) for begin, _ in opened),
        re.compile(f"(?:{whole})(?=[{starts}0oil{OTHER}])(?:{alternatives}){_END}"),
        tuple(name for name, _ in ordered),
    )


def _label(spelling: str) -> str:
    number = spelling[0].isdigit()
    start = "(?<![0-9a-z])" if len(spelling) < 3 else ""
    zeros = ("0{0,8}", r"(?:\.0{1,8})?") if number else ("", "")
    return start + zeros[0] + _spelled(spelling) + zeros[1]


def _opening(folded: str) -> tuple[str, str] | None:
    """The patterns of what a folded opening begins with, and of all of it up to the label; None if
    it opens nothing."""
    word = "".join(c for c in folded if c not in SYMBOLS)[-32:]
    if not word:
        mark = "#" if "#" in folded else r"\|" if "|" in folded else ""
        return (mark, mark) if mark else None
    spelled, begin = _spelled(word), _spelled(word, BEGIN)
    ascii_letter = f"(?:{OTHER}{_BETWEEN}){{0,{len(word) - 1}}}[a-z]"
    # A word of nothing but letters that may be anything is no word of the slot.
    lax = not word.isascii() or OTHER in word
    seen = "" if lax else f"(?={ascii_letter})"
    if folded[0] in "|#":
        return f"[|#]{begin}", f"[|#]{seen}{spelled}[^0-9]{{0,12}}?"
    if folded.rstrip()[-1] in "|#":
        near = f"{seen}{spelled}(?:.{{0,16}}?#|[^0-9]{{0,16}}?\\|)"
        return begin, near if lax else f"{near}|(?!{ascii_letter}){spelled}#"
    return begin, f"{seen}{spelled}[^0-9]{{0,12}}?"


def _spelled(word: str, letters: int | None = None) -> str:
    """The pattern of a word, or of so many of its first letters."""
    return _BETWEEN.join(map(_like, [c for c in fold(word) if c not in SYMBOLS][:letters]))


def _like(char: str) -> str:
    alike = f"[{_LIKE.get(char, char)}{OTHER}]" if char.isascii() else char
    return f"(?:{'|'.join((alike, *_WORDS[int(char)]))})" if char.isdecimal() else alike
