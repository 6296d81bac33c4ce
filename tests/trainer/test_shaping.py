from __future__ import annotations

import statistics
from typing import Any

import pytest

from autoj_reward.config import FailureConfig, ShapingConfig, check
from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.trainer.shaping import (
    EPSILON,
    FailureBudget,
    Fallback,
    Shaper,
    _compute_tail_probability,
    markup_density,
)
from autoj_reward.types import Judgement, Outcome
from tests.growth import require_linear
from tests.judgements import rated

OK = rated(5.0)
BAD = Judgement(Outcome.UNPARSABLE, reason="no rating")


def shaped(raw: list[float | None], **config: object) -> list[float | None]:
    shaper = Shaper(check(ShapingConfig, dict(config), "test"))
    return shaper(raw, ["x" * 1000 * n for n in range(len(raw))], ["a", "a", "b", "b"][: len(raw)])


def test_nothing_is_shaped_by_default() -> None:
    assert shaped([1.0, None, 3.0]) == [1.0, None, 3.0]


def test_length_then_scale_then_clip() -> None:
    found = shaped([5.0, 5.0, None, 9.0], length_penalty=0.5, scale=2, shift=-10, clip=[-0.5, 4])
    assert found == [0.0, -0.5, None, 4.0]


def test_a_length_penalty_by_group_counts_from_the_mean_of_the_group() -> None:
    """Shorter responses gain what longer ones lose, and a failed one has a length too."""
    found = shaped([5.0, 5.0, None, 9.0], length_penalty=0.5, penalty_by="group")
    assert found == [5.25, 4.75, None, 8.75]


PLAIN = "The sky is blue since air scatters blue light.\nRed light passes."
STYLED = "# The sky\n\n- **Blue**: air scatters it.\n- **Red**: it passes."


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        pytest.param(PLAIN, 0, id="plain"),
        pytest.param(STYLED, 5, id="heading, items and bold"),
        pytest.param("1. one\n 2) two\n* three\n+ four\n__five__", 5, id="other marks"),
        pytest.param("2 * 3 - 1\n#tag -x **open\n---\n**", 0, id="no markup"),
        pytest.param("```py\n# a comment\n- x\n```\n# Heading", 1, id="code block"),
        pytest.param("# a\n" + "x" * 3996, 0.25, id="long"),
    ],
)
def test_markup_per_thousand_characters(text: str, marks: float) -> None:
    assert markup_density(text) == marks


