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
from experiments.compare.judge_quality.__main__ import main
from experiments.compare.judge_quality.ordered import by_query, ordered
from experiments.compare.judge_quality.outputs import Outputs, as_rated
from experiments.compare.rivals import Prediction

SYSTEMS = [f"system {n}" for n in range(12)]
WORDS = ("poor", "fair", "good", "great")


def graded(queries: int = 8) -> tuple[Graded, ...]:
    """Outputs whose words say their score, of drawn lengths."""
    rng = random.Random(1)
    rows = []
    for n in range(queries):
        outputs = []
        for place, name in enumerate(SYSTEMS):
            text = (WORDS[place // 3] + " ") * rng.randint(3, 30)
            outputs.append(GradedOutput(name, text, -place / 2))
        rows.append(Graded("f", n, f"Query {n}?", tuple(outputs)))
    return tuple(rows)


OUTPUTS = Outputs(graded(), unseen=tuple(SYSTEMS[:4]), draws=Draws(50))
SCORES = tuple(output.score for row in OUTPUTS.graded for output in row.outputs)


def test_an_oracle_orders_everything_and_a_constant_nothing() -> None:
    same = Prediction((1.0,) * len(SCORES))
    found = ordered(OUTPUTS, {"judge": SCORES}, {"length": same}, "")["rated"]
    for systems in ("all", "unseen"):
        oracle, constant = found["judge"][systems], found["length"][systems]
        assert oracle["order"]["value"] == pytest.approx(1)
        assert oracle["order_given_length"]["value"] == pytest.approx(1)
        assert oracle["4"]["value"] == pytest.approx(1)
        assert constant["order"]["value"] is None
        assert constant["4"]["value"] == pytest.approx(0, abs=1e-9)
    assert set(found["judge"]["all"]) >= {"2", "10"} and "10" not in found["judge"]["unseen"]
    assert found["judge"]["all"]["order"]["n"] == 8


def test_who_abstains_comes_last() -> None:
    [query] = by_query(graded(1), [None, *range(5, 16)])
    assert (query.values[0], min(query.values[1:])) == (4, 5)


def test_a_rival_is_compared_on_the_same_instructions() -> None:
    worse = Prediction(tuple(-v for v in SCORES))
    less = ordered(OUTPUTS, {"judge": SCORES}, {"length": worse, "constant": worse}, "")["less"]
    assert set(less) == {"length"}
    assert less["length"]["order"]["value"] == pytest.approx(2)
    assert less["length"]["order"]["low"] > 0


def test_rivals_fit_what_is_left_of_the_instructions_mean() -> None:
    rows = as_rated(graded(1))
    assert sum(row.rating for row in rows) == pytest.approx(0)
    assert rows[0].rating - rows[1].rating == pytest.approx(0.5)


def test_the_parts_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = graded(40)
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
    found = json.loads((tmp_path / "out/quality.json").read_text())["parts"]["ordered"]
    rivals = found["rated"]
    assert set(rivals) == {"judge", "critique", "scalar", "tfidf", "length"}
    assert rivals["tfidf"]["all"]["order"]["value"] > 0.8  # the words give the score away
    assert rivals["judge"]["all"]["order"]["n"] == 6
    assert set(found["less"]) == {"critique", "scalar", "tfidf", "length"}
    page = capsys.readouterr().out
    for text in (
        "| TF-IDF of the response, ridge | unseen | ",
        "| length of the response | all | ",
        "| scalar reward model | all | ",
        "by the best of N",
        "no probe",
    ):
        assert text in page, text
    drawn = (tmp_path / "out/quality-best-of-n.svg").read_text()
    assert all(f">{name}</text>" in drawn for name in ("judge", "tfidf", "length", "oracle"))
