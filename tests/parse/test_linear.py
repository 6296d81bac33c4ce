"""What is done to untrusted text takes time linear in its length, whatever the text holds."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoj_reward.parse import parse_comparison, parse_rating
from autoj_reward.prompts.format import load_format
from autoj_reward.prompts.render import flags
from autoj_reward.types import JudgeInput

FORMATS = [load_format(name) for name in ("autoj-en", "general", "prometheus2")]
PIECES = [
    *("\u0301", "\u0323", "\u0300\u0316", "a\u0301", "\u0f71\u0f72", "\U0001d165", "\u1100\u1161"),
    *("\u200b", "\U000e0041", "\ufdfa", "㍿", "龘", "а", "Я", "ʀ", "\U0001f170", "\u202e", "\x00"),
    *("[", "]", "[[", "<", "<a", "<!--", "](", "&#", "&#1", "&#x1F", "&amp", "%5", "%5B"),
    *("\\u005b", " ", "-", ".", " .", "-|", "\n", "\t", "*", "(", "9", "1.", "0", "l", "rating"),
    *("r", "ra", "ratin", "rating#", "[result] ", "final decision is ", "Response 1", "ten", "x"),
    *("Rating: [[9.", "о", "½", "and a half"),
    *("Rating: [[", "Rating: [[5]] ", "[RESULT] A ", "[[A]] ", "final", "decision:"),
]


def seconds(text: str) -> float:
    """Processor time of everything that reads a query, a response or a critique; the least of 2.

    Each reads texts of its own: what is remembered of one tells nothing of the time it takes.
    """
    taken = []
    for n in range(2):
        started = time.process_time()
        for fmt in FORMATS:
            query, response = f"{text} {n}{fmt.name}", f"{text} {n}{fmt.name}."
            parse_rating(text, fmt, (f"{query},", f"{response},"))
            parse_comparison(text, fmt, (query, response))
            flags(JudgeInput(query, (response,)), fmt)
        taken.append(time.process_time() - started)
    return min(taken)


@settings(max_examples=8)
@given(head=st.sampled_from(PIECES), unit=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
def test_four_times_the_text_takes_about_four_times_as_long(head: str, unit: list[str]) -> None:
    short = head + "".join(unit) * (12_000 // len("".join(unit)))
    # Quadratic time would take sixteen times as long.
    assert seconds(short * 4) < 9 * seconds(short) + 0.2


@pytest.mark.parametrize("piece", PIECES, ids=ascii)
def test_64_kib_of_one_thing(piece: str) -> None:
    text = piece * (65_536 // len(piece))
    fmt = FORMATS[0]
    started = time.process_time()
    parse_rating("Good. Rating: [[5]]", fmt, ("Why?", text))
    assert time.process_time() - started < 1.5  # four times the text took 89 s before


def test_a_megabyte_of_many_different_characters() -> None:
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x42000)]))
    started = time.process_time()
    parse_rating("Good. Rating: [[5]]", FORMATS[0], ("Why?", text))
    assert time.process_time() - started < 5
