"""`/reward` and `/get_reward`: valid bodies, and which run's budget a failure counts against."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from autoj_reward.config import (
    FailureBudgetConfig,
    FailureConfig,
    JudgeConfig,
    PartConfig,
    ReplicaConfig,
    RewardConfig,
)
from autoj_reward.errors import BudgetExceeded
from autoj_reward.service.gateway import run_name
from autoj_reward.service.trainers import OVER_S, RUNS, Runs, add_routes
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate, Judgement, Outcome, Verdict
from tests.judgements import compared

LOST, GOOD = (
    Judgement(Outcome.TRUNCATED, reason="cut off"),
    compared(Verdict.FIRST),
)
CHATML = (
    "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.fixture
def judged_candidates() -> list[Any]:
    return []


@pytest.fixture
def post(
    judged_candidates: list[Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Yield a function that calls a service. Its judge loses `lost` and hangs on `slow`."""
    script = {"ratings": {"good": 9, "poor": 2}, "fail": {"lost": "truncated", "slow": "hang"}}
    judge = JudgeConfig(kind="fake", script=script, serve=ReplicaConfig(deadline_s=5.0))
    failures = FailureConfig(budget=0.2, window=10, fallback=4.5)
    original_rewards = RewardModel.rewards

    async def record_rewards(self: RewardModel, candidates: Any, budgets: Any = None) -> Any:
        judged_candidates.extend(candidates)
        return await original_rewards(self, candidates, budgets)

    monkeypatch.setattr(RewardModel, "rewards", record_rewards)
    with RewardModel(RewardConfig(judge=judge, view="rating", failures=failures)) as model:
        app = FastAPI()
        add_routes(app, model)
        with TestClient(app) as client:

            def ask(route: str, body: Any, run: str = "") -> Any:
                return client.post(route, json=body, headers={"X-Run": run})

            yield ask


PROMPTS: dict[str, tuple[Any, str]] = {
    "plain": ("Why?", "Why?"),
    "chat template": (CHATML, "Why?"),
    "one message": ([{"role": "user", "content": "Why?"}], "Why?"),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "Why?"}]}], "Why?"),
    "turns": (
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}],
        "User: Hi\n\nAssistant: Yes?",
    ),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_a_prompt_is_what_the_user_says(post: Any, judged_candidates: list[Any], case: str) -> None:
    prompt, query = PROMPTS[case]
    answer = post("/reward", {"prompt": prompt, "response": "good<|im_end|>", "label": {"any": 1}})
    assert answer.json() == 9.0
    assert [(c.prompt.text, c.response.text) for c in judged_candidates] == [(query, "good")]


BAD: dict[str, tuple[Any, str]] = {
    "no prompt": ({"response": "x"}, "prompt"),
    "no response": ({"prompt": "x"}, "response"),
    "response is no text": ({"prompt": "x", "response": 5}, "response"),
    "no messages": ({"prompt": [], "response": "x"}, "prompt"),
    "a message without role": ({"prompt": [{"content": "x"}], "response": "x"}, "role"),
    "a part that is no text": (
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": 5}]}], "response": "x"},
        "text",
    ),
    "unknown field": ({"prompt": "x", "response": "x", "more": 1}, "more"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_body_names_its_field(post: Any, case: str) -> None:
    body, field = BAD[case]
    answer = post("/reward", body)
    assert answer.status_code == 422
    assert field in str([error["loc"] for error in answer.json()["detail"]])


@pytest.mark.parametrize("response", ["lost", "slow"])
def test_a_failure_is_the_fallback_within_the_judges_deadline(post: Any, response: str) -> None:
    assert post("/reward", {"prompt": "Why?", "response": response}).json() == 4.5
    reply = post("/get_reward", {"query": ["Why?" + response], "prompts": ["Why?"]}).json()
    good = post("/get_reward", {"query": ["Why?good"], "prompts": ["Why?"]}).json()
    assert reply["rewards"] == [4.5] and good["rewards"] == [9.0]
    assert list(reply["extra_logs"]) == list(good["extra_logs"])


def test_a_spent_budget_is_that_runs_own(post: Any) -> None:
    def ask_status(response: str, run: str) -> int:
        return int(post("/reward", {"prompt": "Why?", "response": response}, run).status_code)

    while ask_status("lost", "a") == 200:
        pass
    answer = post("/reward", {"prompt": "Why?", "response": "lost"}, "a")
    assert answer.status_code == 503 and "failure budget" in answer.json()["detail"]
    assert ask_status("good", "a") == 200
    assert ask_status("lost", "b") == 200


def rule(candidate: Candidate) -> float:
    """Raise on `lost`, as the judge fails on it, and on `bug`; else return 0.5."""
    if candidate.response.text in ("bug", "lost"):
        raise ValueError("no such thing")
    return 0.5


def test_a_service_rewards_with_several_parts() -> None:
    script = {"ratings": {"good": 10}, "fail": {"lost": "truncated"}}
    budget = FailureBudgetConfig(budget=0.2, window=10)
    config = RewardConfig(
        judge=JudgeConfig(kind="fake", script=script),
        view="rating",
        parts={"rule": PartConfig(function=f"{__name__}:rule", failures=budget)},
        failures=FailureConfig(budget=1.0, fallback=4.5),
    )
    with RewardModel(config) as model:
        app = FastAPI()
        add_routes(app, model)
        with TestClient(app) as client:

            def ask(response: str, run: str) -> Any:
                body = {"prompt": "Why?", "response": response}
                return client.post("/reward", json=body, headers={"X-Run": run})

            assert ask("good", "a").json() == 0.75
            assert ask("lost", "a").json() == 4.5
            while ask("bug", "a").status_code == 200:
                pass
            assert "Mend the part rule" in ask("bug", "a").json()["detail"]
            assert ask("good", "a").json() == 0.75
            assert ask("bug", "b").status_code == 200
            body = {"query": ["Why?good"], "prompts": ["Why?"]}
            reply = client.post("/get_reward", json=body).json()
    assert reply["rewards"] == reply["scores"] == [0.75]
    assert reply["extra_logs"]["part_rule"] == [0.5]


BRIEF = RewardConfig(failures=FailureConfig(budget=0.2, window=10))


def spend(budget: Any) -> None:
    with pytest.raises(BudgetExceeded):
        for _ in range(20):
            budget.count([LOST])


def test_the_next_run_of_a_name_starts_anew() -> None:
    clock = [0.0]
    runs = Runs(BRIEF, lambda: clock[0])
    spend(runs.budgets("a")["judge"])
    clock[0] += OVER_S
    with pytest.raises(BudgetExceeded):  # the same run asks again
        runs.budgets("a")["judge"].count([LOST])
    runs.budgets("a")["judge"].count([GOOD])
    clock[0] += OVER_S + 1
    runs.budgets("a")["judge"].count([LOST])


def test_only_so_many_runs_are_remembered() -> None:
    runs = Runs(BRIEF)
    first = runs.budgets("first")
    for n in range(RUNS):
        runs.budgets(str(n))
    assert runs.budgets("first") is not first


NAMES = {
    "bearer": ("Bearer secret", "", ""),
    "address": ("Basic " + base64.b64encode(b"mine:secret").decode(), "", "mine"),
    "header": ("Bearer secret", "mine", "mine"),
    "no base64": ("Basic !!", "", ""),
    "long": ("Bearer secret", "x" * 200, "x" * 80),
}


@pytest.mark.parametrize("case", NAMES)
def test_the_name_of_a_run(case: str) -> None:
    authorization, header, name = NAMES[case]
    assert run_name({"authorization": authorization, "x-run": header}) == name
