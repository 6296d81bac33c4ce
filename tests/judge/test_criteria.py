"""Scenario criteria: filled in if a format shows them and the input has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.conversation import Context, Prompt, Turn
from autoj_reward.errors import ConfigError
from autoj_reward.formats.criteria import criteria_text, load_scenarios
from autoj_reward.formats.render import RenderedPrompt
from autoj_reward.judge.generative import criteria_of, with_criteria
from autoj_reward.models.scenarios import HEAD_CHARS, TAIL_CHARS, words_of
from autoj_reward.models.spec import judge_spec
from autoj_reward.trainer.parts import reward_judges
from autoj_reward.trainer.prompts import ContextFields
from autoj_reward.types import JudgeInput
from tests.judge.test_reading import PromptKeeper
from tests.judge.test_reward import build_judge
from tests.reference_format import write_reference_format

EMAIL = "Write an email to my boss to ask for a day off next Friday."
CODE = "Write a Python function that reverses a linked list."


def test_criteria_are_those_of_the_querys_scenario() -> None:
    scenario_names = {criteria_text(scenario): scenario.name for scenario in load_scenarios()}
    assert scenario_names[criteria_of(EMAIL)] == "writing_email"
    assert scenario_names[criteria_of(CODE)] == "code_generation"
    item = JudgeInput("single", EMAIL, ("r",), context={"criteria": "Brevity."})
    assert with_criteria(item) is item
    turns = (Turn("user", CODE), Turn("assistant", "Here."), Turn("user", EMAIL))
    filled_item = with_criteria(
        JudgeInput("single", Prompt.of(turns), ("r",), context={"rubric": "x"})
    )
    assert filled_item.context == Context({"rubric": "x", "criteria": criteria_of(EMAIL)})


@pytest.mark.parametrize(
    ("item", "criteria"),
    [
        pytest.param(JudgeInput("pairwise", EMAIL, ("a", "b")), criteria_of(EMAIL), id="filled"),
        pytest.param(
            JudgeInput("pairwise", EMAIL, ("a", "b"), context={"criteria": "Wit."}),
            "Wit.",
            id="own",
        ),
    ],
)
async def test_a_judge_is_shown_them(item: JudgeInput, criteria: str, tmp_path: Path) -> None:
    fmt = str(write_reference_format(tmp_path / "marks"))
    engine = PromptKeeper("So, the final decision is Response 1", {})
    judgement = await build_judge(engine, format=fmt, criteria="auto").judge(item)
    assert judgement.ok
    prompts: list[RenderedPrompt] = engine.prompts
    [part] = [p for m in prompts[0] for p in m.parts if p.name == "criteria"]
    assert part.text == criteria and not part.trusted


async def test_a_protocol_without_criteria_goes_without(tmp_path: Path) -> None:
    fmt = str(write_reference_format(tmp_path / "marks"))
    item = JudgeInput("single", EMAIL, ("a",), context={"reference": "r"})
    judgement = await build_judge(
        PromptKeeper("Rating: [[7]]", {}), format=fmt, criteria="auto"
    ).judge(item)
    assert judgement.ok, judgement.reason


def test_nobody_needs_to_bring_them(tmp_path: Path) -> None:
    fmt = str(write_reference_format(tmp_path / "marks"))
    plain: dict[str, Any] = {"kind": "fake", "format": fmt}
    for more, required in (({}, True), ({"criteria": "auto"}, False)):
        config = JudgeConfig(**plain, **more)
        columns = judge_spec(config).context_columns({}, "pairwise")
        assert {column.field: column.required for column in columns} == {"criteria": required}
    bare, filled = JudgeConfig(**plain), JudgeConfig(**plain, criteria="auto")
    assert judge_spec(bare).name != judge_spec(filled).name
    flow = JudgeConfig(kind="fake", format="flow-judge", criteria="auto")
    reward = RewardConfig(judge=flow)
    fields = ContextFields(reward, reward_judges(reward)).asked
    assert [field.field for field in fields if field.required] == []


@pytest.mark.parametrize("fmt", ["auto", "autoj-zh", "scalar", "prometheus2"])
def test_a_format_that_shows_none_is_told_at_once(fmt: str) -> None:
    config = JudgeConfig(kind="fake", format=fmt, criteria="auto")
    with pytest.raises(ConfigError, match=r"has no field 'criteria' .*such as flow-judge"):
        judge_spec(config)


def test_a_long_query_costs_no_more() -> None:
    text = "write an email " * 500_000
    assert len(" ".join(words_of(text))) <= 2 * (HEAD_CHARS + TAIL_CHARS)
    assert criteria_of(text) == criteria_of(EMAIL)
