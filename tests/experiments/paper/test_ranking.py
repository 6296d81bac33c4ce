"""System ranking: the paper's own table, a scripted judge on a few systems, and bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from autoj_reward.evaluate.results import load_result
from experiments.paper.__main__ import main
from experiments.paper.ranking import kendall
from tests.evaluate_rows import write

FAKE = ["--set", "judge.kind=fake", "--set", "bootstrap=50"]
PAPER = "paper/autoj_paper_2310.05470.txt"
ROW = re.compile(r"^(.+) (\d\.\d{3}) (\d\d\.\d\d) (\d+) (\d+) (-?\d+)$")


def evaluate(*arguments: str) -> int:
    return main(["ranking", *arguments])


def write_table(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_the_papers_table_gives_its_correlations(tmp_path: Path, capsys: Any) -> None:
    data = Path(os.environ.get("AUTOJ_DATA", Path(__file__).parents[3] / "../shared/data"))
    paper = data.parent / PAPER
    if not paper.is_file():
        pytest.skip(f"no {paper}: the paper's Table 23 is read from its text")
    lines = paper.read_text(encoding="utf-8").splitlines()
    start = lines.index("Rating Win-rate GPT-4 Auto-J ΔΔ\\Deltaroman_Δ")
    matches = [
        match.groups() for line in lines[start + 1 : start + 54] if (match := ROW.match(line))
    ]
    assert len(matches) == 53
    rows = (f"{name},{rating},{rate}" for name, rating, rate, *_ in matches)
    source = write_table(tmp_path / "t.csv", "system,Auto-J,GPT-4", *rows)
    out = str(tmp_path / "out.json")
    assert evaluate("--table", source, "--json", out, "--set", "bootstrap=200") == 0
    result = load_result(out)
    overall = result["overall"]
    assert (overall["n"], overall["spearman"], overall["pearson"]) == (53, 0.980245, 0.98147)
    low, high = overall["spearman_95"]
    assert 0.9 < low < 0.980245 < high <= 1
    correlations = "spearman 0.980, pearson 0.981"
    assert correlations in capsys.readouterr().out
    ranks = {row["system"]: (row["reference_rank"], row["rank"]) for row in result["systems"]}
    assert ranks == {name: (int(gpt4), int(autoj)) for name, _, _, gpt4, autoj, _ in matches}
    moved = {row["system"]: row["difference"] for row in result["systems"]}
    assert moved == {name: int(delta) for name, *_, delta in matches}


def test_a_small_table_by_hand(tmp_path: Path) -> None:
    source = write_table(
        tmp_path / "t.csv", "x,win_rate,other,rating", "a,90,1,7", "b,50,2,8", "c,10,3,1"
    )
    out = str(tmp_path / "out.json")
    assert evaluate("--table", source, "--json", out, "--set", "bootstrap=50") == 0
    result = load_result(out)
    assert (result["overall"]["spearman"], result["overall"]["kendall"]) == (0.5, 0.333333)
    assert result["overall"]["mean_rank_difference"] == 0.6667
    assert [(r["system"], r["rank"], r["difference"]) for r in result["systems"]] == [
        ("a", 2, 1),
        ("b", 1, -1),
        ("c", 3, 0),
    ]
    plot = ElementTree.parse(tmp_path / "out.svg")
    assert len(plot.findall(".//{*}circle")) == 3


def test_the_command_that_is_recorded_is_the_one_typed(tmp_path: Path) -> None:
    source = write_table(tmp_path / "t.csv", "x,rating,win_rate", "a,1,9", "b,2,7", "c,3,8")
    out = str(tmp_path / "out.json")
    words = ["-m", "experiments.paper", "ranking", "--table", source, "--json", out]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    assert load_result(out)["command"] == shlex.join(["python", *words])


def write_outputs(path: Path, **systems: list[str]) -> str:
    """One file a system; its outputs to the instructions 0, 1, ..."""
    path.mkdir()
    for name, outputs in systems.items():
        rows = [
            {"instruction": f"do {n}", "output": text, "generator": name}
            for n, text in enumerate(outputs)
        ]
        write(path / f"{name}.jsonl", rows)
    return str(path)


def test_a_judge_ranks_systems(tmp_path: Path) -> None:
    """The scripted rating is one more than the last digit of the response's length."""
    data = write_outputs(
        tmp_path / "o", good=["x" * 8, "x" * 9], fair=["x" * 5] * 2, poor=["x", "xx"]
    )
    board = write_table(
        tmp_path / "b.csv", ",win_rate,n", "fair,50,1", "good,90.5,1", "poor,10,1", "z,1,1"
    )
    out = str(tmp_path / "out.json")
    log = tmp_path / "asked.jsonl"
    command = ["--data", data, "--leaderboard", board, "--json", out, *FAKE]
    command += ["--set", f"judge.script={{log: '{log}'}}"]
    assert evaluate(*command) == 0
    result = load_result(out)
    assert [(r["system"], r["rating"], r["abstained"]) for r in result["systems"]] == [
        ("good", 9.5, 0),
        ("fair", 6.0, 0),
        ("poor", 2.5, 0),
    ]
    assert result["overall"]["spearman"] == 1.0
    assert result["over_instructions"]["kendall_95"] == [1.0, 1.0]
    assert result["instructions"] == 2
    question_count = len(log.read_text().splitlines())
    assert evaluate(*command, "--set", "sample=1") == 0
    assert load_result(out)["instructions"] == 1
    assert len(log.read_text().splitlines()) == question_count


