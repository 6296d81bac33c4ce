"""Agreement of judges with each other: `autoj evaluate kappa`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations
from pathlib import Path

from autoj_reward.errors import InputError
from autoj_reward.evaluate.intervals import Draws, Figures, Indices, share
from autoj_reward.evaluate.metrics import cohen_kappa
from autoj_reward.evaluate.results import ROWS, beside, load, load_rows
from autoj_reward.io.files import require_apart, write_json

LABEL = "label"


def kappa(results: Sequence[str], result: str) -> int:
    """Cohen's kappa of every two judges, and of each with the human labels, on the same pairs."""
    if len(results) < 2:
        raise InputError("--results: name two results or more, of different judges")
    require_apart([*results, *(beside(path, ROWS) for path in results)], [result])
    verdicts, queries, labels = read_verdicts(results)
    if any(label is not None for label in labels):
        verdicts[LABEL] = labels
    intervals = Draws()
    rows = [
        {"first": one, "second": two, **agreement(verdicts[one], verdicts[two], queries, intervals)}
        for one, two in combinations(verdicts, 2)
    ]
    write_json(result, {"task": "kappa", "results": list(results), "agreement": rows})
    for row in rows:
        shown = "-" if row["kappa"] is None else f"{row['kappa']:.3f}"
        print(f"{row['first']} / {row['second']}: kappa {shown}, same {row['same']:.2f} %")
    print(f"result: {result}")
    return 0


def agreement(
    first: Sequence[Hashable],
    second: Sequence[Hashable],
    queries: Sequence[str],
    intervals: Draws,
) -> Figures:
    """Share of equal verdicts, and kappa; inconsistent and failed are verdicts of their own."""

    def statistic(rows: Indices) -> float | None:
        return cohen_kappa([first[i] for i in rows], [second[i] for i in rows])

    same = [a == b for a, b in zip(first, second, strict=True)]
    return {
        "n": len(same),
        **intervals.percent("same", share(same), queries),
        **intervals.number("kappa", statistic, queries),
    }


def read_verdicts(
    results: Sequence[str],
) -> tuple[dict[str, list[Hashable]], list[str], list[Hashable]]:
    """Verdicts by judge, queries, and labels. InputError unless all are of the same rows."""
    found: dict[str, list[Hashable]] = {}
    first: list[Figures] = []
    for path in results:
        name, rows = f"{load(path)['name']} ({Path(path).stem})", load_rows(path)
        if not rows or "verdict" not in rows[0]:
            raise InputError(f"{path}: no verdicts on pairs beside it: evaluate pairs again")
        first = first or rows
        for number, (a, b) in enumerate(zip(first, rows, strict=False), 1):
            if any(a.get(key) != b.get(key) for key in ("query", "responses", "label")):
                raise InputError(f"{path}: row {number} is not that of {results[0]}: same data?")
        if len(rows) != len(first):
            raise InputError(f"{path}: {len(rows)} rows, and {results[0]} has {len(first)}")
        if name in found:
            raise InputError(f"{path}: a second result called {name}: rename the file")
        found[name] = [row["verdict"] for row in rows]
    return found, [row["query"] for row in first], [row.get("label") for row in first]
