"""A view that the judge cannot give is refused wherever a view is named, before a row is judged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from autoj_reward.cli import main
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig, PartConfig, RewardConfig
from autoj_reward.edge.http import make_app
from autoj_reward.engine.endpoint import TINY
from autoj_reward.errors import ConfigError
from autoj_reward.trainer.reward import RewardModel
from tests.edge.test_service import free_port
from tests.engine.test_distributions import Dialect
from tests.evaluate_rows import pair, write

Judge = dict[str, Any]
Door = Callable[[Path, Judge, str], str]
"""Names a view of an endpoint in a new folder, and returns what it was refused with."""


def command(folder: Path, words: list[str], config: dict[str, Any]) -> str:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    with redirect_stderr(StringIO()) as said:
        assert main([*words, "--config", str(path)]) == 1
    return said.getvalue()


def evaluated(folder: Path, task: list[str], config: dict[str, Any]) -> str:
    out = folder / "out.json"
    said = command(folder, ["evaluate", *task, "--json", str(out)], config)
    assert not out.exists()
    return said


def best_of_n(folder: Path, judge: Judge, view: str) -> str:
    rows = write(folder / "in.jsonl", [{"query": "q", "responses": ["a", "b"]}])
    config = {"input": rows, "output": str(folder / "out"), "judge": judge, "view": view}
    return command(folder, ["best-of-n"], config)


def rejection_sampling(folder: Path, judge: Judge, view: str) -> str:
    rows = write(folder / "in.jsonl", [{"query": "q"}])
    config = {"input": rows, "output": str(folder / "out"), "judge": judge, "view": view}
    policy = {"kind": "fake", "n": 2}
    return command(folder, ["train", "rejection-sampling"], config | {"policy": policy})


def eval_p(folder: Path, judge: Judge, view: str) -> str:
    data = write(folder / "p.jsonl", [pair("planning", 1)])
    config = {"judge": judge, "view": view, "protocol": "pointwise"}
    return evaluated(folder, ["eval-p", "--data", data], config)


def pairs(folder: Path, judge: Judge, view: str) -> str:
    row = {"id": 1, "prompt": "q", "chosen": "a", "rejected": "b", "subset": "hep-go"}
    data = write(folder / "p.jsonl", [row])
    config = {"judge": judge, "view": view, "protocol": "pointwise"}
    return evaluated(folder, ["pairs", "--format", "rewardbench", "--data", data], config)


def eval_r(folder: Path, judge: Judge, view: str) -> str:
    block = {"outputs": ["a", "bb"], "logprobs": [-1.0, -2.0], "finish_reasons": ["stop"] * 2}
    row = {"scenario": "planning", "prompt": "q", "outputs": {"base": block | {"id": 1}}}
    data = write(folder / "r.jsonl", [row])
    config = {"judge": judge, "view": view, "grader": {"kind": "fake"}, "sizes": [2]}
    return evaluated(folder, ["eval-r", "--data", data], config)


def ranking(folder: Path, judge: Judge, view: str) -> str:
    outputs = folder / "outputs"
    outputs.mkdir()
    for name in ("good", "poor"):
        write(outputs / f"{name}.jsonl", [{"instruction": "i", "output": "o", "generator": name}])
    board = folder / "board.csv"
    board.write_text(",win_rate\ngood,90\npoor,10\n", encoding="utf-8")
    task = ["ranking", "--data", str(outputs), "--leaderboard", str(board)]
    return evaluated(folder, task, {"judge": judge, "view": view})


def best_of_four(folder: Path, judge: Judge, view: str) -> str:
    row = {"id": 1, "prompt": "q", "subset": "Math", "chosen": ["a"], "rejected": ["b", "c", "d"]}
    data = write(folder / "b.jsonl", [row])
    return evaluated(folder, ["best-of-four", "--data", data], {"judge": judge, "view": view})


def service(folder: Path, judge: Judge, view: str) -> str:
    reward = {"judge": judge, "view": view}
    return command(folder, ["serve"], {"reward": reward, "port": free_port()})


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
    async def asked() -> httpx.Response:
        async with open_judge(JudgeConfig(**judge)) as client:
            transport = httpx.ASGITransport(make_app(client, "secret").guard)
            headers = {"Authorization": "Bearer secret"}
            body = {"query": "q", "responses": ["a", "b"], "view": view}
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
                return await http.post("/v1/best_of_n", json=body, headers=headers)

    answer = asyncio.run(asked())
    assert answer.status_code == 422
    return str(answer.json()["detail"])


DOORS: dict[Door, str] = {
    best_of_n: "view",
    rejection_sampling: "view",
    eval_p: "view",
    pairs: "view",
    eval_r: "view",
    ranking: "view",
    best_of_four: "view",
    service: "reward.view",
    trainer: "reward.view",
    part: "reward.parts.second.view",
    request: "view",
}
"""What takes a view, with the key that names it."""


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize(
    ("told", "view", "given"),
    [
        pytest.param(None, "expected", "rating", id="nothing told, expected"),
        pytest.param(None, "direct", "rating", id="nothing told, direct"),
        pytest.param(20, "direct", "expected and rating", id="alternatives told, direct"),
    ],
)
def test_a_view_that_the_judge_cannot_give_is_refused_before_a_row_is_judged(
    door: Door,
    told: int | None,
    view: str,
    given: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    monkeypatch.setattr("autoj_reward.edge.service.log_to_stderr", lambda: None)  # it would stay so
    endpoint = Dialect(most=told)
    judge = {"kind": "openai", "model": "m", "base_url": endpoint.url, "start_s": 5}
    said = door(tmp_path, judge, view)
    endpoint.server.shutdown()
    endpoint.server.server_close()
    assert f"{DOORS[door]} is {view}, and this judge gives {given} alone" in said
    assert f"Set {DOORS[door]} to rating" in said
    asked = [body["messages"] for _, body, _ in endpoint.requests]
    assert asked and all(messages[0] == TINY[0] for messages in asked)  # the first contact alone
