"""Folding of text to what a reader sees, so that two spellings of one verdict become equal.

Letters and digits become lower-case ASCII if they have such a form. A letter without one becomes
OTHER, which may stand for any letter, so no table of look-alike characters is needed. Ideographs,
kana and hangul stay. Invisible characters are removed. A run of brackets becomes one symbol: `#`
for two or more of any kind that all open or all close, `|` for others. A border between two rows of
a matrix, `], [`, thus differs from the end of a slot.

Any other run between letters becomes the first of these symbols that fits: `:` for a colon in it,
`?` for a question mark, `,` for a comma or dash that joins a remark, a line feed for the end of a
line or of another sentence, `/` for a slash, `.` inside a number, `-` for a hyphen inside a word, a
space. The colon after a quoted key of JSON counts as a space. Inside of brackets, the symbol next
to them is left out.
"""

from __future__ import annotations

import html
import re
import unicodedata

OTHER = "\x7f"
"""Symbol of a letter without an ASCII form."""
NO_RATING = "%"
"""Symbol of a minus or percent sign, with which a number is no rating."""
SYMBOLS = " .|#-:/?,\n"
"""Symbols for text between letters."""
FRACTION = "\u2044"
"""Slash in the decomposed form of ½."""
_UNSEEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Mc", "Me", "Mn"}
_BLANK_LETTERS = "\u115f\u1160\u3164\uffa0"
_TAGS = {0xE0000 + code: code for code in range(0x20, 0x7F)}
CONTROL = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|</?s>|<(?:bos|eos|pad|unk)>|<(?:start|end)_of_turn>"
    r"|\[/?INST\]|<</?SYS>>|\[gMASK\]|<sop>"
)
"""Spellings of known control tokens and of text marks around turns."""
_MARKUP = re.compile(
    rf"(?P<end>{CONTROL.pattern}|</?(?:br|p|div|li|h[1-6]|t[rdh]|[uo]l|hr)\b[^<>]{{0,200}}>)"
    r"|<[/!]?[A-Za-z][^<>]{0,200}>"
    r"|<!--[^<]{0,200}?-->"
    r"|\]\([^()\[\]\s]{0,200}\)"
    r"|&(?:\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,31});?"
    r"|(?P<command>\\[A-Za-z]{2,20})(?=\{)"
    r"|(?:%|\\x)[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}"
    "|\u202e[^\u202c\u202e]*"  # shown from right to left
)
_MARKS = re.compile("[]<&%\\\\\u202e]")
"""One of these characters stands in all mark-up. A text without any needs no decoding."""
_COMMAS = ",·٫;、—"
"""Characters that join a remark. A comma or point between two digits is a decimal point."""
_COLONS = ":\u02d0\u05c3\u2236\ua789"
_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029!。"
"""Characters that end a line or sentence. A full stop outside a number does so, too."""
_KEY = re.compile(r"""(?<=\w)["'”’]\s{0,3}[:：]""")
"""End of a key of JSON. It is no colon that a judge writes."""
_SEPARATOR = r"[ .,\-:/\?\n]"
_OTHER_BRACKETS = re.compile(
    rf"(?:\(|{_SEPARATOR}?\))(?:{_SEPARATOR}?[()])*(?:(?<=\(){_SEPARATOR})?"
)


def _compile_run(symbol: str) -> re.Pattern[str]:
    """Return the pattern of a whole run of separators that contains a symbol.

    It starts where the run starts and gives nothing back, so that long runs take linear time.
    """
    return re.compile(rf"(?<!{_SEPARATOR}){_SEPARATOR.replace(symbol, '')}*+{symbol}{_SEPARATOR}*+")


_RUNS = (
    ("%", re.compile(r"(?<![0-9 ])%|(?<![0-9]) %"), " "),
    ("%", re.compile(r" ?%"), NO_RATING),
    ("-", re.compile(r"(?<=[ \n:,(])-(?=[0-9])"), NO_RATING),
    (",", re.compile(r"(?<=[0-9]),(?=[0-9])"), "."),
    ("-", re.compile(r"(?<=[ \n])-++(?=[ \n])"), ","),
    (".", re.compile(r"(?<![0-9])\.|\.(?![0-9])"), "\n"),
    (":", _compile_run(":"), ":"),
    ("?", _compile_run(r"\?"), "?"),
    (",", _compile_run(","), ","),
    ("\n", _compile_run(r"\n"), "\n"),
    ("/", _compile_run("/"), "/"),
    ("", re.compile(rf"{_SEPARATOR}{{2,}}"), " "),
    ("(", re.compile(rf"\((?:{_SEPARATOR}?\()+{_SEPARATOR}?"), "#"),
    (")", re.compile(rf"{_SEPARATOR}?\)(?:{_SEPARATOR}?\))+"), "#"),
    ("(", _OTHER_BRACKETS, "|"),
    (")", _OTHER_BRACKETS, "|"),
)
"""Character that such a run contains, pattern of the run, and symbol that replaces it."""


def fold(text: str) -> str:
    """Return the folded form of a text, in time linear in its length."""
    text = _KEY.sub(" ", text)
    folded = text.translate(_ASCII if text.isascii() else _Table(_ASCII))
    for char, pattern, symbol in _RUNS:
        if char in folded:
            folded = pattern.sub(symbol, folded)
    return folded


def views(text: str) -> set[str]:
    """Return a text as it stands, and as a page would show it.

    On a page, a control token or the tag of a block ends a line. Other tags, link targets and
    commands of LaTeX disappear, entities and escapes are decoded, and right-to-left overrides are
    reversed. Unicode's invisible tag characters are tried both as nothing and as the letters that
    they stand for.
    """
    forms = {text} if text.isascii() else {text, text.translate(_TAGS)}
    return forms | {_MARKUP.sub(_decode_markup, form) for form in forms if _MARKS.search(form)}


def _decode_markup(match: re.Match[str]) -> str:
    if match["end"]:
        return "\n"
    if match["command"]:
        return ""
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
    if char in ".-/?%":
        return char
    if char == FRACTION:
        return "/"
    if char in _COMMAS:
        return ","
    if char in _COLONS:
        return ":"
    if char in _ENDS:
        return "\n"
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
