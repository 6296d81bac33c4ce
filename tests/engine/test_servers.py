"""Servers other than vLLM's: each judges eight rows by every command of a user.

llama.cpp's server comes with the package xllamacpp. `make test-servers` installs LiteLLM's proxy
and `transformers serve`, whose tests are skipped without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.config import JudgeConfig
from autoj_reward.models import built_in
from tests.conftest import ROOT
from tests.engine.commands import CHECKS, check_command, run_command
from tests.engine.server import (
    litellm_proxy,
    llama_cpp_server,
    openai_server,
    transformers_server,
)
from tests.engine.test_openai_engine import Answer, Endpoint
from tests.engine.writer import save_writer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SERVERS = Path(os.environ.get("AUTOJ_SERVERS", ROOT / ".venv/servers"))
"""Where `make test-servers` installs them."""
FOR_VLLM = JudgeConfig(max_model_len=2048, kv_cache_gib=0.5, max_sequences=8)
AT_THE_SLOT = "distributions: requests of a token or two at the slot"
TEXT_ALONE = "distributions: none: the endpoint tells no log-probabilities"
Judge = tuple[dict[str, Any], str]
"""Keys of a judge, and what is said about it."""
Judges = Mapping[str, Judge]
"""The judge of each command."""


def make_judge(address: str, model: str, distributions: str, **keys: Any) -> Judge:
    judge = {"kind": "openai", "model": model, "base_url": f"{address}/v1", "start_s": 300} | keys
    return judge, f"{re.escape(model)}:general:.*, {distributions}"


@pytest.fixture(scope="module")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judges]:
    log = tmp_path_factory.mktemp("llama.cpp") / "log.txt"
    with llama_cpp_server(built_in._find_gguf(), log) as address:
        judge = make_judge(address, "smollm2", AT_THE_SLOT, max_tokens=4)
        yield dict.fromkeys(CHECKS, judge)


@pytest.fixture(scope="module")
def litellm_program() -> Path:
    program = SERVERS / "litellm/bin/litellm"
    if not program.exists():
        pytest.skip(f"no litellm in {SERVERS}: make test-servers")
    return program


@pytest.fixture(scope="module")
def litellm(litellm_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judges]:
    """LiteLLM's proxy in front of vLLM."""
    folder = tmp_path_factory.mktemp("litellm")
    with openai_server(FOR_VLLM, "judge", folder / "vllm.txt") as upstream:
        models = {"vllm": {"model": "hosted_vllm/judge", "api_base": f"{upstream}/v1"}}
        with litellm_proxy(litellm_program, models, folder) as (address, key_file):
            keys = {"api_key_file": str(key_file), "max_tokens": 4}
            judge = make_judge(address, "vllm", AT_THE_SLOT, **keys)
            yield dict.fromkeys(CHECKS, judge)


@pytest.fixture(scope="module")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judges]:
    """`transformers serve`, which gives texts alone, with models that write a rating or a verdict.

    A request's model is the path of its folder.
    """
    packages = SERVERS / "transformers"
    if not packages.is_dir():
        pytest.skip(f"no transformers in {SERVERS}: make test-servers")
    folder = tmp_path_factory.mktemp("transformers")
    rating = save_writer(folder / "rating", "It is fine.\n\n", "Rating: [[7]]")
    verdict = save_writer(folder / "verdict", "Both are fine.\n\n", "[[C]]")
    with transformers_server(packages, folder / "log.txt") as address:
        rates = make_judge(address, str(rating), TEXT_ALONE)
        compares = make_judge(address, str(verdict), TEXT_ALONE)
        yield {"score": rates, "compare": compares, "rank": compares, "best-of-n": rates}


@pytest.mark.parametrize("command", CHECKS)
@pytest.mark.parametrize("server", ["llama_cpp", "litellm", "transformers"])
def test_a_command_judges_all_rows(
    command: str,
    server: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
) -> None:
    judge, about = request.getfixturevalue(server)[command]
    check_command(command, judge, tmp_path, lambda: capfd.readouterr().err, about)


def answer_as_provider(path: str, body: dict[str, Any]) -> Answer:
    """Rate a response 7 in the API that the path belongs to."""
    text = {"text": "It is fine.\n\nRating: [[7]]"}
    if path.endswith("/v1/messages"):
        answer = {
            "id": "x",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [{"type": "text"} | text],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 50, "output_tokens": 9},
        }
    elif "generateContent" in path:
        answer = {
            "candidates": [{"content": {"role": "model", "parts": [text]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 50, "candidatesTokenCount": 9},
        }
    else:
        answer = {
            "output": {"message": {"role": "assistant", "content": [text]}},
            "stopReason": "end_turn",
            "usage": {"inputTokens": 50, "outputTokens": 9, "totalTokens": 59},
        }
    return 200, answer, {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def providers(
    litellm_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """LiteLLM's proxy in front of providers that a scripted server stands in for."""
    upstream = Endpoint()
    upstream.answer = answer_as_provider
    root = upstream.url.removesuffix("/v1")
    here = {"api_base": root, "api_key": "unused"}
    bedrock = {
        "model": "bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0",
        "aws_bedrock_runtime_endpoint": root,
        "aws_region_name": "us-east-1",
        "aws_access_key_id": "unused",
        "aws_secret_access_key": "unused",
    }
    models = {
        "claude": {"model": "anthropic/claude-sonnet-4-5-20250929"} | here,
        "opus": {"model": "anthropic/claude-opus-4-7"} | here,
        "gemini": {"model": "gemini/gemini-2.5-flash"} | here,
        "bedrock": bedrock,
    }
    with litellm_proxy(litellm_program, models, tmp_path_factory.mktemp("providers")) as proxy:
        yield proxy
    upstream.close()


@pytest.mark.parametrize(
    ("model", "learned"),
    [
        ("claude", "from now on logprobs is left out"),
        ("opus", "temperature is left out. Sampling cannot be fixed"),
        ("gemini", "from now on top_logprobs is left out"),
        ("bedrock", "distributions: none"),
    ],
)
def test_litellm_translates_for_a_provider(
    model: str,
    learned: str,
    providers: tuple[str, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    address, key_file = providers
    keys = {"api_key_file": str(key_file), "distribution": True}
    judge, _ = make_judge(address, model, TEXT_ALONE, **keys)
    rows = run_command("score", judge, tmp_path)
    assert [row["rating"] for row in rows] == [7] * 8
    assert learned in capfd.readouterr().err + caplog.text
