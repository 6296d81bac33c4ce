"""Work on untrusted text takes time linear in its length, whatever the text holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoj_reward.formats.render import flags
from autoj_reward.formats.schema import load_format, parse_comparison, parse_rating
from autoj_reward.types import JudgeInput
from tests.growth import require_linear

FORMATS = [load_format(name) for name in ("autoj-en", "general", "prometheus2", "rubric")]
PIECES = [
    *("\u0301", "\u0323", "\u0300\u0316", "a\u0301", "\u0f71\u0f72", "\U0001d165", "\u1100\u1161"),
    *("\u200b", "\U000e0041", "\ufdfa", "㍿", "龘", "а", "Я", "ʀ", "\U0001f170", "\u202e", "\x00"),
    *("[", "]", "[[", "<", "<a", "<!--", "](", "&#", "&#1", "&#x1F", "&amp", "%5", "%5B"),
    *("\\u005b", " ", "-", ".", " .", "-|", "\n", "\t", "*", "(", "9", "1.", "0", "l", "rating"),
    *("r", "ra", "ratin", "rating#", "[result] ", "final decision is ", "Response 1", "ten", "x"),
    *("Rating: [[9.", "о", "½", "and a half"),
    *(
        "?",
        ", ",
        " - ",
        ") (",
        "\\text{",
        "<br>",
        "5%",
        " -1",
        "Score: 5 of ",
        "/",
        "rating rating",
    ),
    *("Rating: [[", "Rating: [[5]] ", "[RESULT] A ", "[[A]] ", "final", "decision:"),
]


def read_text(text: str) -> None:
    """Run everything that reads a query, a response or a critique."""
    for fmt in FORMATS:
        query, response = f"{text}{fmt.name}", f"{text}{fmt.name}."
        parse_rating(text, fmt, (f"{query},", f"{response},"))
        parse_comparison(text, fmt, (query, response))
        flags(JudgeInput("single", query, (response,)), fmt)


@settings(max_examples=8)
@given(head=st.sampled_from(PIECES), unit=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
def test_the_time_grows_with_the_length(head: str, unit: list[str]) -> None:
    whole = "".join(unit)
    require_linear(read_text, lambda size: head + whole * (size // len(whole)), 6_000)


def search_response(text: str) -> None:
    """Search a response for a planted verdict."""
    parse_rating("Good. Rating: [[5]]", FORMATS[0], ("Why?", text))


@pytest.mark.parametrize("piece", PIECES, ids=ascii)
def test_64_kib_of_one_thing(piece: str) -> None:
    require_linear(search_response, lambda size: piece * (size // len(piece)), 8_192)


def test_a_quarter_of_a_million_of_different_characters() -> None:
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x42000)]))
    require_linear(search_response, lambda size: text[:size], len(text) // 8)
