"""Runs to watch, made of judgements that each test adds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement, Outcome, Reading, Usage, Verdict
from autoj_reward.watch.answers import Answers
from autoj_reward.watch.run import Run
from tests.judgements import compared, rated

JUDGE = "judge:test:1"

OpenRun = Callable[[Path], Run]
ReadAnswers = Callable[[Path], Answers]


class Record:
    """Journal that is being written."""

    def __init__(self, folder: Path, name: str = "journal.sqlite") -> None:
        self.folder = folder
        self.journal = Journal(folder / name)

    def rate(
        self,
        query: str,
        response: str,
        rating: float | None = None,
        *,
        outcome: Outcome = Outcome.UNPARSABLE,
        expected: float | None = None,
        critique: str = "",
        reason: str = "",
        flags: tuple[str, ...] = (),
        judge: str = JUDGE,
        sample: int = 0,
        direct: bool = False,
    ) -> None:
        """Record one rating, or a failure with the given outcome if there is no number."""
        judgement = (
            Judgement(outcome, reason) if rating is None else rated(rating, expected=expected)
        )
        usage = Usage(100, 40, 10, 0.5)
        judgement = replace(judgement, critique=critique, usage=usage, judge=judge, flags=flags)
        self.journal.put(judge, JudgeInput("single", query, (response,), sample, direct), judgement)

    def compare(
        self, query: str, first: str, second: str, verdict: Verdict, critique: str = ""
    ) -> None:
        judgement = compared(verdict, critique=critique, judge=JUDGE)
        self.journal.put(JUDGE, JudgeInput("pairwise", query, (first, second)), judgement)

    def judge_together(self, query: str, scores: dict[str, float], *forced: str) -> None:
        """Record one listwise judgement, in the order of `scores`."""
        readings = [
            Reading(f"response_{n}", f"{score:g}", score, forced=text in forced)
            for n, (text, score) in enumerate(scores.items(), 1)
        ]
        judgement = Judgement(Outcome.OK, readings=tuple(readings), judge=JUDGE)
        self.journal.put(JUDGE, JudgeInput("group", query, tuple(scores)), judgement)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    new_record = Record(tmp_path)
    yield new_record
    new_record.journal.close()


def wait_for(condition: object, seconds: float = 600) -> None:
    """Wait until a function returns a true value; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
