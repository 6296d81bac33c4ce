"""One malformed message in a trainer's batch: it costs its own row, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import torch

from autoj_reward.reward import judge_reward, judge_reward_sync
from autoj_reward.trainer import areal, verl
from autoj_reward.trainer.ppo import PPOReward
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import row_rewards
from autoj_reward.trainer.slime import custom_rm
from autoj_reward.trainer.trl import GRPOReward, OnlineDPOReward
from autoj_reward.types import Outcome
from tests.reference_format import write_reference_format

FALLBACK = 4.5
CALL = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
PARTS = [{"type": "text", "text": "a"}]


def assistant(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", **fields}]


class Broken:
    """An object that raises whatever is done with it."""

    def __iter__(self) -> Any:
        raise OSError("its file is gone")

    def __len__(self) -> int:
        raise RuntimeError("its file is closed")

    def __repr__(self) -> str:
        raise ValueError("it has no words")


def hold_itself() -> list[dict[str, Any]]:
    """Return a message with a part that holds itself."""
    parts: list[dict[str, Any]] = []
    parts.append({"type": "tool_result", "content": parts})
    return assistant(content=parts)


def nest(depth: int, copies: int) -> list[dict[str, Any]]:
    """Return a message with parts within parts, `copies` times the same one at each depth."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": "a"}]
    for _ in range(depth):
        parts = [{"type": "tool_result", "content": parts}] * copies
    return assistant(content=parts)


MALFORMED: dict[str, Any] = {
    "content is a mapping": assistant(content={"x": 1}),
    "content is an array": assistant(content=np.array(PARTS * 2)),
    "calls are an array": assistant(content="a", tool_calls=np.array([CALL] * 2)),
    "calls are a number": assistant(content="a", tool_calls=3),
    "a call has no name": assistant(content="a", tool_calls=[{}]),
    "a call has odd arguments": assistant(
        content="a", tool_calls=[{"name": "look", "arguments": np.array([1, 2])}]
    ),
    "a function call is a text": assistant(content="a", function_call="look"),
    "no role": [{"content": "a"}],
    "no messages": [5],
    "a number": 7,
    "no number": float("nan"),
    "bytes": b"good",
    "a set": {"good"},
    "a lone message": {"role": "assistant", "content": "good"},
    "lists of messages": [assistant(content="good")],
    "a time": datetime(2026, 1, 1, tzinfo=UTC),
    "missing, as pandas says it": pd.NA,
    "an array of no dimension": np.array("good"),
    "a tensor of no dimension": torch.tensor(3.0),
    "content of no dimension": assistant(content=np.array("good")),
    "content is missing, as pandas says it": assistant(content=pd.NA),
    "what cannot be read": Broken(),
    "what cannot be read, in a list": [Broken()],
    "content that cannot be read": assistant(content=Broken()),
    "pictures that cannot be counted": assistant(content="a", images=Broken()),
    "a part holds itself": hold_itself(),
    "parts within parts": nest(depth=2000, copies=1),
    "many parts within parts": nest(depth=40, copies=10),
    "nothing": None,
}
"""Messages that are none, as a prompt or a completion."""


@pytest.fixture
def model(make_model: Any) -> RewardModel:
    loaded: RewardModel = make_model(budget=1.0, fallback=FALLBACK)
    return loaded


@pytest.fixture(params=MALFORMED)
def malformed(request: pytest.FixtureRequest) -> Any:
    return MALFORMED[request.param]


def make_batch(malformed: Any) -> dict[str, Any]:
    """Return four rows: a malformed prompt, a malformed completion, and two good ones."""
    prompt = [{"role": "user", "content": "Why?"}]
    good = assistant(content="good")
    return {
        "prompts": [malformed, prompt, prompt, prompt],
        "completions": [good, malformed, good, assistant(content="poor")],
    }


def list_rejected(model: RewardModel) -> list[bool]:
    """Return for each row since the last call whether it was rejected, with a reason."""
    judgements = [reward.judgement for _, reward in model.recent()]
    assert all(judgement.reason for judgement in judgements if not judgement.ok)
    return [judgement.outcome is Outcome.INPUT_REJECTED for judgement in judgements]


