"""Groups ranked listwise and by comparisons, with judges whose taste is scripted."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import choix
import numpy as np
import pytest
from scipy.optimize import minimize

from autoj_reward.config import View
from autoj_reward.errors import InputError
from autoj_reward.questions.listwise import Listwise
from autoj_reward.questions.rank import Ranking
from autoj_reward.questions.strengths import PRIOR, Win, fit_bradley_terry, join_scores, win_rates
from autoj_reward.questions.tournament import Tournament, share_won
from autoj_reward.types import (
    GROUP,
    PAIRWISE,
    SINGLE,
    VERDICT,
    Candidate,
    Comparison,
    JudgeInput,
    Judgement,
    Outcome,
    Reading,
    Verdict,
)

Taste = Callable[[str], float]
SCALE = (1.0, 10.0)


def group(*texts: str, **more: Any) -> tuple[Candidate, ...]:
    return tuple(Candidate("Why?", text, **more) for text in texts)


def worth(text: str) -> float:
    """Texts are called by what they are worth."""
    return float(text.split()[0])


class Judge:
    """A scripted `ask`. place: what a response gains for each place further back in a group, or by
    standing first in a pair. told: whether probabilities are told. fails: texts whose judgements
    abstain. noise: standard deviation of what is seen of a worth, drawn for each input."""

    def __init__(
        self,
        taste: Taste = worth,
        place: float = 0.0,
        told: bool = True,
        fails: Sequence[str] = (),
        noise: float = 0.0,
    ) -> None:
        self.taste, self.place, self.told = taste, place, told
        self.fails, self.noise = fails, noise
        self.asked: list[JudgeInput] = []
        self.rounds = 0

    async def __call__(
        self, items: Sequence[JudgeInput], view: View | None = None
    ) -> list[Judgement]:
        self.rounds += 1
        self.asked += items
        return [self._judgement(item) for item in items]

    def _judgement(self, item: JudgeInput) -> Judgement:
        if set(item.responses) & set(self.fails):
            return Judgement(Outcome.UNPARSABLE, reason="scripted")
        drawn = random.Random(repr(item.responses))
        seen = [self.taste(text) + drawn.gauss(0, self.noise) for text in item.responses]
        if item.protocol == PAIRWISE:
            return self._verdict(seen[0] - seen[1] + self.place)
        name = {SINGLE: "rating"}.get(item.protocol)
        readings = []
        for n, own in enumerate(seen):
            value = min(10.0, max(1.0, own + n * self.place))
            label = str(round(value))
            expected = value if self.told else None
            readings.append(
                Reading(name or f"response_{n + 1}", label, float(label), expected=expected)
            )
        return Judgement(Outcome.OK, critique="read", readings=tuple(readings))

    def _verdict(self, gap: float) -> Judgement:
        p = 1 / (1 + math.exp(-gap))
        verdict = Verdict.FIRST if gap > 0 else Verdict.SECOND if gap < 0 else Verdict.TIE
        told = (("first", p), ("second", 1 - p), ("tie", 0.0)) if self.told else None
        return Judgement(Outcome.OK, readings=(Reading(VERDICT, verdict.value, distribution=told),))


def listwise(judge: Judge, candidates: tuple[Candidate, ...], **how: Any) -> Ranking:
    how = {"max_responses": 16, **how}
    return asyncio.run(Listwise(candidates, SCALE, **how).answer(judge))


def tournament(judge: Judge, candidates: tuple[Candidate, ...], **how: Any) -> Ranking:
    return asyncio.run(Tournament(candidates, **how).answer(judge))


def ranks(ranking: Ranking) -> list[int]:
    known = [-math.inf if s is None else s for s in ranking.scores]
    return sorted(range(len(known)), key=lambda i: -known[i])


# --- listwise


def test_a_group_is_scored_by_label_whatever_its_place() -> None:
    judge = Judge()
    found = listwise(judge, group("3", "9", "5"), orders=3)
    assert found.scores == pytest.approx([(v - 1) / 9 for v in (3, 9, 5)])
    assert found.errors == pytest.approx([0, 0, 0], abs=1e-6)
    assert [item.protocol for item in judge.asked] == [GROUP] * 3 and judge.rounds == 1
    assert found.critiques == ("read",) * 3


def test_orders_bring_each_response_early_midway_and_late() -> None:
    judge = Judge()
    listwise(judge, group(*"123456"), orders=3)
    for text in "123456":
        places = sorted(item.responses.index(text) // 2 for item in judge.asked)
        assert places == [0, 1, 2]


def test_the_same_group_is_asked_in_the_same_orders_and_another_in_others() -> None:
    def shown(seed: int) -> list[tuple[str, ...]]:
        judge = Judge()
        listwise(judge, group(*"12345678"), seed=seed)
        return [item.responses for item in judge.asked]

    assert shown(0) == shown(0) != shown(1)


def test_a_judge_that_goes_by_the_place_is_found_out_and_averaged_away() -> None:
    texts = [f"{5} {n}" for n in range(8)]
    found = listwise(Judge(place=0.5), group(*texts), orders=8)
    assert found.position_correlation == pytest.approx(1.0)
    assert found.spread is not None and found.spread > 0.3
    assert max(found.scores) - min(found.scores) < 1e-9  # type: ignore[type-var,operator]
    fair = listwise(Judge(), group(*"2468"), orders=4)
    assert fair.position_correlation == pytest.approx(0.0) and fair.spread == pytest.approx(0.0)


def test_a_large_group_is_judged_in_windows_that_share_responses() -> None:
    values = [1 + 9 * n / 39 for n in range(40)]
    judge = Judge()
    found = listwise(judge, group(*(f"{v} {n}" for n, v in enumerate(values))), max_responses=8)
    assert all(len(item.responses) == 8 for item in judge.asked)
    assert ranks(found) == [*range(39, -1, -1)]
    assert found.scores == pytest.approx([(v - 1) / 9 for v in values], abs=1e-6)


def test_windows_of_unequal_severity_are_joined() -> None:
    seen = [{0: 0.1, 1: 0.3, 2: 0.5}, {1: 0.5, 2: 0.7, 3: 0.9}]  # the second is milder by 0.2
    joined = join_scores(seen)
    values = [joined[i][0] for i in range(4)]
    assert np.diff(values) == pytest.approx([0.2, 0.2, 0.2])


def test_copies_and_empty_responses() -> None:
    judge = Judge(lambda text: float(text or 2))
    found = listwise(judge, group("5", "", "5"), orders=1)
    assert found.scores[0] == found.scores[2] and found.scores[1] == pytest.approx(1 / 9)
    assert len(judge.asked[0].responses) == 2
    alike = listwise(judge, group("5", "5"))
    assert alike.scores == (0.5, 0.5) and len(judge.asked) == 1


def test_without_probabilities_the_written_scores_count() -> None:
    assert listwise(Judge(told=False), group("3.2", "8.9")).scores == pytest.approx((2 / 9, 8 / 9))


def test_a_failed_order_counts_for_nothing_and_a_failed_group_abstains() -> None:
    found = listwise(Judge(fails=["4"]), group("4", "6"))
    assert found.scores == (None, None) and "scripted" in found.reasons[0]
    assert {own.outcome for own in found.as_judgements()} == {Outcome.UNPARSABLE}
    part = listwise(Judge(fails=["4"]), group(*"4567"), max_responses=2, orders=2)
    assert part.scores[0] is None and any(score is not None for score in part.scores[1:])


def test_a_group_of_one_and_a_mixed_group_are_refused() -> None:
    for ask in (listwise, tournament):
        with pytest.raises(InputError, match="a group of 1"):
            ask(Judge(), group("1"))
        with pytest.raises(InputError, match="different queries"):
            ask(Judge(), (*group("1"), Candidate("Who?", "2")))


def test_scores_as_judgements_share_the_cost() -> None:
    found = listwise(Judge(), group("3", "9", "5")).as_judgements()
    assert [own.rating for own in found] == pytest.approx([2 / 9, 8 / 9, 4 / 9])
    assert all(own.view("expected") == own.rating and own.critique == "read" for own in found)


# --- comparisons


@pytest.mark.parametrize(
    ("how", "calls"),
    [
        pytest.param({"schedule": "all"}, 2 * 28, id="all"),
        pytest.param({"schedule": "all", "both": False}, 28, id="one-order"),
        pytest.param({"schedule": "circular", "neighbours": 2}, 2 * 16, id="circular"),
        pytest.param({"schedule": "circular", "neighbours": 9}, 2 * 28, id="circle-of-all"),
        pytest.param({"schedule": "pivot"}, 8 + 2 * 7, id="pivot"),
        pytest.param({"schedule": "pivot", "both": False}, 8 + 7, id="pivot-one-order"),
        pytest.param({"schedule": "swiss", "rounds": 3}, 2 * 12, id="swiss"),
    ],
)
def test_every_schedule_ranks_and_asks_what_it_says(how: dict[str, Any], calls: int) -> None:
    judge = Judge()
    found = tournament(judge, group(*"12345678"), **how)
    assert len(judge.asked) == len(found.judgements) == calls
    assert Tournament(group(*"12345678"), **how).most_inputs == calls
    best, *_, worst = ranks(found)
    assert (best, worst) == (7, 0)
    assert all(
        s is not None and 0 < s < 1 and e for s, e in zip(found.scores, found.errors, strict=True)
    )
    assert sum(s for s in found.scores if s) == pytest.approx(4)  # win rates average a half


def test_a_judge_that_always_says_first_gives_nobody_an_advantage() -> None:
    always = Judge(lambda text: 0.0, place=3.0)
    for how in ({"schedule": "all"}, {"schedule": "circular"}, {"schedule": "swiss"}):
        found = tournament(always, group(*"12345678"), **how)
        assert found.scores == pytest.approx([0.5] * 8)
    turns = tournament(always, group(*"12345678"), schedule="circular", both=False, neighbours=3)
    assert turns.scores == pytest.approx([0.5] * 8, abs=1e-6)


def test_hard_verdicts_count_ties_and_disagreement_half() -> None:
    def order(verdict: Verdict) -> Judgement:
        return Judgement.of_verdict(verdict)

    first, second, tie = map(order, (Verdict.FIRST, Verdict.SECOND, Verdict.TIE))
    assert share_won(Comparison(Verdict.FIRST, (first, second))) == 1
    assert share_won(Comparison(Verdict.INCONSISTENT, (first, first))) == 0.5
    assert share_won(Comparison(Verdict.TIE, (tie, tie))) == 0.5
    assert share_won(Comparison(Verdict.SECOND, (second,))) == 0
    assert share_won(Comparison(Verdict.FAILED, (first, Judgement(Outcome.UNAVAILABLE)))) is None


def test_a_response_without_a_valid_comparison_abstains() -> None:
    found = tournament(Judge(fails=["4"]), group(*"45678"), schedule="all")
    assert found.scores[0] is None and found.errors[0] is None
    assert "no valid comparison" in found.reasons[0] and "scripted" in found.reasons[0]
    assert ranks(found)[:4] == [4, 3, 2, 1]
    assert sum(s for s in found.scores if s) == pytest.approx(2)


def test_copies_meet_once_and_tie() -> None:
    judge = Judge()
    found = tournament(judge, group("3", "7", "3"), schedule="all")
    assert len(judge.asked) == 2 and found.scores[0] == found.scores[2]
    assert sum(s for s in found.scores if s) == pytest.approx(1.5)


def test_a_reference_is_the_pivot_and_not_shown_beside() -> None:
    judge = Judge()
    answers = group("2", "8", context={"reference": "5"})
    found = tournament(judge, answers, schedule="pivot", pivot="reference")
    assert ranks(found) == [1, 0] and len(found.scores) == 2
    assert {tuple(sorted(item.responses)) for item in judge.asked} == {("2", "5"), ("5", "8")}
    assert all("reference" not in item.context for item in judge.asked)
    assert {-1} == {m.first if m.second != -1 else m.second for m in found.matches} - {0, 1}
    with pytest.raises(InputError, match="brings none"):
        tournament(judge, group("2", "8"), schedule="pivot", pivot="reference")


def test_swiss_stops_when_all_are_told_apart() -> None:
    apart = Judge(lambda text: 40 * worth(text))
    tournament(apart, group(*"12"), schedule="swiss", rounds=50)
    assert apart.rounds == 1
    close = Judge(lambda text: 0.0)
    tournament(close, group(*"1234"), schedule="swiss", rounds=50)
    assert close.rounds == 3  # everybody has met


def spearman(found: Ranking, values: Any) -> float:
    scores = np.array([math.nan if s is None else s for s in found.scores])
    return float(np.corrcoef(np.argsort(np.argsort(scores)), np.argsort(np.argsort(values)))[0, 1])


def test_a_circle_of_four_comes_near_all_pairs_at_a_third_of_the_calls() -> None:
    reached: dict[str, list[float]] = {"all": [], "circular": []}
    calls = {}
    for seed in range(12):
        values = np.random.default_rng(seed).normal(0, 2, 16)
        texts = group(*(f"{v} {n}" for n, v in enumerate(values)))
        for schedule, own in reached.items():
            judge = Judge(noise=0.7, place=0.7)
            both = schedule == "all"
            own.append(spearman(tournament(judge, texts, schedule=schedule, both=both), values))
            calls[schedule] = len(judge.asked)
    assert np.mean(reached["circular"]) > 0.95 * np.mean(reached["all"])
    assert calls["circular"] <= calls["all"] / 3


# --- the fit


def drawn_wins(seed: int, count: int, games: int) -> list[Win]:
    rng = np.random.default_rng(seed)
    pairs = list(itertools.combinations(range(count), 2))
    return [(*pairs[int(rng.integers(len(pairs)))], float(rng.random())) for _ in range(games)]


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_scipys(seed: int) -> None:
    wins, count = drawn_wins(seed, 6, 25), 6

    def loss(values: np.ndarray) -> float:
        total = PRIOR / 2 * float(values @ values)
        for i, j, won in wins:
            d = values[i] - values[j]
            total += won * np.logaddexp(0, -d) + (1 - won) * np.logaddexp(0, d)
        return total

    best = minimize(loss, np.zeros(count), method="BFGS", options={"gtol": 1e-8})
    found = fit_bradley_terry(count, wins)
    assert found.values == pytest.approx(best.x, abs=1e-5)
    step, eye = 1e-4, np.eye(count)
    hessian = np.array([
        [
            (loss(best.x + step * (a + b)) - loss(best.x + step * (a - b))
             - loss(best.x - step * (a - b)) + loss(best.x - step * (a + b))) / (4 * step**2)
            for b in eye
        ]
        for a in eye
    ])  # fmt: skip
    assert np.array(found.covariance) == pytest.approx(np.linalg.inv(hessian), abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_to_whole_wins_is_that_of_choix(seed: int) -> None:
    """choix takes (winner, loser) pairs, and its penalty has no factor of one half."""
    wins = [(i, j, float(won > 0.5)) for i, j, won in drawn_wins(seed, 8, 40)]
    pairs = [(i, j) if won else (j, i) for i, j, won in wins]
    theirs = choix.opt_pairwise(8, pairs, alpha=PRIOR / 2, tol=1e-10)
    assert fit_bradley_terry(8, wins).values == pytest.approx(theirs, abs=1e-6)


def test_errors_of_win_rates_are_those_of_a_simulation() -> None:
    wins = drawn_wins(7, 5, 400)
    found = fit_bradley_terry(5, wins)
    rates = win_rates(found, [1] * 5, range(5))
    rng = np.random.default_rng(0)
    drawn = rng.multivariate_normal(found.values, found.covariance, 20_000)
    p = 1 / (1 + np.exp(-(drawn[:, :, None] - drawn[:, None, :])))
    spread = ((p.sum(2) - 0.5) / 4).std(0)
    assert [error for _, error in rates.values()] == pytest.approx(spread, rel=0.05)


# --- late members


def late(question: Listwise | Tournament, judge: Judge, text: str, **of: Any) -> Ranking:
    """Rank a group, then one more response by `of` in place of the judge's own settings."""
    judged = asyncio.run(question.answer(judge))
    asked = len(judge.asked)
    vars(judge).update(of)
    [one] = group(text, context=question.candidates[0].context)
    found = asyncio.run(question.answer_late(judged, one, judge))
    assert all(text in item.responses for item in judge.asked[asked:])
    return found


