from __future__ import annotations

import asyncio
import copy
import math
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
from autoj_reward.questions.bounds import Bound, slot_variance, spread_of_means
from autoj_reward.questions.budget import Fate, Spending
from autoj_reward.questions.choose import Choice, Choose
from autoj_reward.types import Candidate, JudgeInput, Judgement, Outcome, Usage, Verdict
from tests.judgements import compared, rated
from tests.rollouts.test_job import Job, list_judged_texts, read_lines

Score = float | None
LOST = math.inf
"""Stands for a judgement that was never written, since no replica answered."""
LENGTH = 50
"""Tokens of every critique of the scripted judge below; a reading takes one."""


class Judge:
    """Judge with tabulated cheap ratings, and a rating for each sampled critique.

    None abstains. The slot's distribution has one point on both sides of the cheap rating.
    """

    def __init__(
        self,
        cheap: Sequence[Score],
        full: Sequence[Sequence[Score]],
        lengths: Sequence[int] = (),
        wins: Mapping[tuple[str, str], Verdict] | None = None,
    ) -> None:
        self.candidates = [Candidate("q", f"response {i}") for i in range(len(full))]
        self.cheap, self.full = cheap, full
        self.lengths = lengths or [LENGTH] * len(full)
        self.wins = wins or {}
        self.requests: list[JudgeInput] = []

    async def ask(self, items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
        self.requests += items
        return [self.answer(item) for item in items]

    def answer(self, item: JudgeInput) -> Judgement:
        if item.protocol == "pairwise":
            first, second = item.responses
            return compared(self.wins[first, second], usage=Usage(9, 0, LENGTH))
        index = int(item.responses[0].split()[1])
        if item.direct:
            return make_judgement(self.cheap[index], Usage(9, 0, 1))
        return make_judgement(self.full[index][item.sample], Usage(9, 0, self.lengths[index]))

    def choose_within(self, share: float, **options: Any) -> Choice:
        options = {"compares": False} | options
        question = Choose(tuple(self.candidates), share=share, **options)
        choice = asyncio.run(question.answer(self.ask))
        assert len(self.requests) == len(set(self.requests))
        return choice

    def list_critiques(self) -> list[tuple[int, int]]:
        """Return (candidate, sample) of every requested critique, in order."""
        return [
            (int(i.responses[0].split()[1]), i.sample)
            for i in self.requests
            if i.protocol == "single" and not i.direct
        ]


def read_spending(choice: Choice) -> Spending:
    assert choice.spending is not None
    return choice.spending


def make_judgement(value: Score, usage: Usage) -> Judgement:
    if value == LOST:
        return Judgement(Outcome.UNAVAILABLE, reason="no replica")
    if value is None:
        return Judgement(Outcome.UNPARSABLE, reason="no slot", usage=usage)
    sides = ((str(value - 1), 0.5), (str(value + 1), 0.5))
    return rated(value, sides, value, usage=usage)


def sample_once(values: Sequence[Score]) -> list[list[Score]]:
    return [[value] for value in values]


# Copies.


LONG = " ".join(f"word{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(110))


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        pytest.param(["a b", "c", "a b", "c"], [0, 1, 0, 1], id="the same text"),
        pytest.param([LONG, LONG.replace("worddb", "not worddb")], [0, 1], id="not"),
        pytest.param(
            [f"{LONG}\nreturn {f}(a, b)\n{LONG}" for f in ("min", "max")], [0, 1], id="min and max"
        ),
        pytest.param([f"{LONG} {LONG}", f"{LONG}  {LONG}"], [0, 1], id="a space inside"),
        pytest.param(["    return a", "return a", "return a\n"], [0, 1, 2], id="space around it"),
        pytest.param(["It is 5.", "It is -5.", "it is 5."], [0, 1, 2], id="sign and case"),
        pytest.param(["", " ", "", "é", "e\u0301"], [0, 1, 0, 3, 4], id="nothing, and spellings"),
    ],
)
def test_only_the_same_text_is_a_copy(responses: list[str], expected: list[int]) -> None:
    judge = Judge([5] * len(responses), sample_once([5] * len(responses)))
    judge.candidates = [Candidate("q", response) for response in responses]
    judge.answer = lambda item: make_judgement(5, Usage(9, 0, 1))  # type: ignore[method-assign]
    standings = judge.choose_within(0.9).standings
    originals = [i if s.copy_of is None else s.copy_of for i, s in enumerate(standings)]
    assert originals == expected


