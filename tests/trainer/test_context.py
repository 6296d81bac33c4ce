"""References and rubrics in the data of every trainer, and what the judge is shown of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from datasets import Dataset
from fastapi import FastAPI
from fastapi.testclient import TestClient

from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.errors import ConfigError
from autoj_reward.journal import Journal
from autoj_reward.service.trainers import add_routes
from autoj_reward.trainer import slime
from autoj_reward.trainer.openrlhf import get_reward
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import row_rewards
from autoj_reward.trainer.trl import GRPOReward, OnlineDPOReward
from autoj_reward.trainer.verl import score
from autoj_reward.types import Candidate
from tests.reference_format import write_reference_format

Make = Callable[..., RewardModel]


def longer_than_its_reference(candidate: Candidate) -> float:
    return float(len(candidate.response.text) > len(candidate.context["reference"]))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    models: list[RewardModel] = []
    marks = str(write_reference_format(tmp_path / "marks"))

    def make_model(**more: Any) -> RewardModel:
        judge = JudgeConfig(kind="fake", format=more.pop("format", marks))
        journal = tmp_path / "journal.sqlite"
        failures = {"budget": 1.0}
        config: dict[str, Any] = {"judge": judge, "journal": journal, "failures": failures} | more
        models.append(RewardModel(RewardConfig(**config)))
        return models[-1]

    yield make_model
    for model in models:
        model.close()


def read_judgements(model: RewardModel) -> list[Any]:
    """Return (response, context) of every judgement in the model's journal."""
    model.close()
    assert model.config.journal
    journal = Journal(model.config.journal)
    judgements = [(r["input"]["responses"][0], r["input"].get("context")) for r in journal.export()]
    journal.close()
    return sorted(judgements, key=str)


BOTH = {"reference": "4", "rubric": "exact"}


def test_trl_reads_the_columns_that_the_judge_shows(make: Make) -> None:
    model = make(columns={"reference": "answer"})
    columns: dict[str, Any] = {
        "answer": ["4", 5],
        "rubric": ["exact", None],
        "source": ["a", "b"],
        "state": 1,
    }
    rewards = GRPOReward(model).judge_sync(["2+2?", "q"], ["four", "5"], **columns)
    assert None not in rewards
    assert read_judgements(model) == [("5", {"reference": "5"}), ("four", BOTH)]


def test_online_dpo_compares_and_rates_with_them(make: Make) -> None:
    columns: dict[str, Any] = {"reference": ["4"] * 2, "criteria": ["length"] * 2}
    batch: dict[str, Any] = {"prompts": ["q", "q"], "completions": ["long one", "two"]}
    reward = OnlineDPOReward(make())
    assert None not in reward.judge(**batch, **columns, ties_left_out=True)
    with pytest.raises(ConfigError, match="'reference', and the dataset has no column"):
        reward.judge(**batch, ties_left_out=True)


def read_reason(model: RewardModel) -> str:
    """Return why the last response has no reward."""
    [*_, (_, reward)] = model.recent()
    return reward.judgement.reason


def test_verl_reads_ground_truth_and_extra_info(make: Make) -> None:
    model = make()
    extra_info = {"query": "2+2?", "rubric": "exact", "index": 3, "ground_truth": "4"}
    assert asyncio.run(score(model, "four", extra_info, "query"))["judge_ok"] == 1.0
    lost = asyncio.run(score(model, "five", {"query": "q", "ground_truth": ""}, "query"))
    assert lost["judge_input_rejected"] == 1.0
    no_text = asyncio.run(score(model, "x", {"query": "q", "ground_truth": {"value": 4}}, "query"))
    assert no_text["judge_input_rejected"] == 1.0
    assert "ground_truth holds {'value': 4}" in model.recent()[-1][1].judgement.reason
    assert ("four", BOTH) in read_judgements(model)


def test_openrlhf_and_slime_read_their_label(make: Make) -> None:
    model = make()
    asyncio.run(get_reward(model, ["Q four</s>"], ["Q "], ["4"]))
    sample = SimpleNamespace(prompt="Q", response="five", label="4", metadata={"rubric": "exact"})
    asyncio.run(row_rewards(model, [(sample.prompt, sample.response, slime._read_row(sample))]))
    assert read_judgements(model) == [("five", BOTH), ("four", {"reference": "4"})]


def test_a_judge_that_shows_no_context_is_asked_as_before(make: Make) -> None:
    model = make(format="autoj-en")
    columns: dict[str, Any] = {"reference": ["4"], "label": [{"any": 1}]}
    GRPOReward(model).judge_sync(["q"], ["four"], **columns)
    asyncio.run(get_reward(model, ["Q five</s>"], ["Q "], [{"any": 1}]))
    assert read_judgements(model) == [("five", None), ("four", None)]


def test_each_part_is_shown_its_own_fields(make: Make) -> None:
    function = f"{__name__}:longer_than_its_reference"
    other = {"judge": {"kind": "fake", "format": "autoj-en"}}
    model = make(parts={"length": {"function": function}, "general": other})
    [reward] = GRPOReward(model).judge_sync(["q"], ["four"], reference=["4"])
    assert reward is not None
    assert [c for _, c in read_judgements(model)].count({"reference": "4"}) == 1 and len(
        read_judgements(model)
    ) == 2


