"""`Judge` and `AsyncJudge`, called as in a script."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from autoj_reward import AsyncJudge, Candidate, Judge, JudgeConfig, Outcome, Verdict
from autoj_reward.client.session import open_judge
from autoj_reward.errors import EngineUnavailable, ModelError
from autoj_reward.journal import Journal
from autoj_reward.questions.rate import Rate
from autoj_reward.service.api import make_app
from tests.service.test_api import serving

SCRIPT = {"ratings": {"good": 8, "poor": 3, "fine": 8}, "fail": {"cut": "truncated"}}
CONFIG = JudgeConfig(kind="fake", script=SCRIPT)


def test_a_judge_rates_compares_and_chooses() -> None:
    with Judge(CONFIG) as judge:
        answer = judge.rate("Why?", "good")
        assert (answer.rating, answer.outcome) == (8, Outcome.OK)
        assert judge.rate("Why?", "cut").outcome is Outcome.TRUNCATED
        answers = judge.rate_all([Candidate("Why?", text) for text in ("poor", "good")])
        assert [answer.rating for answer in answers] == [3, 8]
        assert judge.compare("Why?", "longer", "poor").verdict is Verdict.FIRST
        assert len(judge.compare("Why?", "longer", "poor", swap=False).orders) == 1
        choice = judge.choose("Why?", ["poor", "good", "fine"])
        assert choice.selection.index == 1 and choice.selection.tied == (1, 2)
        [direct_answer] = judge.answer([Rate(Candidate("Why?", "poor"), view="rating")])
        assert direct_answer.rating == 3


def test_it_works_beside_a_running_event_loop_and_from_threads() -> None:
    async def main() -> None:
        with Judge(CONFIG) as judge:
            assert judge.rate("Why?", "good").rating == 8
            ratings: list[float | None] = []
            threads = [
                threading.Thread(target=lambda: ratings.append(judge.rate("Why?", "poor").rating))
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert ratings == [3] * 4

    asyncio.run(main())


NO_TEXTS: dict[str, Any] = {
    "nothing": None,
    "a number": 3,
    "no number": float("nan"),
    "bytes": b"good",
    "a set": {"good"},
    "an array": np.array(["good"]),
    "an array of no dimension": np.array("good"),
    "missing, as pandas says it": pd.NA,
}


@pytest.mark.parametrize("shows", [None, "final"])
@pytest.mark.parametrize("case", NO_TEXTS)
def test_what_is_no_text_costs_itself_alone(case: str, shows: Any) -> None:
    value = NO_TEXTS[case]
    config = JudgeConfig(kind="fake", format="general", script=SCRIPT, shows=shows)
    with Judge(config) as judge:
        answers = judge.rate_all(
            [Candidate("Why?", "good"), Candidate("Why?", value), Candidate(value, "good")]
        )
        comparison = judge.compare("Why?", "good", value)
        choice = judge.choose("Why?", ["poor", value, "good"])
        ranking = judge.rank("Why?", ["poor", value, "longer"])
        unasked = judge.rank(value, ["poor", "good"])
    assert [answer.rating for answer in answers] == [8, None, None]
    for answer in answers[1:]:
        assert answer.outcome is Outcome.INPUT_REJECTED
        assert answer.reason
    assert comparison.verdict is Verdict.FAILED
    assert choice.selection.index == 2
    assert choice.judgements[1].outcome is Outcome.INPUT_REJECTED
    assert ranking.scores[1] is None
    assert None not in (ranking.scores[0], ranking.scores[2])
    assert unasked.scores == (None, None)


async def test_the_asynchronous_face_does_the_same() -> None:
    async with AsyncJudge(CONFIG) as judge:
        assert (await judge.rate("Why?", "good")).rating == 8
        assert (await judge.choose("Why?", ["poor", "good"])).selection.index == 1


def test_both_faces_have_the_same_methods() -> None:
    for name, method in vars(Judge).items():
        if not name.startswith("_") and name != "connect":
            other = getattr(AsyncJudge, name)
            assert inspect.signature(method) == inspect.signature(other), name
    names = {name for name in vars(AsyncJudge) if not name.startswith("_")}
    assert names - {"client"} == {name for name in vars(Judge) if not name.startswith("_")}
    assert inspect.signature(Judge.connect) == inspect.signature(AsyncJudge.connect)


def test_a_journal_keeps_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    for n in range(2):
        config = JudgeConfig(kind="fake", script={"log": str(tmp_path / "log")} | SCRIPT)
        with Judge(config, journal=path) as judge:
            assert judge.rate("Why?", "good").rating == 8, n
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    journal = Journal(path)
    assert journal.statistics()["judgements"] == 1
    journal.close()


def test_a_service_is_asked_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")

    async def ask_service() -> None:
        async with open_judge(CONFIG) as client:
            with serving(make_app(client, "secret")) as port:
                address = f"http://127.0.0.1:{port}"
                async with AsyncJudge.connect(address, token_env="TOKEN") as judge:
                    assert (await judge.rate("Why?", "good")).rating == 8
                service_judge = Judge.connect(address, token_env="TOKEN")
                rating = await asyncio.to_thread(rate_with, service_judge)
                assert rating == 3

    asyncio.run(ask_service())


def rate_with(judge: Judge) -> float | None:
    with judge:
        return judge.rate("Why?", "poor").rating


def test_one_that_is_not_open_says_so() -> None:
    judge = Judge(CONFIG)
    with pytest.raises(EngineUnavailable, match="open it again"):
        judge.rate("Why?", "good")
    with judge:
        pass
    with pytest.raises(EngineUnavailable, match="open it again"):
        judge.rate("Why?", "good")
    with judge:
        assert judge.rate("Why?", "good").rating == 8


def test_one_that_cannot_start_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(ModelError, match="no model 'no-such-model'"), Judge("no-such-model"):
        pass
    assert threading.active_count() == before
