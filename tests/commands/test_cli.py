from __future__ import annotations

import argparse
import importlib
import inspect
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autoj_reward import cli
from autoj_reward.capacity.plan import PlanConfig
from autoj_reward.models import known_models

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "ray", "vllm", "transformers", "pydantic", "yaml", "numpy", "httpx", "asyncio"}


def commands(parser: argparse.ArgumentParser, *words: str) -> dict[str, argparse.ArgumentParser]:
    """The parsers of all commands, by what is typed: `train ppo`, not `train`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {
                typed: found
                for word, inner in action.choices.items()
                for typed, found in commands(inner, *words, word).items()
            }
    return {" ".join(words): parser}


COMMANDS = commands(cli.parser())


def rows(path: Path, *texts: Any) -> str:
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
    return str(path)


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom autoj_reward.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "print('MODULES', *{m.split('.')[0] for m in sys.modules})"
    )
    best, out = 9.9, ""
    for _ in range(3):
        started = time.monotonic()
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
        ).stdout
        best = min(best, time.monotonic() - started)
    shown, _, modules = out.partition("MODULES")
    for name in COMMANDS:
        assert name.split()[0] in shown
    assert set(modules.split()) & HEAVY == set()
    assert best < 0.5


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([*name.split(), "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for action in COMMANDS[name]._actions:
        assert action.option_strings[-1] in shown
        assert action.help


@pytest.mark.parametrize("name", COMMANDS)
def test_each_target_takes_exactly_the_flags(name: str) -> None:
    command = COMMANDS[name]
    module, function = str(command.get_default("target")).split(":")
    taken = set(inspect.signature(getattr(importlib.import_module(module), function)).parameters)
    if name == "plan":  # its flags are the keys of a config
        taken = set(PlanConfig.model_fields)
    flags = {action.dest for action in command._actions} - {"help"}
    chosen = {"algorithm"} if name.startswith("train ") else set()
    assert taken == flags | chosen


def test_help_of_train_names_the_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    shown = capsys.readouterr().out
    for name in COMMANDS:
        if name.startswith("train "):
            assert name.split()[1] in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param([], "COMMAND", id="no command"),
        pytest.param(["rate"], "invalid choice: 'rate'", id="unknown command"),
        pytest.param(["best-of-n"], "--config", id="missing flag"),
        pytest.param(["score", "--input", "x"], "--output", id="missing output"),
        pytest.param(["models", "--fast"], "--fast", id="unknown flag"),
    ],
)
def test_usage_errors_exit_with_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["best-of-n", "--config", "none.yaml"], "none.yaml: cannot read", id="config"),
        pytest.param(["parse", "--input", "none.jsonl"], "none.jsonl", id="input"),
        pytest.param(
            ["parse", "--input", "-", "--format", "nope"], "no judge format 'nope'", id="format"
        ),
        pytest.param(
            ["score", "--input", "x", "--output", "y", "--set", "swap"], "--set 'swap'", id="set"
        ),
    ],
)
def test_errors_go_to_stderr_with_exit_code_1(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("autoj: error: ")
    assert said in err
    assert "Traceback" not in err


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_parse_shows_what_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = rows(
        tmp_path / "t.jsonl", {"text": "Fine.\nRating: [[7]]"}, {"text": "no slot"}, {"txt": "?"}
    )
    assert cli.main(["parse", "--input", source]) == 0
    first, second, third, summary = lines(capsys)
    assert first == {"line": 1, "outcome": "ok", "start": 16, "rating": 7.0}
    assert second == {"line": 2, "outcome": "unparsable", "reason": "no rating slot"}
    assert (third["line"], third["outcome"]) == (3, "bad row")
    assert "missing" in third["reason"]
    assert summary == {"summary": {"ok": 1, "unparsable": 1, "bad row": 1}}


def test_parse_pairwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = rows(tmp_path / "t.jsonl", {"text": "So, the final decision is Response 2."})
    assert cli.main(["parse", "--input", source, "--pairwise"]) == 0
    first, summary = lines(capsys)
    assert first == {"line": 1, "outcome": "ok", "start": 26, "verdict": "second"}
    assert summary == {"summary": {"ok": 1}}


def test_parse_reads_stdin() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autoj_reward.cli", "parse", "--input", "-"],
        input='"Rating: [[3]]"\n',
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[0])["rating"] == 3.0


def test_models_lists_every_known_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == list(known_models())
    by_name = {line.split()[0]: line.split()[1:3] for line in shown}
    assert by_name["GAIR/autoj-13b"] == ["autoj-en", "llama2"]


def test_an_error_inside_a_task_group_is_told_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that is missing shows up when the endpoint is started, deep inside the job."""
    monkeypatch.delenv("AUTOJ_TEST_KEY", raising=False)
    source = rows(tmp_path / "in.jsonl", {"query": "q", "response": "r"})
    sets = ["judge={kind: openai, base_url: 'http://127.0.0.1:9', api_key_env: AUTOJ_TEST_KEY}"]
    output = str(tmp_path / "out.jsonl")
    code = cli.main(["score", "--input", source, "--output", output, "--set", sets[0]])
    assert code == 1
    assert "autoj: error: api_key_env names AUTOJ_TEST_KEY" in capsys.readouterr().err
    assert not Path(output).exists()


def test_bad_input_on_stdin_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert cli.main(["parse", "--input", "-"]) == 1
    assert "<stdin>" in capsys.readouterr().err
