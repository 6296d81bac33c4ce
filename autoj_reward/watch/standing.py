"""How the candidates of one query stand: a number each in every view, ties, best and worst; and the
ties of all queries, for the page and for a job's `summary.json`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from autoj_reward.questions.tie_break import tied_pairs
from autoj_reward.watch.figures import COMPARISON, Mark

VIEWS = ("rating", "expected", "direct")


@dataclass(slots=True)
class Stander:
    """One candidate. rows: its judgements in the index, ratings first, then readings. values: its
    mean in each view of VIEWS, None where it has none."""

    response: int
    rows: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    values: tuple[float | None, ...] = (None, None, None)

    @property
    def outcome(self) -> str:
        """`ok` if any judgement is, else that of the first."""
        found = [mark.outcome for mark in self.marks]
        return "ok" if "ok" in found else found[0]

    def settle(self) -> None:
        self.values = tuple(_mean(getattr(mark, view) for mark in self.marks) for view in VIEWS)


class Standing(NamedTuple):
    """A query's candidates in one view. pairs, tied: of rated candidates, and those of equal value.
    top: how many share the best value."""

    rated: int
    best: float
    worst: float
    mean: float
    pairs: int
    tied: int
    top: int


def standers(judged: Iterable[tuple[int, int, Mark]]) -> list[Stander]:
    """The candidates of a query's judgements, (row, response, mark) each; comparisons are none."""
    found: dict[int, Stander] = {}
    for row, response, mark in judged:
        if mark.kind != COMPARISON:
            own = found.setdefault(response, Stander(response))
            own.rows.append(row)
            own.marks.append(mark)
    for stander in found.values():
        stander.settle()
    return list(found.values())


def standing(candidates: Sequence[Stander], view: int) -> Standing | None:
    """None where no candidate has a number in that view."""
    values = [v for stander in candidates if (v := stander.values[view]) is not None]
    return standing_of(values) if values else None


def standing_of(values: Sequence[float]) -> Standing:
    """How a query's rated candidates stand, by their numbers in one view; one at least."""
    best = max(values)
    return Standing(
        rated=len(values),
        best=best,
        worst=min(values),
        mean=fmean(values),
        pairs=math.comb(len(values), 2),
        tied=tied_pairs(values),
        top=values.count(best),
    )


@dataclass(slots=True)
class Totals:
    """Standings of all queries in one view, added up. several: queries with two rated candidates
    or more; what follows is of these."""

    queries: int = 0
    several: int = 0
    top_tied: int = 0
    pairs: int = 0
    tied: int = 0
    best: float = 0.0
    mean: float = 0.0

    def add(self, own: Standing, sign: int = 1) -> None:
        self.queries += sign
        if own.rated > 1:
            self.several += sign
            self.top_tied += sign * (own.top > 1)
            self.pairs += sign * own.pairs
            self.tied += sign * own.tied
            self.best += sign * own.best
            self.mean += sign * own.mean

    def told(self) -> dict[str, float | None]:
        """tie_rate: of queries whose best value is shared; pair_tie_rate: of pairs; gain: mean best
        minus mean, in points of the view."""
        return {
            "queries": self.queries,
            "several": self.several,
            "tie_rate": _share(self.top_tied, self.several),
            "pair_tie_rate": _share(self.tied, self.pairs),
            "gain": _share(self.best - self.mean, self.several),
        }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
