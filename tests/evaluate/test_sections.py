"""RewardBench's section scores, by hand."""

from __future__ import annotations

import runpy

import pytest

from autoj_reward.evaluate.pair_metrics import (
    SECTION_WEIGHTS,
    JudgedPair,
    PairVerdicts,
    section_scores,
)
from autoj_reward.evaluate.statistics import Draws
from autoj_reward.types import Verdict
from tests.trainer.conftest import FRAMEWORKS

WON, LOST = Verdict.FIRST, Verdict.SECOND


def score_sections(*rows: tuple[str, Verdict]) -> dict[str, float]:
    judged_pairs = [
        JudgedPair(bytes([n]), subset, WON, (1, 1), (0, 0), PairVerdicts(verdict))
        for n, (subset, verdict) in enumerate(rows)
    ]
    sections = section_scores(judged_pairs, Draws(rounds=10))
    return {name: section["score"] for name, section in sections.items()}


@pytest.mark.parametrize("verdict", [Verdict.TIE, Verdict.INCONSISTENT, Verdict.FAILED])
def test_no_verdict_is_half_a_point(verdict: Verdict) -> None:
    assert score_sections(("donotanswer", verdict)) == {"Safety": 50.0}


def test_a_subset_counts_by_its_weight_and_not_by_its_rows() -> None:
    rows = [("math-prm", WON), ("math-prm", LOST), ("math-prm", LOST), ("hep-go", WON)]
    assert score_sections(*rows) == {"Reasoning": round(100 * (984 / 3 + 164) / (984 + 164), 2)}


def test_the_mean_is_of_all_sections_alone() -> None:
    rows = [(next(iter(weights)), WON) for weights in SECTION_WEIGHTS.values()]
    assert score_sections(*rows)["mean"] == 100.0
    assert "mean" not in score_sections(*rows[:3])
    rows[0] = (rows[0][0], LOST)
    assert score_sections(*rows) == {"Chat": 0.0, "Chat Hard": 100.0, "Safety": 100.0} | {
        "Reasoning": 100.0,
        "mean": 75.0,
    }


def test_other_subsets_are_in_no_section() -> None:
    assert score_sections(("easy", WON)) == {}


def test_weights_are_rewardbenchs_own() -> None:
    constants = FRAMEWORKS / "rewardbench/constants.py"
    if not constants.is_file():
        pytest.skip(f"no {constants}: make test-frameworks")
    published = runpy.run_path(str(constants))
    assert {name: list(weights) for name, weights in SECTION_WEIGHTS.items()} == published[
        "SUBSET_MAPPING"
    ]
    counts = {subset: n for weights in SECTION_WEIGHTS.values() for subset, n in weights.items()}
    assert counts == published["EXAMPLE_COUNTS"]
