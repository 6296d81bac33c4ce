from __future__ import annotations

import asyncio
import json
import pickle
import resource
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.cli import main as cli
from autoj_reward.config import BestOfNConfig
from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput
from rollouts.best_of_n.job import build_job
from rollouts.best_of_n.shards import Shard, judge_shard
from tests.judgements import rated
from tests.watch.conftest import ReadAnswers

ROOT = Path(__file__).parents[2]


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def list_judged_texts(log: Path) -> list[list[str]]:
    """The responses that the scripted judge was asked about, in order."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


class Job:
    """A best-of-N job on the scripted judge, in its own folder."""

    def __init__(
        self, folder: Path, rows: list[Any], script: dict[str, Any], **config: Any
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.output = folder / "out"
        self.log = folder / "log.jsonl"
        source = write_rows(folder / "in.jsonl", rows)
        judge = {"kind": "fake", "script": {"log": str(self.log)} | script}
        judge |= config.pop("judge", {})
        data = {"input": str(source), "output": str(self.output), "judge": judge} | config
        self.config = folder / "run.yaml"
        self.config.write_text(yaml.safe_dump(data))
        self.arguments = ["best-of-n", "--config", str(self.config)]

    def run(self, *more: str) -> int:
        return cli.main([*self.arguments, *more])

    def selections(self) -> list[dict[str, Any]]:
        return read_lines(self.output / "selections.jsonl")

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.output / "summary.json").read_text())
        return summary


ROWS: list[Any] = [
    {"query": "q1", "responses": ["a", "bb", "ccc"], "id": "one"},
    {"query": "q2", "responses": ["dd", "ee"], "logprobs": [-4, -3]},
    {"query": "q3", "responses": ["f", "g!", "h"]},
]
SCRIPT = {
    "ratings": {"a": 3, "bb": 8, "ccc": 5, "dd": 6, "ee": 6, "f": 4, "g!": 4, "h": 2},
}


def test_the_best_of_each_query_in_the_order_of_the_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, ROWS, SCRIPT)
    assert job.run() == 0
    choices = [
        (r["line"], r["query"], r["index"], r["response"], r["rule"]) for r in job.selections()
    ]
    # q3: equal ratings, no log-probabilities, equal expected ratings; the longer wins both matches
    assert choices == [
        (1, "q1", 1, "bb", "rating"),
        (2, "q2", 1, "ee", "policy_logprob"),
        (3, "q3", 1, "g!", "pairwise"),
    ]
    assert [r["rating"] for r in job.selections()] == [8, 6, 4]
    assert job.selections()[0]["extra"] == {"id": "one"}
    assert job.selections()[2]["tied"] == [0, 1]
    rows = read_lines(job.output / "judgements.jsonl")
    assert [(r["line"], r["index"], r["rating"]) for r in rows] == [
        (1, 0, 3), (1, 1, 8), (1, 2, 5), (2, 0, 6), (2, 1, 6), (3, 0, 4), (3, 1, 4), (3, 2, 2),
    ]  # fmt: skip
    summary = job.summary()
    assert (summary["queries"], summary["candidates"], summary["comparisons"]) == (3, 8, 1)
    assert summary["outcomes"]["ok"] == 8
    assert "<html" in (job.output / "report.html").read_text()
    assert sorted(map(tuple, list_judged_texts(job.log))) == sorted(
        [
            ("a",),
            ("bb",),
            ("ccc",),
            ("dd",),
            ("ee",),
            ("f",),
            ("g!",),
            ("h",),
            ("f", "g!"),
            ("g!", "f"),
        ]
    )
    assert "report:" in capsys.readouterr().out


def test_the_same_command_again_judges_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, ROWS, SCRIPT)
    assert job.run() == 0
    before = (job.output / "selections.jsonl").read_bytes(), len(list_judged_texts(job.log))
    assert job.run() == 0
    assert (
        (job.output / "selections.jsonl").read_bytes(),
        len(list_judged_texts(job.log)),
    ) == before


def test_failures_are_counted_and_never_win(tmp_path: Path) -> None:
    rows = [
        {"query": "q1", "responses": ["bad", "ok", "odd"]},
        {"query": "q2", "responses": ["bad"]},
    ]
    script = {"fail": {"bad": "unparsable", "odd": "rejected"}, "ratings": {"ok": 1}}
    job = Job(tmp_path, rows, script)
    assert job.run() == 0
    first, second = job.selections()
    assert (first["response"], first["rule"], first["outcome"]) == ("ok", "rating", "ok")
    assert (second["rule"], second["outcome"], second["rating"]) == (
        "all_failed",
        "unparsable",
        None,
    )
    assert first["ratings"] == [None, 1, None]
    counts = job.summary()["outcomes"]
    assert (counts["ok"], counts["unparsable"], counts["input_rejected"]) == (1, 2, 1)


BAD = [ROWS[0], "no json", {"responses": ["x"]}, {"query": "q9"}]


def test_bad_rows_are_named_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(tmp_path, BAD, SCRIPT)
    assert job.run() == 0
    assert [r["query"] for r in job.selections()] == ["q1"]
    bad = job.summary()["bad_rows"]
    assert [(b["line"], b["field"]) for b in bad] == [(2, ""), (3, "query"), (4, "responses")]
    output = "".join(capsys.readouterr())
    for line in (2, 3, 4):
        assert f"left out {tmp_path / 'in.jsonl'}:{line}: " in output
    assert "3 input rows left out" in output


def test_strict_stops_before_any_judgement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, BAD, SCRIPT)
    assert job.run("--strict") == 1
    assert "3 of 4 rows are bad" in capsys.readouterr().err
    assert not job.log.exists()
    assert not job.output.exists()


def test_no_usable_row_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(tmp_path, ["no json"], SCRIPT)
    assert job.run() == 1
    assert "no usable row; 1 left out" in capsys.readouterr().err


def test_output_that_cannot_be_written_is_found_before_judging(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, ROWS, SCRIPT)
    job.output.write_text("a file in the way")
    assert job.run() == 1
    err = capsys.readouterr().err
    assert str(job.output) in err and "Traceback" not in err
    assert not job.log.exists()


def test_a_result_file_that_cannot_be_written_loses_no_judgement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, ROWS, SCRIPT)
    (job.output / "selections.jsonl").mkdir(parents=True)
    assert job.run() == 1
    assert "selections.jsonl" in capsys.readouterr().err
    assert not job.log.exists()  # found before anything is judged
    (job.output / "selections.jsonl").rmdir()
    (job.output / "report.html").mkdir(parents=True)
    assert job.run() == 1
    count = len(list_judged_texts(job.log))
    assert count == 10
    (job.output / "report.html").rmdir()
    assert job.run() == 0
    assert len(list_judged_texts(job.log)) == count


def test_a_policy_answers_rows_without_responses(tmp_path: Path) -> None:
    rows = [{"query": "q1"}, ROWS[0] | {"query": "q2"}]
    job = Job(tmp_path, rows, SCRIPT, policy={"kind": "fake", "n": 3})
    assert job.run() == 0
    rated = read_lines(job.output / "judgements.jsonl")
    assert [r["response"][:14] for r in rated if r["line"] == 1] == [
        "q1 / answer 0 ",
        "q1 / answer 1 ",
        "q1 / answer 2 ",
    ]
    assert [r["policy_logprob"] for r in rated if r["line"] == 1] == [-1, -2, -3]
    assert [r["response"] for r in rated if r["line"] == 2] == ["a", "bb", "ccc"]
    # Lengths 14, 19 and 24 give ratings 5, 10 and 5.
    assert [r["rating"] for r in rated if r["line"] == 1] == [5, 10, 5]
    assert job.selections()[0]["index"] == 1


# Score and compare.


def run_single(tmp_path: Path, command: str, rows: list[Any], *more: str) -> tuple[int, Path]:
    source, target = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "scored.jsonl"
    sets = ["--set", "judge.kind=fake", "--set", f"judge.script.log={tmp_path / 'log.jsonl'}"]
    arguments = [command, "--input", str(source), "--output", str(target), *sets, *more]
    return cli.main(arguments), target


def test_score_keeps_rows_order_and_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"id": 7, "query": "q", "response": "xxx", "tags": ["t"]},
        {"query": "q"},
        {"query": "p", "response": "x"},
    ]
    code, target = run_single(tmp_path, "score", rows)
    assert code == 0
    first, second = read_lines(target)
    assert list(first)[:4] == ["id", "query", "response", "tags"]
    assert (first["id"], first["tags"], first["rating"], first["outcome"]) == (7, ["t"], 4, "ok")
    assert (second["query"], second["rating"]) == ("p", 2)
    assert "overwritten" not in first
    summary = json.loads((tmp_path / "scored.jsonl.summary.json").read_text())
    assert (summary["rows"], summary["outcomes"]) == (2, {"ok": 2})
    assert [(b["line"], b["field"]) for b in summary["left_out"]] == [(2, "response")]
    assert "2 rows: 2 ok; 1 left out" in capsys.readouterr().out


def test_score_keeps_a_clashing_field_aside(tmp_path: Path) -> None:
    row = {"query": "q", "response": "xxx", "rating": 1.5, "judge": "Ann", "note": "n"}
    code, target = run_single(tmp_path, "score", [row])
    assert code == 0
    [record] = read_lines(target)
    assert record["rating"] == 4
    assert record["judge"].startswith("default:")
    assert record["overwritten"] == {"rating": 1.5, "judge": "Ann"}
    assert record["note"] == "n"


def test_scores_scored_again_lose_nothing(tmp_path: Path) -> None:
    row = {"query": "q", "response": "xxx", "rating": 1, "overwritten": "mine"}
    code, target = run_single(tmp_path, "score", [row])
    assert code == 0
    [record] = read_lines(target)
    assert record["overwritten"] == {"rating": 1, "overwritten": "mine"}
    code, target = run_single(tmp_path, "score", [record])
    assert code == 0
    [again] = read_lines(target)
    assert again["overwritten"]["overwritten"] == {"rating": 1, "overwritten": "mine"}
    assert again["overwritten"]["rating"] == 4


def test_compare_says_both_orders(tmp_path: Path) -> None:
    rows = [
        {"query": "q", "response_1": "long", "response_2": "s", "verdict": "human says 2"},
        {"query": "q", "response_1": "aa", "response_2": "bb"},
    ]
    code, target = run_single(tmp_path, "compare", rows)
    assert code == 0
    first, second = read_lines(target)
    assert first["verdict"] == "first"
    assert [o["verdict"] for o in first["orders"]] == ["first", "second"]
    assert first["overwritten"] == {"verdict": "human says 2"}
    assert second["verdict"] == "tie"
    assert len(list_judged_texts(tmp_path / "log.jsonl")) == 4


@pytest.mark.parametrize(("swap", "verdict"), [("true", "inconsistent"), ("false", "first")])
def test_compare_of_a_judge_that_likes_the_first(tmp_path: Path, swap: str, verdict: str) -> None:
    row = {"query": "q", "response_1": "aa", "response_2": "bb"}
    more = ("--set", "judge.script.verdicts=first", "--set", f"swap={swap}")
    code, target = run_single(tmp_path, "compare", [row], *more)
    assert code == 0
    [record] = read_lines(target)
    assert (record["verdict"], record["outcome"]) == (verdict, "ok")
    assert len(record["orders"]) == (2 if swap == "true" else 1)


@pytest.mark.parametrize("command", ["score", "compare"])
def test_strict_score_stops_before_any_judgement(tmp_path: Path, command: str) -> None:
    good = {"query": "q", "response": "r", "response_1": "a", "response_2": "b"}
    code, target = run_single(tmp_path, command, [good, {"query": ""}], "--strict")
    assert code == 1
    assert not target.exists()
    assert not (tmp_path / "log.jsonl").exists()


def test_a_failed_row_is_a_row(tmp_path: Path) -> None:
    rows = [{"query": "q", "response": "bad"}, {"query": "q", "response": "xx"}]
    more = ("--set", "judge.script.fail={bad: truncated}")
    code, target = run_single(tmp_path, "score", rows, *more)
    assert code == 0
    bad, good = read_lines(target)
    assert (bad["outcome"], bad["rating"], bad["expected"]) == ("truncated", None, None)
    assert bad["reason"] == "no rating slot within the allowed tokens"
    assert good["rating"] == 3


# Kill and resume.

MANY = [
    {
        "query": f"q{q}",
        "responses": [f"q{q} r{r} " + "x" * ((q * 7 + r * 3) % 10) for r in range(8)],
    }
    for q in range(5)
]


AT_ONCE = ("--set", "judge.serve.max_ongoing=64")
"""What is left of a job that was slow enough to be killed is judged sixteen times as fast."""


def read_journal_inputs(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    journal = Journal(path)
    try:
        return [record["input"]["responses"] for record in journal.export()]
    finally:
        journal.close()


DIES = """
import os, signal, sys
from autoj_reward.cli import main as cli
from autoj_reward.journal import Journal

