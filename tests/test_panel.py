"""Jobs with a panel of judges: `panel` in the run file of `autoj score` and `autoj best-of-n`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.watch.answers import Answers
from autoj_reward.watch.run import Run

MEMBERS = {
    "near": {"judge": {"kind": "fake", "script": {"words": 3}}},
    "far": {"judge": {"kind": "fake", "script": {"words": 1, "fail": {"a b": "unparsable"}}}},
}
JUDGE = {"kind": "fake", "script": {"words": 4, "fail": {"a b": "unparsable"}}}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def score(folder: Path, **config: Any) -> int:
    rows = [{"query": "q", "response": text} for text in ("a b c d", "a", "a b")]
    run = folder / "score.yaml"
    run.write_text(json.dumps({"judge": JUDGE, "panel": MEMBERS} | config), encoding="utf-8")
    source = str(write_rows(folder / "in.jsonl", rows))
    output = str(folder / "o.jsonl")
    return cli.main(["score", "--input", source, "--output", output, "--config", str(run)])


def test_score_gives_the_median_of_the_panel_and_each_rating(tmp_path: Path) -> None:
    assert score(tmp_path) == 0
    first, second, third = read_lines(tmp_path / "o.jsonl")
    assert (first["rating"], first["panel"]) == (9.0, {"judge": 10.0, "near": 9.0, "far": 7.0})
    assert (second["rating"], second["panel"]) == (8.0, {"judge": 7.0, "near": 8.0, "far": 10.0})
    assert (third["rating"], third["outcome"]) == (None, "unparsable")
    assert "1 of 3 judges of the panel rate it" in third["reason"]
    assert first["judge"].endswith(" by median")
    summary = json.loads((tmp_path / "o.jsonl.summary.json").read_text())
    assert summary["outcomes"] == {"ok": 2, "unparsable": 1}


def test_another_vote_does_not_replace_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert score(tmp_path, reduce="mean") == 0
    assert read_lines(tmp_path / "o.jsonl")[0]["rating"] == pytest.approx(26 / 3)
    assert score(tmp_path, reduce="median") == 1
    assert "holds the results of" in capsys.readouterr().err


def test_best_of_n_chooses_by_the_vote(tmp_path: Path) -> None:
    texts = ["a b c d", "a b c", "a", "a b"]
    source = write_rows(tmp_path / "in.jsonl", [{"query": "q", "responses": texts}])
    run = tmp_path / "job.yaml"
    run.write_text(json.dumps({"judge": JUDGE, "panel": MEMBERS}), encoding="utf-8")
    output = tmp_path / "out"
    words = ["best-of-n", "--config", str(run), "--input", str(source), "--output", str(output)]
    assert cli.main(words) == 0
    [selection] = read_lines(output / "selections.jsonl")
    # Of (10, 9, 7), (9, 10, 8), (7, 8, 10) and one that a single judge rates.
    assert selection["ratings"] == [9.0, 9.0, 8.0, None]
    assert selection["index"] == 0 and selection["tied"] == [0, 1]
    rows = read_lines(output / "judgements.jsonl")
    assert rows[1]["panel"] == {"judge": 9.0, "near": 10.0, "far": 8.0}
    assert "panel" not in rows[3]
    assert (output / "report.html").is_file()
    watched = Run(output)
    try:
        assert watched.panel and watched.total() == 4
    finally:
        watched.close()


def test_a_watched_panel_is_shown_judge_by_judge(tmp_path: Path) -> None:
    assert score(tmp_path) == 0
    run = Run(tmp_path / "o.jsonl")
    while run.refresh():
        pass
    try:
        page = Answers(run).answer("run", {})
        # Three responses for each of three judges; a progress bar counts one judge.
        assert (len(page["judges"]), page["total"]) == (3, 3)
        assert page["journal"]["judged"] == 3
        assert page["notices"][0].startswith("A panel of judges rates each response.")
    finally:
        run.close()


def test_a_panel_reads_the_context_of_all_its_judges(tmp_path: Path) -> None:
    rows = [{"query": "q", "response": "a b c d", "reference": "because"}]
    run = tmp_path / "score.yaml"
    shows = {"judge": {"kind": "fake", "format": "rubric", "script": {"words": 4}}}
    run.write_text(json.dumps({"judge": JUDGE, "panel": {"shows": shows}}), encoding="utf-8")
    source = str(write_rows(tmp_path / "in.jsonl", rows))
    output = str(tmp_path / "o.jsonl")
    assert cli.main(["score", "--input", source, "--output", output, "--config", str(run)]) == 0
    [row] = read_lines(tmp_path / "o.jsonl")
    assert set(row["panel"]) == {"judge", "shows"}


@pytest.mark.parametrize(
    ("command", "config", "message"),
    [
        ("score", {"reduce": "mean"}, "reduce says how a panel votes, and there is none"),
        ("score", {"panel": MEMBERS, "rubric": {"by": "items"}}, "a panel rates each response"),
        ("score", {"panel": {"A": MEMBERS["near"]}}, "no part can be called 'A'"),
        (
            "score",
            {"panel": MEMBERS, "judge": {"kind": "fake", "format": "scalar"}},
            "and a scalar model has none",
        ),
        (
            "score",
            {"panel": {"pairs": {"judge": {"kind": "fake", "format": "pandalm"}}}},
            "panel.pairs: its format pandalm rates no response alone",
        ),
        (
            "score",
            {"panel": {"two": {"judge": {"kind": "fake", "critiques": 2, "temperature": 1.0}}}},
            "critiques are set on the main judge",
        ),
        ("compare", {"panel": MEMBERS}, "a comparison has one judge"),
    ],
)
def test_what_a_panel_cannot_do_is_refused(
    command: str,
    config: dict[str, Any],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(json.dumps({"judge": JUDGE} | config), encoding="utf-8")
    row = {"query": "q", "response": "a", "response_1": "a", "response_2": "b"}
    source = str(write_rows(tmp_path / "in.jsonl", [row]))
    output = tmp_path / "o.jsonl"
    words = [command, "--input", source, "--output", str(output), "--config", str(run)]
    assert cli.main(words) == 1
    assert message in capsys.readouterr().err
    assert not output.exists()
