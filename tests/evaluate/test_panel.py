"""Kappa, error correlation and effective votes of judges on the same pairs, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoj_reward.cli import main as cli
from autoj_reward.evaluate.panel import effective_votes
from tests.evaluate_rows import pair, write

FAKE = ["--set", "judge.kind=fake", "--set", "bootstrap=50"]


def test_kappa_of_two_judges_and_the_labels(tmp_path: Path, capsys: Any) -> None:
    """`longer` says first, first, second; the human says first, second, second."""
    rows = [pair("planning", 0), pair("planning", 1, 1), pair("planning", 2, 1)]
    rows[2] |= {"response 1": "s", "response 2": "longer"}
    data, files = write(tmp_path / "p.jsonl", rows), []
    for name in ("longer", "first"):
        files.append(str(tmp_path / f"{name}.json"))
        script = ["--set", f"judge.script={{verdicts: {name}}}"]
        cli.main(["evaluate", "eval-p", "--data", data, "--json", files[-1], *FAKE, *script])
    out = tmp_path / "k.json"
    assert cli.main(["evaluate", "kappa", "--results", *files, "--json", str(out)]) == 0
    agreement = {(r["first"], r["second"]): r for r in json.loads(out.read_text())["agreement"]}
    human = agreement["default (longer)", "label"]
    # observed 2/3; chance (2 * 1 + 1 * 2) / 9
    assert human["kappa"] == pytest.approx((2 / 3 - 4 / 9) / (1 - 4 / 9), abs=1e-6)
    assert human["same"] == 66.67
    assert agreement["default (longer)", "default (first)"]["kappa"] == 0.0
    other = str(tmp_path / "other.json")
    less = write(tmp_path / "less.jsonl", rows[:2])
    cli.main(["evaluate", "eval-p", "--data", less, "--json", other, *FAKE])
    capsys.readouterr()
    assert cli.main(["evaluate", "kappa", "--results", *files, other, "--json", str(out)]) == 1
    assert "other.json: 2 rows, and" in capsys.readouterr().err


def write_results(folder: Path, labels: str, **verdicts: str) -> list[str]:
    """Write result files of judges, a letter for each row, see `names`."""
    names = {"f": "first", "s": "second", "t": "tie", "x": "failed", "-": None}
    files = []
    for name, letters in verdicts.items():
        files.append(str(folder / f"{name}.json"))
        Path(files[-1]).write_text(json.dumps({"task": "eval-p", "judge": name, "name": name}))
        lines = [
            {"query": f"q{n}", "responses": ["a", "b"], "label": names[label], "verdict": names[v]}
            for n, (label, v) in enumerate(zip(labels, letters, strict=True))
        ]
        write(folder / f"{name}.rows.jsonl", lines)
    return files


def test_errors_of_a_panel_go_together_or_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`a` errs on rows 0 and 1, `b` on 0 and 1 too, `c` on 0 and 2, of four rows."""
    files, out = write_results(tmp_path, "ffff", a="ssff", b="ssff", c="sfsf"), tmp_path / "k.json"
    assert cli.main(["evaluate", "kappa", "--results", *files, "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    agreement = {(row["first"], row["second"]): row for row in result["agreement"]}
    assert agreement["a (a)", "b (b)"]["error_correlation"] == 1
    assert agreement["a (a)", "c (c)"]["error_correlation"] == 0
    assert "error_correlation" not in agreement["a (a)", "label"]
    # The mean correlation is (1 + 0 + 0) / 3, so 3 judges count 3 / (1 + 2 / 3).
    assert result["effective_votes"] == pytest.approx(1.8)
    printed = capsys.readouterr().out
    assert (
        "a (a) / b (b): kappa 1.000 (no interval), same 100.00 [100.00, 100.00] %, "
        "error correlation 1.000 (no interval)"
    ) in printed
    assert "effective votes of 3 judges: 1.800" in printed


def test_the_majority_of_a_panel_with_and_without_a_stand_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the stand-in row 1 is split, and all fail on rows 3 and 4. It fails on row 4 too."""
    letters = {"a": "fsfxx", "b": "fxxxx", "c": "fffxx", "d": "sfsfx"}
    *files, other = write_results(tmp_path, "fffff", **letters)
    out = tmp_path / "k.json"
    command = ["evaluate", "kappa", "--results", *files, "--json", str(out)]
    assert cli.main(command) == 0
    alone = json.loads(out.read_text())
    assert (alone["majority"]["agreement"], alone["majority"]["stand_in_votes"]) == (40, 0)
    assert cli.main([*command, "--stand-in", other]) == 0
    with_stand_in = json.loads(out.read_text())
    # Row 1 becomes s, f, f; row 2 f, s, f; and on row 3 the stand-in votes alone.
    assert (
        with_stand_in["majority"]["agreement"],
        with_stand_in["majority"]["stand_in_votes"],
    ) == (80, 5)
    assert with_stand_in["agreement"] == alone["agreement"]
    assert with_stand_in["effective_votes"] == alone["effective_votes"]
    assert "agreement 80.00 [40.00, 100.00] %, stand-in votes 5" in capsys.readouterr().out


def test_without_labels_there_are_no_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, out = write_results(tmp_path, "----", a="ssff", b="sfff"), tmp_path / "k.json"
    assert cli.main(["evaluate", "kappa", "--results", *files, "--json", str(out)]) == 0
    assert "error" not in out.read_text() and "effective" not in capsys.readouterr().out
    more = write_results(tmp_path, "----", c="ssff")
    command = ["evaluate", "kappa", "--results", *files, "--stand-in", *more, "--json", str(out)]
    assert cli.main(command) == 1
    assert "has no labels to measure the panel's vote by" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("errors", "votes"),
    [
        ([[1, 0, 1, 0]] * 5, 1),
        ([[1, 1, 0, 0], [1, 0, 1, 0]], 2),
        ([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]], 2 / (1 - 0.25)),
        ([[1, 0], [0, 1]], None),
        ([[1, 0], [0, 0]], None),
    ],
    ids=["the same rows", "independent", "other rows", "opposite", "never wrong"],
)
def test_effective_votes(errors: list[list[int]], votes: float | None) -> None:
    rows = np.arange(len(errors[0]))
    effective = effective_votes([np.array(judge_errors, dtype=float) for judge_errors in errors])(
        rows
    )
    assert effective == (None if votes is None else pytest.approx(votes))
