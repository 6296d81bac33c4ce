"""A body is read as Python's own `json` reads it, whoever reads it first."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoj_reward.edge.routes import _parsed

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(PLAIN, lambda own: st.lists(own) | st.dictionaries(st.text(), own))


@given(VALUES, st.booleans())
def test_values(value: Any, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    assert repr(_parsed(text.encode())) == repr(json.loads(text)) == repr(value)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        pytest.param(b'{"a": 1, "a": 2}', {"a": 2}, id="a name twice"),
        pytest.param(b"1e400", float("inf"), id="too large"),
        pytest.param(b"-0.0", -0.0, id="below zero"),
        pytest.param(b"[-Infinity]", [float("-inf")], id="no number"),
        pytest.param(b"9" * 400, int("9" * 400), id="400 digits"),
        pytest.param(b'"\\ud800"', "\ud800", id="half a pair"),
        pytest.param(b'"\xed\xa0\x80"', "\ud800", id="half a pair in bytes"),
        pytest.param(b"\xef\xbb\xbf[]", [], id="byte order mark"),
        pytest.param('["é"]'.encode("utf-16"), ["é"], id="UTF-16"),
    ],
)
def test_what_few_send(body: bytes, value: Any) -> None:
    assert repr(_parsed(body)) == repr(value)
