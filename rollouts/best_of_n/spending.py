"""What a job on a budget spent, and what it skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from autoj_reward.questions.race import Fate
from autoj_reward.types import Usage
from rollouts.best_of_n.group import GroupResult


@dataclass(frozen=True, slots=True)
class BudgetSummary:
    """All queries of a job together.

    share: the budget. fates: candidates by what became of them, zeros included.
    readings, critiques, orders: cheap readings, critiques and orders of comparisons asked for.
    skipped: critiques that full judging would have asked for besides.
    usage: tokens of each of the three kinds. written: tokens written, of all kinds.
    full_tokens: estimate of what full judging would have written.
    written_share: written over that; None if nothing could be estimated.
    over: queries that wrote more than their share, since one critique is always asked for or
        critiques differ in length.
    """

    share: float
    fates: Mapping[str, int]
    readings: int
    critiques: int
    orders: int
    skipped: int
    usage: Mapping[str, Usage]
    written: int
    full_tokens: float
    written_share: float | None
    over: int


class Spent:
    """Adds up what queries spent."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._fates: Counter[Fate] = Counter()
        self._usage = dict.fromkeys(("readings", "critiques", "comparisons"), Usage())
        self._readings = self._critiques = self._orders = self._skipped = self._over = 0
        self._full = 0.0

    def add(self, group: GroupResult) -> None:
        self._fates.update(standing.fate for standing in group.standings)
        s = group.spending
        if s is None:
            return
        for kind, usage in zip(self._usage, (s.cheap, s.critiques, s.comparisons), strict=True):
            self._usage[kind] += usage
        self._readings += s.readings
        self._critiques += s.asked
        self._orders += s.orders
        self._skipped += s.skipped
        self._full += s.full_tokens
        self._over += s.usage.tokens_out > self._share * s.full_tokens * (1 + 1e-9)

    def summary(self) -> BudgetSummary:
        written = sum(own.tokens_out for own in self._usage.values())
        return BudgetSummary(
            share=self._share,
            fates={fate.value: self._fates[fate] for fate in Fate},
            readings=self._readings,
            critiques=self._critiques,
            orders=self._orders,
            skipped=self._skipped,
            usage=dict(self._usage),
            written=written,
            full_tokens=self._full,
            written_share=written / self._full if self._full else None,
            over=self._over,
        )


def budget_text(found: BudgetSummary) -> str:
    """The budget in a sentence, as plain text."""
    fates = found.fates
    spent = "nothing" if found.written_share is None else f"{found.written_share:.1%}"
    return (
        f"budget {found.share:g}: {found.written:,} tokens written, {spent} of the estimate for "
        f"full judging; {found.critiques:,} critiques and {found.skipped:,} skipped; "
        f"{fates['judged']:,} candidates judged in full, {fates['cannot_win']:,} abandoned since "
        f"they could not win, {fates['out_of_budget']:,} for lack of budget, {fates['copy']:,} "
        "copies"
    )