recorded = 0
put_all = Journal.put_all


def put_and_die(journal, judged):
    global recorded
    judgements = put_all(journal, judged)
    recorded += len(judgements)
    if recorded >= int(sys.argv[1]):
        os.killpg(os.getpid(), signal.SIGKILL)
    return judgements


Journal.put_all = put_and_die
cli.main(sys.argv[2:])
"""
"""Program that runs `autoj` and is killed once its journal has so many judgements."""


def kill_job(job: Job, moment: int) -> None:
    """Run a job that is killed, with its processes, once it has recorded `moment` judgements."""
    killed = subprocess.run(
        [sys.executable, "-c", DIES, str(moment), *job.arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    job = Job(tmp_path_factory.mktemp("whole"), MANY, {})
    assert job.run() == 0
    return (job.output / "selections.jsonl").read_bytes()


@pytest.mark.parametrize("moment", [1, 12, 25])
def test_a_killed_job_goes_on_where_it_stopped(
    tmp_path: Path, moment: int, uninterrupted: bytes
) -> None:
    job = Job(tmp_path, MANY, {"latency_s": 0.01}, judge={"serve": {"max_ongoing": 4}})
    journal = job.output / "journal.sqlite"
    kill_job(job, moment)
    assert not (job.output / "selections.jsonl").exists()
    recorded_inputs, before = read_journal_inputs(journal), len(list_judged_texts(job.log))
    assert len(recorded_inputs) >= moment
    assert job.run(*AT_ONCE) == 0
    assert (job.output / "selections.jsonl").read_bytes() == uninterrupted
    again = list_judged_texts(job.log)[before:]
    assert again
    assert [responses for responses in again if responses in recorded_inputs] == []
    assert len(read_journal_inputs(journal)) == len(recorded_inputs) + len(again)
    assert job.summary()["reused"] >= len([r for r in recorded_inputs if len(r) == 1])


def test_a_job_that_is_killed_again_and_again_ends_with_the_same_selections(
    tmp_path: Path,
) -> None:
    rows = [
        {"query": f"q{q}", "responses": [f"q{q} r{r} " + "x" * (r % 10) for r in range(8)]}
        for q in range(50)
    ]
    whole = Job(tmp_path / "whole", rows, {})
    job = Job(tmp_path / "killed", rows, {"latency_s": 0.02}, judge={"serve": {"max_ongoing": 4}})
    assert whole.run() == 0
    for moment in (40, 120, 120):  # judgements that are new in this run
        kill_job(job, moment)
        assert not (job.output / "selections.jsonl").exists()
    assert job.run(*AT_ONCE) == 0
    result, expected = (j.output / "selections.jsonl" for j in (job, whole))
    assert result.read_bytes() == expected.read_bytes()
    questions = [tuple(responses) for responses in list_judged_texts(job.log)]
    assert set(questions) == {tuple(responses) for responses in list_judged_texts(whole.log)}
    assert len(questions) - len(set(questions)) <= 16  # of three kills, with 4 under way at each
    leftovers = [path.name for path in job.output.iterdir() if path.suffix in (".part", ".tmp")]
    assert leftovers == []


def test_a_job_on_a_full_disk_says_so_and_goes_on_when_there_is_room(
    tmp_path: Path, uninterrupted: bytes
) -> None:
    job = Job(tmp_path, MANY, {}, judge={"serve": {"max_ongoing": 4}})
    result = subprocess.run(
        [sys.executable, "-m", "autoj_reward.cli", *job.arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        # The journal's log needs more for all of them.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000)),
        check=False,
    )
    assert result.returncode == 1 and "Traceback" not in result.stderr
    journal = job.output / "journal.sqlite"
    assert f"autoj: error: journal {journal}: " in result.stderr
    assert "free disk space" in result.stderr and "start the same command again" in result.stderr
    recorded_inputs = read_journal_inputs(journal)
    assert recorded_inputs and not (job.output / "selections.jsonl").exists()
    before = len(list_judged_texts(job.log))
    assert job.run() == 0
    assert (job.output / "selections.jsonl").read_bytes() == uninterrupted
    assert [r for r in list_judged_texts(job.log)[before:] if r in recorded_inputs] == []


@pytest.mark.parametrize(
    ("settings", "view", "direct"),
    [
        pytest.param({"judge": {"model": "default"}}, "direct", True, id="default"),
        pytest.param({"judge": {"model": "GAIR/autoj-13b"}}, "rating", False, id="13b"),
        pytest.param({"judge": {"kind": "fake"}}, "rating", False, id="scripted"),
        pytest.param({"judge": {"model": "default"}, "shortlist": 1}, "direct", False, id="listed"),
        pytest.param({"view": "direct"}, "direct", True, id="named"),
        pytest.param({"view": "expected"}, "expected", False, id="other"),
        pytest.param({"judge": {"critique": False}}, "direct", False, id="rating_alone"),
    ],
)
def test_the_view_that_ranks_is_the_judges_best(
    settings: dict[str, Any], view: str, direct: bool
) -> None:
    job = build_job(BestOfNConfig.model_validate({"input": "i", "output": "o"} | settings))
    assert (job.choice.view, job.judge.config.direct) == (view, direct)


def test_a_direct_view_is_read_beside_the_critique(tmp_path: Path) -> None:
    job = Job(tmp_path, ROWS, SCRIPT, view="direct")
    assert job.run() == 0
    assert job.summary()["view"] == "direct"
    rows = read_lines(job.output / "judgements.jsonl")
    assert all(row["direct"] is not None and row["critique"] for row in rows)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["journal_beside", "journal_elsewhere"])
def test_a_job_says_how_to_watch_it_and_is_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], elsewhere: bool, read_answers: ReadAnswers
) -> None:
    more = {"journal": str(tmp_path / "of all jobs.sqlite")} if elsewhere else {}
    job = Job(tmp_path, ROWS, SCRIPT, **more)
    assert job.run() == 0
    assert f"to watch: autoj watch {job.output}\n" in capsys.readouterr().err
    answer = read_answers(job.output).answer("run", {})
    assert (answer["state"], answer["total"], answer["journal"]["kinds"]["rating"]) == (
        "finished",
        8,
        8,
    )
    assert answer["summary"]["rules"] == job.summary()["rules"]
    page = answer["statistics"] | answer["views"]["rating"] | answer["summary"]
    shared_values = {name: value for name, value in job.summary().items() if name in page}
    assert {name: page[name] for name in shared_values} == shared_values
    assert {
        "candidates",
        "outcomes",
        "tie_rate",
        "spread",
        "usage",
        "curve",
    } <= shared_values.keys()


CRITIQUES = {"a": (2, 9, 9), "b": (7, 7, 7), "c": (5, 8, 10)}
"""Ratings of three critiques of each response: every vote puts another response first."""


@pytest.mark.parametrize(
    ("vote", "chosen", "rating"),
    [
        pytest.param("mean", "c", 23 / 3, id="mean"),
        pytest.param("median", "a", 9.0, id="median"),
        pytest.param("pessimistic", "b", 7.0, id="pessimistic"),
    ],
)
def test_the_vote_of_the_critiques_chooses_and_is_watched(
    tmp_path: Path, vote: str, chosen: str, rating: float, read_answers: ReadAnswers
) -> None:
    rows = [{"query": "q", "responses": list(CRITIQUES)}]
    judge = {"critiques": 3, "temperature": 0.7, "vote": vote}
    job = Job(tmp_path, rows, {}, judge=judge)
    config = BestOfNConfig.model_validate(yaml.safe_load(job.config.read_text()))
    name = build_job(config).judge.name
    with closing(Journal(job.output / "journal.sqlite")) as journal:
        for response, ratings in CRITIQUES.items():
            for sample, value in enumerate(ratings):
                item = JudgeInput("single", "q", (response,), sample)
                journal.put(name, item, rated(value, judge=name))
    assert job.run() == 0
    assert list_judged_texts(job.log) == []
    [selection] = job.selections()
    assert (selection["response"], selection["rating"]) == (chosen, pytest.approx(rating))

    answers = read_answers(job.output)
    values = [
        candidate["values"] for candidate in answers.answer("query", {"id": "1"})["candidates"]
    ]
    ratings_of_job = [row["rating"] for row in read_lines(job.output / "judgements.jsonl")]
    assert sorted(value["rating"] for value in values) == pytest.approx(sorted(ratings_of_job))
    [row] = answers.answer("queries", {})["rows"]
    assert row["best"] == pytest.approx(rating) == row["values"][-1]


def test_a_job_in_one_process_waits_for_no_ray(tmp_path: Path) -> None:
    job = Job(tmp_path, ROWS, SCRIPT)
    code = f"from autoj_reward.cli import main as cli; assert cli.main({job.arguments}) == 0"
    code += "; import sys; assert not {'ray', 'torch', 'vllm'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


CHOICES: dict[str, dict[str, Any]] = {
    "view": {"view": "expected", "tie_break": ["first"]},
    "shortlist": {"shortlist": 1},
    "relative": {"relative": {"by": "listwise"}, "judge": {"format": "listwise"}},
    "rubric": {"rubric": {"by": "items"}, "judge": {"format": "rubric-item"}},
}


@pytest.mark.parametrize("way", CHOICES)
def test_a_worker_needs_no_config_to_choose_as_the_job_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    items = {"rubric": [{"criterion": 'Names "bb"', "points": 2}]}
    rows = [row | (items if way == "rubric" else {}) for row in ROWS]
    alone = Job(tmp_path, rows, SCRIPT, **CHOICES[way])
    assert alone.run() == 0
    asked = len(list_judged_texts(alone.log))

    config = BestOfNConfig.model_validate(yaml.safe_load(alone.config.read_text()))
    monkeypatch.chdir(tmp_path)
    here = {"input": "in.jsonl", "output": Path("of worker")}
    job = build_job(config.model_copy(update=here)).absolute()
    # Pickled, as Ray Data sends it, and in another working directory.
    copied_job = pickle.loads(pickle.dumps(job))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shard = Shard(0, 0, len(rows), "key")
    asyncio.run(judge_shard(copied_job, shard, {}, None))
    folder = shard.part(tmp_path / "of worker")
    assert (folder / "selections.jsonl").read_bytes() == (
        alone.output / "selections.jsonl"
    ).read_bytes()
    assert len(list_judged_texts(alone.log)) == 2 * asked


def test_flags_name_the_input_and_the_output(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "in.jsonl", ROWS)
    output = tmp_path / "by flag"
    words = ["--input", str(rows), "--output", str(output), "--set", "judge.kind=fake"]
    assert cli.main(["best-of-n", *words]) == 0
    assert len(read_lines(output / "selections.jsonl")) == len(ROWS)
    # They replace those of a run file.
    job = Job(tmp_path / "job", [ROWS[0]], {})
    assert job.run("--output", str(tmp_path / "other")) == 0
    assert len(read_lines(tmp_path / "other" / "selections.jsonl")) == 1
    assert not job.output.exists()
