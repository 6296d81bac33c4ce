"""Views: one that the judge cannot give is refused wherever a view is named, before a row is
judged, and a judgement without its number is a failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from autoj_reward.cli.main import main
from autoj_reward.client.session import open_judge
from autoj_reward.config import FailureConfig, JudgeConfig, PartConfig, RewardConfig
from autoj_reward.engine.endpoint import TEST_MESSAGES
from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.evaluate.results import load_result
from autoj_reward.service.api import make_app
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.trl import GRPOReward
from tests.engine.test_distributions import Dialect
from tests.engine.test_openai_engine import Answer
from tests.evaluate_rows import pair, write
from tests.rollouts.test_job import read_lines
from tests.support.ports import free_port

Judge = dict[str, Any]
Door = Callable[[Path, Judge, str], str]
"""Names a view of an endpoint in a new folder, and returns what it was refused with."""


def run_command(folder: Path, words: list[str], config: dict[str, Any]) -> str:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    with redirect_stderr(StringIO()) as stderr:
        assert main([*words, "--config", str(path)]) == 1
    return stderr.getvalue()


def run_evaluation(folder: Path, task: list[str], config: dict[str, Any]) -> str:
    out = folder / "out.json"
    stderr = run_command(folder, ["evaluate", *task, "--json", str(out)], config)
    assert not out.exists()
    return stderr


def best_of_n(folder: Path, judge: Judge, view: str) -> str:
    rows = write(folder / "in.jsonl", [{"query": "q", "responses": ["a", "b"]}])
    config = {"input": rows, "output": str(folder / "out"), "judge": judge, "view": view}
    return run_command(folder, ["best-of-n"], config)


def rejection_sampling(folder: Path, judge: Judge, view: str) -> str:
    rows = write(folder / "in.jsonl", [{"query": "q"}])
    config = {"input": rows, "output": str(folder / "out"), "judge": judge, "view": view}
    policy = {"kind": "fake", "n": 2}
    return run_command(folder, ["train", "rejection-sampling"], config | {"policy": policy})


def eval_p(folder: Path, judge: Judge, view: str) -> str:
    data = write(folder / "p.jsonl", [pair("planning", 1)])
    config = {"judge": judge, "view": view, "protocol": "pointwise"}
    return run_evaluation(folder, ["eval-p", "--data", data], config)


def pairs(folder: Path, judge: Judge, view: str) -> str:
    row = {"id": 1, "prompt": "q", "chosen": "a", "rejected": "b", "subset": "hep-go"}
    data = write(folder / "p.jsonl", [row])
    config = {"judge": judge, "view": view, "protocol": "pointwise"}
    return run_evaluation(folder, ["pairs", "--data", data], config)


def eval_r(folder: Path, judge: Judge, view: str) -> str:
    block = {"outputs": ["a", "bb"], "logprobs": [-1.0, -2.0], "finish_reasons": ["stop"] * 2}
    row = {"scenario": "planning", "prompt": "q", "outputs": {"base": block | {"id": 1}}}
    data = write(folder / "r.jsonl", [row])
    config = {"judge": judge, "view": view, "grader": {"kind": "fake"}, "sizes": [2]}
    return run_evaluation(folder, ["eval-r", "--data", data], config)


def best_of_four(folder: Path, judge: Judge, view: str) -> str:
    row = {"id": 1, "prompt": "q", "subset": "Math", "chosen": ["a"], "rejected": ["b", "c", "d"]}
    data = write(folder / "b.jsonl", [row])
    return run_evaluation(folder, ["best-of-four", "--data", data], {"judge": judge, "view": view})


def service(folder: Path, judge: Judge, view: str) -> str:
    reward = {"judge": judge, "view": view}
    return run_command(folder, ["serve"], {"reward": reward, "port": free_port()})


def trainer(folder: Path, judge: Judge, view: str) -> str:
    with pytest.raises(ConfigError) as caught:
        RewardModel(RewardConfig(judge=JudgeConfig(**judge), view=view)).open()
    return str(caught.value)


def part(folder: Path, judge: Judge, view: str) -> str:
    second = PartConfig(judge=JudgeConfig(**judge), view=view)
    with pytest.raises(ConfigError) as caught:
        RewardModel(RewardConfig(judge=JudgeConfig(kind="fake"), parts={"second": second})).open()
    return str(caught.value)


def request(folder: Path, judge: Judge, view: str) -> str:
    async def post_request() -> httpx.Response:
        async with open_judge(JudgeConfig(**judge)) as client:
            transport = httpx.ASGITransport(make_app(client, "secret").guard)
            headers = {"Authorization": "Bearer secret"}
            body = {"query": "q", "responses": ["a", "b"], "view": view}
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
                return await http.post("/v1/best_of_n", json=body, headers=headers)

    answer = asyncio.run(post_request())
    assert answer.status_code == 422
    return str(answer.json()["detail"])


DOORS: dict[Door, str] = {
    best_of_n: "view",
    rejection_sampling: "view",
    eval_p: "view",
    pairs: "view",
    eval_r: "view",
    best_of_four: "view",
    service: "reward.view",
    trainer: "reward.view",
    part: "reward.parts.second.view",
    request: "view",
}
"""What takes a view, with the key that names it."""


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize(
    ("alternatives", "view", "available_views"),
    [
        pytest.param(None, "expected", "rating", id="nothing told, expected"),
        pytest.param(None, "direct", "rating", id="nothing told, direct"),
        pytest.param(20, "direct", "expected, pessimistic, rating", id="alternatives told, direct"),
    ],
)
def test_a_view_that_the_judge_cannot_give_is_refused_before_a_row_is_judged(
    door: Door,
    alternatives: int | None,
    view: str,
    available_views: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    endpoint = Dialect(most=alternatives)
    judge = {"kind": "openai", "model": "m", "base_url": endpoint.url, "start_s": 60}
    refusal = door(tmp_path, judge, view)
    endpoint.close()
    assert f"{DOORS[door]} is {view}, and this judge gives only {available_views}: " in refusal
    assert f"Set {DOORS[door]} to rating" in refusal
    prompts = [body["messages"] for _, body, _ in endpoint.requests]
    assert prompts and all(
        messages[0] == TEST_MESSAGES[0] for messages in prompts
    )  # the first contact alone


@pytest.fixture
def endpoint() -> Iterator[Dialect]:
    """Tells alternatives, but not of what it writes about `zzz`."""
    dialect = Dialect()

    def answer(path: str, body: dict[str, Any]) -> Answer:
        status, reply, headers = dialect.answered(path, body)
        if "zzz" in str(body["messages"]):
            reply["choices"][0]["logprobs"] = None
        return status, reply, headers

    dialect.answer = answer
    yield dialect
    dialect.close()


def test_missing_numbers_stand_in_a_trainers_log_and_budget(endpoint: Dialect) -> None:
    judge = JudgeConfig(kind="openai", model="m", base_url=endpoint.url)
    metrics: dict[str, Any] = {}
    log: Any = {"log_metric": metrics.__setitem__, "log_extra": metrics.__setitem__}
    with RewardModel(RewardConfig(judge=judge, failures=FailureConfig(budget=0.5))) as model:
        reward = GRPOReward(model).judge
        rewards = asyncio.run(reward(["q"] * 4, ["a", "zzz", "c", "d"], **log))
        assert [value is None for value in rewards] == [False, True, False, False]
        assert (metrics["judge/no_number"], metrics["judge/ok"]) == (0.25, 0.75)
        assert metrics["judge_outcome"] == ["ok", "no_number", "ok", "ok"]
        lost = [f"zzz {n}" for n in range(40)]
        with pytest.raises(BudgetExceeded, match=r"x no_number: the judge gave no expected number"):
            asyncio.run(reward(["q"] * 40, lost, **log))


def test_missing_numbers_stand_in_a_jobs_results(endpoint: Dialect, tmp_path: Path) -> None:
    judge = {"kind": "openai", "model": "m", "base_url": endpoint.url}
    rows = write(tmp_path / "in.jsonl", [{"query": "q", "responses": ["zzz", "a"]}])
    config = {"input": rows, "output": str(tmp_path / "out"), "judge": judge, "view": "expected"}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    with redirect_stderr(StringIO()) as stderr:
        assert main(["best-of-n", "--config", str(path)]) == 0
    assert "1 of 2 judgements ok (1 no_number)" in stderr.getvalue()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["outcomes"]["no_number"], summary["outcomes"]["ok"]) == (1, 1)
    [selection] = read_lines(tmp_path / "out" / "selections.jsonl")
    assert (selection["index"], selection["rule"]) == (1, "expected")
    lost = read_lines(tmp_path / "out" / "judgements.jsonl")[0]
    assert (lost["outcome"], lost["expected"]) == ("no_number", None)
    assert lost["reason"].startswith("the judge gave no expected number beside its rating 7")


def test_missing_numbers_stand_in_an_evaluations_result(endpoint: Dialect, tmp_path: Path) -> None:
    row = {"id": 1, "prompt": "q", "subset": "Math", "chosen": ["a"], "rejected": ["zzz", "c", "d"]}
    data = write(tmp_path / "b.jsonl", [row])
    judge = f"judge={{kind: openai, model: m, base_url: '{endpoint.url}'}}"
    task = ["best-of-four", "--data", data, "--json", str(tmp_path / "o.json")]
    assert main(["evaluate", *task, "--set", judge, "--set", "view=expected"]) == 0
    result = load_result(str(tmp_path / "o.json"))
    assert result["cost"]["outcomes"] == {"ok": 3, "no_number": 1}
    assert result["groups"]["Math"]["abstained"] == 1
