"""Auto-J's format with criteria: without them its bytes, with them what the scenario says."""

from __future__ import annotations

from pathlib import Path

import pytest

import experiments.compare.judge_quality as study
from autoj_reward.config import JudgeConfig
from autoj_reward.judge.generative import criteria_of, with_criteria
from autoj_reward.models import format_of
from autoj_reward.prompts.format import JudgeFormat, load_format
from autoj_reward.prompts.render import render
from autoj_reward.types import JudgeInput

FOLDER = Path(study.__file__).parent / "with_criteria"
QUERY = "Write an email to my boss."


@pytest.mark.parametrize("responses", [("a",), ("a", "b")])
def test_criteria_stand_before_the_response(responses: tuple[str, ...]) -> None:
    fmt = format_of(JudgeConfig(format=str(FOLDER), criteria="auto"))
    assert isinstance(fmt, JudgeFormat)
    item = JudgeInput(QUERY, responses)
    [bare] = render(item, fmt)
    assert bare.text == render(item, load_format("autoj-en"))[0].text
    [shown] = render(with_criteria(item), fmt)
    block = f"[Criteria]: {criteria_of(QUERY)}\n***\n"
    assert shown.text.replace(block, "") == bare.text and shown.text.count(block) == 1
