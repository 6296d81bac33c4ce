"""Outputs of commands: a run replaces what a run has written, and no other file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput
from tests.cli.test_golden import CASES, DRAWN, FAKE, write_inputs
from tests.judgements import rated

ROOT = Path(__file__).parents[2]
FOREIGN = b"SQLite format 3\0the journal of another run"
PAIRS = "evaluate pairs --data {folder}/llmbar.jsonl"
MORE: dict[str, tuple[str, list[str], list[str]]] = {
    "rank": (
        "rank --input {folder}/q.jsonl --output {folder}/o.jsonl --set judge.format=listwise",
        FAKE,
        ["o.jsonl", "o.jsonl.summary.json"],
    ),
    "check": (
        "check --sample 2 --output {folder}/out",
        FAKE,
        ["out/check.json", "out/check.html"],
    ),
    "rubrics audit": (
        "rubrics audit --input {folder}/made.jsonl --output {folder}/out "
        "--set judge.format=rubric-item",
        FAKE,
        ["out/audit.json", "out/audit.md", "out/audit.html"],
    ),
    "journal export": (
        "journal export {folder}/j.sqlite --output {folder}/o.jsonl",
        [],
        ["o.jsonl"],
    ),
    "judges, page": (
        "evaluate judges --data {folder}/llmbar.jsonl --json {folder}/o.json "
        "--judge {folder}/judge.yaml --set judges.b.judge.kind=fake --set bootstrap=20",
        [],
        ["o.json", "o.rows.jsonl", "o.html"],
    ),
    "leaderboard": (
        "evaluate leaderboard --results {folder}/a.json --output {folder}/o.html",
        [],
        ["o.html"],
    ),
    "kappa": (
        "evaluate kappa --results {folder}/a.json {folder}/b.json --json {folder}/o.json",
        [],
        ["o.json"],
    ),
    "best-of-n, pages": (
        "best-of-n --config {folder}/job.yaml",
        [],
        ["out/report.html", "out/curve.svg"],
    ),
}
WRITING = {name: case for name, case in (CASES | MORE).items() if case[2]}


def run(words: str, more: Sequence[str], folder: Path) -> int:
    return cli.main([*words.replace("{folder}", str(folder)).split(), *more])


def write_more_inputs(folder: Path) -> None:
    """Write what the commands of MORE read: a journal and a rubric."""
    with closing(Journal(folder / "j.sqlite")) as journal:
        journal.put("judge", JudgeInput("single", "q", ("r",)), rated(5))
    rubric = {"query": "Why?", "rubric": [{"criterion": 'Says "light"', "points": 1}]}
    (folder / "made.jsonl").write_text(json.dumps(rubric) + "\n")


@pytest.mark.parametrize("name", WRITING)
def test_a_file_that_no_run_has_written_is_not_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_inputs(tmp_path)
    write_more_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    if name in ("leaderboard", "kappa"):
        assert run(f"{PAIRS} --json {{folder}}/a.json", DRAWN, tmp_path) == 0
        other = [*DRAWN, "--set", "judge.script={verdicts: first}"]
        assert run(f"{PAIRS} --json {{folder}}/b.json", other, tmp_path) == 0
    words, more, files = WRITING[name]
    for file in files:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(FOREIGN)
        for _ in range(2):  # the refusal leaves nothing that lets the next run through
            capsys.readouterr()
            assert run(words, more, tmp_path) == 1
            assert f"error: {path} exists, and no run of autoj" in capsys.readouterr().err
            assert path.read_bytes() == FOREIGN
        path.unlink()
    (tmp_path / files[0]).touch()  # an empty file keeps nothing
    for _ in range(2):  # a run replaces what it has written itself
        assert run(words, more, tmp_path) == 0
        assert all((tmp_path / file).stat().st_size for file in files)
    for file in files:
        path = tmp_path / file
        written = path.with_name("written")
        path.rename(written)
        path.write_bytes(FOREIGN)
        capsys.readouterr()
        assert run(words, more, tmp_path) == 1
        assert f"error: {path} exists, and no run of autoj" in capsys.readouterr().err
        assert path.read_bytes() == FOREIGN
        written.replace(path)
    assert run(words, more, tmp_path) == 0


JUDGING = {
    "score": ["--set", "judge.format=general"],
    "compare": ["--set", "judge.format=general"],
    "rank": ["--set", "judge.format=general", "--set", "relative.by=comparisons"],
}


@pytest.mark.parametrize("first", JUDGING)
@pytest.mark.parametrize("second", JUDGING)
def test_a_command_replaces_its_own_results_alone(
    first: str, second: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"query": "Why?", "response": "a", "response_1": "a", "response_2": "bc"}
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(texts | {"responses": ["a", "bc"]}) + "\n")
    output = tmp_path / "o.jsonl"
    words = f"--input {source} --output {output}"
    assert run(f"{first} {words}", [*FAKE, *JUDGING[first]], tmp_path) == 0
    results = output.read_bytes()
    capsys.readouterr()
    code = run(f"{second} {words}", [*FAKE, *JUDGING[second]], tmp_path)
    assert output.read_bytes() == results
    if first == second:
        assert code == 0
    else:
        assert code == 1
        assert f"{output} holds the results of autoj {first}, and" in capsys.readouterr().err


UNREAD = {
    "--help": "--help",
    "models": "models",
    "journal stats": "journal stats {folder}/j.sqlite",
    "scenarios": "scenarios",
} | {
    name: " ".join([CASES[name][0], *CASES[name][1]])
    for name in ("score", "best-of-n", "pairs", "parse", "plan", "collect")
}


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.parametrize("unbuffered", [False, True], ids=["buffered", "unbuffered"])
def test_a_command_whose_reader_has_gone_ends_without_a_traceback(
    name: str, unbuffered: bool, tmp_path: Path
) -> None:
    write_inputs(tmp_path)
    write_more_inputs(tmp_path)
    words = UNREAD[name].replace("{folder}", str(tmp_path)).split()
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        ended = subprocess.run(
            [sys.executable, "-m", "autoj_reward.cli", *words],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1" * unbuffered},
        )
    assert ended.returncode in (0, 128 + signal.SIGPIPE)
    assert "Traceback" not in ended.stderr and "BrokenPipe" not in ended.stderr
