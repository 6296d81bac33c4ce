from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.config import JudgeConfig
from autoj_reward.data.labelled import JudgeData, Rated, is_held_out, read_rated
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import load_format
from autoj_reward.types import JudgeInput, Judgement, Outcome
from experiments.default_judge.made_rows import OwnCritiquesConfig, choose_critique, write_critiques
from tests.judgements import rated

FORMAT = load_format("autoj-en")
ROW = Rated("f", 1, "Why?", "Because.", 4.0)


def make_judgement(
    text: str, value: float, expected: float | None = None, **more: Any
) -> Judgement:
    distribution = (("1", 1.0),) if expected else None
    return rated(value, distribution, expected, critique=text, **more)


def test_the_critique_nearest_to_the_reference_is_kept_with_its_rating() -> None:
    critique_row = choose_critique(
        ROW,
        [
            make_judgement("Far. Rating: [[6]]", 6.0, 5.5),
            make_judgement("Near. Rating: [[3.5]] ", 3.5, 4.2),
            make_judgement("Forced.", 4.0, 4.0, forced=True),
            make_judgement("No slot.", 4.0, 4.0),
            Judgement(Outcome.UNPARSABLE, reason="no", critique="Failed. Rating: [[4]]"),
        ],
        FORMAT,
        tolerance=2,
    )
    assert critique_row == {
        "usrmsg": render(JudgeInput("single", "Why?", ("Because.",)), FORMAT)[-1].text,
        "target_output": "Near. Rating: [[4]]",
        "pred_score": "4",
    }


@pytest.mark.parametrize(
    "judgement",
    [
        pytest.param(make_judgement("Bad. Rating: [[9]]", 9.0, 4.0), id="another rating"),
        pytest.param(make_judgement("so it is so it is " * 20 + "Rating: [[4]]", 4.0), id="loops"),
    ],
)
def test_no_critique_is_better_than_a_bad_one(judgement: Judgement) -> None:
    assert choose_critique(ROW, [judgement], FORMAT, tolerance=2) is None


async def test_rows_that_may_be_trained_on_are_asked_and_written(tmp_path: Path) -> None:
    rows = [{"query": f"q{n}", "response": f"r{n}", "rating": 1 + n % 9} for n in range(30)]
    (tmp_path / "rated.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pair = {"query": "q0", "response_1": "a", "response_2": "b", "label": 0}
    (tmp_path / "measure.jsonl").write_text(json.dumps(pair))
    data = JudgeData(
        folder=tmp_path, rated=("rated.jsonl",), held_out=0.3, exclude=("measure.jsonl",)
    )
    script = {"ratings": {row["response"]: row["rating"] for row in rows}}
    judge = JudgeConfig(kind="fake", temperature=0.7, script=script)
    config = OwnCritiquesConfig(output=tmp_path / "out/own.jsonl", judge=judge)
    summary = await write_critiques(config, data)
    trainable_rows = [row for row in rows[1:] if not is_held_out(str(row["query"]), 0.3)]
    assert summary.startswith(
        f"{len(trainable_rows)} of {len(trainable_rows)} rows with a usable critique"
    )
    critique_rows = read_rated(str(config.output), FORMAT)
    assert not critique_rows.bad
    assert [(r.query, r.rating) for r in critique_rows.rows] == [
        (r["query"], r["rating"]) for r in trainable_rows
    ]
    assert all(row.judgement for row in critique_rows.rows)
