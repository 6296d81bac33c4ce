"""An output belongs to one process and one judge, and is tested for writing before
anything else."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.config import ScoreConfig
from autoj_reward.errors import ConfigError, OutputError
from autoj_reward.io.claims import CLAIM, claim, judged_by
from autoj_reward.io.claims import holder as holder_of
from autoj_reward.io.files import write_text

HOLD = """
import sys, time
from pathlib import Path
from autoj_reward.config import ScoreConfig
from autoj_reward.io.claims import claim, judged_by

output, result = map(Path, sys.argv[1:3])
if sys.argv[3] == "judged_by":
    with judged_by("judge", output, result, command="autoj score"):
        print("holds", flush=True)
        sys.stdin.read()
claim(output, ScoreConfig(), set())
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def hold_output(output: Path, result: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """Yield another process that holds an output."""
    command = [sys.executable, "-c", HOLD, str(output), str(result), how]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "holds\n"
        yield process
        process.kill()


def take(output: Path, result: Path, how: str) -> None:
    if how == "claim":
        claim(output, ScoreConfig(), set())
    else:
        with judged_by("judge", output, result, command="autoj score"):
            pass


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("folder/summary.json", "judged_by"),
        ("scored.jsonl", "judged_by"),
        ("folder/x", "claim"),
    ],
)
def test_two_runs_at_once_are_refused_and_a_killed_one_holds_nothing(
    tmp_path: Path, name: str, how: str
) -> None:
    result = tmp_path / name
    output = result.parent if "/" in name else result
    path = output / CLAIM if "/" in name else output.with_name(f".{output.name}{CLAIM}")
    assert holder_of(path) is None and not path.exists()
    with hold_output(output, result, how) as other:
        assert holder_of(path) == other.pid
        message = (
            f"{output}: another run is at work there (process {other.pid} on {os.uname().nodename})"
        )
        for _ in range(2):  # the refused one takes nothing from the one that holds it
            with pytest.raises(ConfigError, match=re.escape(message)):
                take(output, result, how)
        other.send_signal(signal.SIGKILL)
    assert holder_of(path) is None
    take(output, result, how)
    take(output, result, how)


def test_a_training_s_ranks_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hold_output(tmp_path, tmp_path / "x", "claim"):
        monkeypatch.setenv("RANK", "1")
        claim(tmp_path, ScoreConfig(), set())


def test_results_of_another_judge_stay(tmp_path: Path) -> None:
    result = tmp_path / "scored.jsonl"
    with judged_by("judge:a", result, result, command="autoj score"):
        pass
    with judged_by("judge:b", result, result, command="autoj score"):  # nothing was written yet
        result.write_text("b's")
    with pytest.raises(ConfigError) as caught:
        take_as("judge:c", result)
    assert str(caught.value) == (
        f"{result} holds the results of judge:b, and this run's are of judge:c: name another "
        "output, or move this one away"
    )
    take_as("judge:b", result)
    result.unlink()
    take_as("judge:c", result)


def take_as(judge: str, result: Path, command: str = "autoj score") -> None:
    with judged_by(judge, result, result, command=command):
        pass


def test_a_claim_that_was_cut_off_is_none(tmp_path: Path) -> None:
    result = tmp_path / "scored.jsonl"
    for text in ("", '{"ju', '{"judge": "a', "\0\0\0"):
        result.write_text("someone's")
        (tmp_path / ".scored.jsonl.claim").write_text(text)
        with pytest.raises(OutputError, match="no run of autoj has written it"):
            take_as("judge", result)
        result.unlink()
        take_as("judge", result)


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "stopped"])
def test_only_a_file_that_a_run_has_written_is_replaced(tmp_path: Path, finished: bool) -> None:
    result = tmp_path / "scored.jsonl"

    def write(text: str) -> None:
        with judged_by("judge", result, result, command="autoj score"):
            write_text(result, text)
            if not finished:
                raise KeyboardInterrupt

    def run(text: str) -> None:
        with nullcontext() if finished else pytest.raises(KeyboardInterrupt):
            write(text)
        assert result.read_text() == text

    run("one")
    run("two")  # also over what a run that was stopped has left
    for change in (result.write_text, partial(replace_file, result)):
        change("somebody's")
        for _ in range(2):
            with pytest.raises(OutputError, match="no run of autoj has written it"):
                write("three")
            assert result.read_text() == "somebody's"
        result.unlink()
        run("three")


