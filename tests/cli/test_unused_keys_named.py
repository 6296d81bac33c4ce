"""Config keys without effect: one warning, or with --strict an error of every command."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.config import JudgeConfig, ScoreConfig, load_config
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.pairs import PairsConfig
from autoj_reward.models.unused import keys_without_effect, load_run
from rollouts.train.learner import TrainConfig
from tests.engine.test_openai_engine import Endpoint, chat
from tests.support.configs import write_config

JOB = """
input: {folder}/q.jsonl
output: {folder}/out
policy: {kind: fake, n: 2, script: {words: 3}}
judge:
  kind: vllm
  tensor_parallel: 2
  max_model_len: 2048
  criteria: auto
  serve: {replicas: 4, deadline_s: 60}
"""
NAMED = (
    "judge (kind openai without a tokenizer, format general) does not use max_model_len, "
    "tensor_parallel, criteria, serve.replicas; policy (kind fake of a policy) does not use script"
)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "q.jsonl").write_text('{"query": "Why?"}\n', encoding="utf-8")
    return write_config(tmp_path, JOB.replace("{folder}", str(tmp_path)))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    server.script(chat("Fine. Rating: [[7]]"))
    yield server
    server.close()


def make_flags(**keys: Any) -> list[str]:
    return [word for key, value in keys.items() for word in ("--set", f"judge.{key}={value}")]


def test_another_judge_in_one_line_goes_on_with_one_warning(
    job: Path, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """The endpoint's answers may be longer than `max_model_len`, which has no effect there."""
    line = make_flags(
        kind="openai", base_url=endpoint.url, model="m", format="general", max_tokens=3000
    )
    with caplog.at_level(logging.WARNING, "autoj_reward"):
        assert cli.main(["best-of-n", "--config", str(job), *line]) == 0
    [warning] = [r.getMessage() for r in caplog.records if "does not use" in r.getMessage()]
    assert warning.startswith(f"{job}: {NAMED}. The run goes on without: take these keys out")
    summary = json.loads((job.parent / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["outcomes"]["ok"] == summary["candidates"] == 2
    assert {body["max_tokens"] for _, body, _ in endpoint.requests} >= {3000}


def test_strict_refuses_them(
    job: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    line = make_flags(kind="openai", base_url=endpoint.url, model="m", format="general")
    assert cli.main(["best-of-n", "--config", str(job), "--strict", *line]) == 1
    assert f"autoj: error: {job}: {NAMED}: take these keys out" in capsys.readouterr().err
    assert endpoint.requests == [] and not (job.parent / "out").exists()


STRICT = ["score", "compare", "best-of-n", "collect", "serve"]
STRICT += [f"evaluate {name}" for name in ("eval-p", "eval-r", "pairs", "judges", "best-of-four")]
STRICT += [f"train {name}" for name in ("ppo", "grpo", "rloo", "online-dpo", "rejection-sampling")]
NEEDED = {
    "score": "--input i --output o",
    "compare": "--input i --output o",
    "evaluate pairs": "--json o --data d",
} | {
    f"evaluate {name}": "--json o --data d"
    for name in ("eval-p", "eval-r", "judges", "best-of-four")
}
RUN_FILES = {
    "collect": {
        **{"protocol": "single", "output": "o", "sources": [{"path": "x"}]},
        "teacher": {"kind": "fake", "tensor_parallel": 2},
    },
    "best-of-n": {"input": "i", "output": "o", "judge": {"kind": "fake", "tensor_parallel": 2}},
    "evaluate judges": {"judges": {"a": {"judge": {"kind": "fake", "tensor_parallel": 2}}}},
    "train rejection-sampling": {
        **{"input": "i", "output": "o", "policy": {}},
        "judge": {"kind": "fake", "tensor_parallel": 2},
    },
}
TRAIN = {"input": "i", "output": "o"}


@pytest.mark.parametrize("command", STRICT)
def test_every_command_that_names_a_judge_can_refuse_them(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    data: dict[str, Any] = {"judge": {"kind": "fake", "tensor_parallel": 2}}
    if command == "serve" or command.startswith("train"):
        data = {"reward": data} | (TRAIN if command != "serve" else {})
    path = write_config(tmp_path, RUN_FILES.get(command, data))
    words = [*command.split(), *NEEDED.get(command, "").split(), "--config", str(path), "--strict"]
    assert cli.main(words) == 1
    assert "does not use tensor_parallel" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["run.yaml"]


OF_RATINGS = {"distribution": False, "direct": True, "critiques": 2, "vote": "median"}
PAIR = {"query": "Why?", "response_1": "So.", "response_2": "Because.", "label": 0}


@pytest.mark.parametrize("command", ["compare", "evaluate pairs"])
def test_keys_of_ratings_have_no_effect_on_comparisons(
    command: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "pairs.jsonl").write_text(json.dumps(PAIR) + "\n", encoding="utf-8")
    judge = {"kind": "fake", "format": "autoj-en", "temperature": 1, **OF_RATINGS}
    path = write_config(tmp_path, {"judge": judge})
    names = ("--input", "--output") if command == "compare" else ("--data", "--json")
    files = [names[0], str(tmp_path / "pairs.jsonl"), names[1], str(tmp_path / "out.json")]
    words = [*command.split(), "--config", str(path), *files]
    with caplog.at_level(logging.WARNING, "autoj_reward"):
        assert cli.main(words) == 0
    named = "judge (kind fake, format autoj-en, comparing) does not use "
    named += "direct, distribution, critiques, vote"
    [warning] = [r.getMessage() for r in caplog.records if "does not use" in r.getMessage()]
    assert warning.startswith(f"{path}: {named}. The run goes on without")
    capsys.readouterr()
    assert cli.main([*words, "--strict"]) == 1
    assert named in capsys.readouterr().err


ENDPOINT = {"kind": "openai", "base_url": "http://x", "model": "m", "format": "general"}


@pytest.mark.parametrize(
    ("judge", "reads_distribution"),
    [
        ({"model": "owner/judge", "format": "autoj-en"}, False),
        ({"model": "default"}, True),  # it compares by the expected ratings
        (ENDPOINT, True),  # without log-probabilities no verdict is forced
    ],
)
def test_a_distribution_counts_where_a_comparison_reads_one(
    judge: dict[str, Any], reads_distribution: bool
) -> None:
    config = ScoreConfig(judge=JudgeConfig.model_validate(judge | {"distribution": False}))
    named = keys_without_effect(config, compares=True)
    assert [unused.keys for unused in named] == ([] if reads_distribution else [("distribution",)])


def test_pairs_by_ratings_use_the_keys_of_ratings(tmp_path: Path) -> None:
    path = write_config(
        tmp_path, {"protocol": "pointwise", "judge": {"kind": "fake", **OF_RATINGS}}
    )
    assert keys_without_effect(load_config(PairsConfig, path, ["judge.temperature=1"])) == []


def test_keys_left_out_are_those_of_a_file_without_them(tmp_path: Path) -> None:
    """A scripted judge replaces an endpoint for a dry run: `base_url` may stay in the file."""
    path = write_config(
        tmp_path, {"judge": {"kind": "openai", "base_url": "http://x", "model": "m"}}
    )
    config = load_run(ScoreConfig, path, ["judge.kind=fake", "judge.serve.replicas=3"])
    assert config == ScoreConfig(judge=JudgeConfig(kind="fake", model="m"))
    assert "base_url" not in config.judge.model_fields_set


def test_a_judge_behind_a_service_and_those_of_parts_are_told_apart(tmp_path: Path) -> None:
    judge = {"max_tokens": 300, "tensor_parallel": 2}
    scalar = {"model": "default-scalar", "max_tokens": 9000, "critiques": 2, "temperature": 1}
    reward = {
        "judge": judge,
        "service": {"address": "http://x"},
        "parts": {"one": {"judge": judge}, "two": {"judge": scalar}},
    }
    path = write_config(tmp_path, {"input": "i", "output": "o", "reward": reward})
    messages = [str(finding) for finding in keys_without_effect(load_config(TrainConfig, path))]
    assert messages == [
        "reward.judge (a running service, format autoj-en) does not use tensor_parallel, "
        "max_tokens",
        "reward.parts.two.judge (kind vllm, format scalar) does not use critiques, temperature, "
        "max_tokens",
    ]
    parts = load_run(TrainConfig, path).reward.parts
    assert parts["one"].judge.tensor_parallel == 2 and parts["two"].judge.max_tokens == 1024


def test_a_value_that_is_the_default_is_not_named() -> None:
    judge = JudgeConfig(kind="fake", tensor_parallel=1, tokenizer=None)
    assert keys_without_effect(ScoreConfig(judge=judge)) == []


@pytest.mark.parametrize(
    ("judge", "reason"),
    [
        ({"max_tokens": 4096}, "max_tokens 4096 leave no room for the prompt in max_model_len"),
        ({"criteria": "auto"}, None),
        ({"critique": False, "max_model_len": 512}, None),
        ({"model": "default-scalar", "max_model_len": 512}, None),
        ({"kind": "openai", "base_url": "http://x", "max_tokens": 9000}, None),
    ],
)
def test_lengths_are_refused_where_they_count(
    judge: dict[str, Any], reason: str | None, tmp_path: Path
) -> None:
    path = write_config(tmp_path, {"judge": judge})
    if reason is None:
        load_run(ScoreConfig, path)
        return
    with pytest.raises(ConfigError, match=reason):
        load_run(ScoreConfig, path)
