"""Comparison of judges on labelled rows: `autoj evaluate judges`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.evaluate.ask import JudgementCost
from autoj_reward.evaluate.judge_metrics import ComparedGroup, JudgedResponses, compare_judges
from autoj_reward.evaluate.statistics import Draws
from tests.evaluate_rows import write

COST = JudgementCost()
GOOD, BAD = "four words stand here", "one"
PAIRS = [{"prompt": f"q{n}", "chosen": GOOD, "rejected": BAD} for n in range(4)]


def write_judge(folder: Path, name: str, view: str = "rating", **script: Any) -> str:
    """Write a run file of a scripted judge."""
    path = folder / f"{name}.yaml"
    run = {"judge": {"kind": "fake", "script": script}, "view": view}
    path.write_text(json.dumps(run), encoding="utf-8")
    return str(path)


def run(folder: Path, rows: list[dict[str, Any]], judges: list[str], *flags: str) -> int:
    data = write(folder / "rows.jsonl", rows)
    named = [word for judge in judges for word in ("--judge", judge)]
    words = ["evaluate", "judges", "--data", data, "--json", str(folder / "o.json")]
    return cli.main([*words, *named, "--set", "bootstrap=50", *flags])


def read(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "o.json").read_text(encoding="utf-8"))
    return result


def test_judges_are_measured_on_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = write_judge(tmp_path, "right", words=4)
    wrong = write_judge(tmp_path, "wrong", words=1)
    keys = ["kind=fake", "format=scalar", "script.words=4"]
    flags = [word for key in keys for word in ("--set", f"judges.scalar.judge.{key}")]
    assert run(tmp_path, PAIRS, [right, wrong], *flags) == 0
    result = read(tmp_path)
    judges = result["judges"]
    assert {name: judge["agreement"] for name, judge in judges.items()} == {
        "scalar": 100.0,
        "right": 100.0,
        "wrong": 0.0,
    }
    assert judges["right"]["agreement_95"] == [100.0, 100.0]
    assert judges["right"]["length"] == 1.0 and judges["wrong"]["length"] == -1.0
    assert [judge["view"] for judge in judges.values()] == ["score", "rating", "rating"]
    gaps = {(gap["first"], gap["second"]): gap for gap in result["differences"]}
    assert gaps["right", "wrong"]["agreement"] == 100.0
    assert gaps["scalar", "right"]["agreement"] == 0.0
    assert judges["right"]["cost"]["total"]["tokens_out"] > 0
    assert judges["right"]["best_of"] == {}  # pairs have no scores
    said = capsys.readouterr().out
    assert "| right | rating | 4 | 100.00 [100.00, 100.00] |" in said
    rows = [json.loads(line) for line in (tmp_path / "o.rows.jsonl").read_text().splitlines()]
    assert rows[0]["judges"]["right"] == [10.0, 7.0]
    page = (tmp_path / "o.html").read_text(encoding="utf-8")
    assert "Agreement with the labels" in page and "What N buys" not in page


def test_groups_with_scores_say_what_best_of_n_gains(tmp_path: Path) -> None:
    texts = ["a", "a b", "a b c", "a b c d"]
    rows = [
        {"query": f"q{n}", "responses": texts, "scores": [1.0, 2.0, 3.0, 4.0]} for n in range(3)
    ]
    best = write_judge(tmp_path, "best", words=4)
    worst = write_judge(tmp_path, "worst", words=1)
    assert run(tmp_path, rows, [best, worst], "--set", "judges.pairs.judge.kind=fake",
               "--set", "judges.pairs.protocol=pairwise") == 0  # fmt: skip
    result = read(tmp_path)
    gains = {name: judge["best_of"] for name, judge in result["judges"].items()}
    assert gains["best"]["4"]["gain"] == 100.0 and gains["best"]["4"]["queries"] == 3
    # The worst of four is 1.5 below the mean, and the best 1.5 above it.
    assert gains["worst"]["4"]["gain"] == -100.0
    assert gains["pairs"] == {}  # comparisons give no numbers
    assert result["judges"]["pairs"]["view"] == "comparisons"
    assert result["judges"]["pairs"]["agreement"] == 100.0  # the longer one wins
    [gap] = [gap for gap in result["differences"] if gap["second"] == "worst" and gap["best_of"]]
    assert gap["best_of"]["4"]["gain"] == 200.0


def test_a_failed_judgement_abstains_and_is_counted(tmp_path: Path) -> None:
    rows = [*PAIRS, {"prompt": "q4", "chosen": "lost", "rejected": BAD}]
    right = write_judge(tmp_path, "right", words=4)
    failing = write_judge(tmp_path, "failing", words=1, fail={"lost": "unparsable"})
    assert run(tmp_path, rows, [right, failing]) == 0
    result = read(tmp_path)
    failing_judge = result["judges"]["failing"]
    assert (failing_judge["asked"], failing_judge["abstained"]) == (10, 1)
    assert failing_judge["pairs"] == 4 and result["judges"]["right"]["pairs"] == 5
    # `right` is compared on the pairs that both decided alone.
    assert result["differences"][0]["pairs"] == 4
    assert result["differences"][0]["agreement"] == 100.0


def test_a_judge_that_judges_nothing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = write_judge(tmp_path, "right", words=4)
    failing = write_judge(tmp_path, "failing", fail={GOOD: "unparsable", BAD: "unparsable"})
    assert run(tmp_path, PAIRS, [right, failing]) == 1
    assert "warning: failing judged nothing: 8 unparsable" in capsys.readouterr().err
    assert read(tmp_path)["judges"]["failing"]["agreement"] is None


def test_a_second_run_reads_the_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "asked.jsonl"
    judges = [
        write_judge(tmp_path, "a", words=4, log=str(log)),
        write_judge(tmp_path, "b", words=1, log=str(log)),
    ]
    assert run(tmp_path, PAIRS, judges) == 0
    first, asked = read(tmp_path), log.read_text(encoding="utf-8")
    assert run(tmp_path, PAIRS, judges) == 0
    assert log.read_text(encoding="utf-8") == asked
    assert read(tmp_path)["judges"] == first["judges"]


def test_auto_takes_the_expected_rating_where_there_is_one(tmp_path: Path) -> None:
    tells = write_judge(tmp_path, "tells", "auto", words=4)
    hides = write_judge(tmp_path, "hides", "auto", words=4, logprobs=False)
    assert run(tmp_path, PAIRS, [tells, hides]) == 0
    judges = read(tmp_path)["judges"]
    assert judges["tells"]["view"] == "expected" and judges["hides"]["view"] == "rating"
    assert judges["hides"]["agreement"] == 100.0


@pytest.mark.parametrize(
    ("judges", "flags", "words"),
    [
        (["default"], [], "1 judges named, and a comparison has two or more"),
        (["default", "folder/default"], [], "a second judge called 'default'"),
        (
            ["default"],
            ["--set", "judges.critic.judge.format=skywork-critic"],
            "judges.critic: the format skywork-critic rates no single response: set its protocol",
        ),
        (
            ["default", "default-scalar"],
            ["--set", "columns.nothing=x"],
            "columns names 'nothing', which no judge shows",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_row_is_judged(
    judges: list[str],
    flags: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tmp_path, PAIRS, judges, *flags) == 1
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_rows_whose_labels_decide_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"query": "q", "responses": ["a", "b"], "scores": [1, 1]}]
    assert run(tmp_path, rows, ["default", "default-scalar"]) == 1
    assert "no query has two responses with different labels" in capsys.readouterr().err


def test_a_reference_goes_to_the_judge_that_shows_it(tmp_path: Path) -> None:
    rows = [row | {"reference": "because"} for row in PAIRS]
    flags = ["--set", "judges.shows.judge.kind=fake", "--set", "judges.shows.judge.format=rubric"]
    plain = write_judge(tmp_path, "plain", words=4)
    assert run(tmp_path, rows, [plain], *flags, "--set", "columns.reference=reference") == 0
    assert read(tmp_path)["judges"]["shows"]["abstained"] == 0


def test_differences_are_of_pairs_that_both_judges_decided_over_queries() -> None:
    """By hand: one query of two labelled pairs, one of one; half a point for a tie."""
    groups = [
        ComparedGroup(b"a", (3.0, 2.0, 2.0), (1.0, 2.0, 3.0), False),
        ComparedGroup(b"b", (1.0, 0.0), (5.0, 5.0), True),
    ]
    first = JudgedResponses.of_numbers("rating", [(5.0, 5.0, 1.0), (4.0, None)], COST)
    second = JudgedResponses.of_numbers("rating", [(1.0, 5.0, None), (4.0, 2.0)], COST)
    result = compare_judges(groups, {"first": first, "second": second}, Draws(20))
    judges = result["judges"]
    assert judges["first"]["agreement"] == 75.0 and judges["first"]["pairs"] == 2
    assert judges["second"]["agreement"] == 50.0 and judges["second"]["pairs"] == 2
    # Both decided the first pair of the first query alone: a tie against a miss.
    assert result["differences"][0]["pairs"] == 1
    assert result["differences"][0]["agreement"] == 50.0
    # The lengths of the first query: 1 < 2 < 3; the judge's order: equal, above, above.
    assert judges["first"]["length"] == pytest.approx(-2 / 3, abs=1e-6)
    assert result["labels"]["longer_agrees"] == pytest.approx(100 / 6, abs=0.01)
