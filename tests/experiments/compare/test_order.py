from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.data.graded import Graded, GradedOutput
from autoj_reward.evaluate.statistics import Draws
from experiments.compare.judge_quality import main
from experiments.compare.order import measure_order, split_by_query
from experiments.compare.outputs import Outputs, make_rated_rows

SYSTEMS = [f"system {n}" for n in range(12)]
WORDS = ("poor", "fair", "good", "great")
VIEWS = ("written", "pessimistic")
"""Other numbers of the same judgements as the judge's."""


def make_graded(queries: int = 8) -> tuple[Graded, ...]:
    """Return outputs of drawn lengths, whose words state their score."""
    rng = random.Random(1)
    rows = []
    for n in range(queries):
        outputs = []
        for place, name in enumerate(SYSTEMS):
            text = (WORDS[place // 3] + " ") * rng.randint(3, 30)
            outputs.append(GradedOutput(name, text, -place / 2))
        rows.append(Graded("f", n, f"Query {n}?", tuple(outputs)))
    return tuple(rows)


OUTPUTS = Outputs(make_graded(), unseen=tuple(SYSTEMS[:4]), draws=Draws(50))
SCORES = tuple(output.score for row in OUTPUTS.graded for output in row.outputs)


def test_an_oracle_orders_everything_and_a_constant_nothing() -> None:
    same = (1.0,) * len(SCORES)
    figures = measure_order(OUTPUTS, {"judge": SCORES, "length": same})["rated"]
    for systems in ("all", "unseen"):
        oracle, constant = figures["judge"][systems], figures["length"][systems]
        assert oracle["order"]["value"] == pytest.approx(1)
        assert oracle["order_given_length"]["value"] == pytest.approx(1)
        assert oracle["best_of_4"]["value"] == pytest.approx(1)
        assert constant["order"]["value"] is None
        assert constant["best_of_4"]["value"] == pytest.approx(0, abs=1e-9)
    assert (
        set(figures["judge"]["all"]) >= {"best_of_2", "best_of_10"}
        and "best_of_10" not in figures["judge"]["unseen"]
    )
    assert figures["judge"]["all"]["order"]["n"] == 8


def test_who_abstains_comes_last() -> None:
    [query] = split_by_query(make_graded(1), [None, *range(5, 16)])
    assert (query.values[0], min(query.values[1:])) == (4, 5)


def test_a_rival_is_compared_on_the_same_instructions() -> None:
    worse = tuple(-v for v in SCORES)
    less = measure_order(OUTPUTS, {"judge": SCORES, "length": worse})["less"]
    assert set(less) == {"length"}
    assert less["length"]["order"]["value"] == pytest.approx(2)
    assert less["length"]["order"]["low"] > 0


def test_rivals_fit_what_is_left_of_the_instructions_mean() -> None:
    rows = make_rated_rows(make_graded(1))
    assert sum(row.rating for row in rows) == pytest.approx(0)
    assert rows[0].rating - rows[1].rating == pytest.approx(0.5)


def test_the_outputs_of_systems_are_ordered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = make_graded(40)
    outputs: list[Any] = [
        {"instruction": row.query, "outputs": {o.system: o.text for o in row.outputs}}
        for row in rows
    ]
    preferences: list[Any] = [
        {"annotator": "gpt4_turbo_logprob", "instruction": row.query, "second": o.system,
         "preference": 10**o.score}
        for row in rows for o in row.outputs
    ]  # fmt: skip
    for name, lines in (("outputs", outputs), ("preferences", preferences)):
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    config = {
        "data": {
            "folder": str(tmp_path.parent),
            "graded": {"folder": tmp_path.name, "test": 0.4, "test_systems": SYSTEMS[::3]},
        },
        "ordered": {"instructions": 6, "systems": 10, "rival_rows": 60, "critique": True},
        "output": str(tmp_path / "out"),
        "judge": {"kind": "fake"},
        "scalar": {"kind": "fake", "format": "scalar"},
        "bootstrap": 10,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    command = ["--config", str(tmp_path / "run.yaml"), "--parts", "ordered"]
    assert main(command) == 0
    part = json.loads((tmp_path / "out/quality.json").read_text())["parts"]["ordered"]
    rivals = part["rated"]
    assert set(rivals) == {"judge", *VIEWS, "critique", "scalar", "tfidf", "length"}
    assert rivals["tfidf"]["all"]["order"]["value"] > 0.8  # the words give the score away
    assert rivals["judge"]["all"]["order"]["n"] == 6
    assert set(part["less"]) == {*VIEWS, "critique", "scalar", "tfidf", "length"}
    page = capsys.readouterr().out
    for text in (
        "| TF-IDF of the response, ridge | unseen | ",
        "| length of the response | all | ",
        "| scalar reward model | all | ",
        "no probe",
    ):
        assert text in page, text
    chart = (tmp_path / "out/quality-best-of-n.svg").read_text()
    assert all(f">{name}</text>" in chart for name in ("judge", "tfidf", "length", "oracle"))


WORDS_OF_SIX = [{"kind": "words", "low": 6, "high": 6}]
QUERIES = [{"query": f"query {n}", "kind": "format", "checks": WORDS_OF_SIX} for n in range(5)]
"""The scripted policy's answer k has 4 + k words and a slash, so answer 2 is the best, and every
word more or less than 6 loses a sixth."""


def write_candidates_config(folder: Path, queries: list[Any], **more: Any) -> Path:
    """Write a config in which the judge rates 7 words highest after a critique, the
    scalar model 11."""
    lines = "".join(json.dumps(row) + "\n" for row in queries)
    (folder / "queries.jsonl").write_text(lines)
    script: dict[str, Any] = {"log": str(folder / "log.jsonl")}
    config = {
        "candidates": {
            "queries": str(folder / "queries.jsonl"),
            "policy": {"kind": "fake", "n": 8},
            "critique": True,
        },
        "output": str(folder / "out"),
        "judge": {"kind": "fake", "script": script | {"words": 7}},
        "scalar": {"kind": "fake", "format": "scalar", "script": script | {"words": 11}},
        "bootstrap": 10,
    } | more
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    return folder / "run.yaml"


def measure_candidates(path: Path, *more: str) -> dict[str, Any]:
    assert main(["--config", str(path), "--parts", "candidates", *more]) == 0
    result: dict[str, Any] = json.loads((path.parent / "out/quality.json").read_text())
    return result


def test_the_candidates_of_a_policy_are_ordered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rated rows that other parts of the config need may be missing."""
    monkeypatch.delenv("AUTOJ_DATA", raising=False)
    path = write_candidates_config(tmp_path, QUERIES, data={"rated": ["x"], "exclude": ["y"]})
    part = measure_candidates(path)["parts"]["candidates"]
    rated = {name: figures["all"] for name, figures in part["rated"].items()}
    assert set(rated) == {"judge", *VIEWS, "critique", "scalar", "logprob", "length"}
    grades = [1 - abs(k - 2) / 6 for k in range(8)]
    mean = sum(grades) / 8
    # Without its own text the scripted judge says the same of all: a choice at random. The scalar
    # model likes answer 6, the shortest has the highest log-probability, the longest is answer 7.
    for name, chosen in (("judge", mean), ("scalar", 1 / 3), ("logprob", 2 / 3), ("length", 1 / 6)):
        share = (chosen - mean) / (1 - mean)
        assert rated[name]["best_of_8"]["value"] == pytest.approx(share, abs=1e-9), name
    assert rated["judge"]["order"]["value"] is None and rated["length"]["order"]["value"] < 0
    assert rated["critique"]["order"]["value"] == pytest.approx(1)
    assert "best_of_10" not in rated["judge"] and part["queries"] == 5
    page = capsys.readouterr().out
    assert "## Ordering candidates of a policy (5 queries)" in page
    assert "| policy log-probability | all | " in page
    assert (tmp_path / "out/quality-best-of-n-candidates.svg").is_file()
    # Another run samples and asks nothing.
    log = tmp_path / "log.jsonl"
    logged_prompts = log.read_text()
    assert measure_candidates(path)["parts"]["candidates"] == part
    assert log.read_text() == logged_prompts
    assert measure_candidates(path, "--limit", "2")["parts"]["candidates"]["queries"] == 2


def test_a_candidate_that_is_not_rated_never_wins(tmp_path: Path) -> None:
    fail = {f"query 0 / answer {k} " + "word " * k: "rejected" for k in (5, 6)}
    scalar = {"kind": "fake", "format": "scalar", "script": {"words": 11, "fail": fail}}
    part = measure_candidates(write_candidates_config(tmp_path, QUERIES, scalar=scalar))["parts"][
        "candidates"
    ]
    assert part["rated"]["scalar"]["abstained"] == 2
    # Query 0 falls to answer 7, whose grade is 1/6; the others keep answer 6 with 1/3.
    mean = sum(1 - abs(k - 2) / 6 for k in range(8)) / 8
    share = ((4 / 3 + 1 / 6) / 5 - mean) / (1 - mean)
    assert part["rated"]["scalar"]["all"]["best_of_8"]["value"] == pytest.approx(share)


def test_queries_that_cannot_be_graded_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    unknown = {"query": "x", "kind": "format", "checks": [{"kind": "rhyme"}]}
    result = measure_candidates(write_candidates_config(tmp_path, [*QUERIES, unknown]))
    assert [(row["line"], row["field"]) for row in result["left_out"]] == [(6, "checks[0]")]
    path = write_candidates_config(tmp_path, QUERIES[:1])
    assert main(["--config", str(path), "--parts", "candidates"]) == 1
    assert "an interval over queries needs two" in capfd.readouterr().err
