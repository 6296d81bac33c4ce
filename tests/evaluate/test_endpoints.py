"""General chat models and other evaluators behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.evaluate.results import load_result
from tests.engine.test_openai_engine import Endpoint, chat
from tests.evaluate_rows import pair, write


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    server.greets = True
    yield server
    server.close()


def make_endpoint_flags(block: str, url: str, format_name: str) -> list[str]:
    config = f"{{kind: openai, base_url: '{url}', model: m, format: {format_name}}}"
    return ["--set", f"{block}={config}", "--set", "bootstrap=20"]


@pytest.mark.parametrize(
    ("format_name", "first", "second", "head"),
    [
        pytest.param(
            "general", "Good. [[A]]", "[[B]]", "Please act as an impartial judge", id="Table 13"
        ),
        pytest.param(
            "pandalm", "1\n\n### Reason: it is", "2", "Below are two responses", id="PandaLM"
        ),
        pytest.param("steamshp", "A", "B", "POST: planning", id="SteamSHP"),
    ],
)
def test_comparison(
    format_name: str, first: str, second: str, head: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    """The endpoint prefers the long answer of every pair, wherever it stands."""

    def answer(path: str, body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        return chat(first if text.index("long answer") < text.index("short") else second)

    endpoint.answer = answer
    data = write(tmp_path / "p.jsonl", [pair("planning", n, n) for n in range(2)])
    out = str(tmp_path / "o.json")
    flags = [
        "--data",
        data,
        "--json",
        out,
        *make_endpoint_flags("judge", endpoint.url, format_name),
    ]
    assert cli.main(["evaluate", "eval-p", *flags]) == 0
    overall = load_result(out)["overall"]
    assert (overall["agreement"], overall["consistency"], overall["failed"]) == (50.0, 100.0, 0)
    prompts = [body["messages"][0]["content"] for _, body, _ in endpoint.requests]
    assert len(prompts) == 4
    assert all(text.startswith(head) for text in prompts)


def test_rating_by_the_papers_prompt(endpoint: Endpoint, tmp_path: Path) -> None:
    def answer(path: str, body: dict[str, Any]) -> Any:
        long = "long answer" in body["messages"][-1]["content"]
        return chat(f"It will do. Rating: [[{8 if long else 3}]]")

    endpoint.answer = answer
    data = write(tmp_path / "p.jsonl", [pair("planning", n, n) for n in range(2)])
    out = str(tmp_path / "o.json")
    sets = ["--set", "protocol=pointwise", "--set", "view=rating"]
    flags = [
        "--data",
        data,
        "--json",
        out,
        *make_endpoint_flags("judge", endpoint.url, "general"),
        *sets,
    ]
    assert cli.main(["evaluate", "eval-p", *flags]) == 0
    assert load_result(out)["overall"]["agreement"] == 50.0
    system = endpoint.requests[0][1]["messages"][0]
    assert system["role"] == "system"
    assert system["content"].endswith('for example: "Rating: [[5]]".')
