"""Runs to watch, made of judgements that each test adds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement, Outcome, Reading, Usage, Verdict
from tests.judgements import compared, rated

JUDGE = "judge:test:1"


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
        said = Judgement(outcome, reason) if rating is None else rated(rating, expected=expected)
        used = Usage(100, 40, 10, 0.5)
        said = replace(said, critique=critique, usage=used, judge=judge, flags=flags)
        self.journal.put(judge, JudgeInput("single", query, (response,), sample, direct), said)

    def compare(self, query: str, one: str, two: str, verdict: Verdict, critique: str = "") -> None:
        said = compared(verdict, critique=critique, judge=JUDGE)
        self.journal.put(JUDGE, JudgeInput("pairwise", query, (one, two)), said)

    def judge_together(self, query: str, scores: dict[str, float], *forced: str) -> None:
        """Record one listwise judgement, in the order of `scores`."""
        readings = [
            Reading(f"response_{n}", f"{score:g}", score, forced=text in forced)
            for n, (text, score) in enumerate(scores.items(), 1)
        ]
        said = Judgement(Outcome.OK, readings=tuple(readings), judge=JUDGE)
        self.journal.put(JUDGE, JudgeInput("group", query, tuple(scores)), said)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    made = Record(tmp_path)
    yield made
    made.journal.close()


def wait_for(what: object, seconds: float = 120) -> None:
    """Wait until a function returns a true value; fail after `seconds`."""
    until = time.monotonic() + seconds
    assert callable(what)
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)
