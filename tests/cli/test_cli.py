from __future__ import annotations

import inspect
import io
import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.cli.main import explain_errors
from autoj_reward.errors import AutojError
from autoj_reward.models import known_models

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "ray", "vllm", "transformers", "pydantic", "yaml", "numpy", "aiohttp", "asyncio"}


MODULES = {name: module for module, names in cli.MODULES.items() for name in names}


def write_rows(path: Path, *texts: Any) -> str:
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
    return str(path)


def test_help_imports_the_standard_library_alone() -> None:
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom autoj_reward.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "print('MODULES', *{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    help_text, _, modules = result.stdout.partition("MODULES")
    for name in MODULES:
        assert name.split()[0] in help_text
    assert set(modules.split()) - sys.stdlib_module_names == {"autoj_reward"}
    assert set(modules.split()) & HEAVY == set()


def test_help_of_every_command_imports_nothing_heavy() -> None:
    """One interpreter prints all of them, so any heavy import is still there at the end."""
    code = (
        "import sys\nfrom autoj_reward.cli import main as cli\n"
        "for own in cli.MODULES.values():\n"
        "    for name in own: cli.parser(name.split()).format_help()\n"
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "rollouts" in result.stdout.split()
    assert set(result.stdout.split()) & HEAVY == set()


@pytest.mark.parametrize("name", MODULES)
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([*name.split(), "--help"])
    assert end.value.code == 0
    help_text = capsys.readouterr().out
    for flag, options in cli.load(MODULES[name], name.split()[-1]).flags:
        labels = options.get("metavar", flag)
        assert all(
            label in help_text for label in ([labels] if isinstance(labels, str) else labels)
        )
        assert options["help"]


CALLING = [
    name
    for name, module in MODULES.items()
    if cli.load(module, name.split()[-1]).run.__qualname__.startswith("calling.")
]
"""Commands that hand their flags on to a function, which they name."""


@pytest.mark.parametrize("name", [name for name in MODULES if name not in CALLING])
def test_each_command_takes_exactly_its_flags(name: str) -> None:
    command = cli.load(MODULES[name], name.split()[-1])
    parameters = set(inspect.signature(command.run).parameters)
    assert parameters == {find_dest(flag, options) for flag, options in command.flags}


@pytest.mark.parametrize("name", CALLING)
def test_each_function_takes_exactly_the_flags_of_its_command(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every flag is given. A function with other parameters would raise TypeError."""
    arguments: list[str] = []
    for flag, options in cli.load(MODULES[name], name.split()[-1]).flags:
        value = "judge.kind=fake" if flag == "--set" else str(tmp_path / "none.yaml")
        if options.get("type") in (int, float):
            value = "3"
        count = 0 if options.get("action") == "store_true" else options.get("nargs", 1)
        values = [value] * (count if isinstance(count, int) else 1)
        arguments += [*[flag] * flag.startswith("-"), *values]
    assert cli.main([*name.split(), *arguments]) == 1
    assert capsys.readouterr().err.startswith("autoj: error: ")


def find_dest(flag: str, options: dict[str, Any]) -> str:
    name: str = options.get("dest", flag.removeprefix("--").replace("-", "_"))
    return name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "COMMAND", id="no command"),
        pytest.param(["mdoels"], "'mdoels': did you mean `models`? (known: ", id="unknown command"),
        pytest.param(
            ["train", "grpp"], "'grpp': did you mean `grpo`? (known: ppo, grpo,", id="unknown kind"
        ),
        pytest.param(["xyz"], "unknown name 'xyz' (known: ", id="nothing near"),
        pytest.param(["train", "grpo"], "--config", id="missing flag"),
        pytest.param(["score", "--input", "x"], "--output", id="missing output"),
        pytest.param(["models", "--fast"], "--fast", id="unknown flag"),
    ],
)
def test_usage_errors_exit_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["best-of-n", "--config", "none.yaml"], "none.yaml: cannot read", id="config"),
        pytest.param(["parse", "--input", "none.jsonl"], "none.jsonl", id="input"),
        pytest.param(
            ["parse", "--input", "-", "--format", "nope"], "no judge format 'nope' (", id="format"
        ),
        pytest.param(
            ["parse", "--input", "-", "--format", "selen"], "did you mean `selene`?", id="near"
        ),
        pytest.param(
            ["evaluate", "pairs", "--data", "x", "--json", "y", "--layout", "nectr"],
            "layout 'nectr' is unknown: did you mean `nectar`?",
            id="layout",
        ),
        pytest.param(
            ["score", "--input", "x", "--output", "y", "--set", "swap"], "--set 'swap'", id="set"
        ),
    ],
)
def test_errors_go_to_stderr_with_exit_code_1(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("autoj: error: ")
    assert message in err
    assert "Traceback" not in err


def read_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_parse_pairwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_rows(tmp_path / "t.jsonl", {"text": "So, the final decision is Response 2."})
    assert cli.main(["parse", "--input", source, "--pairwise"]) == 0
    first, summary = read_lines(capsys)
    assert first == {"line": 1, "outcome": "ok", "start": 26, "verdict": "second"}
    assert summary == {"summary": {"ok": 1}}


def test_parse_reads_stdin() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "autoj_reward.cli", "parse", "--input", "-"],
        input='"Rating: [[3]]"\n',
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert json.loads(result.stdout.splitlines()[0])["rating"] == 3.0


def test_models_lists_every_known_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models"]) == 0
    model_lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in model_lines] == list(known_models())
    by_name = {line.split()[0]: line.split()[1:3] for line in model_lines}
    assert by_name["GAIR/autoj-13b"] == ["autoj-en", "llama2"]


def test_an_error_inside_a_task_group_is_told_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing key is found when the endpoint starts, inside a task group of the job."""
    monkeypatch.delenv("AUTOJ_TEST_KEY", raising=False)
    source = write_rows(tmp_path / "in.jsonl", {"query": "q", "response": "r"})
    sets = ["judge={kind: openai, base_url: 'http://127.0.0.1:9', api_key_env: AUTOJ_TEST_KEY}"]
    output = str(tmp_path / "out.jsonl")
    code = cli.main(["score", "--input", source, "--output", output, "--set", sets[0]])
    assert code == 1
    assert "autoj: error: api_key_env names AUTOJ_TEST_KEY" in capsys.readouterr().err
    assert not Path(output).exists()


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        pytest.param(AutojError("plain"), 1, "autoj: error: plain\n", id="alone"),
        pytest.param(
            ExceptionGroup("", [ExceptionGroup("", [AutojError("deep")]), AutojError("other")]),
            1,
            "autoj: error: deep\n",
            id="in groups",
        ),
        pytest.param(
            KeyboardInterrupt(), 130, "\nautoj: stopped; the same command goes on", id="stopped"
        ),
    ],
)
def test_the_shell_explains(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert explain_errors("autoj", work) == code
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ValueError("a defect"), id="alone"),
        pytest.param(
            ExceptionGroup("", [ValueError("a defect"), AutojError("known")]), id="beside"
        ),
    ],
)
def test_the_shell_leaves_a_defect_its_traceback(error: Exception) -> None:
    def work() -> int:
        raise error

    with pytest.raises((ValueError, ExceptionGroup)) as caught:
        explain_errors("autoj", work)
    assert "a defect" in "".join(traceback.format_exception(caught.value))


def test_bad_input_on_stdin_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert cli.main(["parse", "--input", "-"]) == 1
    assert "<stdin>" in capsys.readouterr().err


def test_the_folder_of_a_built_in_model_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "--path", "smollm2-135m-instruct"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert (folder / "config.json").is_file()
    assert cli.main(["models", "--path", "smollm2-135m"]) == 1
    message = capsys.readouterr().err
    assert "did you mean `smollm2-135m-instruct`?" in message
