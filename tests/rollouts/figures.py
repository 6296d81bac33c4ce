"""The figures of a whole job at once, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoj_reward.io.rows import BadRows
from autoj_reward.types import BadRow
from rollouts.best_of_n.results import GroupResult
from rollouts.best_of_n.summary import JobStatistics, Summary


def summarise(
    groups: Iterable[GroupResult],
    bad: Sequence[BadRow] = (),
    *,
    view: str = "rating",
    seconds: Mapping[str, float] | None = None,
    **run: Any,
) -> Summary:
    figures = JobStatistics(view)
    for group in groups:
        figures.add(group)
    return figures.summary(BadRows(len(bad), list(bad)), seconds or {}, **run)
