"""Best-of-N from a shortlist: who gets critiques, who is chosen, and what is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoj_reward.client.session import open_judge
from autoj_reward.config import BestOfNConfig, JudgeConfig, View, load_config
from autoj_reward.journal import Journal
from autoj_reward.judge.make import make_judge
from autoj_reward.models.spec import judge_spec
from autoj_reward.questions.choose import Choice, Choose
from autoj_reward.types import Candidate, JudgeInput, Judgement, Outcome, Usage, Verdict
from tests.judgements import compared, rated, texts_of
from tests.rollouts.test_job import Job, list_judged_texts, read_lines

Score = float | None
LENGTH = 50
"""Tokens of every critique of the scripted judge below; a rating right after the prompt takes
one."""


class Judge:
    """Judge with tabulated ratings right after the prompt, and one for each critique.

    None abstains.
    """

    def __init__(
        self,
        direct: Sequence[Score],
        full: Sequence[Sequence[Score]],
        wins: Mapping[tuple[str, str], Verdict] | None = None,
    ) -> None:
        self.candidates = [Candidate("q", f"response {i}") for i in range(len(full))]
        self.direct, self.full, self.wins = direct, full, wins or {}
        self.requests: list[JudgeInput] = []

    async def ask(self, items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
        self.requests += items
        return [self.answer(item) for item in items]

    def answer(self, item: JudgeInput) -> Judgement:
        if item.protocol == "pairwise":
            first, second = texts_of(item)
            return compared(self.wins[first, second], usage=Usage(9, 0, LENGTH))
        index = int(item.responses[0].text.split()[1])
        if item.direct:
            return make_judgement(self.direct[index], Usage(9, 0, 1))
        return make_judgement(self.full[index][item.sample], Usage(9, 0, LENGTH))

    def choose(self, size: int, **options: Any) -> Choice:
        options = {"compares": False} | options
        question = Choose(tuple(self.candidates), shortlist=size, **options)
        return asyncio.run(question.answer(self.ask))

    def list_critiques(self) -> list[tuple[int, int]]:
        """Return (candidate, sample) of every requested critique, in order."""
        return [
            (int(item.responses[0].text.split()[1]), item.sample)
            for item in self.requests
            if item.protocol == "single" and not item.direct
        ]


def make_judgement(value: Score, usage: Usage) -> Judgement:
    if value is None:
        return Judgement(Outcome.UNPARSABLE, reason="no slot", usage=usage)
    return rated(value, ((str(value), 1.0),), value, usage=usage)


def sample_once(values: Sequence[Score]) -> list[list[Score]]:
    return [[value] for value in values]


def test_the_best_after_the_prompt_get_critiques_and_one_of_them_is_chosen() -> None:
    judge = Judge([1, 4, 2, 3], sample_once([10, 5, 9, 8]))
    choice = judge.choose(2)
    assert judge.list_critiques() == [(1, 0), (3, 0)]
    assert (choice.selection.index, choice.selection.rule) == (3, "rating")
    assert choice.shortlist is not None
    assert choice.shortlist.places == (1, 3) and choice.shortlist.direct == (1, 4, 2, 3)
    left_out = choice.judgements[0]
    assert left_out.outcome is Outcome.ABANDONED and left_out.usage == Usage(9, 0, 1)
    assert left_out.reason == "not on the shortlist: 1.00 right after the prompt"
    # The chosen judgement has both numbers, and costs both.
    chosen = choice.judgements[3]
    assert (chosen.rating, chosen.direct, chosen.usage.tokens_out) == (8, 3, LENGTH + 1)


def test_a_view_right_after_the_prompt_needs_the_critique_of_the_chosen_alone() -> None:
    judge = Judge([1, 4, 2, 3], sample_once([10, 5, 9, 8]))
    choice = judge.choose(1, view="direct")
    assert judge.list_critiques() == [(1, 0)]
    assert (choice.selection.index, choice.selection.rule) == (1, "shortlist")
    assert [judgement.direct for judgement in choice.judgements] == [1, 4, 2, 3]
    assert all(judgement.ok for judgement in choice.judgements)
    # Only a critique ends in a rating.
    assert [judgement.rating for judgement in choice.judgements] == [None, 5, None, None]


def test_every_response_of_the_shortlist_gets_all_critiques() -> None:
    judge = Judge([1, 4, 3], [[9, 9], [4, 6], [1, 9]])
    choice = judge.choose(2, critiques=2, vote="mean")
    assert judge.list_critiques() == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [choice.judgements[n].rating for n in (1, 2)] == [5, 5]
    assert choice.selection.tied == (1, 2) and choice.selection.rule == "first"


def test_if_the_whole_shortlist_fails_the_next_ones_get_critiques() -> None:
    judge = Judge([6, 5, 4, 3, 2, 1], sample_once([None, None, None, 7, 8, 9]))
    choice = judge.choose(2)
    assert judge.list_critiques() == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert choice.selection.index == 3
    outcomes = [judgement.outcome.value for judgement in choice.judgements]
    assert outcomes == ["unparsable"] * 3 + ["ok"] + ["abandoned"] * 2
    # The failed judgement costs what was written for it.
    assert choice.judgements[0].usage.tokens_out == LENGTH + 1
    # One that did not fail is enough.
    judge = Judge([6, 5, 4, 3], sample_once([None, 7, 9, 9]))
    assert judge.choose(2).selection.index == 1 and len(judge.list_critiques()) == 2


@pytest.mark.parametrize("view", ["rating", "direct"])
def test_only_where_every_critique_fails_a_failure_is_chosen(view: View) -> None:
    judge = Judge([1, 2, 3], sample_once([None] * 3))
    choice = judge.choose(1, view=view)
    assert choice.selection.rule == "all_failed" and len(judge.list_critiques()) == 3
    assert not any(judgement.ok for judgement in choice.judgements)


def test_who_cannot_be_read_right_after_the_prompt_is_a_failure() -> None:
    judge = Judge([None, 3, 9], sample_once([8, 3, 7]))
    choice = judge.choose(3)
    assert judge.list_critiques() == [(1, 0), (2, 0)] and choice.selection.index == 2
    failed = choice.judgements[0]
    assert (failed.outcome, failed.reason) == ("unparsable", "right after the prompt: no slot")
    judge = Judge([None, None], sample_once([8, 9]))
    assert judge.choose(1).selection.rule == "all_failed" and not judge.list_critiques()


def test_copies_share_a_place_and_equal_ratings_stay_in_order() -> None:
    judge = Judge([5, 5, 5, 4], sample_once([6, 7, 8, 9]))
    judge.candidates[1] = judge.candidates[0]
    choice = judge.choose(2)
    assert choice.shortlist is not None and choice.shortlist.places == (0, 1, 2)
    assert choice.selection.index == 2
    assert choice.judgements[0].rating == choice.judgements[1].rating == 6


def test_the_tie_break_decides_within_the_shortlist() -> None:
    names = [f"response {n}" for n in range(3)]
    wins = {(names[1], names[2]): Verdict.SECOND, (names[2], names[1]): Verdict.FIRST}
    judge = Judge([1, 3, 2], sample_once([7, 7, 7]), wins=wins)
    choice = judge.choose(2, rules=("pairwise", "first"), compares=True)
    assert (choice.selection.index, choice.selection.rule) == (2, "pairwise")
    assert choice.selection.comparisons == ((1, 2, Verdict.SECOND),)


scores = st.none() | st.floats(1, 10)
tables = st.integers(1, 3).flatmap(
    lambda k: st.tuples(
        st.just(k),
        st.lists(
            st.tuples(scores, st.lists(scores, min_size=k, max_size=k)), min_size=1, max_size=12
        ),
    )
)


@given(
    table=tables,
    size=st.integers(1, 13),
    view=st.sampled_from(["rating", "expected", "direct"]),
)
def test_what_always_holds(
    table: tuple[int, list[tuple[Score, list[Score]]]], size: int, view: View
) -> None:
    critiques, rows = table
    judge = Judge([direct for direct, _ in rows], [full for _, full in rows])
    choice = judge.choose(size, critiques=critiques, view=view)
    judged = {place for place, _ in judge.list_critiques()}
    readable = [place for place, (direct, _) in enumerate(rows) if direct is not None]
    # Critiques go down the ranking, and further than the size only past failures.
    assert choice.shortlist is not None and set(choice.shortlist.places) == judged
    assert len(judged) >= min(size, len(readable))
    lowest = min(
        (direct for n, (direct, _) in enumerate(rows) if n in judged and direct), default=0
    )
    assert all((rows[n][0] or 0) <= lowest for n in readable if n not in judged)
    succeeded = [n for n in judged if any(value is not None for value in rows[n][1])]
    assert bool(succeeded) or judged == set(readable)
    assert len(judge.requests) == len(rows) + critiques * len(judged)
    # A candidate without a critique is never chosen, nor a failed one unless all failed.
    if succeeded:
        assert choice.selection.index in succeeded
        values = {n: choice.judgements[n].view(view) for n in succeeded}
        assert values[choice.selection.index] == max(v for v in values.values() if v is not None)
    else:
        assert choice.selection.rule == "all_failed"
    # What the judgements cost is what was written.
    written = sum(judge.answer(item).usage.tokens_out for item in judge.requests)
    assert sum(judgement.usage.tokens_out for judgement in choice.judgements) == written


# The direct flag on its way.


def test_a_journal_keeps_readings_and_critiques_apart(tmp_path: Path) -> None:
    async def rate_both() -> list[Judgement]:
        journal = Journal(tmp_path / "j.sqlite")
        script = {"ratings": {"r": 8}, "direct": {"r": 3}}
        config = JudgeConfig(kind="fake", script=script)
        async with open_judge(config, journal=journal) as reward:
            [full] = await reward.rate([Candidate("q", "r")])
            [direct] = await reward.rate([Candidate("q", "r")], direct=True)
        inputs = [record["input"] for record in journal.export()]
        assert inputs == [
            {"protocol": "single", "query": "q", "responses": ["r"], "sample": 0},
            {"protocol": "single", "query": "q", "responses": ["r"], "sample": 0, "direct": True},
        ]
        stored = journal.get(direct.judge, [JudgeInput("single", "q", ("r",), direct=True)])
        assert list(stored.values()) == [direct]
        journal.close()
        return [full, direct]

    full, direct = asyncio.run(rate_both())
    assert (full.rating is not None and full.rating, full.view("direct")) == (8, None)
    assert (direct.view("rating"), direct.critique) == (3, "")
    assert direct.view("direct") == direct.view("expected") and direct.usage.tokens_out == 2


async def test_two_responses_have_no_direct_reading() -> None:
    judge = make_judge(judge_spec(JudgeConfig(kind="fake")))
    judgement = await judge.judge(JudgeInput("pairwise", "q", ("a", "b"), direct=True))
    assert judgement.outcome is Outcome.INPUT_REJECTED
    assert "direct reads a rating" in judgement.reason


# The job.

RESPONSES = [f"answer {n} " + "x" * n for n in range(8)]
SCRIPT = {
    "ratings": {r: 1 + n for n, r in enumerate(RESPONSES)},
    # The longest one seems worst before its critique.
    "direct": {r: 1 + n % 7 for n, r in enumerate(RESPONSES)},
}
ROWS: list[Any] = [
    {"query": "q1", "responses": [*RESPONSES, RESPONSES[6]]},
    {"query": "q2", "responses": RESPONSES[:2]},
]


def test_a_job_with_a_shortlist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(tmp_path, ROWS, SCRIPT, shortlist=3)
    assert job.run() == 0
    first, second = job.selections()
    assert (first["index"], first["shortlist"]) == (6, [4, 5, 6, 8])
    assert (second["index"], second["shortlist"]) == (1, [0, 1])
    summary = job.summary()
    assert (summary["candidates"], summary["shortlisted"]) == (11, 6)
    assert (summary["outcomes"]["ok"], summary["outcomes"]["abandoned"]) == (6, 5)
    assert summary["reasons"] == {} and summary["ok_share"] == 1
    # The judged ones are no random sample.
    assert summary["curve"] == [] and not (job.output / "curve.svg").exists()
    rows = read_lines(job.output / "judgements.jsonl")
    assert [row["shortlisted"] for row in rows[:9]] == [n in (4, 5, 6, 8) for n in range(9)]
    for row in rows:
        assert (row["outcome"] == "abandoned") == (row["rating"] is None)
        assert bool(row["critique"]) == row["shortlisted"] and row["direct"] > 0
    output = capsys.readouterr()
    assert "critiques of 6 of 11 candidates\n" in output.out and "0 failed" in output.out
    # 10 distinct candidates are read, and 5 get a critique.
    assert " 15/15 " in output.err
    page = (job.output / "report.html").read_text()
    assert "6 of 11 candidates got critiques" in page and "of those with a critique" in page
    asked = summary["judgements_per_second"] * summary["seconds"]["judge"]
    assert asked == pytest.approx(15)
    # Only critiques were written, and the same command asks nothing again.
    assert len(list_judged_texts(job.log)) == 5
    assert job.run() == 0
    assert len(list_judged_texts(job.log)) == 5 and job.summary()["reused"] == 15


def test_a_job_that_ranks_right_after_the_prompt_explains_its_choices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    job = Job(tmp_path, ROWS, SCRIPT, shortlist=1, view="direct")
    assert job.run() == 0
    assert [row["index"] for row in job.selections()] == [6, 1]
    assert all(row["critique"] for row in job.selections())
    assert [text for [text] in list_judged_texts(job.log)] == [RESPONSES[6], RESPONSES[1]]
    summary = job.summary()
    # Every candidate has the number that ranks, so the curve is that of all of them.
    assert summary["outcomes"]["ok"] == 11 and summary["curve"] and summary["shortlisted"] == 3
    rows = read_lines(job.output / "judgements.jsonl")
    assert all(row["direct"] is not None for row in rows)
    assert [row["rating"] is not None for row in rows[:9]] == [n in (6, 8) for n in range(9)]
    # The log counts every judgement by the number that it was asked for.
    assert "view direct, distributions: scripted; 14 of 14 judgements ok" in caplog.text


def test_a_job_without_a_shortlist_says_nothing_of_one(tmp_path: Path) -> None:
    job = Job(tmp_path, ROWS, SCRIPT)
    assert job.run() == 0
    assert job.summary()["shortlisted"] is None and "shortlist" not in job.selections()[0]
    assert "shortlisted" not in read_lines(job.output / "judgements.jsonl")[0]


def test_an_interrupted_job_chooses_the_same_and_asks_nothing_twice(tmp_path: Path) -> None:
    whole = Job(tmp_path / "whole", ROWS, SCRIPT, shortlist=3)
    assert whole.run() == 0
    cut = Job(tmp_path / "cut", ROWS, SCRIPT, shortlist=3)

    async def interrupt(count: int) -> None:
        """Interrupt the selection for the first query after `count` judgements."""
        journal = Journal(cut.output / "journal.sqlite")
        config = load_config(BestOfNConfig, cut.config)
        async with open_judge(config.judge, journal=journal) as reward:

            async def ask(items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
                nonlocal count
                answers = await reward.judge(items[:count])
                count -= len(answers)
                if len(answers) < len(items):
                    raise KeyboardInterrupt
                return answers

            candidates = tuple(Candidate("q1", r) for r in ROWS[0]["responses"])
            with pytest.raises(KeyboardInterrupt):
                await Choose(candidates, shortlist=3).answer(ask)
        journal.close()

    asyncio.run(interrupt(11))
    before = list_judged_texts(cut.log)
    assert before
    assert cut.run() == 0
    after = list_judged_texts(cut.log)[len(before) :]
    assert [r for r in after if r in before] == []
    assert sorted(before + after) == sorted(list_judged_texts(whole.log))
    assert cut.selections() == whole.selections()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"shortlist": 0}, "greater than or equal to 1", id="nobody"),
        pytest.param(
            {"shortlist": 2, "judge": {"critique": False}}, "judge.critique is false", id="none"
        ),
        pytest.param(
            {"shortlist": 2, "judge": {"format": "scalar"}}, "a scalar model writes", id="scalar"
        ),
        pytest.param(
            {"shortlist": 2, "judge": {"script": {"logprobs": False}}},
            "shortlist needs the rating distribution right after the prompt",
            id="no_distribution",
        ),
        pytest.param(
            {"budget": 0.35},
            "unknown key 'budget', which was removed: set shortlist to the number",
            id="budget",
        ),
    ],
)
def test_a_shortlist_that_cannot_be_made_is_refused_before_a_row_is_judged(
    tmp_path: Path, change: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, ROWS, SCRIPT, **change)
    assert job.run() == 1
    assert message in capsys.readouterr().err
    assert not job.log.exists() and not (job.output / "selections.jsonl").exists()
