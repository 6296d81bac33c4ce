"""Servers other than vLLM's: each judges eight rows by every command of a user.

llama.cpp's server comes with the package xllamacpp. `make test-servers` installs LiteLLM's proxy
and `transformers serve`, whose tests are skipped without it.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.config import JudgeConfig
from autoj_reward.models import built_in
from tests.conftest import ROOT
from tests.engine.commands import CHECKS, check_command
from tests.engine.server import (
    litellm_proxy,
    llama_cpp_server,
    openai_server,
    transformers_server,
)
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
def litellm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judges]:
    """LiteLLM's proxy in front of vLLM."""
    python = SERVERS / "litellm/bin/python"
    if not python.exists():
        pytest.skip(f"no litellm in {SERVERS}: make test-servers")
    folder = tmp_path_factory.mktemp("litellm")
    key = f"sk-{secrets.token_hex(32)}"
    key_file = folder / "key"
    key_file.write_text(key)
    with (
        openai_server(FOR_VLLM, "judge", folder / "vllm.txt") as upstream,
        litellm_proxy(python, upstream, key, folder / "log.txt") as address,
    ):
        keys = {"api_key_file": str(key_file), "max_tokens": 4}
        judge = make_judge(address, "hosted_vllm/judge", AT_THE_SLOT, **keys)
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
