from __future__ import annotations

import asyncio
import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from autoj_reward.config import load_config
from autoj_reward.evaluate.intervals import Draws
from autoj_reward.io.plain import plain
from autoj_reward.types import Candidate, JudgeInput, Judgement, Outcome, Rating, Usage, Verdict
from experiments.compare.selection_budget.__main__ import main
from experiments.compare.selection_budget.config import (
    NoisyJudge,
    SelectionBudgetConfig,
    Simulation,
)
from experiments.compare.selection_budget.figures import choose, measure
from experiments.compare.selection_budget.report import render
from experiments.compare.selection_budget.scenes import simulated
from experiments.compare.selection_budget.strategies import Scene, strategies
from tests.experiments.compare.test_ablation import Ablation, N, write_rows

ROOT = Path(__file__).parents[3]
SHARP = NoisyJudge(full=0, cheap=0, comparison=1)
ALL = ("recorded", "scalar", "sampled", "knockout")
FEW = Draws(rounds=50)


def small(judge: NoisyJudge, queries: int = 60, **other: Any) -> list[Scene]:
    config = Simulation(queries=queries, candidates=8, judges={"j": judge}, **other)
    return simulated(config, judge, 4, seed=1)


def measured(scenes: Sequence[Scene], shares: Sequence[float] = (0.35,)) -> dict[str, Any]:
    tried = strategies(ALL, shares, (2, 4), 4, "expected")
    chosen = asyncio.run(choose(scenes, tried, "test"))
    return measure(scenes, chosen, shares[0], FEW)


# Strategies, by hand.


def table_of(numbers: dict[str, list[float]]) -> Scene:
    """Four candidates; a reading writes 1 token, a critique 10, an order of a comparison 20."""

    def answer(item: JudgeInput) -> Judgement:
        own = [int(text.split()[1]) for text in item.responses]
        if item.kind == "pairwise":
            first = numbers["wins"][own[0]] > numbers["wins"][own[1]]
            verdict = Verdict.FIRST if first else Verdict.SECOND
            return Judgement(Outcome.OK, verdict=verdict, usage=Usage(100, 90, 20))
        value = numbers["cheap" if item.direct else "full"][own[0]]
        usage = Usage(100, 60, 1 if item.direct else 10)
        return Judgement(Outcome.OK, rating=Rating(value, None, value), usage=usage)

    def score(item: JudgeInput) -> Judgement:
        value = numbers["scalar"][int(item.responses[0].split()[1])]
        return Judgement(Outcome.OK, rating=Rating(value, None, value), usage=Usage(30, 0, 0))

    candidates = tuple(Candidate("q", f"response {i}") for i in range(4))
    judges = {"greedy": answer, "sampled": answer, "scalar": score}
    return Scene(candidates, np.array(numbers["gold"]), judges)


NUMBERS = {
    "gold": [0.0, 1.0, 2.0, 3.0],
    "cheap": [1.0, 4.0, 3.0, 2.0],
    "full": [1.0, 2.0, 9.0, 8.0],
    "scalar": [5.0, 1.0, 2.0, 6.0],
    "wins": [0.0, 3.0, 1.0, 9.0],
}
SCENE = table_of(NUMBERS)


@pytest.mark.parametrize(
    ("name", "index", "written", "computed"),
    [
        pytest.param("full", 2, 40, 4 * 50, id="the best after its critique"),
        pytest.param("rating-only", 1, 4, 4 * 41, id="the best before it"),
        # 2 of 4 critiques less 0.4: the one with the best reading.
        pytest.param("halving 50%", 1, 14, 4 * 41 + 50, id="halving"),
        pytest.param("scalar-first 50%", 3, 20, 4 * 30 + 100, id="scores 6 and 5, then critiques"),
        pytest.param("knock-out 2", 1, 4 + 40, 4 * 41 + 60, id="readings 4 and 3 meet"),
        # Candidate 1 beats 2, and 3 beats it.
        pytest.param("knock-out 3", 3, 4 + 80, 4 * 41 + 120, id="a third meets the winner"),
    ],
)
def test_a_strategy_by_hand(name: str, index: int, written: int, computed: int) -> None:
    tried = strategies(ALL, (0.5,), (2, 3), 2, "expected")
    found = asyncio.run(choose([SCENE], tried, "test"))[name][0]
    usage = found.usage
    assert (found.index, usage.tokens_out) == (index, written)
    assert usage.tokens_in - usage.tokens_cached + usage.tokens_out == computed


def test_what_is_asked_twice_costs_once() -> None:
    twice = Scene(SCENE.candidates[:1] * 4, SCENE.gold, SCENE.judges)
    found = asyncio.run(choose([twice], strategies((), (), (), 2, "expected"), "test"))
    assert found["full"][0].usage.tokens_out == 10


# Figures.


