"""Runs that are watched, made of judgements that each test names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement, Outcome, Rating, Usage, Verdict

JUDGE = "judge:test:1"


class Record:
    """A journal that is being written. folder: the run's."""

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
        """Put one rating on record; without a number, that it failed with the outcome."""
        found = None if rating is None else Rating(rating, expected=expected)
        self.journal.put(
            judge,
            JudgeInput(query, (response,), sample, direct),
            Judgement(
                outcome if found is None else Outcome.OK,
                reason=reason,
                critique=critique,
                rating=found,
                usage=Usage(100, 40, 10, 0.5),
                judge=judge,
                flags=flags,
            ),
        )

    def compare(self, query: str, one: str, two: str, verdict: Verdict, critique: str = "") -> None:
        said = Judgement(Outcome.OK, critique=critique, verdict=verdict, judge=JUDGE)
        self.journal.put(JUDGE, JudgeInput(query, (one, two)), said)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    made = Record(tmp_path)
    yield made
    made.journal.close()


def wait_for(what: object, seconds: float = 120) -> None:
    """Until a function says so."""
    until = time.monotonic() + seconds
    assert callable(what)
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)