def replace_file(path: Path, text: str) -> None:
    new = path.with_name("new")
    new.write_text(text)
    new.replace(path)


def test_a_run_goes_on_in_a_folder_that_was_moved_or_copied(tmp_path: Path) -> None:
    for folder in ("first", "second", "third"):
        if folder == "second":
            (tmp_path / "first").rename(tmp_path / folder)
        elif folder == "third":
            shutil.copytree(tmp_path / "second", tmp_path / folder)
        output = tmp_path / folder
        result = output / "summary.json"
        with judged_by("judge", output, result, command="autoj check", files=[output / "page"]):
            write_text(result, folder)
            write_text(output / "page", folder)


def test_results_of_another_command_stay(tmp_path: Path) -> None:
    result = tmp_path / "scored.jsonl"
    with judged_by("judge", result, result, command="autoj score"):
        write_text(result, "scores")
    with pytest.raises(ConfigError) as caught:
        take_as("judge", result, "autoj rank")
    assert str(caught.value) == (
        f"{result} holds the results of autoj score, and this run's are of autoj rank: name "
        "another output, or move this one away"
    )
    assert result.read_text() == "scores"
    take_as("judge", result)  # the refusal has changed nothing
    result.unlink()
    take_as("judge", result, "autoj rank")


def make_odd(path: Path, kind: str, victim: Path) -> None:
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(victim)
        case "hard link":
            path.hardlink_to(victim)
        case "text":
            path.write_text("notes of mine")
        case "deep":
            path.write_text('{"judge": ' + "[" * 60_000)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "hard link", "text", "deep"])
@pytest.mark.parametrize("command", ["best-of-n", "score"])
def test_an_odd_claim_is_named_and_left(
    tmp_path: Path, command: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"query": "q", "responses": ["a", "bb"]} if command == "best-of-n" else SINGLE
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    output, victim = tmp_path / "out", tmp_path / "victim"
    victim.write_text("kept")
    in_folder = command == "best-of-n"
    if in_folder:
        output.mkdir()
    path = output / CLAIM if in_folder else tmp_path / f".out{CLAIM}"
    make_odd(path, kind, victim)
    before = path.read_text() if kind in ("text", "deep") else ""
    arguments, log = make_command(command, tmp_path, output)
    assert cli.main(arguments) == 1
    assert f"{path}: this is no claim of a run" in capsys.readouterr().err
    assert victim.read_text() == "kept" and not log.exists()
    assert holder_of(path) is None
    assert not before or path.read_text() == before


def test_a_config_of_a_run_that_is_no_text_is_another_s(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="holds a run of another config"):
        claim(tmp_path, ScoreConfig(), set())


@pytest.mark.parametrize("how", ["judged_by", "claim"])
def test_an_output_has_one_claim_by_whatever_links_it_is_named(tmp_path: Path, how: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "there")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "there" / "scored.jsonl")
    names = [(tmp_path / "there", tmp_path / "linked")]
    if how == "judged_by":
        file = tmp_path / "there" / "scored.jsonl"
        names += [(file, tmp_path / "link.jsonl"), (file, tmp_path / "linked" / "scored.jsonl")]
    for target, link in names:
        for first, second in ((target, link), (link, target)):
            result = {path: path if path.suffix else path / "x" for path in (first, second)}
            with (
                hold_output(first, result[first], how),
                pytest.raises(ConfigError, match="another run is at work there"),
            ):
                take(second, result[second], how)


