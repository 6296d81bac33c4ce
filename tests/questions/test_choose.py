"""The chosen candidate of a query, and the rule that decided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoj_reward.questions.tie_break import choose
from autoj_reward.types import (
    Candidate,
    Judgement,
    Outcome,
    Selection,
    Verdict,
)
from tests.judgements import rated

FIRST, SECOND, TIE = Verdict.FIRST, Verdict.SECOND, Verdict.TIE
INCONSISTENT, FAILED = Verdict.INCONSISTENT, Verdict.FAILED


def make_failure() -> Judgement:
    return Judgement(Outcome.UNPARSABLE, reason="why")


async def choose_candidate(
    ratings: Sequence[Judgement | tuple[float, float | None]],
    logprobs: Sequence[float | None] | None = None,
    games: dict[tuple[int, int], Verdict] | None = None,
    **options: Any,
) -> Selection:
    judgements = [r if isinstance(r, Judgement) else rated(r[0], expected=r[1]) for r in ratings]
    all_logprobs = logprobs or [None] * len(judgements)
    candidates = [Candidate("q", str(i), lp) for i, lp in enumerate(all_logprobs)]

    async def meet(i: int, j: int) -> Verdict:
        assert games is not None, "no match was expected"
        return games[i, j]

    return await choose(candidates, judgements, **{"meet": meet} | options)


@pytest.mark.parametrize(
    ("ratings", "options", "index", "rule", "tied"),
    [
        pytest.param([(5, None)], {}, 0, "only", (), id="only"),
        pytest.param([(5, 9.0), (7, 1.0), (6, 9.5)], {}, 1, "rating", (), id="rating"),
        pytest.param(
            [(5, 4.0), (4, 4.5)], {"view": "expected"}, 1, "expected", (), id="view expected"
        ),
        pytest.param(
            [(9, None), (4, 4.5)],
            {"view": "expected"},
            1,
            "expected",
            (),
            id="no expected rating never wins by it",
        ),
        pytest.param([make_failure(), (1, None)], {}, 1, "rating", (), id="failed never wins"),
        pytest.param([make_failure(), make_failure()], {}, 0, "all_failed", (), id="all failed"),
        pytest.param([make_failure()], {}, 0, "all_failed", (), id="only one and failed"),
        pytest.param(
            [(5, 1.0), (7, 6.1), (7, 6.2), (7, 6.2)],
            {"logprobs": [-1, -9, -8, -3]},
            3,
            "policy_logprob",
            (1, 2, 3),
            id="policy_logprob",
        ),
        pytest.param(
            [(7, 6.1), (7, 6.2)],
            {"logprobs": [-1, None]},
            1,
            "expected_rating",
            (0, 1),
            id="one log-probability missing skips the rule",
        ),
        pytest.param(
            [(7, 6.1), (7, 6.2), (3, 3.0)],
            {"logprobs": [-2, -1, None]},
            1,
            "policy_logprob",
            (0, 1),
            id="missing beside the tie does not",
        ),
        pytest.param(
            [(7, 6.1), (7, 6.3), (7, 6.2)],
            {"logprobs": [-2, -2, -3]},
            1,
            "expected_rating",
            (0, 1, 2),
            id="narrowed by one rule, decided by the next",
        ),
        pytest.param(
            [(7, 6.1), (7, 6.3), (7, 6.9)],
            {"logprobs": [-2, -2, -3]},
            1,
            "expected_rating",
            (0, 1, 2),
            id="who is out stays out",
        ),
        pytest.param(
            [(7, 6.1), (7, 6.3)],
            {"logprobs": [-1, -2], "rules": ("expected_rating", "policy_logprob")},
            1,
            "expected_rating",
            (0, 1),
            id="rules in the given order",
        ),
        pytest.param([(7, 6.1), (7, None)], {"rules": ("first",)}, 0, "first", (0, 1), id="first"),
        pytest.param([(7, 6.1), (7, None)], {"rules": ()}, 0, "first", (0, 1), id="last resort"),
        pytest.param(
            [(7, None), (7, None)],
            {"meet": None},
            0,
            "first",
            (0, 1),
            id="no comparisons to be had",
        ),
    ],
)
async def test_selection(
    ratings: list[Any], options: dict[str, Any], index: int, rule: str, tied: tuple[int, ...]
) -> None:
    assert await choose_candidate(ratings, **options) == Selection(index, rule, tied)


@pytest.mark.parametrize(
    ("games", "index", "rule"),
    [
        pytest.param({(0, 1): FIRST, (0, 2): FIRST}, 0, "pairwise", id="champion stays"),
        pytest.param({(0, 1): SECOND, (1, 2): SECOND}, 2, "pairwise", id="each beats the last"),
        pytest.param({(0, 1): SECOND, (1, 2): FIRST}, 1, "pairwise", id="the middle one"),
        pytest.param(
            {(0, 1): TIE, (0, 2): SECOND, (1, 2): SECOND}, 2, "pairwise", id="the last beats both"
        ),
        pytest.param(
            {(0, 1): FAILED, (0, 2): SECOND, (1, 2): FIRST}, 1, "pairwise", id="only the beaten go"
        ),
        pytest.param(
            {(0, 1): TIE, (0, 2): SECOND, (1, 2): INCONSISTENT}, 1, "first", id="one of two beaten"
        ),
        pytest.param({(0, 1): TIE, (0, 2): FIRST}, 0, "first", id="a tie decides nothing"),
        pytest.param(
            {(0, 1): FIRST, (0, 2): INCONSISTENT}, 0, "first", id="inconsistent decides nothing"
        ),
        pytest.param({(0, 1): SECOND, (1, 2): FAILED}, 1, "first", id="failed decides nothing"),
    ],
)
async def test_knock_out(games: dict[tuple[int, int], Verdict], index: int, rule: str) -> None:
    selection = await choose_candidate([(7, None)] * 3, games=games)
    comparisons = tuple((i, j, verdict) for (i, j), verdict in games.items())
    assert selection == Selection(index, rule, (0, 1, 2), comparisons)


async def test_only_the_tied_play() -> None:
    selection = await choose_candidate(
        [(7, None), (3, None), make_failure(), (7, None)], games={(0, 3): SECOND}
    )
    assert selection == Selection(3, "pairwise", (0, 3), ((0, 3, SECOND),))


@given(st.data())
async def test_who_was_never_beaten_stays_and_matches_are_bounded(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 9))
    verdicts = st.sampled_from([FIRST, SECOND, TIE, INCONSISTENT, FAILED])
    games = {pair: data.draw(verdicts) for pair in combinations(range(n), 2)}
    limit = data.draw(st.just(math.inf) | st.integers(0, 2 * n))
    selection = await choose_candidate([(7, None)] * n, games=games, matches=limit)
    assert len(selection.comparisons) <= min(limit, 2 * (n - 1))
    assert all(games[i, j] is verdict for i, j, verdict in selection.comparisons)
    losers = {j if v is FIRST else i for i, j, v in selection.comparisons if v in (FIRST, SECOND)}
    unbeaten = [i for i in range(n) if i not in losers]
    assert selection.index == unbeaten[0]
    assert selection.rule == ("pairwise" if len(unbeaten) == 1 else "first")
