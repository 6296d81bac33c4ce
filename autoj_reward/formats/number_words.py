"""Numbers in words: English words, Roman and Chinese numerals from 0 to 999, in folded text.

Each pattern allows look-alikes of a letter, and up to two symbols between two letters; see
`fold`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from autoj_reward.formats.fold import NO_RATING, OTHER, SYMBOLS, fold

BETWEEN = f"[{re.escape(SYMBOLS)}]{{0,2}}"
"""Pattern of what may stand between two letters of a word."""
_BETWEEN_DIGITS = f"[{re.escape(re.sub('[.,]', '', SYMBOLS))}]{{0,2}}"
END = rf"(?![-.]?[0-9a-z{OTHER}{NO_RATING}])"
"""Pattern of the end of a label."""
ZEROS = f"[0o{OTHER}]{{0,8}}0*+"
"""Pattern of zeros after a decimal point or a half, which change no number."""
LIKE = {
    **{"0": "0o", "1": "1il", "o": "o0", "i": "i1l", "l": "l1i"},
    **{"零": "零0", "一": "一壹弌", "二": "二两兩贰貳弍", "三": "三叁參叄", "四": "四肆"},
    **{"五": "五伍", "六": "六陆陸", "七": "七柒", "八": "八捌", "九": "九玖"},
    **{"十": "十拾", "百": "百佰"},
}
"""Characters that may stand for a character."""
_ONES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = (
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")
"""Roman numerals of the numbers up to ten."""
_ROMAN_AMOUNTS = {"i": 1, "1": 1, "v": 5, "x": 10, "l": 50, "c": 100, "d": 500, "m": 1000}
_CHINESE = "零一二三四五六七八九"
_SMALL = {
    "0": ("zero", "零"),
    **{str(n): (_ONES[n - 1], _ROMAN[n - 1], _CHINESE[n]) for n in range(1, 10)},
    "4": ("four", "iv", "iiii", "四"),
    "9": ("nine", "ix", "viiii", "九"),
    "10": ("ten", "x", "十"),
}
"""Words of the numbers up to ten: English, Roman (there is none for zero), Chinese last."""
_ADDED = (
    *("point5", "点5", "點5", "1/2", "and1/2", "frac12"),
    *("half", "andhalf", "andahalf", "and1half"),
    *("半", "点半", "點半", "个半", "個半", "分半", "又1/2", "又2分之1"),
)
"""Texts that add a half after a whole number, beside a decimal point and a 5."""


def english_words(number: str) -> tuple[str, ...]:
    """Return the English word of a number up to ten, as a tuple of one; () for another number."""
    return _SMALL.get(number, ())[:1]


def make_word_pattern(word: str, letters: int | None = None) -> str:
    """Return the pattern of a word, or of its first `letters` letters.

    A digit may be spelled out: "Response 2" is also "Response two" and "Response II".
    """
    chars = [c for c in fold(word) if c not in SYMBOLS][:letters]
    return BETWEEN.join(_make_char_pattern(char, roman=True) for char in chars)


def make_number_pattern(number: str, with_words: bool) -> str:
    """Return the pattern of a whole number in digits.

    with_words: whether words of numbers up to ten belong to it. Else `find_numbers` reads them.
    Digits of a longer number may be spelled out in any case.
    """
    if len(number) == 1:
        digits = _make_alike_pattern(number)
    else:
        # A point makes a decimal (9.0 is not 90). Roman numerals are no digits (III is not 12).
        digits = _BETWEEN_DIGITS.join(_make_char_pattern(digit, False) for digit in number)
    words = map(make_word_pattern, _SMALL.get(number, ()) if with_words else ())
    return f"(?:{'|'.join((digits, *words))})"


def _make_char_pattern(char: str, roman: bool) -> str:
    alike = _make_alike_pattern(char)
    if not char.isdecimal():
        return alike
    english, *numerals = _SMALL[char]
    if not roman:
        numerals = numerals[-1:]
    # The Chinese numeral is one character, and the Roman one is plain letters.
    words = (english, *(n if n.isascii() else _make_alike_pattern(n) for n in numerals))
    return f"(?:{'|'.join((alike, *words))})"


def _make_alike_pattern(char: str) -> str:
    other = OTHER if char.isascii() else ""
    return f"[{LIKE.get(char, char)}{other}]"


def _make_added_pattern(text: str) -> str:
    # A row of a matrix, `[[9, 1, 2]]`, has no slash.
    return f"{BETWEEN}/{BETWEEN}".join(map(make_word_pattern, text.split("/")))


HALF = (
    rf"(?:[.\n]{make_word_pattern('5')}|{BETWEEN}(?:{'|'.join(map(_make_added_pattern, _ADDED))}))"
    + ZEROS
)
"""Pattern of the texts that add a half to a whole number."""


def _name_amounts(kind: str, words: Mapping[int, str]) -> str:
    """Return the pattern of one of several words, each in a group named by what it adds."""
    longest_first = sorted(words.items(), key=lambda entry: -len(entry[1]))
    groups = (f"(?P<{kind}_{value}>{make_word_pattern(word)})" for value, word in longest_first)
    return f"(?:{'|'.join(groups)})"


def _make_english_pattern() -> str:
    hundreds = _name_amounts("hundreds", {100 * n: word for n, word in enumerate(_ONES, 1)})
    hundred = f"(?:(?:{hundreds}|{make_word_pattern('a')}){BETWEEN})?{make_word_pattern('hundred')}"
    teens = _name_amounts("teens", dict(enumerate(_TEENS, 10)))
    tens = _name_amounts("tens", {10 * n: word for n, word in enumerate(_TENS, 2)})
    ones = _name_amounts("ones", dict(enumerate(("zero", *_ONES))))
    rest = f"(?:{teens}|(?:{tens}{BETWEEN})?{ones}?)"
    joined = f"(?:(?:{make_word_pattern('and')}{BETWEEN})?{rest})?"
    # One letter is no wildcard. With it a match cannot be empty, since no letter may follow one.
    return f"(?=(?:{OTHER}{BETWEEN}){{0,8}}[a-z0])(?:(?P<hundred>{hundred}){BETWEEN})?{joined}"


def _make_roman_pattern() -> str:
    # Irregular ones such as XIIII and IC are read as well. Ones alone are digits.
    letter = f"[{''.join(_ROMAN_AMOUNTS)}]"
    return f"(?=(?:1{BETWEEN}){{0,3}}[a-z])(?P<roman>{letter}(?:{BETWEEN}{letter}){{0,14}})"


def _read_roman(numeral: str) -> set[int]:
    """Return what a Roman numeral may mean: an L may be an I that looks like it."""
    amounts = [_ROMAN_AMOUNTS[char] for char in numeral if char in _ROMAN_AMOUNTS]
    readings = set[int]()
    for small_l in (50, 1):
        read = [small_l if amount == 50 else amount for amount in amounts]
        pairs = zip(read, [*read[1:], 0], strict=True)
        readings.add(sum(-amount if amount < following else amount for amount, following in pairs))
    return readings


def _make_chinese_pattern() -> str:
    digits = dict(enumerate(_CHINESE))
    hundreds = _name_amounts("hundreds", {100 * n: digits[n] for n in range(1, 10)})
    tens = _name_amounts("tens", {10 * n: digits[n] for n in range(1, 10)})
    joined_tens = _name_amounts("joined", {20: "廿", 30: "卅", 40: "卌"})
    ones = _name_amounts("ones", digits)
    hundred = f"(?:{hundreds}{BETWEEN})?{make_word_pattern('百')}"
    ten = f"(?:(?:{tens}{BETWEEN})?{make_word_pattern('十')}|{joined_tens})"
    zero = make_word_pattern("零")
    numerals = "".join(LIKE.get(char, char) for char in f"{_CHINESE}十百廿卅卌")
    return (
        f"(?=[{numerals}])(?:(?P<bai>{hundred})(?:{BETWEEN}(?P<ling>{zero}))?{BETWEEN})?"
        f"(?:(?P<shi>{ten}){BETWEEN})?{ones}?(?![{numerals.replace('0', '')}])"
    )


_SYSTEMS = (_make_english_pattern(), _make_roman_pattern(), _make_chinese_pattern())
_NAMED = re.compile(r"\(\?P<\w+>")
ANY = (
    r"(?<![0-9a-z])(?:"
    + "|".join(_NAMED.sub("(?:", pattern) for pattern in _SYSTEMS)
    + f")(?:{HALF})?{END}"
)
"""Pattern of any number in words, half points included."""


@lru_cache(maxsize=64)
def _compile_systems(closing: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the pattern of each kind of numerals with each ending, and what the ending adds."""
    endings = ((END + closing, ""), (HALF + END + closing, ".5"))
    return tuple(
        (re.compile(f"(?:{pattern}){ending}"), added)
        for pattern in _SYSTEMS
        for ending, added in endings
    )