# Bounds.


def test_without_a_pair_or_a_reading_nothing_is_excluded() -> None:
    assert Bound.fitted([], 1).upper(5) == math.inf
    assert Bound.fitted([(5, 5)], 1).upper(math.nan) == math.inf


def test_the_bound_worked_by_hand() -> None:
    # One pair: slope 1 through it; residual variance (2 * 4) / 2, at the pair itself sqrt(1 + 1).
    bound = Bound.fitted([(5, 6)], 4)
    assert bound.upper(5) == pytest.approx(6 + 2 * 2 * math.sqrt(2))
    # One point below, the weight being the slot's variance of 4.
    assert bound.upper(4) == pytest.approx(5 + 2 * 2 * math.sqrt(2 + 1 / 4))
    # Two pairs on a line of slope 3, shrunk by the slot: (3 * 2 + 2) / (2 + 2) = 2.
    bound = Bound.fitted([(4, 3), (6, 9)], 2)
    assert bound.slope == 2
    # Each pair is 1 off: (2 * 2 + 2) / (2 + 1).
    assert bound.deviation == pytest.approx(math.sqrt(2))


def test_a_constant_slot_bounds_exactly() -> None:
    assert Bound.fitted([(5, 6), (5, 6)], 0).upper(5) == 6


def test_variance_of_the_slot() -> None:
    judgement = make_judgement(5, Usage())
    assert slot_variance([judgement, judgement]) == 1
    bare = [rated(v, None, v) for v in (4, 6)]
    assert slot_variance(bare) == 1  # without distributions, that of the readings
    assert slot_variance([make_judgement(None, Usage())]) == 0


def test_errors_of_means_by_hand() -> None:
    # Deviations 1 + 1 from the mean with one degree of freedom, and twice the prior of 1.
    spreads = spread_of_means({0: [4, 6], 1: [5]}, 1)
    assert spreads == {0: pytest.approx(math.sqrt(4 / 3 / 2)), 1: pytest.approx(math.sqrt(4 / 3))}


# The rule.


EIGHT = [1, 2, 3, 4, 5, 6, 7, 8]
SURPRISE = sample_once([1, 2, 3, 4, 5, 9, 7, 8])


def test_the_most_promising_are_judged_first_in_halving_waves() -> None:
    judge = Judge(EIGHT, SURPRISE)
    choice = judge.choose_within(0.5)
    # 4 critiques, less 8 readings of a 50th each: 3.84. One, then half of 2, of 1.
    assert judge.list_critiques() == [(7, 0), (6, 0), (5, 0)]
    assert (choice.selection.index, choice.selection.rule) == (5, "rating")
    assert [s.fate for s in choice.standings] == [Fate.OUT_OF_BUDGET] * 5 + [Fate.JUDGED] * 3
    abandoned = choice.judgements[0]
    assert (abandoned.outcome, abandoned.reason) == (
        Outcome.ABANDONED,
        "after the cheap reading: the budget was used up",
    )
    assert abandoned.usage == Usage(9, 0, 1) and choice.standings[0].cheap == 1
    cost = read_spending(choice)
    assert (cost.readings, cost.asked, cost.skipped) == (8, 3, 5)
    assert (cost.cheap.tokens_out, cost.critiques.tokens_out) == (8, 150)
    assert cost.full_tokens == 400
    assert choice.judgements[5].view("direct") == 6  # the cheap reading stays with the critique


def test_who_cannot_win_is_abandoned_though_the_budget_lasts() -> None:
    judge = Judge(EIGHT, SURPRISE)
    choice = judge.choose_within(0.9)
    # 7.04 critiques: one, then half of 6, of 3. Then a line of slope 1 or so leaves the last two
    # below 9, the best.
    assert judge.list_critiques() == [(n, 0) for n in (7, 6, 5, 4, 3, 2)]
    assert [s.fate for s in choice.standings] == [Fate.CANNOT_WIN] * 2 + [Fate.JUDGED] * 6
    pairs = [(float(EIGHT[i]), float(SURPRISE[i][0])) for i in range(2, 8)]  # type: ignore[arg-type]
    upper = Bound.fitted(pairs, 1).upper(2)
    assert choice.standings[1].why == f"at most {upper:.2f} by its bound, below 9.00"


