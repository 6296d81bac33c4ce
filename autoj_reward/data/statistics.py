"""Statistics of a collection: labels or ratings, sources, scenarios (paper, Tables 20 and 21)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autoj_reward.data.teacher import TeacherCost
from autoj_reward.data.training_rows import RowResult
from autoj_reward.io.markup import table

LABEL_NAMES = ("win", "lose", "tie")
"""Names of the labels 0, 1 and 2 in Table 20, as the first response sees them."""


def statistics(
    results: Sequence[RowResult],
    *,
    protocol: str,
    bad: int,
    dropped: Mapping[str, int],
    rows: int,
    asked: int,
    spent: TeacherCost,
    stopped: bool,
) -> dict[str, Any]:
    """Return the counts of a collection, as written to `statistics.json`.

    bad: number of malformed rows. dropped: rows left out by filters, by reason. rows: number
    that passed them. asked: questions sent in this run. spent: cost of all runs. stopped: whether
    the budget ended the run.
    """
    kept = [result.training for result in results if result.training is not None]
    if protocol == "pairwise":
        counted = Counter(LABEL_NAMES[row["gt_label"]] for row in kept)
        values = {"labels": {label: counted[label] for label in LABEL_NAMES}}
    else:
        ratings = Counter(row["pred_score"] for row in kept)
        values = {"ratings": dict(sorted(ratings.items(), key=lambda item: float(item[0])))}
    return {
        "protocol": protocol,
        "stopped_by_budget": stopped,
        "rows": {
            "malformed": bad,
            "dropped": dict(Counter(dropped).most_common()),
            "set_aside": dict(Counter(str(r.reason) for r in results if r.reason).most_common()),
            "kept": len(kept),
            "not_needed_or_not_reached": rows - len(results),
        },
        **values,
        "sources": dict(Counter(row["source_dataset"] for row in kept).most_common()),
        "scenarios": dict(Counter(row["scenario"] for row in kept).most_common()),
        "questions_in_this_run": asked,
        "spent": asdict(spent),
    }


def render_statistics(found: Mapping[str, Any]) -> str:
    """Render the counts as Markdown tables."""
    rows, spent = found["rows"], found["spent"]
    lines = [
        f"Kept {rows['kept']} rows; {rows['malformed']} malformed, "
        f"{sum(rows['dropped'].values())} dropped before asking, "
        f"{sum(rows['set_aside'].values())} set aside after it, "
        f"{rows['not_needed_or_not_reached']} not needed or not reached.",
        f"Spent {spent['tokens_in']:,} tokens in, {spent['tokens_out']:,} out, "
        f"${spent['usd']:,.2f}; {found['questions_in_this_run']:,} questions in this run.",
    ]
    if found["stopped_by_budget"]:
        lines.append("Stopped by the budget: raise it and run the same command to go on.")
    tables = {
        "dropped before asking": rows["dropped"],
        "set aside": rows["set_aside"],
        "label": found.get("labels", {}),
        "rating": found.get("ratings", {}),
        "source": found["sources"],
        "scenario": found["scenarios"],
    }
    for title, counts in tables.items():
        if counts:
            shown = [(str(name), str(count)) for name, count in counts.items()]
            lines += ["", *table((title, "rows"), shown)]
    return "\n".join(lines) + "\n"
