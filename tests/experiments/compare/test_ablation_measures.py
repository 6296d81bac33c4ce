from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoj_reward.data.labelled import Compared
from autoj_reward.evaluate.selection_metrics import best_drawn, tie_counts
from autoj_reward.evaluate.statistics import Draws, pearson
from autoj_reward.io.chart import curves
from autoj_reward.types import Verdict
from experiments.compare.ablation.bias import (
    best_of_n_kl,
    confident_disagreement,
    log_length,
    over_optimization,
    slopes,
)
from experiments.compare.ablation.measures import (
    Scored,
    measure_reward,
    within,
)
from experiments.compare.ablation.pairs import alone, alone_inputs, measure_pairs
from experiments.compare.panel import Material

NAN = math.nan
F, S, T = Verdict.FIRST, Verdict.SECOND, Verdict.TIE
FEW = Draws(rounds=50)


def group(gold: list[float], texts: list[str] | None = None, **scores: list[float]) -> Scored:
    responses = tuple(texts or [f"r{n}" for n in range(len(gold))])
    arrays = {name: np.array(values) for name, values in scores.items()}
    return Scored("q", responses, np.array(gold), arrays)


@pytest.mark.parametrize(
    ("score", "size", "wanted"),
    [
        pytest.param([1, 2, 3, 4], 1, 2.5, id="one is the mean"),
        pytest.param([1, 2, 3, 4], 4, 1, id="all is the best"),
        # Pairs: the higher scored has gold 3 (1 of 6), 2 (2 of 6), 1 (3 of 6).
        pytest.param([1, 2, 3, 4], 2, (3 + 2 * 2 + 3 * 1) / 6, id="two"),
        pytest.param([5, 5, 5, 5], 3, 2.5, id="all tied"),
        # The tied top has gold 2 and 1; the pair of the others (4, 3) falls to 3.
        pytest.param([1, 2, 3, 3], 2, (5 * 1.5 + 3) / 6, id="tied top"),
        pytest.param([NAN, 2, NAN, 1], 4, 3, id="abstained never wins"),
        pytest.param([NAN, 2, NAN, 1], 2, (3 * 3 + 2 * 1 + 3) / 6, id="unless all do"),
    ],
)
def test_gold_of_the_best(score: list[float], size: int, wanted: float) -> None:
    gold = np.array([4.0, 3, 2, 1])
    assert best_drawn(score, gold, size) == pytest.approx(wanted)


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=7),
    data=st.data(),
)
def test_gold_of_the_best_is_the_mean_over_subsets(rows: list[tuple[int, int]], data: Any) -> None:
    size = data.draw(st.integers(1, len(rows)))
    found = []
    for subset in combinations(rows, size):
        top = max(score for _, score in subset)
        found.append(np.mean([gold for gold, score in subset if score == top]))
    gold, score = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    assert best_drawn(score, gold, size) == pytest.approx(np.mean(found))


def test_a_size_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"best of 3 is outside 1\.\.2"):
        best_drawn(np.ones(2), np.ones(2), 3)


def test_figures_of_a_reward() -> None:
    groups = [
        group([0, 1, 1, 0], r=[1, 2, 3, 2], same=[1, 1, 1, 1]),
        group([1, 1, 1, 1], r=[1, 2, 3, 4], same=[1, 1, 1, 1]),
        group([0, 0, 0, 1], r=[4, 3, 2, 1], same=[1, NAN, 1, 1]),
    ]
    found: Any = measure_reward(groups, "r", "same", FEW)
    assert found["best_of"][4].value == pytest.approx((1 + 1 + 0) / 3)
    # Mean gold 0.5, 1, 0.25; the oracle reaches 1 everywhere: 0.25 / 1.25 of the gain.
    assert found["recovered"][4].value == pytest.approx((2 - 1.75) / (3 - 1.75))
    assert found["tie_rate"].value == pytest.approx(1 / 18)
    assert list(tie_counts(g.scores["same"] for g in groups)[2]) == [3, 3]
    inside = within(groups, "r", pearson)
    # Deviations of r: -1 0 1 0; of gold -.5 .5 .5 -.5: 1 / sqrt(2 * 1). And -1.5 * .75 - .5 ..
    assert inside[0] == pytest.approx(1 / math.sqrt(2))
    assert math.isnan(inside[1])
    assert inside[2] == pytest.approx(-1.5 / math.sqrt(5 * 0.75))
    assert found["within_pearson"].n == 2
    assert found["within_pearson"].value == pytest.approx((inside[0] + inside[2]) / 2)
    less = found["less_reference"]
    assert less["best_of"].value == pytest.approx(2 / 3 - (0.5 + 1 + 1 / 3) / 3)
    assert less["pearson"].value is None  # a constant has no correlation
    constant: Any = measure_reward(groups, "same", None, FEW)
    assert "less_reference" not in constant
    assert (constant["abstained"], constant["tie_rate"].value) == (1, 1)
    assert constant["within_pearson"].n == 0


def test_a_reward_that_always_abstains() -> None:
    groups = [group([0, 1], r=[NAN, NAN]) for _ in range(3)]
    found: Any = measure_reward(groups, "r", None, FEW)
    assert found["best_of"][2].value == 0.5
    assert (found["pearson"].value, found["tie_rate"].value, found["abstained"]) == (None, None, 6)
    assert slopes(groups, "r", FEW)["alone"].value is None
    assert over_optimization(groups, "r", FEW)["points"] == []


