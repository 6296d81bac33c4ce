"""Outputs of systems with their grades, in the files of the AlpacaEval data."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def write_graded_outputs(folder: Path) -> list[list[str]]:
    """Write four outputs to each of two queries, and return them by query, the worst first."""
    outputs = list[dict[str, Any]]()
    preferences = list[dict[str, Any]]()
    for query in ("q1", "q2"):
        texts = {f"system {n}": f"{query} " + "x" * n for n in range(4)}
        outputs.append({"instruction": query, "outputs": texts})
        for n in range(4):
            row = {"annotator": "gpt4_turbo_logprob", "instruction": query}
            preferences.append(row | {"second": f"system {n}", "preference": 10.0 ** (n - 4)})
    for name, rows in (("outputs", outputs), ("preferences", preferences)):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return [list(row["outputs"].values()) for row in outputs]
