"""The output of a run belongs to one process and one judge, and is tried before anything else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoj_reward import cli
from autoj_reward.config import ScoreConfig
from autoj_reward.errors import ConfigError
from autoj_reward.io.claims import CLAIM, alone, claim, judged_by
from autoj_reward.io.claims import holder as holder_of

HOLD = """
import sys, time
from pathlib import Path
from autoj_reward.config import ScoreConfig
from autoj_reward.io.claims import alone, claim, judged_by

output, result = map(Path, sys.argv[1:3])
if sys.argv[3] == "judged_by":
    with judged_by("judge", output, result):
        print("holds", flush=True)
        sys.stdin.read()
if sys.argv[3] == "alone":
    with alone(result):
        print("holds", flush=True)
        sys.stdin.read()
claim(output, ScoreConfig(), set())
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(output: Path, result: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds an output."""
    command = [sys.executable, "-c", HOLD, str(output), str(result), how]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "holds\n"
        yield process
        process.kill()


def take(output: Path, result: Path, how: str) -> None:
    if how == "claim":
        claim(output, ScoreConfig(), set())
    elif how == "alone":
        with alone(result):
            pass
    else:
        with judged_by("judge", output, result):
            pass


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("folder/summary.json", "judged_by"),
        ("scored.jsonl", "judged_by"),
        ("folder/x", "claim"),
        ("result.json", "alone"),
    ],
)
def test_two_runs_at_once_are_refused_and_a_killed_one_holds_nothing(
    tmp_path: Path, name: str, how: str
) -> None:
    result = tmp_path / name
    output = result.parent if "/" in name else result
    path = output / CLAIM if "/" in name else output.with_name(f".{output.name}{CLAIM}")
    assert holder_of(path) is None and not path.exists()
    with holder(output, result, how) as other:
        assert holder_of(path) == other.pid
        said = (
            f"{output}: another run is at work there (process {other.pid} on {os.uname().nodename})"
        )
        for _ in range(2):  # the refused one takes nothing from the one that holds it
            with pytest.raises(ConfigError, match=re.escape(said)):
                take(output, result, how)
        other.send_signal(signal.SIGKILL)
    assert holder_of(path) is None
    take(output, result, how)
    take(output, result, how)


def test_a_training_s_ranks_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder(tmp_path, tmp_path / "x", "claim"):
        monkeypatch.setenv("RANK", "1")
        claim(tmp_path, ScoreConfig(), set())


def test_results_of_another_judge_stay(tmp_path: Path) -> None:
    result = tmp_path / "scored.jsonl"
    with judged_by("judge:a", result, result):
        pass
    with judged_by("judge:b", result, result):  # nothing was written yet
        result.write_text("b's")
    with pytest.raises(ConfigError) as caught:
        take_as("judge:c", result)
    assert str(caught.value) == (
        f"{result} holds the results of the judge judge:b, and this run's is judge:c: name another "
        "output, or remove it"
    )
    take_as("judge:b", result)
    result.unlink()
    take_as("judge:c", result)


def take_as(judge: str, result: Path) -> None:
    with judged_by(judge, result, result):
        pass


def test_a_claim_that_was_cut_off_is_none(tmp_path: Path) -> None:
    result = tmp_path / "scored.jsonl"
    result.write_text("someone's")
    for text in ("", '{"judge": "a', "[]"):
        (tmp_path / ".scored.jsonl.claim").write_text(text)
        take_as("judge", result)


@pytest.mark.parametrize("command", ["best-of-n", "score"])
def test_another_judge_is_refused_before_it_judges(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"query": "q", "responses": ["a", "bb"]} if command == "best-of-n" else SINGLE
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    arguments, log = typed(command, tmp_path, tmp_path / "out")
    assert cli.main(arguments) == 0
    size = log.stat().st_size
    assert cli.main(arguments) == 0
    capsys.readouterr()
    assert cli.main([*arguments, "--set", "judge.max_tokens=77"]) == 1
    said = capsys.readouterr().err
    there, wanted = re.findall(r"default:autoj-en:\w+", said)
    assert there != wanted and "name another output, or remove it" in said
    assert log.stat().st_size == size


SINGLE = {"query": "q", "response": "r"}


def typed(command: str, folder: Path, output: Path) -> tuple[list[str], Path]:
    """A command on the scripted judge, and the log of what that was asked."""
    log, sets = (
        folder / "log.jsonl",
        ["judge.kind=fake", f"judge.script.log={folder / 'log.jsonl'}"],
    )
    files = ["--input", str(folder / "in.jsonl"), "--output", str(output)]
    if command == "best-of-n":
        path = folder / "run.yaml"
        path.write_text(json.dumps({"input": files[1], "output": files[3]}))
        files = ["--config", str(path)]
    return [command, *files, *(word for item in sets for word in ("--set", item))], log


@pytest.fixture
def everyones() -> Iterator[Path]:
    """A folder that every user may read; pytest's own are for one."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


AS_NOBODY = """
import os, sys
import autoj_reward.commands.score, rollouts.best_of_n.job
from autoj_reward import cli
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["best-of-n", "score"])
def test_a_read_only_folder_is_noticed_before_anything_is_judged(
    everyones: Path, command: str
) -> None:
    row = {"query": "q", "responses": ["a", "bb"]} if command == "best-of-n" else SINGLE
    (everyones / "in.jsonl").write_text(json.dumps(row))
    locked, log = everyones / "locked", everyones / "log.jsonl"
    locked.mkdir()
    log.touch()
    arguments, _ = typed(command, everyones, locked / "out")
    if command == "best-of-n":  # its journal may be elsewhere
        arguments += ["--set", f"journal={everyones / 'open/j.sqlite'}"]
    locked.chmod(0o555)
    log.chmod(0o666)
    told = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "HOME": str(everyones), "AUTOJ_CACHE": str(everyones / "cache")},
    )
    assert told.returncode == 1 and "Traceback" not in told.stderr, told.stderr
    assert f"cannot write {locked / 'out'}: Permission denied: give this user" in told.stderr
    assert log.read_text() == ""
