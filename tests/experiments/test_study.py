from __future__ import annotations

import importlib.util
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.errors import EngineError, InputError
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

ROOT = Path(__file__).parents[2]


class Config(StudyConfig):
    number: int = 1

    def possible(self) -> tuple[str, ...]:
        return ("first", "second") if self.number else ("first",)


def render(record: dict[str, Any]) -> str:
    return report(
        "Title", record, [("Numbers", [("n",), (str(record["number"]),)], "A note.")], "Why."
    )


def plain_study(run: Study[Config]) -> str:
    if run.config.number == 13:
        raise InputError("13 is wrong")
    record = {"number": run.config.number, "limit": run.limit}
    return run.write("numbers", record, render, lambda result: {"a": f"<svg>{result['number']}"})


async def broken_study(run: Study[Config]) -> str:
    raise ExceptionGroup("tasks", [ExceptionGroup("inner", [EngineError("the engine is gone")])])


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    (tmp_path / "run.yaml").write_text(f"output: {tmp_path / 'out'}\n")
    return ["--config", str(tmp_path / "run.yaml")]


def test_a_result_says_how_it_came_about(
    tmp_path: Path, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main = study_command(Config, plain_study, ("first", "second"), limit="rows")
    assert main([*config, "--set", "number=3", "--parts", "second,first", "--limit", "2"]) == 0
    record = json.loads((tmp_path / "out/numbers.json").read_text())
    assert record["command"].startswith("python -m tests.experiments.test_study --config")
    assert (record["parts"], record["limit"], record["config"]["number"]) == (
        ["first", "second"],
        2,
        3,
    )
    assert {"at", "machine", "versions"} <= record.keys()
    text = (tmp_path / "out/numbers.md").read_text()
    assert text in capsys.readouterr().out
    assert text.startswith(f"# Title\n\n`{record['command']}`\n\n{record['at']}; ")
    assert text.endswith("Why.\n\n## Numbers\n\n| n |\n| --- |\n| 3 |\n\nA note.\n")
    assert (tmp_path / "out/numbers-a.svg").read_text() == "<svg>3"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        pytest.param(["--set", "number=13"], "test_study: error: 13 is wrong", id="error"),
        pytest.param(["--set", "letter=a"], "unknown key 'letter'", id="config"),
        pytest.param(["--parts", "third"], "has the parts first, second", id="unknown part"),
        pytest.param(["--parts", "second", "--set", "number=0"], "the parts first", id="left out"),
    ],
)
def test_errors_are_explained(
    config: list[str], more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study_command(Config, plain_study, ("first", "second"))([*config, *more]) == 1
    assert message in capsys.readouterr().err


def test_errors_of_tasks_are_explained(
    config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert study_command(Config, broken_study)(config) == 1
    assert "error: the engine is gone" in capsys.readouterr().err


def test_a_step_that_is_done_is_not_repeated(
    tmp_path: Path, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ran = list[str]()
    # What each step finds at each of its runs; only odd numbers are final.
    results = {"first": [2, 1], "second": [3]}

    def run_steps(run: Study[Config]) -> str:
        def step(name: str) -> int:
            ran.append(name)
            return results[name].pop(0)

        work = {name: partial(step, name) for name in results}
        return run.steps("steps", work, render_steps, final=lambda n: n % 2 == 1)

    def render_steps(record: dict[str, Any]) -> str:
        return ", ".join(f"{name} {number}" for name, number in record["steps"].items())

    def run_and_read(*more: str) -> str:
        assert study_command(Config, run_steps, ("first", "second"))([*config, *more]) == 0
        return capsys.readouterr().out.strip()

    assert run_and_read("--parts", "second") == "second 3"
    assert run_and_read() == "first 2, second 3"
    assert run_and_read() == "first 1, second 3"
    assert run_and_read() == "first 1, second 3"
    assert ran == ["second", "first", "first"]
    assert json.loads((tmp_path / "out/steps.json").read_text())["steps"] == {
        "first": 1,
        "second": 3,
    }
    assert study_command(Config, run_steps)([*config, "--set", "number=2"]) == 1
    assert "a run of another config" in capsys.readouterr().err


def test_cells_by_a_format() -> None:
    interval = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 9}
    rows = [
        {"a": 1.2345, "b": {"c": interval}, "d": None},
        {"a": 2, "b": {"c": interval | {"low": None}}, "d": 0.5},
    ]
    columns = {"A": "{a:.1f}", "B": "{b[c]}", "N": "n = {b[c][n]}", "D": "{d:.0%}"}
    assert tabled(rows, columns) == [
        ["A", "B", "N", "D"],
        ["1.2", "0.500 [0.250, 0.750]", "n = 9", ""],
        ["2.0", "0.500", "n = 9", "50%"],
    ]


TEXTS = [
    *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("configs/*/*.yaml"),
    ROOT / "Makefile", *ROOT.glob("autoj_reward/**/README.md"),
]  # fmt: skip


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_is_named_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in set(re.findall(r"-m\s+(experiments(?:\.\w+)+)", text)):
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations:
            spec = importlib.util.find_spec(f"{name}.__main__")
        assert spec, f"{path}: {name}"
    for config in set(re.findall(r"configs/[a-z]\w*\.yaml", text)):
        assert (ROOT / config).is_file(), f"{path}: {config}"