@pytest.mark.parametrize("command", ["best-of-n", "score"])
def test_another_judge_is_refused_before_it_judges(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"query": "q", "responses": ["a", "bb"]} if command == "best-of-n" else SINGLE
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    arguments, log = make_command(command, tmp_path, tmp_path / "out")
    assert cli.main(arguments) == 0
    size = log.stat().st_size
    assert cli.main(arguments) == 0
    capsys.readouterr()
    assert cli.main([*arguments, "--set", "judge.max_tokens=77"]) == 1
    errors = capsys.readouterr().err
    recorded_judge, new_judge = re.findall(r"default:autoj-en:\w+", errors)
    assert recorded_judge != new_judge and "name another output, or move this one away" in errors
    assert log.stat().st_size == size


PAIR = {"prompt": "q", "chosen": "a", "rejected": "bb", "subset": "s", "id": 1}
EVALUATED: dict[str, tuple[dict[str, object], list[str]]] = {
    "pairs": ({"input": "q", "output_1": "a", "output_2": "b", "label": 1}, []),
    "eval-p": (
        {"prompt": "q", "response 1": "a", "response 2": "b", "label": 0, "scenario": "chitchat"},
        [],
    ),
    "best-of-four": ({**PAIR, "chosen": ["a"], "rejected": ["bb"]}, []),
}


@pytest.mark.parametrize("task", EVALUATED)
def test_an_evaluation_holds_its_result_by_process_and_by_judge(
    tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row, more = EVALUATED[task]
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    result = tmp_path / "result.json"
    files = ["--data", str(tmp_path / "data.jsonl"), "--json", str(result), *more]
    arguments = ["evaluate", task, *files, "--set", "judge.kind=fake"]
    with hold_output(result, result, "judged_by"):
        assert cli.main(arguments) == 1
    assert "another run is at work there" in capsys.readouterr().err
    assert cli.main(arguments) == 0 == cli.main(arguments)
    before = result.read_bytes()
    capsys.readouterr()
    assert cli.main([*arguments, "--set", "judge.max_tokens=77"]) == 1
    recorded_judge, new_judge = re.findall(
        r"default:autoj-en:\w+", errors := capsys.readouterr().err
    )
    assert recorded_judge != new_judge and f"{result} holds the results of" in errors
    assert result.read_bytes() == before


def test_a_result_of_verdicts_of_a_file_belongs_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row, _ = EVALUATED["eval-p"]
    data, result = tmp_path / "data.jsonl", tmp_path / "result.json"
    data.write_text(json.dumps(row) + "\n")
    verdicts = tmp_path / "verdicts.jsonl"
    verdicts.write_text('{"output": 0}\n')
    arguments = ["evaluate", "eval-p", "--data", str(data), "--json", str(result)]
    assert cli.main([*arguments, "--verdicts", str(verdicts)]) == 0
    other = verdicts.rename(tmp_path / "other.jsonl")
    capsys.readouterr()
    assert cli.main([*arguments, "--verdicts", str(other)]) == 1
    assert f"holds the results of {verdicts}" in capsys.readouterr().err


SINGLE = {"query": "q", "response": "r"}


def make_command(command: str, folder: Path, output: Path) -> tuple[list[str], Path]:
    """Return a command line with the scripted judge, and the path of the judge's log."""
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
    """Yield a folder that every user can write; pytest's own are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


AS_NOBODY = """
import os, sys
import autoj_reward.cli.judging, rollouts.best_of_n.job
from autoj_reward.cli import main as cli
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
    arguments, _ = make_command(command, everyones, locked / "out")
    if command == "best-of-n":  # its journal may be elsewhere
        arguments += ["--set", f"journal={everyones / 'open/j.sqlite'}"]
    locked.chmod(0o555)
    log.chmod(0o666)
    result = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(everyones), "AUTOJ_CACHE": str(everyones / "cache")},
    )
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    assert f"cannot write {locked / 'out'}: Permission denied: give this user" in result.stderr
    assert log.read_text() == ""