@pytest.mark.parametrize("share", [0.001, 0.2])
def test_one_is_judged_whatever_the_budget(share: float) -> None:
    choice = Judge([4, 6, 5], sample_once([4, 6, 5])).choose_within(share)
    assert choice.selection.index == 1 and choice.selection.rule == "only"
    assert [s.critiques for s in choice.standings] == [0, 1, 0]


def test_unreadable_candidates_wait_last_and_stay_able() -> None:
    judge = Judge([None, 3, 9], sample_once([8, 3, 7]))
    choice = judge.choose_within(0.99)
    assert judge.list_critiques()[0] == (2, 0)
    assert choice.standings[0].cheap is None
    assert choice.standings[0].fate in (Fate.JUDGED, Fate.OUT_OF_BUDGET)


def test_failed_critiques_never_win() -> None:
    judge = Judge([9, 8, 7, 6], sample_once([None, None, 7, 6]))
    choice = judge.choose_within(0.9)
    assert choice.selection.index == 2
    assert choice.judgements[0].outcome is Outcome.UNPARSABLE  # a failure, not abandoned
    assert (
        Judge([9, 8], sample_once([None, None])).choose_within(0.9).selection.rule == "all_failed"
    )


def test_what_was_never_written_costs_nothing() -> None:
    # 1.6 critiques, and the first two are lost: the third is asked for all the same.
    judge = Judge([float(16 - n) for n in range(16)], sample_once([LOST, LOST, *[5] * 14]))
    choice = judge.choose_within(0.1)
    assert choice.selection.index == 2 and judge.list_critiques() == [(0, 0), (1, 0), (2, 0)]
    assert [j.outcome for j in choice.judgements[:3]] == ["unavailable", "unavailable", "ok"]
    assert read_spending(choice).full_tokens == 16 * LENGTH
    # A critique that was written without a rating costs, but one candidate must get one.
    judge = Judge([float(16 - n) for n in range(16)], sample_once([None, None, *[5] * 14]))
    assert judge.choose_within(0.1).selection.index == 2
    assert len(judge.list_critiques()) == 3


def test_a_failed_reading_is_a_failure_unless_a_critique_came_of_it() -> None:
    judge = Judge([9, LOST, None, 8], sample_once([9, 9, 9, 8]))
    choice = judge.choose_within(0.6)
    assert [j.outcome for j in choice.judgements] == ["ok", "unavailable", "unparsable", "ok"]
    assert choice.judgements[1].reason == "cheap reading: no replica"
    assert choice.standings[1].fate is Fate.OUT_OF_BUDGET and choice.standings[1].cheap is None
    assert choice.selection.index == 0


def test_copies_are_judged_once() -> None:
    judge = Judge([1, 5, 3, 4], sample_once([1, 5, 3, 4]))
    judge.candidates[3] = judge.candidates[1]
    choice = judge.choose_within(0.9)
    assert [s.copy_of for s in choice.standings] == [None, None, None, 1]
    assert choice.standings[3].fate is Fate.COPY and choice.standings[3].cheap == 5
    copy, original = choice.judgements[3], choice.judgements[1]
    assert (copy.rating, copy.usage, copy.flags) == (
        original.rating,
        Usage(),
        ("copied_judgement",),
    )
    assert choice.selection.index == 1 and choice.selection.tied == ()


FIRST, SECOND = Verdict.FIRST, Verdict.SECOND
WINS = {(f"response {a}", f"response {b}"): SECOND if b > a else FIRST
        for a in range(8) for b in range(8) if a != b}  # fmt: skip


def test_finalists_meet_where_pairwise_comes_first() -> None:
    judge = Judge([6] * 8, sample_once([7] * 8), wins=WINS)
    choice = judge.choose_within(0.9, rules=("pairwise", "first"), compares=True)
    # 7.2 critiques, a quarter kept: 5.4 less the readings' 0.16. Then 7.2 - 0.16 - 5 allows 2.
    assert len(judge.list_critiques()) == 5 and read_spending(choice).orders == 2
    assert choice.selection.comparisons[0] == (0, 1, SECOND)
    assert {verdict for *_, verdict in choice.selection.comparisons[1:]} == {Verdict.FAILED}
    assert choice.selection.rule == "first"
    judge = Judge([6] * 8, sample_once([7] * 8), wins=WINS)
    assert read_spending(judge.choose_within(0.9, rules=("first",), compares=True)).orders == 0


