"""Folding of text to what a reader sees, so that two spellings of one verdict become equal.

Letters and digits become lower-case ASCII if they have such a form. A letter without one becomes
OTHER, which may stand for any letter, so no table of look-alike characters is needed. Ideographs,
kana and hangul stay. Invisible characters are removed. Other text between letters becomes one
symbol: `#` for two or more brackets of any kind that all open or all close, `|` for other brackets,
`.` inside a number, `-` for a hyphen inside a word, else a space. A border between two rows of a
matrix, `], [`, thus differs from the end of a slot.
"""

from __future__ import annotations

import html
import re
import unicodedata

OTHER = "\x7f"
"""Symbol of a letter without an ASCII form."""
SYMBOLS = " .|#-"
"""Symbols for text between letters."""
FRACTION = "\u2044"
"""Slash in the decomposed form of ½."""
_UNSEEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Mc", "Me", "Mn"}
_BLANK_LETTERS = "\u115f\u1160\u3164\uffa0"
_TAGS = {0xE0000 + code: code for code in range(0x20, 0x7F)}
_MARKUP = re.compile(
    r"<[/!]?[A-Za-z][^<>]{0,200}>"
    r"|<!--[^<]{0,200}?-->"
    r"|\]\([^()\[\]\s]{0,200}\)"
    r"|&(?:\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,31});?"
    r"|(?:%|\\x)[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}"
    "|\u202e[^\u202c\u202e]*"  # shown from right to left
)
_MARKS = re.compile("[]<&%\\\\\u202e]")
"""One of these characters stands in all mark-up. A text without any needs no decoding."""
_OTHER_BRACKETS = re.compile(r"[ .\-]?[()](?:[ .\-]?[()])*[ .\-]?")
_RUNS = (
    (".", re.compile(r"(?<![0-9])\.|\.(?![0-9])"), " "),
    ("", re.compile(r"[ .\-]{2,}"), " "),
    ("(", re.compile(r"[ .\-]?\((?:[ .\-]?\()+[ .\-]?"), "#"),
    (")", re.compile(r"[ .\-]?\)(?:[ .\-]?\))+[ .\-]?"), "#"),
    ("(", _OTHER_BRACKETS, "|"),
    (")", _OTHER_BRACKETS, "|"),
)
"""Character that such a run contains, pattern of the run, and symbol that replaces it."""


def fold(text: str) -> str:
    """Return the folded form of a text, in time linear in its length."""
    folded = text.translate(_ASCII if text.isascii() else _Table(_ASCII))
    for char, pattern, symbol in _RUNS:
        if char in folded:
            folded = pattern.sub(symbol, folded)
    return folded


def views(text: str) -> set[str]:
    """Return a text as it stands, and as a page would show it.

    On a page, tags and link targets disappear, entities and escapes are decoded, and right-to-left
    overrides are reversed. Unicode's invisible tag characters are tried both as nothing and as the
    letters that they stand for.
    """
    forms = {text} if text.isascii() else {text, text.translate(_TAGS)}
    return forms | {_MARKUP.sub(_decode_markup, form) for form in forms if _MARKS.search(form)}


def _decode_markup(match: re.Match[str]) -> str:
    markup = match.group()
    match markup[0]:
        case "&":
            return html.unescape(markup)
        case "%" | "\\":
            return chr(int(markup.lstrip("%\\ux"), 16))
        case "\u202e":
            return markup[:0:-1]
        case first:
            return first.strip("<")


class _Table(dict[int, str]):
    """Folded form of each character, computed on first use."""

    def __missing__(self, code: int) -> str:
        # Characters are normalised one by one: in a whole text, ordering long runs of combining
        # marks takes quadratic time. Four characters do for every digit and letter of a label:
        # the longest is `⑽`, "(10)". Some other characters have 18.
        parts = unicodedata.normalize("NFKD", chr(code)).casefold()[:4]
        if FRACTION in parts:
            parts = " " + parts  # 9½ is not 91/2
        folded = "".join(map(_fold_char, parts))
        self[code] = OTHER if folded.startswith(OTHER) else folded
        return self[code]


def _fold_char(char: str) -> str:
    if char.isascii() and char.isalnum():
        return char
    if char in ".-":
        return char
    category = unicodedata.category(char)
    if category[0] == "N":
        return f"{unicodedata.numeric(char):g}"
    if char.isspace():
        return " "
    if category in _UNSEEN or char in _BLANK_LETTERS:
        return ""
    if category == "Ps" or char == "<":
        return "("
    if category == "Pe" or char == ">":
        return ")"
    if category == "Pd":
        return "-"
    if category[0] in "LN":
        return char if unicodedata.east_asian_width(char) in "WF" else OTHER
    return OTHER if category == "So" and "LETTER" in unicodedata.name(char, "") else " "


_ASCII = {code: _Table()[code] for code in range(128)}
"""Folded forms of the ASCII characters, which make up most of most texts."""
