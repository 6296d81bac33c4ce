"""Groups ranked listwise and by comparisons, with judges whose taste is scripted."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import choix
import numpy as np
import pytest
from scipy.optimize import minimize

from autoj_reward.config import View
from autoj_reward.errors import InputError
from autoj_reward.questions import listwise, tournament
from autoj_reward.questions.choose import Choose
from autoj_reward.questions.listwise import Listwise
from autoj_reward.questions.rank import Ranking
from autoj_reward.questions.strengths import PRIOR, Win, fit_bradley_terry, join_scores, win_rates
from autoj_reward.questions.tournament import Schedule, Tournament, share_won
from autoj_reward.types import (
    GROUP,
    PAIRWISE,
    PLANTED_FLAG,
    SINGLE,
    VERDICT,
    Candidate,
    Comparison,
    JudgeInput,
    Judgement,
    Outcome,
    Reading,
    Verdict,
    planted_flag,
)
from tests.growth import require_linear
from tests.judgements import texts_of

Taste = Callable[[str], float]
SCALE = (1.0, 10.0)


def make_group(*texts: str, **more: Any) -> tuple[Candidate, ...]:
    return tuple(Candidate("Why?", text, **more) for text in texts)


def read_worth(text: str) -> float:
    """Texts are called by what they are worth."""
    return float(text.split()[0])


class Judge:
    """A scripted `ask`. place: what a response gains for each place further back in a group, or by
    standing first in a pair. with_distributions: whether it gives probabilities. fails: texts whose
    judgements abstain. noise: standard deviation of what is seen of a worth, drawn for each
    input."""

    def __init__(
        self,
        taste: Taste = read_worth,
        place: float = 0.0,
        with_distributions: bool = True,
        fails: Sequence[str] = (),
        noise: float = 0.0,
    ) -> None:
        self.taste, self.place, self.with_distributions = taste, place, with_distributions
        self.fails, self.noise = fails, noise
        self.inputs: list[JudgeInput] = []
        self.rounds = 0

    async def __call__(
        self, items: Sequence[JudgeInput], view: View | None = None
    ) -> list[Judgement]:
        self.rounds += 1
        self.inputs += items
        return [self._make_judgement(item) for item in items]

    def _make_judgement(self, item: JudgeInput) -> Judgement:
        if set(texts_of(item)) & set(self.fails):
            return Judgement(Outcome.UNPARSABLE, reason="scripted")
        rng = random.Random(repr(texts_of(item)))
        worths = [self.taste(text) + rng.gauss(0, self.noise) for text in texts_of(item)]
        if item.protocol == PAIRWISE:
            return self._make_verdict(worths[0] - worths[1] + self.place)
        name = {SINGLE: "rating"}.get(item.protocol)
        readings = []
        for n, worth in enumerate(worths):
            value = min(10.0, max(1.0, worth + n * self.place))
            label = str(round(value))
            expected = value if self.with_distributions else None
            readings.append(
                Reading(name or f"response_{n + 1}", label, float(label), expected=expected)
            )
        return Judgement(Outcome.OK, critique="read", readings=tuple(readings))

    def _make_verdict(self, gap: float) -> Judgement:
        p = 1 / (1 + math.exp(-gap))
        verdict = Verdict.FIRST if gap > 0 else Verdict.SECOND if gap < 0 else Verdict.TIE
        distribution = (
            (("first", p), ("second", 1 - p), ("tie", 0.0)) if self.with_distributions else None
        )
        return Judgement(
            Outcome.OK, readings=(Reading(VERDICT, verdict.value, distribution=distribution),)
        )


def rank_listwise(judge: Judge, candidates: tuple[Candidate, ...], **options: Any) -> Ranking:
    options = {"max_responses": 16, **options}
    return asyncio.run(Listwise(candidates, SCALE, **options).answer(judge))


def rank_by_comparisons(judge: Judge, candidates: tuple[Candidate, ...], **options: Any) -> Ranking:
    return asyncio.run(Tournament(candidates, **options).answer(judge))


def order_candidates(ranking: Ranking) -> list[int]:
    scores = [-math.inf if s is None else s for s in ranking.scores]
    return sorted(range(len(scores)), key=lambda i: -scores[i])


# --- listwise


def test_a_group_is_scored_by_label_whatever_its_place() -> None:
    judge = Judge()
    ranking = rank_listwise(judge, make_group("3", "9", "5"), orders=3)
    assert ranking.scores == pytest.approx([(v - 1) / 9 for v in (3, 9, 5)])
    assert ranking.errors == pytest.approx([0, 0, 0], abs=1e-6)
    assert [item.protocol for item in judge.inputs] == [GROUP] * 3 and judge.rounds == 1
    assert ranking.critiques == ("read",) * 3


def test_orders_bring_each_response_early_midway_and_late() -> None:
    judge = Judge()
    rank_listwise(judge, make_group(*"123456"), orders=3)
    for text in "123456":
        places = sorted(texts_of(item).index(text) // 2 for item in judge.inputs)
        assert places == [0, 1, 2]


def test_the_same_group_is_asked_in_the_same_orders_and_another_in_others() -> None:
    def list_orders(seed: int) -> list[tuple[str, ...]]:
        judge = Judge()
        rank_listwise(judge, make_group(*"12345678"), seed=seed)
        return [texts_of(item) for item in judge.inputs]

    assert list_orders(0) == list_orders(0) != list_orders(1)


def test_a_judge_that_goes_by_the_place_is_found_out_and_averaged_away() -> None:
    texts = [f"{5} {n}" for n in range(8)]
    ranking = rank_listwise(Judge(place=0.5), make_group(*texts), orders=8)
    assert ranking.position_correlation == pytest.approx(1.0)
    assert ranking.spread is not None and ranking.spread > 0.3
    assert max(ranking.scores) - min(ranking.scores) < 1e-9  # type: ignore[type-var,operator]
    fair = rank_listwise(Judge(), make_group(*"2468"), orders=4)
    assert fair.position_correlation == pytest.approx(0.0) and fair.spread == pytest.approx(0.0)


def test_a_large_group_is_judged_in_windows_that_share_responses() -> None:
    values = [1 + 9 * n / 39 for n in range(40)]
    judge = Judge()
    ranking = rank_listwise(
        judge, make_group(*(f"{v} {n}" for n, v in enumerate(values))), max_responses=8
    )
    assert all(len(item.responses) == 8 for item in judge.inputs)
    assert order_candidates(ranking) == [*range(39, -1, -1)]
    assert ranking.scores == pytest.approx([(v - 1) / 9 for v in values], abs=1e-6)


def test_windows_of_unequal_severity_are_joined() -> None:
    windows = [{0: 0.1, 1: 0.3, 2: 0.5}, {1: 0.5, 2: 0.7, 3: 0.9}]  # the second is milder by 0.2
    joined_scores = join_scores(windows)
    values = [joined_scores[i][0] for i in range(4)]
    assert np.diff(values) == pytest.approx([0.2, 0.2, 0.2])


@pytest.mark.parametrize("seed", range(4))
def test_judgements_are_joined_by_least_squares(seed: int) -> None:
    """As numpy solves the same equations, with scores that are missing and judgements that share no
    response with others."""
    rng = np.random.default_rng(seed)
    groups = [range(12), range(20, 23)]
    judgements = []
    for group in groups:
        for _ in range(9):
            shown = rng.choice(group, size=min(5, len(group)), replace=False)
            scores = {int(i): float(rng.random()) for i in shown if rng.random() < 0.9}
            judgements += [scores] if scores else []
    responses = sorted({i for scores in judgements for i in scores})
    rows, values = [], []
    for number, scores in enumerate(judgements):
        for i, score in scores.items():
            row = np.zeros(len(responses) + len(judgements))
            row[responses.index(i)] = row[len(responses) + number] = 1
            rows.append(row)
            values.append(score)
    matrix = np.array(rows)
    worths, severities = matrix[:, : len(responses)], matrix[:, len(responses) :]
    projection = np.eye(len(rows)) - worths @ np.linalg.pinv(worths)
    severity = np.linalg.pinv(projection @ severities) @ values
    worth = np.linalg.pinv(worths) @ (np.array(values) - severities @ severity)
    joined_scores = join_scores(judgements)
    assert [joined_scores[i][0] for i in responses] == pytest.approx(worth, abs=1e-9)


def test_the_cost_of_joining_grows_with_the_number_of_orders() -> None:
    def join(text: str) -> None:
        rng = random.Random(text)
        join_scores([{i: rng.random() for i in range(4)} for _ in text])

    require_linear(join, lambda size: size * "x", 40)


def test_orders_are_counted_without_being_made() -> None:
    for size, orders in ((3, 4), (16, 2), (40, 3)):
        question = Listwise(make_group(*map(str, range(size))), SCALE, 16, orders)
        assert question.most_inputs == len(question.inputs())
    assert Listwise(make_group("1", "2"), SCALE, 16, 10**9).most_inputs == 10**9
    assert Listwise(make_group("1", "1"), SCALE, 16, 10**9).most_inputs == 0


@pytest.mark.parametrize(
    ("module", "fit", "question"),
    [
        (listwise, "join_scores", Listwise(make_group("3", "9"), SCALE, 16)),
        (tournament, "win_rates", Tournament(make_group("3", "9"))),
        (tournament, "fit_bradley_terry", Tournament(make_group("3", "9"))),
    ],
)
async def test_a_fit_does_not_hold_up_the_event_loop(
    module: Any, fit: str, question: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, real_fit = asyncio.get_running_loop(), getattr(module, fit)
    has_begun, may_end = asyncio.Event(), threading.Event()

    def wait_for_loop(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(has_begun.set)
        assert may_end.wait(30), "the event loop stands still"
        return real_fit(*arguments)

    monkeypatch.setattr(module, fit, wait_for_loop)
    answer = asyncio.create_task(question.answer(Judge()))
    await has_begun.wait()
    may_end.set()
    ranking = await answer
    assert ranking.scores[0] < ranking.scores[1]


def test_copies_and_empty_responses() -> None:
    judge = Judge(lambda text: float(text or 2))
    ranking = rank_listwise(judge, make_group("5", "", "5"), orders=1)
    assert ranking.scores[0] == ranking.scores[2] and ranking.scores[1] == pytest.approx(1 / 9)
    assert len(judge.inputs[0].responses) == 2
    alike = rank_listwise(judge, make_group("5", "5"))
    assert alike.scores == (0.5, 0.5) and len(judge.inputs) == 1


def test_without_probabilities_the_written_scores_count() -> None:
    assert rank_listwise(
        Judge(with_distributions=False), make_group("3.2", "8.9")
    ).scores == pytest.approx((2 / 9, 8 / 9))


def test_a_failed_order_counts_for_nothing_and_a_failed_group_abstains() -> None:
    ranking = rank_listwise(Judge(fails=["4"]), make_group("4", "6"))
    assert ranking.scores == (None, None) and "scripted" in ranking.reasons[0]
    assert {judgement.outcome for judgement in ranking.as_judgements()} == {Outcome.UNPARSABLE}
    part = rank_listwise(Judge(fails=["4"]), make_group(*"4567"), max_responses=2, orders=2)
    assert part.scores[0] is None and any(score is not None for score in part.scores[1:])


def test_a_group_of_one_and_a_mixed_group_are_refused() -> None:
    for ask in (rank_listwise, rank_by_comparisons):
        with pytest.raises(InputError, match="a group of 1"):
            ask(Judge(), make_group("1"))
        with pytest.raises(InputError, match="different queries"):
            ask(Judge(), (*make_group("1"), Candidate("Who?", "2")))


HALF = "7 \ud83d"
"""Response with half of a surrogate pair."""


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize(
    ("rank", "options"),
    [
        (rank_listwise, {}),
        (rank_listwise, {"max_responses": 2}),
        (rank_by_comparisons, {}),
        (rank_by_comparisons, {"schedule": "swiss"}),
        (rank_by_comparisons, {"schedule": "pivot"}),
    ],
)
def test_a_response_that_no_judge_can_read_costs_itself(
    rank: Callable[..., Ranking], options: dict[str, Any], place: int
) -> None:
    texts = ["3", "9", "5"]
    judge = Judge()
    ranking = rank(judge, make_group(*texts[:place], HALF, *texts[place:]), **options)
    without = rank(Judge(), make_group(*texts), **options)
    judgements = ranking.as_judgements()
    rejected = judgements.pop(place)
    assert rejected.outcome is Outcome.INPUT_REJECTED and "lone surrogate" in rejected.reason
    assert [judgement.rating for judgement in judgements] == list(without.scores)
    assert not any(HALF in texts_of(item) for item in judge.inputs)


@pytest.mark.parametrize("rank", [rank_listwise, rank_by_comparisons])
def test_what_is_left_alone_has_no_score_and_copies_tie(rank: Callable[..., Ranking]) -> None:
    judge = Judge()
    alone = rank(judge, make_group(HALF, "3"))
    assert [judgement.outcome for judgement in alone.as_judgements()] == [
        Outcome.INPUT_REJECTED
    ] * 2
    assert alone.reasons[1] == "no other response of its group can be judged"
    assert rank(judge, make_group(HALF, "3", "3")).scores == (None, 0.5, 0.5)
    assert rank(judge, make_group(HALF, HALF)).scores == (None, None)
    assert not judge.inputs


def test_scores_as_judgements_share_the_cost() -> None:
    judgements = rank_listwise(Judge(), make_group("3", "9", "5")).as_judgements()
    assert [judgement.rating for judgement in judgements] == pytest.approx([2 / 9, 8 / 9, 4 / 9])
    assert all(
        judgement.view("expected") == judgement.rating and judgement.critique == "read"
        for judgement in judgements
    )


# --- comparisons


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        pytest.param({"schedule": "all"}, 2 * 28, id="all"),
        pytest.param({"schedule": "all", "both": False}, 28, id="one-order"),
        pytest.param({"schedule": "circular", "neighbours": 2}, 2 * 16, id="circular"),
        pytest.param({"schedule": "circular", "neighbours": 9}, 2 * 28, id="circle-of-all"),
    ],
)
def test_every_schedule_ranks_and_asks_what_it_says(options: dict[str, Any], calls: int) -> None:
    judge = Judge()
    ranking = rank_by_comparisons(judge, make_group(*"12345678"), **options)
    assert len(judge.inputs) == len(ranking.judgements) == calls
    assert Tournament(make_group(*"12345678"), **options).most_inputs == calls
    best, *_, worst = order_candidates(ranking)
    assert (best, worst) == (7, 0)
    assert all(
        s is not None and 0 < s < 1 and e
        for s, e in zip(ranking.scores, ranking.errors, strict=True)
    )
    assert sum(s for s in ranking.scores if s) == pytest.approx(4)  # win rates average a half


def test_a_judge_that_always_says_first_gives_nobody_an_advantage() -> None:
    always = Judge(lambda text: 0.0, place=3.0)
    for options in ({"schedule": "all"}, {"schedule": "circular"}):
        ranking = rank_by_comparisons(always, make_group(*"12345678"), **options)
        assert ranking.scores == pytest.approx([0.5] * 8)
    turns = rank_by_comparisons(
        always, make_group(*"12345678"), schedule="circular", both=False, neighbours=3
    )
    assert turns.scores == pytest.approx([0.5] * 8, abs=1e-6)


def test_hard_verdicts_count_ties_and_disagreement_half() -> None:
    def make_verdict(verdict: Verdict) -> Judgement:
        return Judgement.of_verdict(verdict)

    first, second, tie = map(make_verdict, (Verdict.FIRST, Verdict.SECOND, Verdict.TIE))
    assert share_won(Comparison(Verdict.FIRST, (first, second))) == 1
    assert share_won(Comparison(Verdict.INCONSISTENT, (first, first))) == 0.5
    assert share_won(Comparison(Verdict.TIE, (tie, tie))) == 0.5
    assert share_won(Comparison(Verdict.SECOND, (second,))) == 0
    assert share_won(Comparison(Verdict.FAILED, (first, Judgement(Outcome.UNAVAILABLE)))) is None


def test_a_response_without_a_valid_comparison_abstains() -> None:
    ranking = rank_by_comparisons(Judge(fails=["4"]), make_group(*"45678"), schedule="all")
    assert ranking.scores[0] is None and ranking.errors[0] is None
    assert "no valid comparison" in ranking.reasons[0] and "scripted" in ranking.reasons[0]
    assert order_candidates(ranking)[:4] == [4, 3, 2, 1]
    assert sum(s for s in ranking.scores if s) == pytest.approx(2)


def test_a_planted_verdict_that_makes_comparisons_fail_costs_its_response_alone() -> None:
    class Plants(Judge):
        def _make_judgement(self, item: JudgeInput) -> Judgement:
            if "9 plant" not in texts_of(item):
                return super()._make_judgement(item)
            place = texts_of(item).index("9 plant") + 1
            flags = (PLANTED_FLAG, planted_flag(place, 2))
            return Judgement(Outcome.UNPARSABLE, reason="quoted", flags=flags)

    candidates = make_group("9 plant", "5", "3", "5")
    plant, *others = rank_by_comparisons(Plants(), candidates).as_judgements()
    assert (plant.ok, plant.flags, plant.spoiled()) == (False, (PLANTED_FLAG,), True)
    assert all(other.ok and not other.flags for other in others)
    choice = asyncio.run(
        Choose(candidates[:2], rules=("pairwise", "first")).answer(Plants(lambda text: 5.0))
    )
    assert choice.selection.index == 1


def test_copies_meet_once_and_tie() -> None:
    judge = Judge()
    ranking = rank_by_comparisons(judge, make_group("3", "7", "3"), schedule="all")
    assert len(judge.inputs) == 2 and ranking.scores[0] == ranking.scores[2]
    assert sum(s for s in ranking.scores if s) == pytest.approx(1.5)


def test_a_reference_is_compared_and_not_shown_beside() -> None:
    judge = Judge()
    answers = make_group("2", "8", context={"reference": "5"})
    ranking = rank_by_comparisons(judge, answers, schedule="reference")
    assert len(judge.inputs) == Tournament(answers, "reference").most_inputs == 4
    assert order_candidates(ranking) == [1, 0] and len(ranking.scores) == 2
    assert {tuple(sorted(texts_of(item))) for item in judge.inputs} == {("2", "5"), ("5", "8")}
    assert all("reference" not in item.context for item in judge.inputs)
    assert {-1} == {m.first if m.second != -1 else m.second for m in ranking.matches} - {0, 1}
    with pytest.raises(InputError, match="brings none"):
        rank_by_comparisons(judge, make_group("2", "8"), schedule="reference")


def compute_spearman(ranking: Ranking, values: Any) -> float:
    scores = np.array([math.nan if s is None else s for s in ranking.scores])
    return float(np.corrcoef(np.argsort(np.argsort(scores)), np.argsort(np.argsort(values)))[0, 1])


def test_a_circle_of_four_comes_near_all_pairs_at_a_third_of_the_calls() -> None:
    correlations: dict[str, list[float]] = {"all": [], "circular": []}
    calls = {}
    for seed in range(12):
        values = np.random.default_rng(seed).normal(0, 2, 16)
        texts = make_group(*(f"{v} {n}" for n, v in enumerate(values)))
        for schedule, schedule_correlations in correlations.items():
            judge = Judge(noise=0.7, place=0.7)
            both = schedule == "all"
            schedule_correlations.append(
                compute_spearman(
                    rank_by_comparisons(judge, texts, schedule=schedule, both=both), values
                )
            )
            calls[schedule] = len(judge.inputs)
    assert np.mean(correlations["circular"]) > 0.95 * np.mean(correlations["all"])
    assert calls["circular"] <= calls["all"] / 3


# --- the fit


def draw_wins(seed: int, count: int, games: int) -> list[Win]:
    rng = np.random.default_rng(seed)
    pairs = list(itertools.combinations(range(count), 2))
    return [(*pairs[int(rng.integers(len(pairs)))], float(rng.random())) for _ in range(games)]


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_scipys(seed: int) -> None:
    wins, count = draw_wins(seed, 6, 25), 6

    def loss(values: np.ndarray) -> float:
        total = PRIOR / 2 * float(values @ values)
        for i, j, won in wins:
            d = values[i] - values[j]
            total += won * np.logaddexp(0, -d) + (1 - won) * np.logaddexp(0, d)
        return total

    best = minimize(loss, np.zeros(count), method="BFGS", options={"gtol": 1e-8})
    fit = fit_bradley_terry(count, wins)
    assert fit.values == pytest.approx(best.x, abs=1e-5)
    step, eye = 1e-4, np.eye(count)
    hessian = np.array([
        [
            (loss(best.x + step * (a + b)) - loss(best.x + step * (a - b))
             - loss(best.x - step * (a - b)) + loss(best.x - step * (a + b))) / (4 * step**2)
            for b in eye
        ]
        for a in eye
    ])  # fmt: skip
    assert np.array(fit.covariance) == pytest.approx(np.linalg.inv(hessian), abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_to_whole_wins_is_that_of_choix(seed: int) -> None:
    """choix takes (winner, loser) pairs, and its penalty has no factor of one half."""
    wins = [(i, j, float(won > 0.5)) for i, j, won in draw_wins(seed, 8, 40)]
    pairs = [(i, j) if won else (j, i) for i, j, won in wins]
    theirs = choix.opt_pairwise(8, pairs, alpha=PRIOR / 2, tol=1e-10)
    assert fit_bradley_terry(8, wins).values == pytest.approx(theirs, abs=1e-6)


def test_errors_of_win_rates_are_those_of_a_simulation() -> None:
    wins = draw_wins(7, 5, 400)
    fit = fit_bradley_terry(5, wins)
    rates = win_rates(fit, [1] * 5, range(5))
    rng = np.random.default_rng(0)
    samples = rng.multivariate_normal(fit.values, fit.covariance, 20_000)
    p = 1 / (1 + np.exp(-(samples[:, :, None] - samples[:, None, :])))
    spread = ((p.sum(2) - 0.5) / 4).std(0)
    assert [error for _, error in rates.values()] == pytest.approx(spread, rel=0.05)


# --- late members


def rank_late(question: Listwise | Tournament, judge: Judge, text: str, **settings: Any) -> Ranking:
    """Rank a group, then one more response by `settings` in place of the judge's own settings."""
    ranking = asyncio.run(question.answer(judge))
    input_count = len(judge.inputs)
    vars(judge).update(settings)
    [candidate] = make_group(text, context=question.candidates[0].context)
    late_ranking = asyncio.run(question.answer_late(ranking, candidate, judge))
    assert all(text in texts_of(item) for item in judge.inputs[input_count:])
    return late_ranking


