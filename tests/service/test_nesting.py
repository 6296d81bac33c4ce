"""Number and depth of the values in a JSON text, counted in chunks before it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoj_reward.service import nesting
from autoj_reward.service.bodies import Refused
from autoj_reward.service.nesting import MAX_DEPTH, MAX_VALUES, Nesting

MARKS = st.text(alphabet='ab"\\[]{},: é', max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | MARKS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(MARKS, inner, max_size=4),
    max_leaves=12,
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0) if isinstance(value, list | dict) else 0


@given(VALUES, st.integers(2, 9), st.booleans())
def test_depth_and_strings_are_those_of_the_value(value: Any, size: int, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped).encode()
    found, deepest = Nesting(), 0
    for byte in text:
        found.read(bytes([byte]))
        deepest = max(deepest, found._depth)
    chunked = Nesting()
    for start in range(0, len(text), size):
        chunked.read(text[start : start + size])
    assert deepest == depth(value)
    for read in (found, chunked):
        assert (read._depth, read._in_string) == (0, 0)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        pytest.param(b"[" + b"[]," * MAX_VALUES, 413, id="arrays"),
        pytest.param(b"{" + b'"":0,' * MAX_VALUES, 413, id="names"),
        pytest.param(b'"' * 3 * MAX_VALUES, 413, id="quotes"),
        pytest.param(b"[" + b"1," * MAX_VALUES, 413, id="numbers"),
        pytest.param(b"[" * (MAX_DEPTH + 1), 422, id="deep"),
        pytest.param(b'{"a":' * (MAX_DEPTH + 1), 422, id="deep objects"),
        pytest.param(b'["' + b"[]{},:" * MAX_VALUES + b'"]', 0, id="a text of marks"),
        pytest.param(b'["' + b'\\"[' * MAX_VALUES + b'"]', 0, id="escaped quotes"),
        pytest.param(b'["' + b"\\\\" * MAX_VALUES + b'"]', 0, id="escaped backslashes"),
    ],
)
@pytest.mark.parametrize("size", [1000, 65536, 2**30])
def test_too_much_is_refused(text: bytes, status: int, size: int) -> None:
    found = Nesting()
    told = 0
    try:
        for start in range(0, len(text), size):
            found.read(text[start : start + size])
    except Refused as error:
        told = error.status
    assert told == status


def test_the_largest_request_that_is_meant_to_be_read() -> None:
    criteria = [f"criterion {n}" for n in range(20)]
    row = {"query": "q", "response": "r", "context": {"reference": "x", "criteria": criteria}}
    text = json.dumps({"candidates": [row] * 1024}).encode()
    Nesting().read(text)
    assert nesting.MAX_VALUES > 2 * 1024 * 40
