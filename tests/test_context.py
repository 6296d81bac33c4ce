"""Named texts beside query and response: one value through records, keys and the wire."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from autoj_reward.context import NOTHING, Context
from autoj_reward.types import Candidate, Contest, JudgeInput


def test_a_context_is_a_frozen_mapping_whatever_its_order() -> None:
    one, two = (
        Context({"rubric": "b", "reference": "a"}),
        Context({"reference": "a", "rubric": "b"}),
    )
    assert one == two and hash(one) == hash(two) and dict(one) == {"reference": "a", "rubric": "b"}
    assert one != Context({"reference": "a"}) and one["rubric"] == "b" and list(two) == list(one)
    assert pickle.loads(pickle.dumps(one)) == one
    assert not NOTHING and len(one) == 2
    with pytest.raises(AttributeError):
        one.texts = ()  # type: ignore[misc]
    with pytest.raises(KeyError):
        one["criteria"]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        pytest.param({"query": "x"}, ValueError, "query", id="a part of the input itself"),
        pytest.param({"the answer": "x"}, ValueError, "the answer", id="no name"),
        pytest.param({"": "x"}, ValueError, "''", id="empty name"),
        pytest.param({"reference": 42}, TypeError, "42", id="a number"),
        pytest.param({"reference": None}, TypeError, "None", id="nothing"),
    ],
)
def test_what_is_no_context(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Candidate("q", "r", context=given)


def test_records_freeze_what_they_are_given() -> None:
    given = {"reference": "a"}
    candidate, item = (
        Candidate("q", "r", context=given),
        JudgeInput("single", "q", ("r",), context=given),
    )
    given["reference"] = "b"
    assert candidate.context == item.context == Context({"reference": "a"})
    assert len({item, JudgeInput("single", "q", ("r",), context={"reference": "a"})}) == 1
    assert item != JudgeInput("single", "q", ("r",))
    assert item.untrusted == ("q", "r", "a")
    assert Contest("q", "a", "b") == ("q", "a", "b", NOTHING)


def test_a_record_tells_only_what_there_is() -> None:
    assert JudgeInput("single", "q", ("r",)).record() == {
        "protocol": "single",
        "query": "q",
        "responses": ["r"],
        "sample": 0,
    }
    whole = JudgeInput("single", "q", ("r",), 1, True, {"reference": "a"}).record()
    assert json.loads(json.dumps(whole)) == {
        "protocol": "single",
        "query": "q",
        "responses": ["r"],
        "sample": 1,
        "direct": True,
        "context": {"reference": "a"},
    }
