"""The queries of a job that its report shows: all of a small job, a sample of a large one."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass

from rollouts.best_of_n.group import GroupResult

ALL = 200
"""Queries that are all shown."""
FIRST, LAST, WORST, DRAWN = 50, 25, 50, 75


@dataclass(frozen=True, slots=True)
class Shown:
    """A query of the report. number: its place among all, from 1. why: why it was taken."""

    number: int
    group: GroupResult
    why: str = ""


class Sample:
    """Keeps the queries to show while they pass; which ones depends on the job alone."""

    def __init__(self, view: str) -> None:
        self.total = 0
        self._view = view
        self._first: list[Shown] = []
        self._last: deque[Shown] = deque(maxlen=LAST)
        self._worst: list[tuple[float, int, Shown]] = []
        self._drawn: list[Shown] = []
        self._draw = random.Random(0)

    def add(self, group: GroupResult) -> None:
        self.total += 1
        own = Shown(self.total, group)
        if self.total <= ALL:
            self._first.append(own)
        self._last.append(own)
        best = max(group.values(self._view), default=-math.inf)
        heapq.heappush(self._worst, (-best, -self.total, own))
        if len(self._worst) > WORST:
            heapq.heappop(self._worst)
        if len(self._drawn) < DRAWN:  # Vitter's reservoir (algorithm R)
            self._drawn.append(own)
        elif (place := self._draw.randrange(self.total)) < DRAWN:
            self._drawn[place] = own

    def shown(self) -> list[Shown]:
        """In the order of the input; each once, by the first reason that holds."""
        if self.total <= ALL:
            return self._first
        taken: dict[int, Shown] = {}
        worst = [own for _, _, own in self._worst]
        for why, some in (
            ("first", self._first[:FIRST]),
            ("last", self._last),
            ("lowest", worst),
            ("drawn", self._drawn),
        ):
            for own in some:
                taken.setdefault(own.number, Shown(own.number, own.group, why))
        return [taken[number] for number in sorted(taken)]
