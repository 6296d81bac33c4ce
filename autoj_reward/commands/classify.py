"""`autoj classify`: the scenario of every query of a file, same order out."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoj_reward.commands.score import joined
from autoj_reward.errors import ConfigError
from autoj_reward.io.files import write_jsonl
from autoj_reward.io.rows import read_queries, require_clean, require_usable
from autoj_reward.scenarios.linear import shipped_classifier
from autoj_reward.types import QueryRow


def classify(source: str, output: str, others_below: float | None, strict: bool) -> int:
    """Add `scenario`, `confidence` and `best` to every row; print how many of each scenario."""
    if others_below is not None and not 0 <= others_below <= 1:
        raise ConfigError(f"--others-below {others_below:g}: a confidence is between 0 and 1")
    rows = read_queries(source)
    if strict:
        require_clean(rows)
    require_usable(rows, source)
    found = shipped_classifier().classify([row.query for row in rows.rows], others_below)
    write_jsonl(
        Path(output), (joined(_fields(r), asdict(c)) for r, c in zip(rows.rows, found, strict=True))
    )
    counts = Counter(classified.scenario for classified in found)
    print(json.dumps({"output": output, "scenarios": dict(counts.most_common())}))
    return 0


def _fields(row: QueryRow) -> dict[str, Any]:
    own: dict[str, Any] = {"query": row.query}
    if row.responses is not None:
        own["responses"] = row.responses
    if row.logprobs is not None:
        own["logprobs"] = row.logprobs
    return own | row.extra
