"""Pictures, sound and files in messages: judges of texts reject them at each door."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from autoj_reward import Candidate, Judge, JudgeConfig, RewardModel
from autoj_reward.cli import main as cli
from autoj_reward.client.session import open_judge
from autoj_reward.config import FailureConfig, RewardConfig
from autoj_reward.conversation import Response, messages_of, turns_of
from autoj_reward.data.labelled import read_compared, read_rated
from autoj_reward.data.preferences import SourceConfig, read_preferences
from autoj_reward.formats.schema import load_format
from autoj_reward.journal.reading import Reader
from autoj_reward.service.api import make_app
from autoj_reward.trainer.trl import GRPOReward
from autoj_reward.types import Outcome
from tests.service.test_api import HEADERS, serving
from tests.test_relative import read, write

WHY = "messages hold media ("
TEXT = {"type": "text", "text": "What is this?"}
MEDIA: dict[str, dict[str, Any]] = {
    "chat completions": {"content": [TEXT, {"type": "image_url", "image_url": {"url": "u"}}]},
    "a picture alone": {"content": [{"type": "image_url", "image_url": {"url": "u"}}]},
    "sound": {"content": [TEXT, {"type": "input_audio", "input_audio": {"data": "d"}}]},
    "a file": {"content": [TEXT, {"type": "file", "file": {"file_id": "f"}}]},
    "the Responses API": {"content": [{"type": "input_image", "image_url": "u"}]},
    "Anthropic": {"content": [TEXT, {"type": "document", "source": {}}]},
    "transformers": {"content": [{"type": "image"}, TEXT]},
    "a column beside the text": {"content": "What is this?", "images": ["a.png"]},
    "a spoken answer": {"content": None, "audio": {"id": "a"}},
    "an unknown type": {"content": [TEXT, {"type": "hologram"}]},
    "a tool's picture": {
        "content": [TEXT, {"type": "tool_result", "content": [{"type": "image", "source": {}}]}]
    },
    "a tool's type": {"content": [TEXT, {"type": "tool_image", "image_url": {"url": "u"}}]},
    "a picture in a part of text": {"content": [TEXT | {"image": "a.png"}]},
    "an address beside the text": {"content": "What is this?", "image_url": "u"},
    "a binary document": {"content": "What is this?", "documents": [b"%PDF"]},
    "an encoded document": {
        "content": "What is this?",
        "documents": [
            {"title": "a"}
            | {"source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
        ],
    },
    "a document by its address": {"content": "What is this?", "document": {"url": "a.pdf"}},
    "a document with a picture": {
        "content": "What is this?",
        "documents": [{"text": "See the picture.", "image": "a.png"}],
    },
    "a text document and another": {
        "content": "What is this?",
        "documents": ["Cats sleep.", {"file": "a.pdf"}],
    },
}
"""Messages with media, without their role."""
NO_MEDIA: dict[str, dict[str, Any]] = {
    "thoughts": {"content": [{"type": "thinking", "thinking": "x"}, TEXT]},
    "reasoning": {"content": [{"type": "reasoning_text", "text": "x"}, TEXT]},
    "a refusal": {"content": [TEXT, {"type": "refusal", "refusal": "no"}]},
    "tools": {"content": [TEXT, {"type": "tool_use", "name": "f", "input": {}}]},
    "a tool's words": {"content": [TEXT, {"type": "tool_result", "content": [TEXT]}]},
    "text documents": {
        "content": "What is this?",
        "documents": [
            *("Cats sleep.", {"title": "Cats", "text": "They sleep."}),
            {"id": "1", "data": {"title": "Cats", "snippet": "They sleep."}},
            {"source": {"type": "text", "media_type": "text/plain", "data": "They sleep."}},
        ],
    },
    "a text document": {"content": "What is this?", "document": "Cats sleep."},
    "no documents": {"content": "What is this?", "documents": None},
    "unused columns": {"content": [TEXT | {"image": None}], "images": [], "audio": None},
}


def user(fields: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", **fields}


def assistant(fields: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", **fields}


PICTURE = user(MEDIA["chat completions"])
QUESTION = user({"content": "Draw a cat."})
ANSWER = assistant({"content": "a cat"})
DRAWING = assistant(MEDIA["a picture alone"])
CONVERSATIONS = [[PICTURE, ANSWER], [QUESTION, DRAWING], [QUESTION, ANSWER]]
"""A prompt with media, a response with media, and neither."""
REJECTED = [True, True, False]


def make_judge(**fields: Any) -> JudgeConfig:
    return JudgeConfig(kind="fake", **fields)


@pytest.mark.parametrize("case", MEDIA)
def test_a_prompt_or_a_response_with_media_is_rejected(case: str) -> None:
    conversations = [[user(MEDIA[case]), ANSWER], [QUESTION, assistant(MEDIA[case])]]
    with Judge(make_judge()) as judge:
        judgements = judge.rate_all([Candidate.of(messages) for messages in conversations])
    for judgement in judgements:
        assert judgement.outcome is Outcome.INPUT_REJECTED and WHY in judgement.reason


@pytest.mark.parametrize("case", NO_MEDIA)
def test_thoughts_refusals_and_tools_are_no_media(case: str) -> None:
    [turn] = turns_of([user(NO_MEDIA[case])])
    assert (turn.text, turn.media) == ("What is this?", ())
    assert Response.of([assistant(NO_MEDIA[case])], "final") == Response("What is this?")


def test_media_that_the_judge_is_not_shown_rejects_nothing() -> None:
    screenshot = {"role": "tool", "content": MEDIA["chat completions"]["content"]}
    look = assistant({"content": "", "tool_calls": [{"name": "look", "arguments": "{}"}]})
    response = Response.of([look, screenshot, ANSWER], "final")
    outcomes = {}
    for shows in ("final", "assistant", "trajectory"):
        with Judge(make_judge(shows=shows)) as judge:
            outcomes[shows] = judge.rate("Draw a cat.", response).outcome
    assert outcomes == {
        "final": Outcome.OK,
        "assistant": Outcome.OK,
        "trajectory": Outcome.INPUT_REJECTED,
    }


def test_media_survives_a_round_trip_as_messages() -> None:
    for fields in MEDIA.values():
        turns = turns_of([user(fields)])
        assert turns[0].media
        assert turns_of(json.loads(json.dumps(messages_of(turns)))) == turns


def test_trainers_reject_media_row_by_row() -> None:
    failures = FailureConfig(budget=1.0)
    config = RewardConfig(judge=make_judge(), view="rating", failures=failures)
    with RewardModel(config) as model:
        values = asyncio.run(
            GRPOReward(model).judge(
                prompts=[messages[:1] for messages in CONVERSATIONS],
                completions=[messages[1:] for messages in CONVERSATIONS],
            )
        )
        judgements = [reward.judgement for _, reward in model.recent()]
    assert [value is None for value in values] == REJECTED
    assert [WHY in judgement.reason for judgement in judgements] == REJECTED
    assert [j.outcome is Outcome.INPUT_REJECTED for j in judgements] == REJECTED


def test_a_service_rejects_media_item_by_item() -> None:
    candidates: list[dict[str, Any]] = [
        {"messages": [PICTURE], "response": "a cat"},
        {"messages": [QUESTION], "response": [DRAWING]},
        {"messages": [QUESTION], "response": [ANSWER]},
    ]
    items = [
        {"messages": candidate["messages"], "responses": [candidate["response"]]}
        for candidate in candidates
    ]

    async def ask() -> tuple[Any, Any, list[Any]]:
        async with open_judge(make_judge()) as client:
            with serving(make_app(client, "secret")) as port:
                address = f"http://127.0.0.1:{port}"
                async with httpx.AsyncClient(base_url=address, headers=HEADERS) as http:
                    scored = await http.post("/v1/score", json={"candidates": candidates})
                    judged = await http.post("/v1/judge", json={"items": items})
                remote = await asyncio.to_thread(rate_remotely, address)
                return scored, judged, remote

    scored, judged, remote = asyncio.run(ask())
    records = scored.json()["judgements"]
    assert [record["outcome"] == "input_rejected" for record in records] == REJECTED
    assert [WHY in record["reason"] for record in records] == REJECTED
    lines = sorted(map(json.loads, judged.text.splitlines()), key=lambda line: line["index"])
    assert [line["judgement"]["outcome"] == "input_rejected" for line in lines] == REJECTED
    assert [WHY in judgement.reason for judgement in remote] == REJECTED


def rate_remotely(address: str, conversations: list[Any] = CONVERSATIONS) -> list[Any]:
    os.environ["AUTOJ_TOKEN"] = "secret"
    try:
        with Judge.connect(address) as judge:
            return judge.rate_all([Candidate.of(messages) for messages in conversations])
    finally:
        del os.environ["AUTOJ_TOKEN"]


def test_autoj_score_counts_media(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"messages": messages} for messages in CONVERSATIONS]
    source, output = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    run = ["score", "--input", source, "--output", str(output), "--set", "judge.kind=fake"]
    assert cli.main([*run, "--strict"]) == 0
    assert "3 rows: 2 input_rejected, 1 ok" in capsys.readouterr().out
    results = read(output)
    assert [WHY in row["reason"] for row in results] == REJECTED
    assert [row["rating"] is None for row in results] == REJECTED


def test_no_row_loses_its_media(tmp_path: Path) -> None:
    cases = {case: fields for case, fields in MEDIA.items() if case != "a binary document"}
    rows = [{"messages": [user(fields), ANSWER]} for fields in cases.values()]
    source, output = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    run = ["score", "--input", source, "--output", str(output), "--set", "judge.kind=fake"]
    assert cli.main(run) == 1  # nothing was judged
    reasons = [row["reason"] for row in read(output)]
    assert [case for case, reason in zip(cases, reasons, strict=True) if WHY not in reason] == []


def test_a_best_of_n_job_chooses_among_the_others(tmp_path: Path) -> None:
    rows = [
        {"messages": [QUESTION], "responses": [[DRAWING], "a cat", "a longer answer"]},
        {"messages": [PICTURE], "responses": ["a cat", "a dog"]},
    ]
    output = tmp_path / "out"
    config = {
        "input": write(tmp_path / "in.jsonl", rows),
        "output": str(output),
        "judge": {"kind": "fake"},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    assert cli.main(["best-of-n", "--config", str(tmp_path / "run.yaml")]) == 0
    outcomes = [row["outcome"] for row in read(output / "judgements.jsonl")]
    assert outcomes == ["input_rejected", "ok", "ok", "input_rejected", "input_rejected"]
    drawn, pictured = read(output / "selections.jsonl")
    assert drawn["index"] != 0 and pictured["rule"] == "all_failed"
    reader = Reader(output / "journal.sqlite")
    entries = [entry for entry in reader.newer(1000, lambda keys: {}) if not entry.judgement.ok]
    assert not reader.damaged
    assert {entry.item.responses[0].text for entry in entries} >= {"a cat", "a dog"}


def test_a_legacy_function_call_is_a_tool_call() -> None:
    legacy = [
        QUESTION,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "4"},
        ANSWER,
    ]
    modern = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": "{}"}]},
        {"role": "tool", "content": "4"},
        ANSWER,
    ]
    assert Candidate.of(legacy) == Candidate.of(modern)
    assert "[calls f {}]" in Candidate.of(legacy).prompt.text
    assert Response.of(legacy[1:], "trajectory") == Response.of(modern[1:], "trajectory")


@pytest.mark.parametrize("by", ["listwise", "comparisons"])
def test_a_service_that_gathers_a_group_rejects_media_alone(by: str) -> None:
    """Members come one by one, as verl sends them."""
    members = [[DRAWING], "a cat", "a longer answer"]

    async def ask() -> list[Any]:
        judge = make_judge(format="listwise" if by == "listwise" else "autoj-en")
        async with open_judge(judge) as client:
            with serving(make_app(client, "secret")) as port:
                address = f"http://127.0.0.1:{port}"
                async with httpx.AsyncClient(base_url=address, headers=HEADERS) as http:
                    bodies = [
                        {
                            "candidates": [{"query": "Draw a cat.", "response": response}],
                            "group_id": "g",
                            "group_size": len(members),
                            "relative": {"by": by},
                        }
                        for response in members
                    ]
                    posts = (http.post("/v1/score", json=body) for body in bodies)
                    return list(await asyncio.gather(*posts))

    records = [answer.json()["judgements"][0] for answer in asyncio.run(ask())]
    assert [record["outcome"] for record in records] == ["input_rejected", "ok", "ok"]
    assert WHY in records[0]["reason"]


def test_trainings_and_collections_leave_rows_with_media_out(tmp_path: Path) -> None:
    """They would take a text for the whole."""
    prompts = {"a picture asked about": [PICTURE], "a plain question": [QUESTION]}
    pairs = [
        {"prompt": prompt, "chosen": [chosen], "rejected": [assistant({"content": "no"})]}
        for prompt in prompts.values()
        for chosen in (ANSWER, DRAWING)
    ]
    source = write(tmp_path / "pairs.jsonl", pairs)
    collected = read_preferences(SourceConfig.model_validate({"path": source}), source)
    compared = read_compared(source, load_format("autoj-en"))
    for rows in (collected, compared):
        assert [row.line for row in rows.rows] == [3]
        assert all(WHY in bad.reason for bad in rows.bad) and len(rows.bad) == 3
    rated = [
        {"messages": [asked], "response": [answer], "rating": 5} for asked, answer in CONVERSATIONS
    ]
    rows_rated = read_rated(write(tmp_path / "rated.jsonl", rated), load_format("autoj-en"))
    assert [row.line for row in rows_rated.rows] == [3], rows_rated.bad