def test_figures_by_hand() -> None:
    found = measured([SCENE, SCENE], (0.5,))
    full, halved = (found["strategies"][name] for name in ("full", "halving 50%"))
    # A random candidate has 1.5, the oracle's 3, full judging's 2, halving's 1.
    assert full["recovered"].value == pytest.approx(0.5 / 1.5)
    assert halved["recovered"].value == pytest.approx(-0.5 / 1.5)
    assert halved["less_full"].value == pytest.approx(-1 / 1.5)
    assert (full["written"], full["computed"]) == (1, 1)
    assert halved["written"] == 14 / 40
    assert found["target"] == {
        "strategy": "halving 50%",
        "within_written": True,
        "within_computed": False,
        "not_below_full": False,
        "at_least_full_low": False,
    }


@pytest.mark.parametrize(
    ("gold", "queries", "difference", "gain"),
    [
        pytest.param([0.0, 1.0, 2.0, 3.0], 2, "is below 0", "below", id="worse"),
        pytest.param([0.0, 1.0, 1.0, 3.0], 2, "is not below 0", "at least", id="as good"),
        pytest.param([0.0, 3.0, 1.0, 2.0], 2, "is not below 0", "at least", id="better"),
        pytest.param(
            [0.0, 1.0, 2.0, 3.0], 1, "is undefined", "not comparable to", id="no interval"
        ),
    ],
)
def test_what_is_said_of_the_target(
    gold: list[float], queries: int, difference: str, gain: str
) -> None:
    """Full judging chooses candidate 2, halving candidate 1; only "not worse" is claimed."""
    own = measured([table_of(NUMBERS | {"gold": gold})] * queries, (0.5,))
    machine = {"processor": "P", "cores": 2, "memory_gib": 4, "gpus": []}
    found = {"command": "c", "at": "today", "versions": {}, "machine": machine, "parts": ALL}
    config = {"view": "expected", "bootstrap": FEW.rounds}
    text = render(plain(found | {"config": config, "judges": {"j": own}}))
    assert (
        f"the interval of its difference to full judging {difference}, and its gain is {gain} the "
        "lower end of full judging's own interval."
    ) in text


# The simulation.


def test_a_judge_without_noise_recovers_everything() -> None:
    rows = measured(small(SHARP))["strategies"]
    for name in ("full", "rating-only", "halving 35%", "all-4", "knock-out 2", "knock-out 4"):
        assert rows[name]["recovered"].value == pytest.approx(1), name


def test_the_noise_is_as_stated() -> None:
    judge = NoisyJudge(full=1.5, cheap=2.5, correlation=0.6, resampled=0.25, comparison=0.8)
    scenes = small(judge, 600)
    greedy = [scene.judges["greedy"] for scene in scenes]

    def errors(sample: int = 0, direct: bool = False) -> np.ndarray:
        return np.array(
            [
                [
                    answer(JudgeInput(c.query, (c.response,), sample, direct)).view("expected") - g
                    for c, g in zip(scene.candidates, scene.gold, strict=True)
                ]
                for scene, answer in zip(scenes, greedy, strict=True)
            ]
        ).ravel()

    full, again, cheap = errors(), errors(1), errors(direct=True)
    assert full.std() == pytest.approx(1.5, rel=0.05) and cheap.std() == pytest.approx(
        2.5, rel=0.05
    )
    assert np.corrcoef(full, again)[0, 1] == pytest.approx(0.75, abs=0.04)
    assert np.corrcoef(full, cheap)[0, 1] == pytest.approx(0.6 * np.sqrt(0.75), abs=0.04)
    right = [
        (answer(JudgeInput(scene.candidates[0].query, ("response 0", "response 1"))).verdict
         is Verdict.FIRST) == (scene.gold[0] > scene.gold[1])
        for scene, answer in zip(scenes, greedy, strict=True)
    ]  # fmt: skip
    assert np.mean(right) == pytest.approx(0.8, abs=0.05)


def test_budgets_are_kept_and_more_recovers_more() -> None:
    found = measured(small(NoisyJudge(full=0.5, cheap=2, correlation=0), 300), (0.35, 0.7))
    rows = found["strategies"]
    assert rows["halving 35%"]["written"] <= 0.35 * 1.05
    order = ("rating-only", "halving 35%", "halving 70%", "full")
    values = [rows[name]["recovered"].value for name in order]
    assert values == sorted(values) and values[0] < values[-1] - 0.1


# The command.


