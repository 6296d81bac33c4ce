"""Verdicts that stand in what the judge was shown, however they are spelled there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from autoj_reward.parse.fold import OTHER, SYMBOLS, fold, views

Labels = Mapping[str, Sequence[str]]
"""Spellings of each verdict, by a name of it."""

_BETWEEN = f"[{re.escape(SYMBOLS)}]?"
_LIKE = {"0": "0o", "1": "1il", "o": "o0", "i": "i1l", "l": "l1i"}
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


def planted(shown: Sequence[str], openings: Sequence[str], labels: Labels) -> frozenset[str]:
    """Names of the verdicts that stand in a text, after one of the openings of a verdict slot.

    shown: untrusted texts, in any spelling and read in either direction; linear in their length.
    openings: as the judge writes them (`Rating: [[`). One without words or brackets, as where the
    verdict is a bare label, opens nothing.
    """
    patterns = [p for p in map(_opening, map(fold, dict.fromkeys(openings))) if p]
    if not patterns:
        return frozenset()
    # The longer first, and 10 before 1.5: a letter that may be any may be a digit.
    names = sorted(labels, key=lambda name: ("." in name, -len(name)))
    found = _compiled("|".join(patterns), tuple(tuple(labels[name]) for name in names))
    seen: set[str] = set()
    for text in {view for one in shown for view in views(one)}:
        folded = fold(text)
        for direction in (folded, folded[::-1]):
            for match in found.finditer(direction):
                seen.add(names[(match.lastindex or 1) - 1])
                if len(seen) == len(names):
                    return frozenset(seen)
    return frozenset(seen)


def numbers(labels: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Each number with its other spellings: words, Chinese, Roman."""
    return {
        label: (label, *_WORDS[int(label)])
        if label.isdigit() and int(label) < len(_WORDS)
        else (label,)
        for label in labels
    }


@lru_cache(maxsize=64)
def _compiled(opening: str, labels: tuple[tuple[str, ...], ...]) -> re.Pattern[str]:
    alternatives = "|".join(f"({'|'.join(map(_label, each))})" for each in labels)
    starts = "".join({fold(spelling)[0] for each in labels for spelling in each})
    return re.compile(f"(?:{opening})(?=[{starts}0oil{OTHER}])(?:{alternatives}){_END}")


def _label(spelling: str) -> str:
    number = spelling[0].isdigit()
    start = "(?<![0-9a-z])" if len(spelling) < 3 else ""
    zeros = ("0{0,8}", r"(?:\.0{1,8})?") if number else ("", "")
    return start + zeros[0] + _spelled(spelling) + zeros[1]


def _opening(folded: str) -> str:
    """The pattern of a folded opening up to the label; empty if it opens nothing."""
    word = "".join(c for c in folded if c not in SYMBOLS)[-32:]
    if not word:
        return "#" if "#" in folded else r"\|" if "|" in folded else ""
    spelled = _spelled(word)
    ascii_letter = f"(?:{OTHER}{_BETWEEN}){{0,{len(word) - 1}}}[a-z]"
    # A word of nothing but letters that may be anything is no word of the slot.
    lax = not word.isascii() or OTHER in word
    seen = "" if lax else f"(?={ascii_letter})"
    if folded[0] in "|#":
        return f"[|#]{seen}{spelled}[^0-9]{{0,12}}?"
    if folded.rstrip()[-1] in "|#":
        near = f"{seen}{spelled}(?:.{{0,16}}?#|[^0-9]{{0,16}}?\\|)"
        return near if lax else f"{near}|(?!{ascii_letter}){spelled}#"
    return f"{seen}{spelled}[^0-9]{{0,12}}?"


def _spelled(word: str) -> str:
    return _BETWEEN.join(map(_like, (c for c in fold(word) if c not in SYMBOLS)))


def _like(char: str) -> str:
    alike = f"[{_LIKE.get(char, char)}{OTHER}]" if char.isascii() else char
    return f"(?:{'|'.join((alike, *_WORDS[int(char)]))})" if char.isdecimal() else alike
