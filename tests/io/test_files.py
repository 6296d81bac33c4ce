"""Result files: their lines, and that a command never overwrites its inputs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.errors import OutputError
from autoj_reward.io.files import filling, require_apart, write_jsonl
from autoj_reward.types import Outcome, Usage


@pytest.mark.parametrize(
    ("record", "line"),
    [
        pytest.param({"a": (1, "é\ud800")}, r'{"a":[1,"é\ud800"]}', id="as_it_stands"),
        pytest.param({"a": [math.nan, {"b": -math.inf}]}, '{"a":[null,{"b":null}]}', id="nan"),
        pytest.param({"a": Outcome.OK}, '{"a":"ok"}', id="enum"),
        pytest.param({Outcome.OK: 1}, '{"ok":1}', id="enum_key"),
        pytest.param({("x", 1): 2}, '{"x,1":2}', id="key_that_is_no_text"),
        pytest.param(
            {"a": Usage(1, 0, 2, math.nan)},
            '{"a":{"tokens_in":1,"tokens_cached":0,"tokens_out":2,"latency_s":null,"queued_s":0.0,"usd":0.0}}',
            id="record_within",
        ),
        pytest.param(
            Usage(1),
            '{"tokens_in":1,"tokens_cached":0,"tokens_out":0,"latency_s":0.0,"queued_s":0.0,"usd":0.0}',
            id="record",
        ),
    ],
)
def test_line(tmp_path: Path, record: Any, line: str) -> None:
    write_jsonl(tmp_path / "out.jsonl", [record])
    assert (tmp_path / "out.jsonl").read_text() == f"{line}\n"


def link_file(path: Path, how: str, folder: Path) -> str:
    """Return another name of a file."""
    if how == "symbolic":
        (folder / "link").symlink_to(path)
        return str(folder / "link")
    if how == "hard":
        os.link(path, folder / "link")
        return str(folder / "link")
    return {"same": str(path), "relative": os.path.relpath(path)}[how]


COMMANDS = {
    "score": "score --input IN --output OUT",
    "compare": "compare --input IN --output OUT",
    "classify": "classify --input IN --output OUT",
    "journal": "journal export IN --output OUT",
    "config": "score --input in.jsonl --config IN --output OUT",
    "eval-p": "evaluate eval-p --data IN --json OUT",
    "pairs": "evaluate pairs --data IN --json OUT",
    "eval-r": "evaluate eval-r --data IN --json OUT",
    "best-of-four": "evaluate best-of-four --data IN --json OUT",
    "kappa": "evaluate kappa --results in.jsonl IN --json OUT",
    "leaderboard": "evaluate leaderboard --results IN --output OUT",
}
CASES = [(name, "same") for name in COMMANDS]
CASES += [(name, how) for name in ("score", "eval-p") for how in ("relative", "symbolic", "hard")]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_no_command_writes_over_what_it_reads(
    name: str,
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text("{}\n")
    source = tmp_path / "a"
    source.write_text("not what any command reads")
    output = link_file(source, how, tmp_path)
    command_line = [
        {"IN": str(source), "OUT": output}.get(word, word) for word in COMMANDS[name].split()
    ]
    before = sorted(tmp_path.iterdir())
    assert cli.main(command_line) == 1
    assert f"{output}: the run would write over its input {source}: name" in capsys.readouterr().err
    assert source.read_text() == "not what any command reads"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "source", ["out.summary.json", ".out.part", ".out.claim", "out.journal.sqlite-wal"]
)
def test_what_goes_beside_an_output_is_no_input(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / source
    path.write_text("kept")
    assert cli.main(["score", "--input", str(path), "--output", str(tmp_path / "out")]) == 1
    assert "would write over its input" in capsys.readouterr().err
    assert path.read_text() == "kept"


def test_standard_input_is_a_file_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"query": "q", "response": "r"}\n')
    command = [sys.executable, "-m", "autoj_reward.cli", "classify", "--input", "-", "--output"]
    with path.open() as file:
        result = subprocess.run(
            [*command, str(path)], stdin=file, capture_output=True, text=True, check=False
        )
    assert result.returncode == 1
    assert f"{path}: the run would write over its input -" in result.stderr
    assert path.read_text() == '{"query": "q", "response": "r"}\n'


RUNS: dict[str, dict[str, Any]] = {
    "best-of-n": {"input": "INPUT"},
    "train grpo": {"input": "INPUT"},
    "train rejection-sampling": {"input": "INPUT", "policy": {}},
    "train judge": {"model": "no-model", "data": {"compared": ["INPUT"]}},
    "train scalar": {"model": "no-model", "data": {"compared": ["INPUT"]}},
    "collect": {
        "protocol": "single",
        "teacher": {"kind": "fake"},
        "sources": [{"path": "INPUT"}],
    },
}


@pytest.mark.parametrize("where", ["inside", "linked"])
@pytest.mark.parametrize("command", RUNS)
def test_no_run_reads_what_lies_in_its_output(
    command: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inputs inside the output folder, or where a link in it points."""
    output = tmp_path / "out"
    output.mkdir()
    source = (output if where == "inside" else tmp_path) / "selections.jsonl"
    source.write_text("kept")
    if where == "linked":
        (output / "selections.jsonl").symlink_to(source)
    config_text = json.dumps(RUNS[command]).replace("INPUT", str(source))
    (tmp_path / "run.yaml").write_text(config_text)
    command_line = ["--config", str(tmp_path / "run.yaml"), "--set", f"output={output}"]
    assert cli.main([*command.split(), *command_line]) == 1
    errors = capsys.readouterr().err
    lies_in = f"{output}: the input {source} lies in this output folder"
    over = f"{output / 'selections.jsonl'}: the run would write over its input {source}"
    assert (lies_in if where == "inside" else over) in errors
    assert source.read_text() == "kept" and len(list(output.iterdir())) == 1


def test_a_run_may_write_into_a_folder_of_the_data_s_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "run").mkdir(parents=True)
    (data / "run" / "summary.json").write_text("{}")
    require_apart([data, "hf://a/b", "no/such/file", None], folder=data / "run")
    with pytest.raises(OutputError, match=r"state\.json: the run would write over its input"):
        require_apart([data], [data / "state.json"])


def test_a_link_in_place_of_a_part_is_not_followed(tmp_path: Path) -> None:
    victim, part = tmp_path / "victim", tmp_path / ".out.part"
    for link in (part.symlink_to, part.hardlink_to):
        victim.write_text("kept")
        link(victim)
        with filling(tmp_path / "out") as file:
            file.add(b"own")
        assert victim.read_text() == "kept"
        assert (tmp_path / "out").read_text() == "own" and not part.exists()


def test_a_part_that_a_killed_process_left_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / ".out.part").write_bytes(b"of the killed one")
    with filling(tmp_path / "out") as file:
        file.add(b"whole")
    assert (tmp_path / "out").read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
