"""Search for verdicts in the texts that a judge is shown, however they are spelled."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Literal

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

Ending = Literal["line", "bracket", "word"]
"""What must follow a label in the judge's text: the end of its line or sentence, a closing bracket,
or nothing but the end of the word."""
Labels = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of verdicts, each with its spellings."""
Wanted = tuple[str, Labels, Ending]
"""Folded opening of a slot, the labels that may follow, and what must follow a label if the opening
has no brackets."""
Names = tuple[frozenset[str], ...]
"""Names of the verdicts that follow each of several openings."""
Patterns = tuple[tuple[str, re.Pattern[str]], ...]
"""Names of verdicts, each with a pattern of all its spellings."""

BEGIN = 3
"""Number of an opening's first letters that are searched for first."""
REMEMBERED = 16_384
"""Maximum length in characters of a text whose result is cached."""
MAX_PATTERN_WORD = 10
"""Largest number whose words are in the pattern of its label."""
_SYMBOLS = f"[{re.escape(SYMBOLS)}]"
_COLON = f"{_SYMBOLS}{{0,3}}?:"
_REST_OF_LINE = rf"(?:(?![?,\n]){_SYMBOLS}){{0,4}}"
_SHARE = rf"(?:{BETWEEN}(?:/|{make_word_pattern('outof')}){BETWEEN}(?:[0-9]{{1,3}}|[a-z]{{3,7}}))?"
"""Pattern of the words that may follow a rating: `/10`, `out of 10` or `out of ten`."""
_SAID_OUT = (
    rf"(?:{BETWEEN}(?:is|was)(?:{BETWEEN}the)?{BETWEEN}(?:better|winner|best)"
    rf"(?:{BETWEEN}(?:one|response|answer))?|{BETWEEN}(?:更好|更优|更佳|胜出|获胜))"
)
"""Words with which a label may be said out, as in `A is better`."""
_REMARK = r" ?[,|](?![#|:/?]*[0-9])| (?:because|since|as)(?![0-9a-z])"
"""Pattern of the beginning of a remark: punctuation and no number, or a word of reasons."""
_AFTER_NUMBER = (
    rf"(?!{_SYMBOLS}{{0,3}}(?:[0-9]|x ?[0-9]|(?:of|to|and|or)(?![0-9a-z])))"
    r"(?:[ ,]|\|(?! ?[0-9a-z]))"
)
"""Pattern of what may follow a number that stays one: `5 stars`, and not `4 of the 7`."""
_NUMBERED = re.compile("(.*[^0-9])([0-9]+)")
_UNBRACKETED = f"(?:(?![#|]){_SYMBOLS}){{0,2}}"
_HALF = re.compile(r"([0-9]+)\.5")
_DECIMAL = re.compile(r"([0-9]+)\.([1-9])")
_NUMBER = re.compile(r"[0-9]+(?:\.[1-9])?")


@dataclass(frozen=True, slots=True)
class _Form:
    """One form of a slot in folded text."""

    begin: str
    """Pattern of the first letters of the opening."""
    opening: str
    """Pattern of the opening, up to the place of the label."""
    closing: str = ""
    """Pattern of what must follow the label. Empty if the label's own end closes it."""
    bare: bool = False
    """Whether only numbers in digits or English count. Code has brackets, too: `x[[i]]` is no
    Roman one, and `[[5], [6]]` no five and a half."""


class _FormSearch:
    """Search for the verdicts in one form of a slot.

    Its own patterns are compiled once a text holds such a verdict.
    """

    def __init__(self, form: _Form, labels: Labels, numbers: Mapping[str, str]) -> None:
        """numbers: names of labels by their number, if one is above ten. The patterns hold the
        other words."""
        self._form = form
        self._numbers = numbers
        # In each of the two lists the first match is a label, and so is each shorter one.
        self._labels = _make_patterns(labels, not numbers, form.closing)
        any_label = "|".join(pattern.pattern for _, pattern in chain(*self._labels))
        if form.bare:
            any_label = _make_bare_label(labels, form.closing) or any_label
        self._any_label = any_label
        self._reads_words = bool(numbers) and not form.bare

    @property
    def any_label(self) -> str:
        """Pattern of any label, and of any number in words if one counts."""
        return f"{self._any_label}|{ANY}" if self._reads_words else self._any_label

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        return re.compile(f"(?:{self._form.opening})(?={self._any_label})")

    @cached_property
    def _word_opening(self) -> re.Pattern[str]:
        return re.compile(f"(?:{self._form.opening})(?={ANY})")

    def find_names_at(self, text: str, start: int) -> Iterator[str]:
        """Yield the names of the verdicts whose opening begins at a place of a folded text."""
        if opened := self._opening.match(text, start):
            for labels in self._labels:
                yield from _match_labels(labels, text, opened.end())
        if self._reads_words and (opened := self._word_opening.match(text, start)):
            numbers = find_numbers(text, opened.end(), self._form.closing)
            yield from (self._numbers[n] for n in numbers if n in self._numbers)


