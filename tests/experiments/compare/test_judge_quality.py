from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.config import load_config
from autoj_reward.data.labelled import Rated
from autoj_reward.evaluate.statistics import Draws
from autoj_reward.journal import Journal
from experiments.compare.judge_quality import main, study
from experiments.compare.panel import PARTS, JudgeQualityConfig, Material, read_material
from experiments.compare.ratings import compare_paired, compare_parts
from experiments.study import Study

ROOT = Path(__file__).parents[3]


def write_rows(path: Path, rows: list[Any]) -> None:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))


def make_response(n: int) -> str:
    return f"answer {n} " + "word " * n


RATED = [
    {"query": f"query {n}", "response": make_response(n), "rating": 1 + n * 7 % 10}
    for n in range(20)
]
RIGHT = {row["response"]: row["rating"] for row in RATED}


class Quality:
    """Run of the study on the scripted judge, in its own folder."""

    def __init__(self, folder: Path, rated: list[Any] = RATED, **config: Any) -> None:
        write_rows(folder / "rated.jsonl", rated)
        self.output, self.log = folder / "out", folder / "log.jsonl"
        script = {"log": str(self.log), "ratings": RIGHT}
        data = {
            "folder": str(folder),
            "rated": ["rated.jsonl"],
            "held_out": 0.5,
        }
        settings = {
            "data": data,
            "output": str(self.output),
            "judge": {"kind": "fake", "script": script},
            "base": {"kind": "fake", "model": "base", "script": script | {"ratings": {}}},
            "bootstrap": 10,
        }
        settings |= config
        self.config = folder / "run.yaml"
        self.config.write_text(yaml.safe_dump(settings))

    def run(self, *more: str) -> int:
        return main(["--config", str(self.config), *more])

    def json(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.output / "quality.json").read_text())
        return result

    def read_judged_responses(self) -> list[list[str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines]


def test_the_config_of_the_repository_has_every_part() -> None:
    config = load_config(JudgeQualityConfig, ROOT / "configs/experiments/judge_quality.yaml")
    assert config.select_parts(None) == PARTS
    judges = config.judges
    assert not judges["direct"].critique and judges["base"].critique and judges["greedy"].critique


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quality = Quality(tmp_path)
    assert quality.run() == 0
    result = quality.json()
    parts = result["parts"]
    assert list(parts) == ["single", "single_direct", "base", "rivals"]
    rows = result["rows"]
    assert rows["rated"] + rows["training"] == 20
    assert 2 <= rows["rated"] <= 18
    assert result["left_out"] == []

    single = parts["single"]
    # The script gives every response its reference rating.
    assert (single["rating"]["spearman"]["value"], single["rating"]["mae"]["value"]) == (1, 0)
    assert single["rating"]["pearson"]["n"] == rows["rated"]
    assert (single["parsed"]["value"], single["outcomes"]) == (1, {"ok": rows["rated"]})
    assert single["health"]["n"] == rows["rated"]
    assert "parsed" not in parts["single_direct"]
    # Without its own text the scripted judge spreads its mass: one expected rating for all.
    assert parts["single_direct"]["expected"]["spearman"]["value"] is None
    assert parts["base"]["rating"]["spearman"]["value"] < 1

    rivals = parts["rivals"]
    assert set(rivals["rated"]) == {"tfidf", "length", "constant"}
    assert rivals["rated"]["constant"]["spearman"]["value"] is None
    assert "no probe" in rivals["missing"]
    against = result["comparisons"]["against"]
    assert set(against) == {"tfidf", "base expected"}
    assert result["comparisons"]["best_view"] == "single rating"
    assert against["tfidf"]["spearman"]["value"] > 0

    page = (quality.output / "quality.md").read_text()
    assert page in capsys.readouterr().out
    for text in (
        "| judge, with critique | rating | 1.000",
        "TF-IDF",
        "| constant",
    ):
        assert text in page, text
    assert result["command"] in page
    assert set(result["versions"]) >= {"numpy", "scipy", "scikit-learn"}
    assert result["machine"]["cores"] >= 1
    assert str(tmp_path) not in page.replace(result["command"], "")


def test_the_same_command_again_judges_nothing(tmp_path: Path) -> None:
    quality = Quality(tmp_path)
    assert quality.run() == 0
    judgement_count, before = len(quality.read_judged_responses()), quality.json()
    assert quality.run() == 0
    assert len(quality.read_judged_responses()) == judgement_count
    after = quality.json()
    assert after == before


def test_a_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    quality = Quality(tmp_path)
    slow = ("judge.script.latency_s=0.02", "judge.serve.max_ongoing=1")
    config = load_config(JudgeQualityConfig, quality.config, slow)

    async def cut_short() -> None:
        task = asyncio.create_task(study(Study(config, "", ("single",))))
        while len(quality.read_judged_responses()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cut_short())
    first = quality.read_judged_responses()
    assert not (quality.output / "quality.json").exists()
    journal = Journal(quality.output / "journal.sqlite")
    recorded_responses = [record["input"]["responses"] for record in journal.export()]
    journal.close()
    assert recorded_responses
    sets = [word for item in slow for word in ("--set", item)]
    assert quality.run("--parts", "single", *sets) == 0
    later_responses = quality.read_judged_responses()[len(first) :]
    assert later_responses
    assert [responses for responses in later_responses if responses in recorded_responses] == []
    assert len(recorded_responses) + len(later_responses) == quality.json()["rows"]["rated"]


def test_a_limit_takes_rows_of_each_file_and_side(tmp_path: Path) -> None:
    quality = Quality(tmp_path)
    assert quality.run("--parts", "single,rivals", "--limit", "3") == 0
    rows = quality.json()["rows"]
    assert (rows["rated"], rows["training"]) == (3, 3)
    assert len(quality.read_judged_responses()) == 3


def test_queries_that_measure_are_not_fitted_on(tmp_path: Path) -> None:
    quality = Quality(tmp_path)
    pair = {"response_1": "a", "response_2": "b", "label": 0}
    write_rows(tmp_path / "more.jsonl", [pair | {"query": r["query"]} for r in RATED[:8]])
    before, _ = read_material(load_config(JudgeQualityConfig, quality.config))
    barred = load_config(JudgeQualityConfig, quality.config, ["data.exclude=[more.jsonl]"])
    material, _ = read_material(barred)
    training_queries = {row.query for row in material.training}
    assert training_queries == {row["query"] for row in RATED[8:]} - {
        row.query for row in material.rated
    }
    assert material.rated == before.rated


def test_judgements_that_abstain_are_left_out_and_counted(tmp_path: Path) -> None:
    fail = {make_response(n): fault for n, fault in enumerate(["truncated", "unparsable"] * 10)}
    fail = {key: fail[key] for key in list(fail)[:8]}
    quality = Quality(tmp_path)
    more = ("--set", f"judge.script.fail={json.dumps(fail)}")
    assert quality.run("--parts", "single", *more) == 0
    single = quality.json()["parts"]["single"]
    lost = sum(row["held"] for row in split(quality) if row["response"] in fail)
    assert lost > 0
    held_out_count = quality.json()["rows"]["rated"]
    assert single["abstained"] == lost
    assert single["rating"]["spearman"]["n"] == held_out_count - lost
    assert single["rating"]["spearman"]["value"] == 1
    assert single["parsed"]["n"] == held_out_count
    assert single["parsed"]["value"] == pytest.approx(1 - lost / held_out_count)


def split(quality: Quality) -> list[dict[str, Any]]:
    material, _ = read_material(load_config(JudgeQualityConfig, quality.config))
    held_out_lines = {row.line for row in material.rated}
    return [row | {"held": n in held_out_lines} for n, row in enumerate(RATED, 1)]


def test_forced_ratings_count_as_ratings_and_not_as_parsed(tmp_path: Path) -> None:
    quality = Quality(tmp_path)
    ratings = {text: "No slot here." for text in RIGHT}
    more = ("--set", f"judge.script.ratings={json.dumps(ratings)}")
    assert quality.run("--parts", "single", *more) == 0
    single = quality.json()["parts"]["single"]
    assert (single["parsed"]["value"], single["abstained"]) == (0, 0)
    assert single["outcomes"] == {"ok": quality.json()["rows"]["rated"]}


def test_bad_rows_are_named_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quality = Quality(tmp_path, [*RATED, "no json", {"query": "q", "response": "r", "rating": 11}])
    assert quality.run("--parts", "single") == 0
    printed = "".join(capsys.readouterr())
    assert f"left out {tmp_path / 'rated.jsonl'}:21: " in printed
    left_out = quality.json()["left_out"]
    assert [(row["line"], row["field"]) for row in left_out] == [(21, ""), (22, "rating")]
    assert [row["file"] for row in left_out] == ["rated.jsonl"] * 2
    assert "2 malformed rows left out" in printed


def test_no_held_out_rows_is_an_error_before_judging(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quality = Quality(tmp_path)
    assert quality.run("--set", "data.held_out=0") == 1
    assert "no rows for single, single_direct" in capsys.readouterr().err
    assert quality.read_judged_responses() == []


# What the parts make of judgements, by hand.

FEW = Draws(rounds=20)


REFERENCE = (2.0, 4.0, 6.0, 8.0)
HELD = tuple(Rated("r", n, f"q{n}", f"r{n}", value) for n, value in enumerate(REFERENCE))


def test_a_paired_difference_keeps_rows_that_both_know() -> None:
    material = Material(HELD, draws=FEW)
    differences = compare_paired(material, [1, 2, 3, None], [3, None, 1, 9])
    # Rows 0 and 2 are left: correlations 1 and -1.
    assert (differences["spearman"]["value"], differences["pearson"]["value"]) == (2, 2)
    assert differences["spearman"]["n"] == 2


def test_the_best_view_is_compared() -> None:
    material = Material(HELD, draws=FEW)
    predictions = {
        "single": {"rating": [5, 5, 5, 5], "expected": [1, 2, 4, 3]},
        "single_direct": {"expected": [1, 2, 3, 4]},
        "rivals": {"tfidf": [4, 3, 2, 1]},
    }
    comparisons = compare_parts(material, predictions)
    assert comparisons["best_view"] == "single_direct expected"
    assert comparisons["against"]["tfidf"]["spearman"]["value"] == 2
    assert compare_parts(material, {"rivals": {"tfidf": [4, 3, 2, 1]}})["against"] == {}