@pytest.mark.parametrize("piece", ["**a", "__", "*", "# ", "1. ", "\n", "```\n", " "])
def test_markup_is_counted_in_linear_time(piece: str) -> None:
    require_linear(markup_density, lambda n: piece * (n // len(piece)), 32_768)


def test_a_style_penalty_by_group_moves_no_mean() -> None:
    shaper = Shaper(ShapingConfig(style_penalty=0.1, penalty_by="group"))
    found = shaper([6.0, 6.0, 8.0, 8.0], [PLAIN, STYLED, STYLED, STYLED], ["a", "a", "b", "b"])
    assert found == pytest.approx([6.25, 5.75, 8.0, 8.0])
    alone = Shaper(ShapingConfig(style_penalty=0.1))
    assert alone([6.0, 6.0, None], [PLAIN, STYLED, STYLED], ["a"] * 3) == [6.0, 5.5, None]


def test_penalties_for_length_and_style_add_up() -> None:
    shaper = Shaper(ShapingConfig(length_penalty=1.0, style_penalty=0.5))
    assert shaper([5.0], ["# a\n" + "x" * 3996], ["a"]) == [5.0 - 4.0 - 0.125]


def test_whitening_by_group_leaves_abstentions_out() -> None:
    found = shaped([2.0, 6.0, None, 4.0], whiten="group")
    spread = statistics.stdev([2.0, 6.0]) + EPSILON
    assert found == [pytest.approx(-2 / spread), pytest.approx(2 / spread), None, 0.0]


@pytest.mark.parametrize("config", [{}, {"scale": 0.5, "shift": -3}, {"clip": [0, 100]}], ids=str)
def test_rewards_that_are_asked_for_one_by_one_keep_their_order(config: dict[str, object]) -> None:
    shaper = Shaper(check(ShapingConfig, config, "test"))
    alone: list[Any] = [value for raw in (10.0, 2.0, 7.0) for value in shaper([raw], [""], ["a"])]
    assert alone == shaper([10.0, 2.0, 7.0], [""] * 3, ["a"] * 3)
    assert sorted(range(3), key=alone.__getitem__) == [1, 2, 0]


@pytest.mark.parametrize(
    ("block", "key"),
    [(ShapingConfig, "whiten"), (FailureConfig, "fallback")],
    ids=["whiten", "fallback"],
)
def test_figures_of_the_run_so_far_are_refused(block: type[Any], key: str) -> None:
    """Statistics of the run so far would differ by process and start again on a resume."""
    with pytest.raises(ConfigError, match=rf"{key}.*or 'group'.*\(value: 'running'\)"):
        check(block, {key: "running"}, "test")


def test_a_lone_response_has_no_group() -> None:
    by_length = Shaper(ShapingConfig(length_penalty=1.0, penalty_by="group"))
    with pytest.raises(ConfigError, match=r"shaping.penalty_by is group.*one response of"):
        by_length([10.0], ["text"], ["a"])
    shaper = Shaper(ShapingConfig(whiten="group"))
    told = "shaping.whiten is group.*one response of 'a'"
    with pytest.raises(ConfigError, match=told):
        shaper([10.0], ["text"], ["a"])
    with pytest.raises(ConfigError, match=told):
        shaper([10.0, 1.0, 2.0], ["text"] * 3, ["a", "b", "b"])
    # One that failed was asked for in its group.
    assert shaper([10.0, None], ["text"] * 2, ["a", "a"]) == [0.0, None]


def test_a_clip_that_falls_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a rising pair"):
        check(ShapingConfig, {"clip": [1, 1]}, "test")


def test_the_budget_allows_a_few_and_stops_at_many() -> None:
    budget = FailureBudget(FailureConfig(budget=0.05, window=100))
    for _ in range(20):
        budget.count([OK] * 97 + [BAD] * 3)
    budget.count([OK] * 100 + [BAD] * 5)
    with pytest.raises(BudgetExceeded) as caught:
        budget.count([BAD])
    for part in ("6 of the last 100", "budget is 0.05 of 100", "unparsable: no rating", "resume"):
        assert part in str(caught.value)


def test_the_budget_stops_a_broken_judge_before_the_window_is_full() -> None:
    budget = FailureBudget(FailureConfig())
    with pytest.raises(BudgetExceeded):
        for n in range(1000):
            budget.count([BAD if n % 10 < 3 else OK])
    assert n < 40


def test_a_judge_within_its_budget_is_not_stopped_by_a_few_failures() -> None:
    for n in (1, 2, 3):
        FailureBudget(FailureConfig()).count([BAD] * n)
    with pytest.raises(BudgetExceeded, match="4 of the last 4"):
        FailureBudget(FailureConfig()).count([BAD] * 4)


def test_a_judge_that_is_gone_stops_a_run_that_went_well() -> None:
    lost = Judgement(Outcome.UNAVAILABLE, reason="nobody")
    budget = FailureBudget(FailureConfig())
    budget.count([OK] * 900 + [lost] * 7 + [OK] + [lost] * 7)
    with pytest.raises(BudgetExceeded, match="15 of the last 916"):
        budget.count([lost])
    # Responses that cannot be read say nothing of the judge's being there.
    FailureBudget(FailureConfig()).count([OK] * 900 + [BAD] * 12)
    FailureBudget(FailureConfig(budget=1)).count([lost] * 20)


def test_the_binomial_tail() -> None:
    from scipy.stats import binom

    for failed, seen, share in ((0, 5, 0.1), (3, 7, 0.05), (12, 300, 0.05), (60, 999, 0.05)):
        assert _compute_tail_probability(failed, seen, share) == pytest.approx(
            binom.sf(failed - 1, seen, share), abs=1e-12
        )


def test_no_budget_means_no_failure() -> None:
    with pytest.raises(BudgetExceeded):
        FailureBudget(FailureConfig(budget=0)).count([BAD])


def test_fallback_by_group_then_neutral() -> None:
    fallback = Fallback(FailureConfig(fallback="group"), neutral=5.5)
    found = fallback.fill([2.0, None, 4.0, None, None], ["a", "a", "a", "b", "b"])
    assert found == [2.0, 3.0, 4.0, 5.5, 5.5]
    assert fallback.used == 3
    with pytest.raises(ConfigError, match=r"fallback is group.*one response of 'c'"):
        fallback.fill([9.0], ["c"])


@pytest.mark.parametrize(("config", "number"), [({}, 5.5), ({"fallback": -1.0}, -1.0)], ids=str)
def test_a_fallback_does_not_depend_on_what_was_asked_before(
    config: dict[str, object], number: float
) -> None:
    fallback = Fallback(check(FailureConfig, config, "test"), neutral=5.5)
    assert fallback.fill([None], ["a"]) == [number]
    assert fallback.fill([9.0, 9.0, None], ["a", "a", "a"]) == [9.0, 9.0, number]
    assert fallback.fill([None], ["a"]) == [number]