@dataclass(frozen=True, eq=False, slots=True)
class _Search:
    """Search for the verdicts after several openings, in one pass over a text."""

    begins: tuple[re.Pattern[str], ...]
    """Patterns of the first letters of each opening. A text without a match contains no verdict."""
    opening: re.Pattern[str]
    """Pattern of any of the openings that a label follows."""
    forms: tuple[tuple[_FormSearch, ...], ...]
    """Forms of the slot with each opening. Empty for an opening that cannot be searched for."""
    counts: tuple[int, ...]
    """Number of the verdicts that may follow each opening."""

    def find_names(self, text: str) -> Names:
        """Return the names of the verdicts in a text, read in both directions."""
        names: list[set[str]] = [set() for _ in self.forms]
        pending = {n for n, forms in enumerate(self.forms) if forms}
        for folded in set(map(fold, views(text))):
            for direction in (folded, folded[::-1]):
                starts = [
                    match.start() for begin in self.begins if (match := begin.search(direction))
                ]
                match = self.opening.search(direction, min(starts)) if starts else None
                while match and pending:
                    # Openings may begin alike or overlap, so that each is tried at each place.
                    for n in tuple(pending):
                        for form in self.forms[n]:
                            names[n].update(form.find_names_at(direction, match.start()))
                        if len(names[n]) == self.counts[n]:
                            pending.discard(n)
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
    texts: Sequence[str], openings: Sequence[str], labels: Labels, ending: Ending = "word"
) -> frozenset[str]:
    """Return the names of the verdicts that stand whole in texts: an opening, a label and its end.

    `openings` are written like the judge's own (`Rating: [[`). See `find_planted_after`.
    """
    wanted = tuple((fold(opening), labels, ending) for opening in dict.fromkeys(openings))
    return frozenset[str]().union(
        *chain.from_iterable(find_planted_after(t, wanted) for t in texts)
    )