def test_critiques_are_repeated_only_at_an_uncertain_top() -> None:
    close = [[8, 8, 8, 8], [7, 9, 8, 9], [2, 2, 2, 2], [1, 1, 1, 1]]
    judge = Judge([8, 8, 2, 1], close)
    judge.choose_within(0.9, critiques=4)
    repeated_candidates = {i for i, sample in judge.list_critiques() if sample}
    assert repeated_candidates == {0, 1}
    # 2.24 critiques: half of them would leave one candidate alone, so a second one comes in.
    judge = Judge([8, 8, 2, 1], close, lengths=[1000] * 4)
    assert read_spending(judge.choose_within(0.14, critiques=4)).asked == 2
    clear = [[30] * 4, [7] * 4, [2] * 4, [1] * 4]
    judge = Judge([8, 8, 2, 1], clear)
    judge.choose_within(0.9, critiques=4)
    assert {sample for _, sample in judge.list_critiques()} == {0}


def test_the_whole_budget_counts_the_very_same_text_once() -> None:
    judge = Judge([1, 1, 3], sample_once([1, 1, 3]))
    judge.candidates[1] = judge.candidates[0]
    choice = judge.choose_within(1.0)
    assert (read_spending(choice).asked, read_spending(choice).full_tokens) == (2, 2 * LENGTH)


scores = st.none() | st.floats(1, 10)
tables = st.integers(1, 3).flatmap(
    lambda k: st.tuples(
        st.just(k),
        st.lists(
            st.tuples(scores, st.lists(scores, min_size=k, max_size=k), st.integers(1, 90)),
            min_size=1,
            max_size=12,
        ),
    )
)


@given(table=tables, share=st.floats(0.01, 0.99), view=st.sampled_from(["rating", "expected"]))
def test_what_always_holds(
    table: tuple[int, list[tuple[Score, list[Score], int]]], share: float, view: str
) -> None:
    k, rows = table
    judge = Judge([c for c, _, _ in rows], [f for _, f, _ in rows], [n for _, _, n in rows])
    choice = judge.choose_within(share, critiques=k, view=view, compares=False)
    full = k * len(rows)
    fates = [standing.fate for standing in choice.standings]
    # Never more critiques than the share of all, unless those so far gave no value.
    values = [rows[i][1][sample] for i, sample in judge.list_critiques()]
    allowed = math.floor(share * full + 1e-9)
    assert 1 <= len(values) <= allowed or values[:-1] == [None] * (len(values) - 1)
    assert (
        read_spending(choice).asked
        == len(judge.list_critiques())
        == full - read_spending(choice).skipped
    )
    # Everybody was judged or abandoned, and it says why.
    assert len(fates) == len(rows) == len(choice.judgements)
    judged_in_full = {i for i, _ in judge.list_critiques()}
    for i, (standing, judgement) in enumerate(
        zip(choice.standings, choice.judgements, strict=True)
    ):
        assert (standing.fate is Fate.JUDGED) == (i in judged_in_full)
        is_abandoned = i not in judged_in_full and rows[i][0] is not None
        assert (judgement.outcome is Outcome.ABANDONED) == is_abandoned
        assert bool(standing.why) == (i not in judged_in_full)
    # The winner was judged in full, and a candidate that abstains wins only if all do.
    assert choice.selection.index in judged_in_full
    any_ok = any(judgement.ok for judgement in choice.judgements)
    assert choice.judgements[choice.selection.index].ok == any_ok
    # What was spent is what was asked.
    assert (
        sum(j.usage.tokens_out for j in choice.judgements) == read_spending(choice).usage.tokens_out
    )


@given(
    rows=st.lists(st.tuples(st.floats(1, 10), st.floats(1, 10)), min_size=1, max_size=12),
    share=st.floats(0.01, 0.99),
)
def test_tokens_stay_within_the_budget(rows: list[tuple[float, float]], share: float) -> None:
    judge = Judge([c for c, _ in rows], sample_once([f for _, f in rows]))
    spending = read_spending(judge.choose_within(share))
    assert spending.usage.tokens_out <= share * LENGTH * len(rows) + 1e-6 or spending.asked == 1


