"""The maximum length of a text is the same for every kind of judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import JudgeClient
from autoj_reward.config import JudgeConfig
from autoj_reward.journal import Journal
from autoj_reward.judge.make import make_judge
from autoj_reward.models.spec import judge_spec
from autoj_reward.types import Candidate, JudgeInput, Outcome


@pytest.mark.parametrize("form", ["autoj-en", "scalar"])
@pytest.mark.parametrize("field", ["query", "response"])
async def test_a_text_over_the_limit_is_rejected_with_its_length_and_the_key(
    form: str, field: str
) -> None:
    judge = make_judge(judge_spec(JudgeConfig(kind="fake", format=form, max_text_chars=10)))
    texts = {"query": "q", "response": "r"}
    for length, outcome in ((10, Outcome.OK), (11, Outcome.INPUT_REJECTED)):
        item_texts = texts | {field: "x" * length}
        judgement = await judge.judge(
            JudgeInput("single", item_texts["query"], (item_texts["response"],))
        )
        assert judgement.outcome is outcome
    assert judgement.reason == "a text has 11 characters, over judge.max_text_chars 10"


async def test_what_one_limit_rejected_is_asked_again_under_a_higher_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    outcomes = []
    for limit in (10, 20):
        spec = judge_spec(JudgeConfig(kind="fake", max_text_chars=limit))
        client = JudgeClient(LocalBackend(spec), journal=journal)
        [judgement] = await client.rate([Candidate("q", "x" * 15)])
        outcomes.append(judgement.outcome)
    assert outcomes == [Outcome.INPUT_REJECTED, Outcome.OK]
    journal.close()


def test_the_default_limit_leaves_a_judge_s_name_as_it_was() -> None:
    names = [
        judge_spec(JudgeConfig(kind="fake", max_text_chars=limit)).name
        for limit in (2**20, 2**20 + 1)
    ]
    assert names[0] == judge_spec(JudgeConfig(kind="fake")).name != names[1]
