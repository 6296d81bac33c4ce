"""A killed job goes on after the results that it had written."""

from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.io.rows import QueryRow
from autoj_reward.io.stream import LeftOut
from autoj_reward.types import Candidate, Judgement, Outcome, Rating, Selection, Usage
from rollouts.best_of_n.group import GroupResult
from rollouts.best_of_n.results import writing
from rollouts.best_of_n.sample import Sample
from rollouts.best_of_n.so_far import NAME, RESULTS, Checkpoint, SoFar
from rollouts.best_of_n.summary import Figures
from tests.rollouts.test_job import ROOT, Job, judged

KILLED = """
import os, signal, sys
from autoj_reward import cli
from rollouts.best_of_n import so_far

so_far.EVERY_S, so_far.SHARE = 0.0, 1e9
add = so_far.SoFar.add

def added(self, group):
    add(self, group)
    if self.queries == 40:
        os.kill(os.getpid(), signal.SIGKILL)

so_far.SoFar.add = added
cli.main(sys.argv[1:])
"""
"""A job that keeps what it has after each query, and is killed before it has kept the 40th."""


def group(number: int) -> GroupResult:
    texts = [f"{number} {k}" for k in range(3)]
    judgements = [
        Judgement(Outcome.OK, rating=Rating(float(k + number % 7)), usage=Usage(1, 0, k, 0.5))
        for k in range(2)
    ]
    judgements.append(Judgement(Outcome.UNPARSABLE, reason=f"reason {number}", flags=("a",)))
    return GroupResult(
        QueryRow(number, f"q{number}", tuple(texts), extra={"id": [number]}),
        tuple(Candidate(f"q{number}", text) for text in texts),
        tuple(judgements),
        Selection(1, "rating"),
    )


def fresh() -> SoFar:
    return SoFar(Figures("rating"), Sample("rating"))


def killed(folder: Path, queries: int, job: str = "job") -> SoFar:
    """What a job has gathered that wrote so many queries, kept that, and went on for one more."""
    folder.mkdir(exist_ok=True)
    so_far = fresh()
    for number in range(queries):
        so_far.add(group(number))
    for name in RESULTS:
        (folder / f".{name}.part").write_bytes(b"{}\n" * (queries + 1))
    so_far.sizes = (3 * queries, 3 * queries)
    Checkpoint(folder, lambda: job).write(so_far)
    return so_far


def told(so_far: SoFar) -> Any:
    return so_far.figures.summary(LeftOut(), {}), so_far.sample.shown()


@pytest.mark.parametrize("queries", [1, 150, 400])
def test_a_job_that_goes_on_ends_as_one_that_was_never_killed(tmp_path: Path, queries: int) -> None:
    killed(tmp_path, queries)
    whole, found = fresh(), Checkpoint(tmp_path, lambda: "job").read()
    assert found is not None
    assert found.queries == queries
    for number in range(queries + 50):
        whole.add(group(number))
        if number >= queries:
            found.add(group(number))
    assert told(found) == told(whole)


def test_results_go_on_where_they_were_kept(tmp_path: Path) -> None:
    found = killed(tmp_path, 2)
    checkpoint = Checkpoint(tmp_path, lambda: "job")
    with writing(tmp_path, found, checkpoint) as add:
        add(group(2))
    lines = (tmp_path / RESULTS[0]).read_text().splitlines()
    assert lines[:2] == ["{}", "{}"]
    assert '"query": "q2"' in lines[2]
    assert len(lines) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(RESULTS)


class Harm:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, ("harmed",)


def harmful(folder: Path) -> None:
    checkpoint = Checkpoint(folder, lambda: "job")
    body = pickle.dumps(Harm())
    (folder / NAME).write_bytes(checkpoint._sum(body) + body)


def torn(folder: Path) -> None:
    whole = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(whole[:-9])


def of_before(folder: Path) -> None:
    checkpoint = Checkpoint(folder, lambda: "job")
    body = pickle.dumps([1, 2])
    (folder / NAME).write_bytes(checkpoint._sum(body) + body)


@pytest.mark.parametrize(
    ("damage", "job"),
    [
        pytest.param(lambda folder: None, "another", id="another_job"),
        pytest.param(lambda folder: None, "", id="a_job_that_keeps_nothing"),
        pytest.param(torn, "job", id="torn"),
        pytest.param(harmful, "job", id="would_run_something"),
        pytest.param(of_before, "job", id="something_else"),
        pytest.param(lambda f: (f / f".{RESULTS[1]}.part").unlink(), "job", id="without_results"),
        pytest.param(
            lambda f: (f / f".{RESULTS[0]}.part").write_bytes(b""), "job", id="less_results"
        ),
    ],
)
def test_what_does_not_fit_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], job: str
) -> None:
    monkeypatch.chdir(tmp_path)
    killed(tmp_path, 5)
    damage(tmp_path)
    assert Checkpoint(tmp_path, lambda: job).read() is None
    assert not Path("harmed").exists()


def test_a_killed_job_asks_nothing_of_what_it_has_written(tmp_path: Path) -> None:
    rows = [
        {"query": f"q{q}", "responses": [f"q{q} r{r} " + "x" * (r % 10) for r in range(8)]}
        for q in range(100)
    ]
    whole = Job(tmp_path / "whole", rows, {})
    assert whole.run() == 0
    job = Job(tmp_path / "killed", rows, {})
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, *job.arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL and (job.output / NAME).exists()
    before = len(judged(job.log))
    with sqlite3.connect(job.output / "journal.sqlite") as journal:  # all but the first is lost
        journal.execute("DELETE FROM judgements WHERE rowid > 1")
    assert job.run() == 0
    own, theirs = (j.output / "selections.jsonl" for j in (job, whole))
    assert own.read_bytes() == theirs.read_bytes()
    asked = judged(job.log)[before:]
    assert 0 < len(asked) <= len(judged(whole.log)) - 39 * 8
    found, wanted = job.summary(), whole.summary()
    for name in ("outcomes", "rules", "curve", "histogram", "spread", "comparisons", "queries"):
        assert found[name] == wanted[name], name
    assert found["reused"] >= len(judged(whole.log)) - len(asked)
    assert not (job.output / NAME).exists()
