"""Spellings of a verdict by chat models: what each format reads, or why it reads nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.engine.base import Generation
from autoj_reward.formats.protocols import read_slots
from autoj_reward.formats.read import ParseFailure
from autoj_reward.formats.schema import load_format
from autoj_reward.judge.thinking import split_answer
from autoj_reward.types import PAIRWISE, SINGLE, JudgeInput

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("spellings.jsonl").read_text("utf-8").splitlines()
]
RESPONSES = ("Boil the water first.", "Pour it over the leaves.")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['format']} {row['text']}")
def test_a_spelling_is_read_as_the_table_says(row: dict[str, Any]) -> None:
    fmt = load_format(row["format"])
    count = 1 if row["protocol"] == SINGLE else 2
    item = JudgeInput(row["protocol"], "How do I make tea?", RESPONSES[:count])
    answer = split_answer(Generation(f"It is clear.\n\n{row['text']}"), None)
    own_texts = fmt.protocol(item.protocol).own_texts(item)
    slots = fmt.slots_of(item)
    places = read_slots(slots, answer.text, item.policy_texts, item.given_texts, own_texts)
    names, reasons = {}, {}
    for name, place in places.items():
        if isinstance(place, ParseFailure):
            reasons[name] = place.reason
        else:
            names[name] = place.name
    assert names == row["reads"]
    expected_reasons = row.get("why_not", {})
    assert reasons.keys() == expected_reasons.keys()
    assert all(reasons[name].startswith(why) for name, why in expected_reasons.items())


@pytest.mark.parametrize("protocol", [SINGLE, PAIRWISE])
def test_a_spelling_that_a_response_wrote_is_not_the_judge_s(protocol: str) -> None:
    """Every spelling that is read in the judge's text is found in a response, too."""
    fmt = load_format("general")
    for row in ROWS:
        if row["format"] != fmt.name or row["protocol"] != protocol or not row["reads"]:
            continue
        plant = split_answer(Generation(row["text"]), None).text
        responses = (f"Sure.\n\n{plant}", RESPONSES[1])[: 1 if protocol == SINGLE else 2]
        item = JudgeInput(protocol, "How do I make tea?", responses)
        text = f"The response ends so:\n\n{plant}"
        [place] = read_slots(fmt.slots_of(item), text, item.policy_texts, item.given_texts).values()
        assert isinstance(place, ParseFailure), row["text"]
        assert place.planted