def read(candidate: Candidate) -> float:
    CONTEXTS.append(dict(candidate.context))
    return 1.0


CONTEXTS: list[dict[str, str]] = []
LABELLED = {"label": "4", "metadata": {"difficulty": 3, "tests": ["a"], "other": "x"}}
FROM_LABELS: dict[str, Callable[[RewardModel], Any]] = {
    "slime": lambda m: asyncio.run(
        row_rewards(m, [("Q", "four", slime._read_row(SimpleNamespace(**LABELLED)))])
    ),
    "/reward": lambda m: post_row(m, {"prompt": "Q", "response": "four", **LABELLED}),
}


def post_row(model: RewardModel, body: dict[str, Any]) -> None:
    app = FastAPI()
    add_routes(app, model)
    with TestClient(app) as client:
        assert client.post("/reward", json=body).status_code == 200


@pytest.mark.parametrize("case", FROM_LABELS)
def test_labels_and_metadata_reach_functions(case: str, make: Make) -> None:
    CONTEXTS.clear()
    columns = {"difficulty": "difficulty", "cases": "tests"}
    rule = {"function": f"{__name__}:read"}
    FROM_LABELS[case](make(format="autoj-en", parts={"rule": rule}, columns=columns))
    assert CONTEXTS == [{"reference": "4", "difficulty": "3", "cases": '["a"]'}]


COLUMNS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "numpy": lambda values: np.array(values, dtype=object),
    "pandas": pd.Series,
    "datasets": lambda values: Dataset.from_dict({"reference": values})["reference"],
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_of_other_kinds_are_read(kind: str, make: Make) -> None:
    model = make()
    GRPOReward(model).judge_sync(["q", "q"], ["four", "5"], reference=COLUMNS[kind](["4", "5"]))
    assert read_judgements(model) == [("5", {"reference": "5"}), ("four", {"reference": "4"})]


def test_numbers_in_columns_are_finite_or_missing(make: Make) -> None:
    model = make()
    column = pd.Series([np.float32(4.5), np.nan])
    judging = GRPOReward(model).judge(["q", "q"], ["a", "b"], reference=column)
    [reward, missing] = asyncio.run(judging)
    assert reward is not None and missing is None  # a judge that needs a reference has none
    column = pd.Series([4.5, np.inf])
    judging = GRPOReward(model).judge(["q", "q"], ["a", "b"], reference=column)
    [reward, infinite] = asyncio.run(judging)
    assert reward is not None and infinite is None
    assert "reference holds inf: give a finite number" in model.recent()[-1][1].judgement.reason
    with pytest.raises(ConfigError, match="'reference' has 1 values for 2 completions"):
        GRPOReward(model).judge_sync(["q", "q"], ["a", "b"], reference=["4"])
    with pytest.raises(ValueError, match="policy_logprob is nan"):
        Candidate("q", "r", math.nan)
    with pytest.raises(ValueError, match="policy_logprob is 1000"):
        Candidate("q", "r", 10**400)


def test_what_no_judge_shows_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="columns names 'referense'"):
        make(columns={"referense": "answer"})


TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "2+2?"},
]
CHATML = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in TALK)
ASKING: dict[str, tuple[Callable[[RewardModel], Any], list[dict[str, str]]]] = {
    "trl": (lambda m: GRPOReward(m).judge_sync([TALK], ["four"]), TALK),
    "online dpo": (
        lambda m: OnlineDPOReward(m).judge([TALK] * 2, ["four", "5"], ties_left_out=True), TALK
    ),
    "verl": (lambda m: asyncio.run(score(m, "four", {"query": TALK}, "query")), TALK),
    "slime and areal": (lambda m: asyncio.run(row_rewards(m, [(TALK, "four", {})])), TALK),
    "openrlhf: a template's own system turn is no one's": (
        lambda m: asyncio.run(get_reward(m, [CHATML + "four"], [CHATML])), TALK[1:]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKING)
def test_turns_reach_the_judge_as_turns(case: str, make: Make) -> None:
    ask, turns = ASKING[case]
    model = make(format="autoj-en")
    ask(model)
    model.close()
    assert model.config.journal
    journal = Journal(model.config.journal)
    judge_inputs = [record["input"] for record in journal.export()]
    journal.close()
    assert judge_inputs and all(judge_input["messages"] == turns for judge_input in judge_inputs)


def test_parts_with_a_context_of_their_own_see_the_turns(make: Make) -> None:
    model = make(columns={"reference": "answer"}, parts={"other": {"judge": OTHER, "weight": 1}})
    GRPOReward(model).judge_sync([TALK], ["four"], answer=["4"])
    model.close()
    assert model.config.journal
    journal = Journal(model.config.journal)
    judge_inputs = [record["input"] for record in journal.export()]
    journal.close()
    assert sorted("context" in judge_input for judge_input in judge_inputs) == [False, True]
    assert all(judge_input["messages"] == TALK for judge_input in judge_inputs)


OTHER: dict[str, Any] = {"kind": "fake", "format": "autoj-en"}