def test_failed_ratings_are_left_out_of_the_mean(tmp_path: Path) -> None:
    data = write_outputs(tmp_path / "o", a=["x" * 8, "bad"], b=["x", "xx"])
    board = write_table(tmp_path / "b.csv", ",win_rate", "a,50", "b,90")
    out = str(tmp_path / "out.json")
    script = ["--set", "judge.script={fail: {bad: unparsable}}"]
    assert evaluate("--data", data, "--leaderboard", board, "--json", out, *FAKE, *script) == 0
    rows = {row["system"]: (row["rating"], row["abstained"]) for row in load_result(out)["systems"]}
    assert rows == {"a": (9.0, 1), "b": (2.5, 0)}


def test_a_system_without_any_rating(tmp_path: Path, capsys: Any) -> None:
    data = write_outputs(tmp_path / "o", a=["bad"], b=["x"])
    board = write_table(tmp_path / "b.csv", ",win_rate", "a,50", "b,90")
    flags = ["--data", data, "--leaderboard", board, "--json", str(tmp_path / "out.json"), *FAKE]
    assert evaluate(*flags, "--set", "judge.script={fail: {bad: unparsable}}") == 1
    assert "no rating for any output of a" in capsys.readouterr().err


def write_wrong_input(tmp_path: Path, kind: str) -> list[str]:
    """Flags of a run whose input is wrong in one way."""
    data = tmp_path / "o"
    board = write_table(tmp_path / "b.csv", ",win_rate", "a,50", "b,90")
    if kind == "missing systems":
        write_outputs(data, a=["x"], b=["x"], c=["x"], d=["x"])
    elif kind == "missing instruction":
        write_outputs(data, a=["x", "y"], b=["x"])
    elif kind == "two systems in a file":
        data.mkdir()
        rows = [{"instruction": n, "output": "x", "generator": n} for n in "ab"]
        write(data / "a.jsonl", rows)
    elif kind == "an instruction twice":
        data.mkdir()
        write(data / "a.jsonl", [{"instruction": "i", "output": "x", "generator": "a"}] * 2)
    elif kind == "a system twice":
        write_outputs(data, a=["x"])
        write(data / "z.jsonl", [{"instruction": "do 0", "output": "x", "generator": "a"}])
    elif kind == "no file":
        data.mkdir()
    else:
        write_outputs(data, a=["x"], b=["x"])
        board = {
            "no column": lambda: write_table(tmp_path / "b.csv", ",rate", "a,1", "b,2"),
            "no number": lambda: write_table(tmp_path / "b.csv", ",win_rate", "a,50", "b,many"),
            "a row twice": lambda: write_table(
                tmp_path / "b.csv", ",win_rate", "a,50", "b,1", "a,2"
            ),
            "ragged": lambda: write_table(tmp_path / "b.csv", ",win_rate", "a,50,3", "b,1"),
        }[kind]()
    return ["--data", str(data), "--leaderboard", board]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing systems", "b.csv: no row for c, d"),
        ("missing instruction", "b.jsonl: 1 instructions of a are missing, for example 'do 1'"),
        ("two systems in a file", "a.jsonl:2: field 'generator': 'b' in a file of 'a'"),
        ("an instruction twice", "a.jsonl:2: field 'instruction': 'i' is also"),
        ("a system twice", "z.jsonl: outputs of 'a', as in"),
        ("no file", "no file of outputs"),
        ("no column", "no column 'win_rate'; its columns are rate"),
        ("no number", "b.csv:3: column 'win_rate': 'many' is no finite number"),
        ("a row twice", "b.csv:4: 'a' is also the system of line 2"),
        ("ragged", "b.csv:2: 3 cells under 2 columns"),
    ],
)
def test_bad_input_is_named_before_any_judge(
    kind: str, message: str, tmp_path: Path, capsys: Any
) -> None:
    log = tmp_path / "asked.jsonl"
    flags = [*write_wrong_input(tmp_path, kind), *FAKE, "--set", f"judge.script={{log: '{log}'}}"]
    assert evaluate("--json", str(tmp_path / "out.json"), *flags) == 1
    assert message in capsys.readouterr().err
    assert not log.exists()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param(["a,1,2", "b,1,2"], "t.csv:1: numbers where the names", id="no header"),
        pytest.param(["s,a,b,c", "x,1,2,3"], "name two of them rating and win_rate", id="columns"),
        pytest.param(["s,a,b"], "a header and a row", id="empty"),
        pytest.param(["s,a,b", "x,1,nan"], "t.csv:2: column 'b': 'nan'", id="nan"),
        pytest.param(["s,a,b", "x,1,-1e308"], "'-1e308' is beyond 1e+70", id="huge"),
    ],
)
def test_bad_tables(lines: list[str], message: str, tmp_path: Path, capsys: Any) -> None:
    source = write_table(tmp_path / "t.csv", *lines)
    assert evaluate("--table", source, "--json", str(tmp_path / "out.json")) == 1
    assert message in capsys.readouterr().err


def test_the_largest_numbers_are_correlated(tmp_path: Path) -> None:
    lines = ["s,a,b", "x,1e70,1e70", "y,-1e70,-1e70", "z,5e69,4e69"]
    result = tmp_path / "out.json"
    table = write_table(tmp_path / "t.csv", *lines)
    assert evaluate("--table", table, "--json", str(result), "--set", "bootstrap=20") == 0
    overall = json.loads(result.read_text())["overall"]
    assert overall["pearson"] == pytest.approx(0.9985, abs=1e-4)


def test_either_a_table_or_outputs(tmp_path: Path, capsys: Any) -> None:
    assert evaluate("--json", str(tmp_path / "o.json"), "--data", "x") == 1
    assert "either --table, or both" in capsys.readouterr().err


def test_kendall_is_the_librarys_and_may_be_undefined() -> None:
    x, y = np.random.default_rng(0).integers(1, 5, size=(2, 60))
    assert kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)
    assert kendall([1, 1], [2, 3]) is None
