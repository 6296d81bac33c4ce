"""Statistics of a collection: labels or ratings, sources, scenarios (paper, Tables 20 and 21)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autoj_reward.data.teacher import TeacherCost
from autoj_reward.data.training_rows import PROTOCOLS, RowResult
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
    questions_sent: int,
    spent: TeacherCost,
    stopped: bool,
) -> dict[str, Any]:
    """Return the counts of a collection, as written to `statistics.json`.

    bad: number of malformed rows. dropped: rows left out by filters, by reason. rows: number
    that passed them. questions_sent: questions sent in this run. spent: cost of all runs. stopped:
    whether the budget ended the run.
    """
    training_rows = [result.training for result in results if result.training is not None]
    label = PROTOCOLS[protocol].label
    if label:
        counted = Counter(LABEL_NAMES[row[label]] for row in training_rows)
        values = {"labels": {name: counted[name] for name in LABEL_NAMES}}
    else:
        ratings = Counter(row["pred_score"] for row in training_rows)
        values = {"ratings": dict(sorted(ratings.items(), key=lambda item: float(item[0])))}
    return {
        "protocol": protocol,
        "stopped_by_budget": stopped,
        "rows": {
            "malformed": bad,
            "dropped": dict(Counter(dropped).most_common()),
            "set_aside": dict(Counter(str(r.reason) for r in results if r.reason).most_common()),
            "kept": len(training_rows),
            "not_needed_or_not_reached": rows - len(results),
        },
        **values,
        "sources": dict(Counter(row["source_dataset"] for row in training_rows).most_common()),
        "scenarios": dict(Counter(row["scenario"] for row in training_rows).most_common()),
        "questions_in_this_run": questions_sent,
        "spent": asdict(spent),
    }


def render_statistics(counts: Mapping[str, Any]) -> str:
    """Render the counts as Markdown tables."""
    rows, spent = counts["rows"], counts["spent"]
    lines = [
        f"Kept {rows['kept']} rows; {rows['malformed']} malformed, "
        f"{sum(rows['dropped'].values())} dropped before asking, "
        f"{sum(rows['set_aside'].values())} set aside after it, "
        f"{rows['not_needed_or_not_reached']} not needed or not reached.",
        f"Spent {spent['tokens_in']:,} tokens in, {spent['tokens_out']:,} out, "
        f"${spent['usd']:,.2f}; {counts['questions_in_this_run']:,} questions in this run.",
    ]
    if counts["stopped_by_budget"]:
        lines.append("Stopped by the budget: raise it and run the same command to go on.")
    tables = {
        "dropped before asking": rows["dropped"],
        "set aside": rows["set_aside"],
        "label": counts.get("labels", {}),
        "rating": counts.get("ratings", {}),
        "source": counts["sources"],
        "scenario": counts["scenarios"],
    }
    for title, table_counts in tables.items():
        if table_counts:
            cells = [(str(name), str(count)) for name, count in table_counts.items()]
            lines += ["", *table((title, "rows"), cells)]
    return "\n".join(lines) + "\n"