def find_planted_after(text: str, wanted: tuple[Wanted, ...]) -> Names:
    """Return the names of the verdicts that stand whole in a text after each of several openings.

    `text` is untrusted, in any spelling and read in both directions. It is searched once for all
    openings, in time linear in its length. A label after brackets needs the closing ones, since a
    matrix begins like a slot. They may be missing at the end of the text. Brackets alone, without a
    word, hold a number in digits or in English. An opening without words or brackets matches
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
def _make_search(wanted: tuple[Wanted, ...]) -> _Search | None:
    """Return the search for these openings. None if no opening can be searched for."""
    begins = dict[str, None]()
    openings = defaultdict[str, list[str]](list)
    searches = []
    for folded, labels, ending in wanted:
        numbers = {
            spelling: name
            for name, spellings in labels
            for spelling in spellings
            if _NUMBER.fullmatch(spelling)
        }
        forms = dict.fromkeys(_make_forms(folded, ending, bool(numbers)))
        if not any(float(number) > MAX_PATTERN_WORD for number in numbers):
            numbers = {}
        form_searches = tuple(_FormSearch(form, labels, numbers) for form in forms)
        searches.append(form_searches)
        for form, form_search in zip(forms, form_searches, strict=True):
            begins[form.begin] = None
            openings[form_search.any_label].append(form.opening)
    if not begins:
        return None
    # Most places of a text are left after one look at the first letters.
    ways = (f"(?:{'|'.join(some)})(?={label})" for label, some in openings.items())
    any_opening = f"(?={'|'.join(begins)})(?:{'|'.join(ways)})"
    counts = tuple(len(labels) for _, labels, _ in wanted)
    begin_patterns = tuple(map(re.compile, begins))
    return _Search(begin_patterns, re.compile(any_opening), tuple(searches), counts)


def _make_bare_label(labels: Labels, closing: str) -> str:
    """Return the pattern of a number in digits or English with its end. Empty without numbers."""
    spelled = []
    for _, spellings in labels:
        for spelling in filter(_NUMBER.fullmatch, spellings):
            spelled.append(rf"0{{0,8}}{re.escape(spelling)}(?:\.0*+)?")
            spelled += english_words(spelling)
    return f"(?:{'|'.join(spelled)}){closing}" if spelled else ""


@lru_cache(maxsize=32)
def _make_patterns(labels: Labels, with_words: bool, closing: str) -> tuple[Patterns, Patterns]:
    """Return the patterns of whole numbers and words, then of decimals; longer names come first.

    The order matters because a letter that may stand for any letter may also stand for a digit.
    """
    entries = []
    for name, spellings in sorted(labels, key=lambda label: -len(label[0])):
        spelled = (_make_label_pattern(spelling, with_words) for spelling in spellings)
        entries.append((name, re.compile(f"(?:{'|'.join(spelled)}){END}{closing}")))
    patterns = tuple(entries)
    parts = tuple(entry for entry in patterns if _DECIMAL.fullmatch(entry[0]))
    return tuple(entry for entry in patterns if entry not in parts), parts


def _make_label_pattern(spelling: str, with_words: bool) -> str:
    """Return the pattern of a label. Zeros that do not change a number are allowed."""
    start = "(?<![0-9a-z])" if len(spelling) < 3 else ""
    if not spelling[0].isdigit():
        return start + make_word_pattern(spelling)
    if half := _HALF.fullmatch(spelling):
        return f"0{{0,8}}{make_number_pattern(half[1], with_words)}{HALF}"
    if decimal := _DECIMAL.fullmatch(spelling):
        return rf"0{{0,8}}{make_number_pattern(decimal[1], False)}\.{decimal[2]}{ZEROS}"
    return rf"{start}0{{0,8}}{make_number_pattern(spelling, with_words)}(?:\.{ZEROS})?"


def _make_forms(folded: str, ending: Ending, is_number: bool) -> Iterator[_Form]:
    """Yield the forms of a slot whose opening is folded. None without words or brackets.

    is_number: whether the labels are numbers.
    """
    core = folded.strip(SYMBOLS)
    head, tail = folded.split(core) if core else ("", folded)
    word = "".join(c for c in core if c not in SYMBOLS)[-32:]
    if not word:
        mark = "#" if "#" in folded else r"\|" if "|" in folded else ""
        if mark:
            yield _Form(mark, mark, f"(?={BETWEEN}{mark})", bare=True)
        return
    word_pattern = make_word_pattern(word)
    if name := _NUMBERED.fullmatch(word):
        # A bracket before the number begins a list: `score = [[1, 2]]` is no `score_1: 2`.
        word_pattern = _UNBRACKETED.join(map(make_word_pattern, name.groups()))
    begin = make_word_pattern(word, BEGIN)
    ascii_letter = f"(?:{OTHER}{BETWEEN}){{0,{len(word) - 1}}}[a-z]"
    # A word made only of characters that may stand for any letter is not the slot's word.
    is_lax = not word.isascii() or OTHER in word
    pattern = word_pattern if is_lax else f"(?={ascii_letter}){word_pattern}"
    is_tag = bool({"|", "#"} & set(head))
    if is_tag:
        begin = f"[|#]{begin}"
        pattern = f"[|#]{pattern}"
    verb = f"(?:{BETWEEN}is)?"
    single_closing = f"(?={_SHARE}{BETWEEN}(?:[#|]|\\Z))"
    plain_closing = single_closing if ending == "bracket" else ""
    if ending == "line":
        # Several verdicts may stand on one line.
        next_word = make_word_pattern(re.split(_SYMBOLS, core)[0])
        goes_on = _AFTER_NUMBER if is_number else _REMARK
        plain_closing = (
            f"(?={_SHARE}{_SAID_OUT}?(?:{goes_on}|{_REST_OF_LINE}(?:\\n|\\Z|{next_word})))"
        )
    if "#" in tail:
        closing = f"(?={_SHARE}{BETWEEN}(?:#|\\|?{_SYMBOLS}{{0,3}}\\Z))"
        # Brackets that touch a word are its index: `rating <- x[[3]]`, `rating[[i]]`.
        apart = f"(?:(?s:.){{0,15}}?[^0-9a-z]|{BETWEEN}is)"
        yield _Form(begin, f"{pattern}{apart}#", closing)
        yield _Form(begin, f"{pattern}#", closing, bare=not is_lax)
        list_item = f"(?!{_SHARE}{BETWEEN}[#|] [0-9a-z])"  # Rating: (1) taste, (2) price
        yield _Form(begin, f"{pattern}{verb}{_COLON}\\|", list_item + single_closing)
        # <rating>10</rating>
        yield _Form(begin, f"(?<=[|#]){pattern}\\|", f"(?={_SHARE}\\|{word_pattern})")
        if not is_lax:
            yield _Form(begin, f"(?!{ascii_letter}){word_pattern}{BETWEEN}#", closing)
    elif is_tag and "|" in tail:
        yield _Form(begin, f"{pattern}[|#][^0-9]{{0,12}}?", plain_closing or single_closing)
    elif "|" in tail:
        colon = _COLON if ":" in tail else f"{_SYMBOLS}{{0,3}}?"
        yield _Form(begin, f"{pattern}{verb}{colon}[|#]", plain_closing or single_closing)
    elif ":" in tail and core.isalnum():
        # A single word is ordinary prose without the mark that the format writes after it.
        yield _Form(begin, f"(?<![0-9a-z]){pattern}{verb}{_COLON}{_SYMBOLS}{{0,2}}?", plain_closing)
    elif ending == "line":
        yield _Form(begin, f"{pattern}{verb}{_SYMBOLS}{{0,4}}?", plain_closing)
    else:
        yield _Form(begin, f"{pattern}[^0-9]{{0,12}}?", plain_closing)