def find_numbers(text: str, start: int, closing: str) -> set[str]:
    """Return the numbers that stand in words at a place, in digits. `nine and a half` is 9.5.

    closing: pattern of what must follow a number.
    """
    numbers = set[str]()
    for pattern, added in _compile_systems(closing):
        match = pattern.match(text, start)
        parts = match.groupdict() if match else {}
        if roman := parts.get("roman"):
            numbers |= {f"{number}{added}" for number in _read_roman(roman)}
        elif amounts := {name for name, part in parts.items() if part}:
            numbers.add(f"{_add_up(amounts)}{added}")
    return numbers


def _add_up(groups: set[str]) -> int:
    """Return the number whose groups have matched."""
    amounts = dict[str, int]()
    for group in groups:
        kind, _, amount = group.partition("_")
        if amount:
            amounts[kind] = int(amount)
    # "a hundred", 百 and 十 name no count.
    if {"hundred", "bai"} & groups:
        amounts.setdefault("hundreds", 100)
    if "shi" in groups and "joined" not in amounts:
        amounts.setdefault("tens", 10)
    # 一百五 is 150, and 一百零五 is 105.
    if "bai" in groups and not {"shi", "ling"} & groups:
        amounts["ones"] = 10 * amounts.get("ones", 0)
    return sum(amounts.values())