def test_a_late_member_is_scored_as_severely_as_its_group_was() -> None:
    question = Listwise(make_group("4", "6", "8"), SCALE, 16)
    for severity in (0.0, -2.0, 1.0):
        ranking = rank_late(question, Judge(), "5", taste=lambda text: read_worth(text) + severity)  # noqa: B023
        assert ranking.scores[-1] == pytest.approx((5 - 1) / 9)
    assert rank_late(question, Judge(), "5", fails=["5"]).scores[-1] is None
    many = rank_late(Listwise(make_group(*"123456789"), SCALE, 4), Judge(), "5.5")
    assert len(many.scores) == 4 and many.scores[-1] == pytest.approx(4.5 / 9)


@pytest.mark.parametrize("schedule", ["all", "circular"])
def test_a_late_member_is_compared_with_its_group(schedule: Schedule) -> None:
    judge = Judge()
    question = Tournament(make_group(*"2468"), schedule, neighbours=1)
    ranking = rank_late(question, judge, "5")
    assert len(ranking.matches) == 2 and len(ranking.judgements) == 4
    second, third = ranking.scores[1], ranking.scores[2]
    assert second is not None and third is not None and ranking.scores[-1] is not None
    assert second < ranking.scores[-1] < third
    broken = rank_late(question, Judge(), "5", fails=["5"])
    assert broken.scores[-1] is None and "no valid comparison" in broken.reasons[-1]


def test_a_late_member_meets_the_reference_if_the_others_did() -> None:
    question = Tournament(make_group("2", "8", context={"reference": "5"}), "reference")
    ranking = rank_late(question, Judge(), "4")
    assert [(m.first, m.second) for m in ranking.matches] == [(2, -1)]
    poor, good, middle = ranking.scores
    assert poor is not None and good is not None and middle is not None
    assert poor < middle < good
