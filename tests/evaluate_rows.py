"""Rows for tests of the evaluations: published counts as files of the released forms."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from autoj_reward.evaluate.rows import GROUPS
from autoj_reward.formats.criteria import load_scenarios

RELEASED_NAMES = {
    s.name: alias for s in load_scenarios() for alias in s.aliases if alias != "default"
}
# Table 1 and Figure 4 as counts of 24 pairs a scenario: (agreeing, consistent).
AUTOJ_13B = {
    "Summarization": (33, 53),
    "Exam Questions": (28, 50),
    "Code": (57, 91),
    "Rewriting": (59, 89),
    "Creative Writing": (129, 188),
    "Functional Writing": (148, 196),
    "General Communication": (159, 266),
    "NLP Tasks": (152, 228),
}
# Table 22, Auto-J against ChatGPT, GPT-4's votes: (win, tie, lose).
AGAINST_CHATGPT = {
    "Summarization": (12, 0, 0),
    "Exam Questions": (10, 0, 2),
    "Code": (16, 0, 4),
    "Rewriting": (14, 0, 6),
    "Creative Writing": (26, 2, 8),
    "Functional Writing": (22, 2, 16),
    "General Communication": (36, 0, 12),
    "NLP Tasks": (35, 1, 8),
}


def write(path: Path, rows: Iterable[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def released_scenarios(group: str) -> list[str]:
    """The scenarios of a group as the released files spell them."""
    return [RELEASED_NAMES.get(name, name) for name in GROUPS[group]]


def pair(scenario: str, number: int, label: int = 0, **more: Any) -> dict[str, Any]:
    """A row of Eval-P whose first response is the longer one."""
    return {
        "scenario": scenario,
        "label": label,
        "prompt": f"{scenario} {number}",
        "response 1": f"long answer {number}",
        "response 2": f"short {number}",
        **more,
    }


def autoj_verdicts() -> Iterator[tuple[dict[str, Any], dict[str, int], dict[str, int]]]:
    """1,392 rows with both verdicts of the 13B judge, as many of each kind as were published."""
    for group, (agreeing, consistent) in AUTOJ_13B.items():
        scenarios = released_scenarios(group)
        for n in range(24 * len(scenarios)):
            label = n % 3
            other = (label + 1) % 3
            first = label if n < agreeing else other
            second = first if n < consistent else (first + 1) % 3
            swapped = {0: 1, 1: 0, 2: 2}[second]
            row = pair(scenarios[n % len(scenarios)], n, label)
            yield row, {"output": first}, {"output": swapped}
