"""Eval-R: best-of-N, tie-breaks and correlations by hand, a scripted judge, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.evaluate.results import load_result, load_rows
from autoj_reward.evaluate.selection import read_candidates
from tests.evaluate_rows import write

SIZES = ["--set", "sizes=[2,4]", "--set", "bootstrap=50"]
FAKE = [*SIZES, "--set", "judge.kind=fake", "--set", "grader.kind=fake"]


def make_row(number: int = 0, **change: Any) -> dict[str, Any]:
    """Four candidates: the judge ties the last three, the policy likes 2 best, the grader 3."""
    block = {
        "outputs": [f"{text} {number}" for text in ("a", "bb", "ccc", "dddd")],
        "logprobs": [-1.0, -9.0, -2.0, -5.0],
        "finish_reasons": ["stop"] * 4,
        "id": number,
        "scores": {"autoj": [4.0, 6.0, 6.0, 6.0], "gpt4": [2, 4, 6, 8]},
    }
    return {
        "scenario": "planning",
        "prompt": f"query {number}",
        "outputs": {"llama-2-7b-chat": block | change},
    }


def evaluate(*arguments: str) -> int:
    return cli.main(["evaluate", "eval-r", *arguments])


def test_released_scores_by_hand(tmp_path: Path) -> None:
    data, out = (
        write(tmp_path / "r.jsonl", [make_row(n) for n in range(3)]),
        str(tmp_path / "o.json"),
    )
    flags = ["--scores", "autoj", "--grades", "gpt4", *SIZES]
    assert evaluate("--data", data, "--json", out, *flags) == 0
    result = load_result(out)
    base = result["bases"]["llama-2-7b-chat"]
    two, four = base["best_of"]["2"], base["best_of"]["4"]
    assert (two["grade"], two["decided_by"], two["tied"]) == (4.0, {"rating": 3}, 0.0)
    assert (four["grade"], four["decided_by"], four["tied"]) == (6.0, {"policy_logprob": 3}, 100.0)
    assert four["other_tie_breaks"]["first"] == {"grade": 4.0, "other_choice": 100.0}
    assert four["other_tie_breaks"]["policy_logprob"] == {"grade": 6.0, "other_choice": 0.0}
    assert (four["random_grade"], four["best_grade"]) == (5.0, 8.0)
    assert four["gain_recovered"] == 33.33
    assert base["ties"] == 50.0  # 3 of 6 pairs
    # Ratings -1.5, .5, .5, .5 and grades -3, -1, 1, 3 about their means: 6 / sqrt(3 * 20).
    assert result["overall"]["pearson"] == pytest.approx(6 / 60**0.5, abs=1e-6)
    assert result["overall"]["within_query"]["queries"] == 3
    assert (result["overall"]["n"], result["overall"]["queries"]) == (12, 3)
    assert load_rows(out)[0]["chosen"]["configured"] == {"2": 1, "4": 2}


def test_a_judge_and_a_grader(tmp_path: Path) -> None:
    """Both scripts rate by length: "a 0" 4, "bb 0" 5 and so on, so the last is chosen."""
    log = tmp_path / "asked.jsonl"
    data, out = (
        write(tmp_path / "r.jsonl", [make_row(n) for n in range(2)]),
        str(tmp_path / "o.json"),
    )
    log_flags = ["--set", f"grader.script={{log: '{log}'}}"]
    command = ["--data", data, "--json", out, *FAKE, *log_flags]
    assert evaluate(*command) == 0
    base = load_result(out)["bases"]["llama-2-7b-chat"]
    assert [base["best_of"][n]["grade"] for n in ("2", "4")] == [5.0, 7.0]
    assert "gain_recovered" not in base["best_of"]["4"]
    assert len(log.read_text().splitlines()) == 4  # the chosen alone are graded
    assert evaluate(*command, "--set", "grade=all") == 0
    assert load_result(out)["bases"]["llama-2-7b-chat"]["best_of"]["4"]["gain_recovered"] == 100.0
    assert len(log.read_text().splitlines()) == 8  # and those on record are not asked again


def test_a_row_may_have_more_candidates_than_the_largest_n(tmp_path: Path) -> None:
    data, out = (
        write(tmp_path / "r.jsonl", [make_row(n) for n in range(2)]),
        str(tmp_path / "o.json"),
    )
    assert evaluate("--data", data, "--json", out, *FAKE, "--set", "sizes=[2]") == 0
    assert load_result(out)["bases"]["llama-2-7b-chat"]["best_of"]["2"]["grade"] == 5.0


def test_equals_are_compared(tmp_path: Path) -> None:
    equal = json.dumps({f"{text} 0": 7 for text in ("a", "bb", "ccc", "dddd")})
    data, out = write(tmp_path / "r.jsonl", [make_row()]), str(tmp_path / "o.json")
    sets = ["--set", "tie_break=[pairwise,first]", "--set", f"judge.script={{ratings: {equal}}}"]
    assert evaluate("--data", data, "--json", out, *FAKE, *sets) == 0
    best = load_result(out)["bases"]["llama-2-7b-chat"]["best_of"]["4"]
    assert best["decided_by"] == {"pairwise": 1}
    chosen = load_rows(out)[0]["chosen"]
    assert {rule: by_size["4"] for rule, by_size in chosen.items()} == {
        "configured": 3,
        "policy_logprob": 0,
        "expected_rating": 0,
        "first": 0,
        "pairwise": 3,
    }


def test_rows_without_base_models(tmp_path: Path) -> None:
    flat = {
        "scenario": "planning",
        "prompt": "q",
        "outputs": ["x", "y"],
        "scores": {"a": [1, None]},
    }
    [candidates] = read_candidates(write(tmp_path / "r.jsonl", [flat]), 2)
    assert (candidates.base, candidates.responses, candidates.logprobs) == (
        "responses",
        ("x", "y"),
        None,
    )
    assert candidates.scores == {"a": (1.0, None)}


def test_missing_scores_never_win(tmp_path: Path) -> None:
    scores = {"autoj": [None, 2.0, None, 1.0], "gpt4": [None, 5, None, None]}
    data, out = write(tmp_path / "r.jsonl", [make_row(scores=scores)]), str(tmp_path / "o.json")
    assert not evaluate(
        "--data", data, "--json", out, "--scores", "autoj", "--grades", "gpt4", *SIZES
    )
    result = load_result(out)
    assert result["bases"]["llama-2-7b-chat"]["best_of"]["4"]["grade"] == 5.0
    assert (result["overall"]["n"], result["overall"]["pearson"]) == (1, None)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        pytest.param(make_row() | {"scenario": "golf"}, "'golf' is no scenario", id="scenario"),
        pytest.param(make_row() | {"prompt": 3}, "field 'prompt'", id="prompt"),
        pytest.param(make_row() | {"outputs": "x"}, "field 'outputs'", id="outputs"),
        pytest.param(make_row(outputs=["x"]), "1 responses; best of 4 needs 4", id="few"),
        pytest.param(make_row(logprobs=[0.0]), "1 numbers for 4 responses", id="logprobs"),
        pytest.param(
            make_row(scores={"autoj": [1]}), "scores.autoj': 1 numbers for 4", id="scores"
        ),
        pytest.param(
            make_row(scores={"autoj": [1, 2, 3, "4"]}),
            "scores.autoj': not a number: '4'",
            id="score",
        ),
        pytest.param(make_row(scores={"gpt4": [1] * 4}), "no scores by 'autoj'", id="author"),
    ],
)
def test_bad_rows_are_named(bad: Any, message: str, tmp_path: Path, capsys: Any) -> None:
    data = write(tmp_path / "r.jsonl", [make_row(), bad])
    flags = ["--data", data, "--json", str(tmp_path / "o.json"), *FAKE, "--scores", "autoj"]
    assert evaluate(*flags) == 1
    errors = capsys.readouterr().err
    assert "r.jsonl:2: " in errors
    assert message in errors


def test_with_a_shortlist_it_chooses_as_a_job_does(tmp_path: Path) -> None:
    """Right after the prompt the judge rates in the opposite order of what it writes later."""
    log = tmp_path / "asked.jsonl"
    direct = {f"{text} {n}": 9 - k for n in range(2) for k, text in enumerate(("a", "bb", "ccc"))}
    script = json.dumps({"direct": direct, "log": str(log)})
    data, out = (
        write(tmp_path / "r.jsonl", [make_row(n) for n in range(2)]),
        str(tmp_path / "o.json"),
    )
    flags = ["--data", data, "--json", out, *FAKE, "--grades", "gpt4"]
    assert evaluate(*flags, "--set", f"judge.script={script}", "--set", "shortlist=1") == 0
    best = load_result(out)["bases"]["llama-2-7b-chat"]["best_of"]
    assert [best[n]["grade"] for n in ("2", "4")] == [2.0, 2.0]  # the one critique is a's
    assert len(log.read_text().splitlines()) == 2
    [first, _] = load_rows(out)
    assert first["chosen"] == {"configured": {"2": 0, "4": 0}}
    assert first["ratings"][1:] == [None, None, None]
    assert evaluate(*flags, "--set", f"judge.script={script}") == 0
    best = load_result(out)["bases"]["llama-2-7b-chat"]["best_of"]
    assert [best[n]["grade"] for n in ("2", "4")] == [4.0, 8.0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["--scores", "autoj"], "nobody writes any here", id="scores"),
        pytest.param(
            ["--set", "judge.format=scalar", "--set", "judge.model=s"],
            "nobody writes any here",
            id="scalar model",
        ),
        pytest.param(["--set", "budget=0.35"], "which was removed: set shortlist", id="budget"),
        pytest.param(
            ["--set", "judge.script={logprobs: false}"],
            "shortlist needs the rating distribution",
            id="no distribution",
        ),
    ],
)
def test_a_shortlist_that_saves_nothing_or_cannot_be_made(
    flags: list[str], message: str, tmp_path: Path, capsys: Any
) -> None:
    data = write(tmp_path / "r.jsonl", [make_row()])
    arguments = ["--data", data, "--json", str(tmp_path / "o.json"), *FAKE]
    assert evaluate(*arguments, "--set", "shortlist=1", *flags) == 1
    assert message in capsys.readouterr().err


def test_comparing_equals_needs_a_judge(tmp_path: Path, capsys: Any) -> None:
    data = write(tmp_path / "r.jsonl", [make_row()])
    flags = ["--data", data, "--json", str(tmp_path / "o.json"), *FAKE, "--scores", "autoj"]
    assert evaluate(*flags, "--set", "tie_break=[pairwise]") == 1
    assert "asks nobody" in capsys.readouterr().err