def written(folder: Path, ablation: Ablation, **other: Any) -> Path:
    data = {
        "base": str(ablation.config),
        "output": str(folder / "budget"),
        "simulation": {"queries": 5, "candidates": 4, "judges": {"exact": {"full": 0, "cheap": 0}}},
        "bootstrap": 20,
        "view": "rating",
    }
    path = folder / "budget.yaml"
    path.write_text(yaml.safe_dump(data | other))
    return path


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ablation = Ablation(tmp_path, costly={"queries": 3, "candidates": N})
    path = written(tmp_path, ablation)
    every = ["--config", str(path), "--parts", ",".join((*ALL, "simulated"))]
    assert main(every) == 0
    found = json.loads((tmp_path / "budget/selection_budget.json").read_text())
    assert set(found["judges"]) == {"recorded", "exact"}
    own = found["judges"]["recorded"]
    assert (own["queries"], own["candidates"]) == (3, 3 * N)
    assert {"full", "all-2", "adaptive-2 35%", "scalar-first 35%", "knock-out 4"} <= set(
        own["strategies"]
    )
    # Greedy critiques rate by words, one off; the best of them is answer 3 of gold 5/6.
    gold = [1 - abs(k - 2) / 6 for k in range(N)]
    mean = sum(gold) / N
    assert own["strategies"]["full"]["recovered"]["value"] == pytest.approx((1 - mean) / (1 - mean))
    assert own["strategies"]["full"]["written"] == 1
    table = (tmp_path / "budget/selection_budget.md").read_text()
    assert table in capsys.readouterr().out and "| halving 35% |" in table
    for name in found["judges"]:
        ET.fromstring((tmp_path / f"budget/selection_budget-{name}.svg").read_text())
    # Everything is on record.
    before = ablation.judged()
    assert before and main(every) == 0 and ablation.judged() == before


def test_outputs_of_systems(tmp_path: Path) -> None:
    ablation = Ablation(tmp_path)
    figures = {"good": 90.0, "fair": 50.0, "poor": 10.0}
    (tmp_path / "outputs").mkdir()
    for number, name in enumerate(figures):
        # The scripted judge prefers 7 words.
        rows = [
            {"instruction": f"Question {n}?", "output": " ".join(["word"] * (7 + 3 * number)),
             "generator": name}
            for n in range(5)
        ]  # fmt: skip
        write_rows(tmp_path / f"outputs/{name}.jsonl", rows)
    board = "\n".join(["name,win_rate", *(f"{name},{rate}" for name, rate in figures.items())])
    (tmp_path / "board.csv").write_text(board + "\n")
    systems = {"outputs": "outputs", "leaderboard": "board.csv", "instructions": 3}
    path = written(tmp_path, ablation, systems=systems)
    every = ["--config", str(path), "--parts", "systems,scalar,sampled,knockout"]
    assert main(every) == 0
    found = json.loads((tmp_path / "budget/selection_budget.json").read_text())
    assert set(found["judges"]) == {"systems"}
    own = found["judges"]["systems"]
    assert (own["queries"], own["candidates"], own["oracle_gain"]["value"]) == (3, 9, 40)
    assert own["strategies"]["full"]["recovered"]["value"] == 1
    # The scripted scalar model prefers 11 words: fair has 10, poor 13.
    assert own["strategies"]["scalar-first 35%"]["recovered"]["value"] == 0
    assert {"all-2", "knock-out 2", "halving 35%"} <= set(own["strategies"])
    assert "Gold: the system's figure" in (tmp_path / "budget/selection_budget.md").read_text()
    before = ablation.judged()
    assert before and main(every) == 0 and ablation.judged() == before
    assert main([*every[:3], "recorded,systems"]) == 0
    both = json.loads((tmp_path / "budget/selection_budget.json").read_text())["judges"]
    assert set(both) == {"recorded", "systems"}


def test_the_simulated_part_needs_no_other(tmp_path: Path) -> None:
    path = written(tmp_path, Ablation(tmp_path), base="nowhere.yaml")
    assert main(["--config", str(path), "--parts", "simulated"]) == 0
    found = json.loads((tmp_path / "budget/selection_budget.json").read_text())
    assert set(found["judges"]) == {"exact"} and "NoisyJudge(full=0.0" in str(found)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param(["--parts", "scalar"], "need the part recorded", id="part"),
        pytest.param(["--parts", "systems"], "this config has the parts", id="systems"),
        pytest.param(["--parts", "recorded,best"], "this config has the parts", id="unknown part"),
        pytest.param(["--set", "shares=[0.2, 1.5]"], "between 0 and 1", id="share"),
        pytest.param(["--set", "target=0.3"], "is one of them", id="target"),
        pytest.param(["--set", "finalists=[1]"], "needs two", id="finalists"),
        pytest.param(["--set", "finalists=[]"], "finalists", id="no finalists"),
        pytest.param(["--set", "base=nowhere.yaml"], "nowhere.yaml", id="base"),
    ],
)
def test_errors_are_explained(
    tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ablation = Ablation(tmp_path)
    assert main(["--config", str(written(tmp_path, ablation)), *flags]) == 1
    assert said in capsys.readouterr().err
    assert not ablation.judged()


def test_the_config_of_the_repository() -> None:
    config = load_config(SelectionBudgetConfig, ROOT / "configs/selection_budget.yaml")
    assert config.wanted(None) == ("recorded", "scalar", "simulated")
    assert config.target in config.shares