def test_a_late_member_is_scored_as_severely_as_its_group_was() -> None:
    question = Listwise(group("4", "6", "8"), SCALE, 16)
    for severity in (0.0, -2.0, 1.0):
        found = late(question, Judge(), "5", taste=lambda text: worth(text) + severity)  # noqa: B023
        assert found.scores[-1] == pytest.approx((5 - 1) / 9)
    assert late(question, Judge(), "5", fails=["5"]).scores[-1] is None
    many = late(Listwise(group(*"123456789"), SCALE, 4), Judge(), "5.5")
    assert len(many.scores) == 4 and many.scores[-1] == pytest.approx(4.5 / 9)


@pytest.mark.parametrize("how", [{}, {"schedule": "pivot"}, {"schedule": "swiss"}])
def test_a_late_member_is_compared_with_its_group(how: dict[str, Any]) -> None:
    judge = Judge()
    question = Tournament(group(*"2468"), neighbours=1, **how)
    found = late(question, judge, "5")
    assert len(found.matches) == 2 and len(found.judgements) == 4
    second, third = found.scores[1], found.scores[2]
    assert second is not None and third is not None and found.scores[-1] is not None
    assert second < found.scores[-1] < third
    broken = late(question, Judge(), "5", fails=["5"])
    assert broken.scores[-1] is None and "no valid comparison" in broken.reasons[-1]


def test_a_late_member_meets_the_reference_if_the_others_did() -> None:
    question = Tournament(
        group("2", "8", context={"reference": "5"}), schedule="pivot", pivot="reference"
    )
    found = late(question, Judge(), "4")
    assert [(m.first, m.second) for m in found.matches] == [(2, -1)]
    poor, good, middle = found.scores
    assert poor is not None and good is not None and middle is not None
    assert poor < middle < good