@pytest.mark.parametrize("ask", [judge_reward, judge_reward_sync])
def test_trl_and_trainers_that_load_by_name(
    model: RewardModel, malformed: Any, ask: Callable[..., Any]
) -> None:
    values = ask(**make_batch(malformed))
    if asyncio.iscoroutine(values):
        values = asyncio.run(values)
        assert values == [None, None, 9.0, 2.0]
    else:
        assert values == [FALLBACK, FALLBACK, 9.0, 2.0]
    assert list_rejected(model) == [True, True, False, False]


def test_groups_keep_their_other_members(make_model: Any, malformed: Any) -> None:
    model = make_model(fmt="listwise", more={"relative": {"by": "listwise"}}, budget=1.0)
    batch = make_batch(malformed)
    batch["prompts"][0] = batch["prompts"][1]
    batch["completions"][0] = malformed
    first, second, good, poor = asyncio.run(GRPOReward(model).judge(**batch))
    assert first is None and second is None
    assert good is not None and poor is not None and good > poor
    assert list_rejected(model) == [True, True, False, False]


def test_online_dpo(model: RewardModel, malformed: Any) -> None:
    prompt = [{"role": "user", "content": "Why?"}]
    good, poor = assistant(content="a longer one"), assistant(content="poor")
    batch: dict[str, Any] = {
        "prompts": [prompt, prompt, malformed] * 2,
        "completions": [good, malformed, good, poor, good, poor],
        "ties_left_out": True,
    }
    assert OnlineDPOReward(model).compare(**batch) == [1.0, None, None, 0.0, None, None]
    decided = OnlineDPOReward(model).judge(**batch)
    assert None not in (decided[0], decided[3])
    assert [decided[n] for n in (1, 2, 4, 5)] == [None] * 4


def test_a_broken_context_costs_its_own_row(make_model: Any, tmp_path: Path) -> None:
    marks = write_reference_format(tmp_path / "marks")
    more = {"columns": {"reference": "answers.best"}}
    model = make_model(budget=1.0, fallback=FALLBACK, fmt=str(marks), more=more)
    batch = make_batch(assistant(content="good"))
    batch["prompts"][0] = batch["prompts"][1]
    answers = [{"best": "4"}, {"best": ["4"]}, {"best": "4"}, {"best": 4}]
    rewards = asyncio.run(GRPOReward(model).judge(**batch, answers=answers))
    assert [reward is None for reward in rewards] == [False, True, False, False]
    assert list_rejected(model) == [False, True, False, False]


def test_rows_of_slime_and_areal(model: RewardModel, malformed: Any) -> None:
    samples = [
        SimpleNamespace(prompt=prompt, response="good", label=None, metadata=None)
        for prompt in (malformed, "Why?")
    ]
    assert asyncio.run(custom_rm(None, samples)) == [FALLBACK, 9.0]
    rows: list[Any] = [(prompt, "good", {}) for prompt in (malformed, "Why?")]
    assert asyncio.run(row_rewards(model, rows)) == [FALLBACK, 9.0]
    if malformed is not None:  # AReaL's rows without messages have a prompt
        assert asyncio.run(areal.reward("Why?", "good", messages=malformed)) == FALLBACK


def test_a_row_of_verl(model: RewardModel, malformed: Any) -> None:
    good = [{"role": "user", "content": "Why?"}]
    rows = [(good, malformed, "good"), (good, "good", None)]
    rows += [(malformed, "good", None)] if malformed is not None else []
    scores = [
        asyncio.run(verl.score(model, completion, {"query": query}, "query", text=text))
        for query, completion, text in rows
    ]
    assert [score["score"] for score in scores] == [FALLBACK, 9.0, FALLBACK][: len(rows)]
    assert scores[0]["judge_input_rejected"] == 1


@pytest.mark.parametrize("case", sorted(MALFORMED.keys() - {"nothing"}))
def test_a_prompt_of_ppo(model: RewardModel, case: str) -> None:
    torch = pytest.importorskip("torch")
    tokenizer = SimpleNamespace(
        pad_token_id=0, eos_token_id=1, decode=lambda ids, **_: "good" if ids else ""
    )
    judge = PPOReward(model, tokenizer, {(5, 6): MALFORMED[case], (7, 8): "Why?"})
    ids = torch.tensor([[5, 6, 9, 1], [7, 8, 9, 1]])
    scores = judge.judge(ids, torch.ones_like(ids)).hidden_states[0]
    assert scores[:, -1, 0].tolist() == [FALLBACK, 9.0]
