"""A service and a best-of-N job choose by the same function under the same conditions."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig
from autoj_reward.formats.schema import FORMATS
from autoj_reward.service.api import make_app
from tests.engine.test_openai_engine import Answer, Endpoint
from tests.rollouts.test_job import Job, read_lines

RESPONSES = ["poor", "good", "better"]
SCRIPT = {"ratings": {"poor": 2, "good": 9, "better": 9}}


def write_single_format(folder: Path) -> str:
    """Write Auto-J's format without its pairwise protocol, and return its path."""
    shutil.copytree(FORMATS / "autoj-en", folder / "lone")
    path = folder / "lone" / "format.yaml"
    data = yaml.safe_load(path.read_text())
    del data["pairwise"]
    path.write_text(yaml.safe_dump(data))
    return str(path)


async def select_best(judge: JudgeConfig, extra: dict[str, Any]) -> httpx.Response:
    async with open_judge(judge) as client:
        transport = httpx.ASGITransport(make_app(client, "secret").guard)
        headers = {"Authorization": "Bearer secret"}
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as service:
            body = {"query": "q", "responses": RESPONSES} | extra
            return await service.post("/v1/best_of_n", json=body, headers=headers)


@pytest.mark.parametrize(
    ("fmt", "extra", "index", "rule"),
    [
        pytest.param("autoj-en", {}, 2, "pairwise", id="compares"),
        pytest.param("lone", {}, 1, "first", id="single only"),
        pytest.param("lone", {"tie_break": ["pairwise"]}, 1, "first", id="single only, pairwise"),
        pytest.param("scalar", {}, 1, "first", id="scalar"),
        pytest.param("scalar", {"view": "expected"}, 1, "first", id="scalar, expected"),
    ],
)
def test_a_service_and_a_job_choose_alike(
    fmt: str, extra: dict[str, Any], index: int, rule: str, tmp_path: Path
) -> None:
    name = write_single_format(tmp_path) if fmt == "lone" else fmt
    judge = JudgeConfig(kind="fake", format=name, script=SCRIPT)
    answer = asyncio.run(select_best(judge, extra))
    assert answer.status_code == 200, answer.text
    selection = answer.json()["selection"]
    job = Job(
        tmp_path, [{"query": "q", "responses": RESPONSES}], SCRIPT, judge={"format": name}, **extra
    )
    assert job.run() == 0
    [chosen] = job.selections()
    assert (selection["index"], selection["rule"]) == (chosen["index"], chosen["rule"])
    assert (chosen["index"], chosen["rule"]) == (index, rule)
    assert selection["tied"] == chosen["tied"]
    assert len(selection["comparisons"]) == job.summary()["comparisons"]


NUMBERS = {"zebra": ("9", "3", "5"), "yak": ("4", "8", "6"), "xenon": ("7", "5", "9")}
"""By response: the rating that the judge writes, and what it would say at the slot after its
critique and right after the prompt."""
FIRST = ("7", "7", "7")
"""The same for the first contact."""


class Undecided(Endpoint):
    """Endpoint whose views each prefer another response. It can continue an assistant's message."""

    def answer_request(self, path: str, body: dict[str, Any]) -> Answer:
        *earlier, last = body["messages"]
        begun = "continue_final_message" in body
        text = str(earlier if begun else body["messages"])
        written, after, before = next(
            (numbers for response, numbers in NUMBERS.items() if response in text), FIRST
        )
        token = f"Good.\nRating: [[{written}]]"
        if begun and not last["content"].endswith("[["):
            token = "]]"
        elif begun:
            token = after if "Good." in last["content"] else before
        entry = {
            "token": token,
            "logprob": -0.01,
            "top_logprobs": [{"token": token, "logprob": -0.01}],
        }
        logprobs = {"content": [entry]} if "logprobs" in body else None
        choice = {"message": {"content": token}, "finish_reason": "stop", "logprobs": logprobs}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": 10 - 5 * begun}}, {}


@pytest.mark.parametrize(("view", "index"), [("rating", 0), ("expected", 1), ("direct", 2)])
def test_a_service_and_a_job_choose_alike_by_every_view(
    view: str, index: int, tmp_path: Path
) -> None:
    endpoint = Undecided()
    endpoint.answer = endpoint.answer_request
    config = {"kind": "openai", "model": "m", "base_url": endpoint.url, "format": "autoj-en"}
    extra = {"responses": list(NUMBERS), "view": view}
    answer = asyncio.run(select_best(JudgeConfig.model_validate(config), extra))
    assert answer.status_code == 200, answer.text
    selection = answer.json()["selection"]
    rows = [{"query": "q", "responses": list(NUMBERS)}]
    job = Job(tmp_path, rows, {}, judge=config | {"script": {}}, view=view)
    assert job.run() == 0
    endpoint.close()
    [chosen] = job.selections()
    assert (selection["index"], selection["rule"]) == (chosen["index"], chosen["rule"])
    assert (chosen["index"], chosen["rule"]) == (index, view)
    ratings = [judgement["rating"] for judgement in answer.json()["judgements"]]
    numbers = {"rating": "value", "expected": "expected", "direct": "direct"}
    rows = read_lines(job.output / "judgements.jsonl")
    assert [rating[numbers[view]] for rating in ratings] == [row[view] for row in rows]