def test_slopes() -> None:
    texts = ["x" * n for n in (3, 7, 20, 50)]
    length = np.array([log_length(text) for text in texts])
    gold = np.array([0.0, 1, 0, 1])
    groups = [
        group(list(gold), texts, r=list(2 * length + 3 * gold + offset)) for offset in (0.0, 100)
    ]
    sd = float(np.std(np.concatenate([g.scores["r"] for g in groups])))
    found = slopes(groups, "r", FEW)
    # The offset between queries plays no role, and gold takes its part of the slope.
    assert found["gold_fixed"].value == pytest.approx(2 / sd)
    x, g = length - length.mean(), gold - 0.5
    assert found["alone"].value == pytest.approx((2 + 3 * (x @ g) / (x @ x)) / sd)


def test_confident_disagreement() -> None:
    # Standard deviation of 0, 0, 4, 4 (and of both queries) is 2.
    groups = [group([1, 1, 1, 0], r=[0, 0, 4, 4]), group([1, 0, 0.5, 0], r=[0, 0, 4, 4])]
    found: Any = confident_disagreement(groups, "r", FEW)
    assert found["pairs"] == 4
    assert found["rate"].value == pytest.approx(3 / 4)
    near = [group([1, 1], r=[0, 2]), group([1, 1], r=[0, 2])]  # two deviations apart
    assert confident_disagreement(near, "r", FEW)["rate"].value == 1  # type: ignore[attr-defined]


def test_over_optimization() -> None:
    # The proxy's favourite is good in one query and bad in the other.
    groups = [
        group([0, 0, 1, 1], r=[1, 2, 3, 4]),
        group([1, 1, 0, 0], r=[1, 2, 3, 4]),
        group([1, 1, 1, 0], r=[NAN, 2, 3, 4]),
    ]
    found: Any = over_optimization(groups, "r", FEW)
    assert (found["queries"], found["left_out"]) == (2, 1)
    assert [point["n"] for point in found["points"]] == [1, 2, 3, 4]
    last = found["points"][-1]
    assert last["kl"] == pytest.approx(math.log(4) - 3 / 4) == best_of_n_kl(4)
    assert last["gold"].value == pytest.approx(0)
    assert last["proxy"].value == pytest.approx(1.5 / math.sqrt(1.25))
    assert found["points"][0]["proxy"].value == 0 == best_of_n_kl(1)


def pair(n: int, label: Verdict) -> Compared:
    return Compared("f", n, f"q{n}", (f"a{n}", f"b{n}"), label)


def test_pairs_choose_their_threshold_on_validation() -> None:
    tests = tuple(pair(n, label) for n, label in enumerate((F, S, T)))
    validation = tuple(pair(n, label) for n, label in enumerate((F, T, S), start=5))
    material = Material((), pairs=tests, validation=validation, draws=FEW)
    # Gaps: tests 4, -4, 1; validation 4, 1, -4. Ties begin at 1.
    values = [4.0, 0, 0, 4, 1, 0, 4, 0, 1, 0, 0, 4]
    found = measure_pairs(material, {"r": values, "no": [0.0, None] * 6}, "r")
    raw = found["rewards"]["r"]
    assert (raw["threshold"], raw["searched_rows"], raw["agreement"]["value"]) == (1, 3, 1)
    other = found["rewards"]["no"]
    assert (other["agreement"]["value"], other["abstained"]) == (0, 3)
    assert other["less_reference"]["value"] == -1


def test_the_threshold_comes_from_validation_files_that_know_ties() -> None:
    def row(source: str, n: int, label: Verdict) -> Compared:
        return Compared(source, n, f"{source} {n}", (f"{n} a", f"{n} b"), label)

    material = Material(
        pairs=(row("test", 1, F), row("test", 2, T), row("test", 3, S)),
        validation=(
            row("ties", 1, T), row("ties", 2, F),
            row("none", 1, F), row("none", 2, S), row("none", 3, F),
        ),
        draws=FEW,
    )  # fmt: skip
    values = [5.0, 4.0, 5.0, 4.75, 5.0, 5.5, 5.0, 5.25, 6.0, 5.0, 5.1, 5.0, 5.0, 5.1, 5.1, 5.0]
    assert len(alone_inputs(material)) == len(values)
    verdicts, found = alone(material, values)
    # 0.25 is needed for the tie. The file without ties would have made it 0.
    assert (found["threshold"], found["searched_rows"]) == (0.25, 2)
    assert (verdicts, found["agreement"]["value"]) == ([F, T, S], 1)


def test_the_test_pairs_do_not_move_the_threshold() -> None:
    material = Material(pairs=(pair(1, T),), validation=(pair(2, T), pair(3, F)), draws=FEW)
    _, found = alone(material, [7.0, 5.0, 5.5, 5.0, 7.0, 5.0])
    assert (found["threshold"], found["agreement"]["value"]) == (0.5, 0)


def test_a_pair_without_a_value_fails() -> None:
    material = Material(pairs=(pair(1, T),), draws=FEW)
    verdicts, found = alone(material, [None, 5.0])
    assert (verdicts, found["abstained"], found["searched_rows"]) == ([Verdict.FAILED], 1, 0)
    assert found["agreement"]["value"] == 0


def test_dashed_lines_and_dots() -> None:
    lines = {"a gold": [(0.0, 0.0), (1.0, 1.0)], "a proxy": [(0.0, 0.0), (1.0, 2.0)]}
    points = {"b gold": [(0.5, 1.0)], "b proxy": [(0.5, 2.0)]}
    svg = curves(lines | points, "x", "y", dashed=("a proxy", "b proxy"))
    assert svg.count("stroke-dasharray") == 2
    assert (svg.count("<circle"), svg.count('fill="#fff" stroke=')) == (2, 1)
