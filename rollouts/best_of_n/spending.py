"""What a job on a budget spent, and what it skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoj_reward.select.race import Fate
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


def summarise_budget(share: float, groups: Sequence[GroupResult]) -> BudgetSummary:
    """Add up what the queries spent."""
    spent = [group.spending for group in groups if group.spending]
    fates = Counter(standing.fate for group in groups for standing in group.standings)
    usage = {
        "readings": sum((s.cheap for s in spent), Usage()),
        "critiques": sum((s.critiques for s in spent), Usage()),
        "comparisons": sum((s.comparisons for s in spent), Usage()),
    }
    written = sum(own.tokens_out for own in usage.values())
    full = sum(s.full_tokens for s in spent)
    return BudgetSummary(
        share=share,
        fates={fate.value: fates[fate] for fate in Fate},
        readings=sum(s.readings for s in spent),
        critiques=sum(s.asked for s in spent),
        orders=sum(s.orders for s in spent),
        skipped=sum(s.skipped for s in spent),
        usage=usage,
        written=written,
        full_tokens=full,
        written_share=written / full if full else None,
        over=sum(s.usage.tokens_out > share * s.full_tokens * (1 + 1e-9) for s in spent),
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
