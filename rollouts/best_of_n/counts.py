"""What a best-of-N job counts while it runs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from autoj_reward.config import BestOfNConfig
from autoj_reward.io.rows import QueryRow
from autoj_reward.types import Judgement, Outcome, Usage


@dataclass(slots=True)
class Counts:
    """queries: usable rows. answered: candidates that the input brings, copies within a query once.
    unanswered: queries that the policy is to answer. reused, new, usage: judge inputs from the
    journal, asked by this run, and the cost of the latter. unavailable: judge inputs that nobody
    answered. rows: SHA-256 over all that is to be judged."""

    seconds: dict[str, float] = field(default_factory=dict)
    queries: int = 0
    answered: int = 0
    unanswered: int = 0
    reused: int = 0
    new: int = 0
    usage: Usage = Usage()
    unavailable: int = 0
    rows: Any = field(default_factory=hashlib.sha256)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - started

    def expect(self, row: QueryRow) -> None:
        self.rows.update(repr(row).encode())  # repr escapes lone surrogates
        self.queries += 1
        self.unanswered += row.responses is None
        self.answered += len(set(row.responses or ()))

    def expected(self, config: BestOfNConfig) -> int:
        """Judge inputs to come, tie-breaks and copies between queries aside."""
        total = self.answered + (self.unanswered * config.policy.n if config.policy else 0)
        if config.budget is None:
            return total * config.judge.critiques
        # The cheap pass, and at most so many critiques.
        return total + int(total * config.judge.critiques * config.budget)

    def add(self, judgement: Judgement, reused: bool, on_budget: bool) -> None:
        self.reused += reused
        self.usage += Usage() if reused else judgement.usage
        reading = on_budget and judgement.ok and not judgement.critique
        self.new += not (reused or reading)
        self.unavailable += judgement.outcome is Outcome.UNAVAILABLE