@given(table=tables)
def test_the_whole_budget_is_full_judging(
    table: tuple[int, list[tuple[Score, list[Score], int]]],
) -> None:
    k, rows = table
    judge = Judge([c for c, _, _ in rows], [f for _, f, _ in rows])
    choice = judge.choose_within(1.0, critiques=k)
    assert not any(item.direct for item in judge.requests)
    assert read_spending(choice).skipped == 0 and {s.fate for s in choice.standings} == {
        Fate.JUDGED
    }
    means = [[v for v in values if v is not None] for _, values, _ in rows]
    best = max((math.fsum(values) / len(values) for values in means if values), default=None)
    value = choice.judgements[choice.selection.index].view("rating")
    assert value == (best if best is None else pytest.approx(best))


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
    "direct": {r: 1 + n for n, r in enumerate(RESPONSES)},
}
ROWS: list[Any] = [
    {"query": "q1", "responses": [*RESPONSES, RESPONSES[6]]},
    {"query": "q2", "responses": RESPONSES[:5]},
]


def test_the_job_on_a_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(tmp_path, ROWS, SCRIPT, budget=0.65)
    assert job.run() == 0
    first, second = job.selections()
    assert (first["index"], second["index"]) == (7, 4)
    assert set(first["fates"]) == {"judged", "cannot_win", "copy"}
    assert set(second["fates"]) == {"judged", "out_of_budget"}
    assert first["critiques"] + first["critiques_skipped"] == 8
    summary = job.summary()
    budget = summary["budget"]
    assert budget["share"] == 0.65 and budget["readings"] == 13
    assert sum(budget["fates"].values()) == summary["candidates"] == 14
    assert budget["critiques"] + budget["skipped"] == 13
    abandoned = budget["fates"]["cannot_win"] + budget["fates"]["out_of_budget"]
    assert summary["outcomes"]["abandoned"] == abandoned > 0
    assert summary["reasons"] == {} and summary["curve"] == [] and summary["ok_share"] == 1
    assert budget["written"] == summary["usage"]["tokens_out"] <= 0.65 * budget["full_tokens"]
    assert budget["over"] == 0
    rows = read_lines(job.output / "judgements.jsonl")
    assert len(rows) == 14
    for row in rows:
        is_abandoned = row["fate"] in ("cannot_win", "out_of_budget")
        assert is_abandoned == (row["outcome"] == "abandoned") and row["cheap"] is not None
        assert is_abandoned == (row["rating"] is None) and bool(row["why"]) == (
            row["fate"] != "judged"
        )
    [copy] = [row for row in rows if row["fate"] == "copy"]
    assert (copy["copy_of"], copy["index"], copy["tokens_out"]) == (6, 8, 0)
    page = (job.output / "report.html").read_text()
    for phrase in ("out of budget", "cannot win", "Judged on a budget", "of those judged in full"):
        assert phrase in page
    out = capsys.readouterr().out
    assert f"{budget['skipped']} skipped" in out and "0 failed" in out
    # Only the critiques were written, and the same command again asks nothing.
    assert len(list_judged_texts(job.log)) == budget["critiques"]
    assert job.run() == 0
    assert len(list_judged_texts(job.log)) == budget["critiques"]
    assert job.summary()["reused"] == budget["critiques"] + budget["readings"]


def test_a_job_without_a_budget_says_nothing_of_one(tmp_path: Path) -> None:
    job = Job(tmp_path, ROWS, SCRIPT)
    assert job.run() == 0
    assert job.summary()["budget"] is None and "fates" not in job.selections()[0]
    assert "fate" not in read_lines(job.output / "judgements.jsonl")[0]


def test_an_interrupted_job_chooses_the_same_and_asks_nothing_twice(tmp_path: Path) -> None:
    whole = Job(tmp_path / "whole", ROWS, SCRIPT, budget=0.65)
    assert whole.run() == 0
    cut = Job(tmp_path / "cut", ROWS, SCRIPT, budget=0.65)

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
                await Choose(candidates, share=0.65).answer(ask)
        journal.close()

    asyncio.run(interrupt(10))
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
        pytest.param({"budget": 0}, "greater than 0", id="nothing"),
        pytest.param({"budget": 1.5}, "less than or equal to 1", id="more than all"),
        pytest.param({"budget": 0.5, "view": "direct"}, "saves critiques", id="direct"),
        pytest.param(
            {"budget": 0.5, "judge": {"critique": False}}, "saves critiques", id="no critique"
        ),
        pytest.param(
            {"budget": 0.5, "judge": {"format": "scalar"}},
            "a scalar model writes",
            id="scalar",
        ),
    ],
)
def test_a_budget_that_makes_no_sense(
    tmp_path: Path, change: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, ROWS, SCRIPT, **copy.deepcopy(change))
    assert job.run() == 1
    assert message in capsys.readouterr().err
    assert not job.log.exists()
