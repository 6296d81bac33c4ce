"""Passwords, queries and keys of addresses show up nowhere but in the requests."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.cli.main import main
from autoj_reward.config import RewardConfig, ServiceConfig
from autoj_reward.errors import EngineUnavailable
from autoj_reward.trainer.reward import RewardModel
from tests.engine.test_distributions import Dialect
from tests.engine.test_openai_engine import Answer

SECRETS = ("hunter2", "q-s3cret", "sk-very-secret", "literal-header", "header-of-environment")


class Guarded(Dialect):
    """Answers to its own address alone."""

    def answered(self, path: str, body: dict[str, Any]) -> Answer:
        if path != "/v1/chat/completions?code=q-s3cret":
            return 404, f"no such path: {path}", {}
        return super().answered("/v1/chat/completions", body)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("ENDPOINT_KEY", "sk-very-secret")
    monkeypatch.setenv("ENDPOINT_HEADER", "header-of-environment")
    endpoint = Guarded()
    yield endpoint.url.replace("//", "//someone:hunter2@") + "?code=q-s3cret"
    assert endpoint.requests  # by the address as it is
    assert all("q-s3cret" in path for path, _, _ in endpoint.requests)
    endpoint.close()


def write_config(folder: Path, url: str, **more: object) -> str:
    judge: dict[str, object] = {"kind": "openai", "model": "m", "base_url": url, "start_s": 1}
    headers = {"X-Literal": "literal-header", "X-Variable": "env:ENDPOINT_HEADER"}
    judge |= {"api_key_env": "ENDPOINT_KEY", "extra_headers": headers}
    path = folder.parent / "run.yaml"
    path.write_text(yaml.safe_dump({"judge": judge, **more}), encoding="utf-8")
    return str(path)


def collect_output(
    folder: Path, capfd: pytest.CaptureFixture[str], log: pytest.LogCaptureFixture
) -> bytes:
    """Everything that a run has left or said. Journals are read as their export tells them."""
    for journal in folder.rglob("*.sqlite"):
        exported = journal.with_suffix(".jsonl")
        assert main(["journal", "export", str(journal), "--output", str(exported)]) == 0
    files = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    streams = capfd.readouterr()
    return files + (streams.out + streams.err + log.text).encode()


@pytest.mark.parametrize("command", ["score", "best-of-n", "evaluate pairs"])
def test_what_a_run_leaves_and_says_holds_no_secret(
    command: str,
    url: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "autoj_reward")
    folder = tmp_path / "left"
    folder.mkdir()
    rows = folder / "rows.jsonl"
    row: dict[str, object] = {"query": "Why?", "response": "Rayleigh", "responses": ["a", "b"]}
    row |= {"prompt": "Why?", "chosen": "a", "rejected": "b", "subset": "s", "id": 1}
    rows.write_text(json.dumps(row) + "\n", encoding="utf-8")
    down = url.replace(url.partition("@")[2].partition("/")[0], "127.0.0.1:9")

    def run(output: str, address: str) -> int:
        where = {"input": str(rows), "output": str(folder / output)}
        files = {
            "score": ["--input", where["input"], "--output", where["output"]],
            "best-of-n": [],
            "evaluate pairs": ["--data", where["input"], "--json", where["output"]],
        }[command]
        more = where if command == "best-of-n" else {}
        return main([*command.split(), *files, "--config", write_config(folder, address, **more)])

    assert run("out", url) == 0
    assert run("out", down) != 0  # another judge's
    assert run("down", down) != 0
    assert run("wrong", url.replace("/v1?", "/v2?")) != 0
    output_bytes = collect_output(folder, capfd, caplog)
    assert b"127.0.0.1:9" in output_bytes  # the address itself is shown
    assert [secret for secret in SECRETS if secret.encode() in output_bytes] == []


def test_the_address_of_a_service_is_shown_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AUTOJ_TOKEN", "sk-very-secret")
    address = "http://someone:hunter2@127.0.0.1:9?code=q-s3cret"
    config = RewardConfig(service=ServiceConfig(address=address, start_s=0.1))
    with pytest.raises(EngineUnavailable, match=r"no reward service at http://127\.0\.0\.1:9") as e:
        RewardModel(config).open()
    text = str(e.value) + repr(config) + config.model_dump_json()
    assert "127.0.0.1:9" in config.model_dump_json()
    assert [secret for secret in SECRETS if secret in text] == []
