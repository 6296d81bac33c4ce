"""Graded outputs: responses of many systems to one instruction, with a score each.

Reads the form of AlpacaEval's published results: `outputs.jsonl.gz` (`instruction`, `outputs`:
{system: text}) and `preferences.jsonl.gz` (`annotator`, `instruction`, `second`, `preference`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from autoj_reward.config import Block
from autoj_reward.errors import InputError
from autoj_reward.io.checks import BadField
from autoj_reward.io.rows import read_rows, require_clean

GRADER = "gpt4_turbo_logprob"
LOWEST = 1e-8
"""Smaller probabilities are raised to this one, so scores do not go below -8."""
Split = Literal["training", "validation", "test"]


class GradedData(Block):
    """Graded outputs, and how they are split into training, validation and test."""

    folder: str | None = None
    """Folder of the two files, resolved like the paths in data; null for no graded outputs."""
    test: float = Field(0.16, ge=0, lt=1)
    """Share of instructions for the test only. Those in `data.compared` are always trained on."""
    validation: float = Field(0.07, ge=0, lt=1)
    """Share of instructions for validation only. Those in `data.compared` are always trained on."""
    test_systems: tuple[str, ...] = ()
    """Systems whose outputs are used in the test only."""
    validation_systems: tuple[str, ...] = ()
    """Systems whose outputs are used in validation and test only."""
    left_out: tuple[str, ...] = ()
    """Systems that are never used, because their grades do not measure quality."""


@dataclass(frozen=True, slots=True)
class GradedOutput:
    """A system's output with its grade."""

    system: str
    text: str
    score: float
    """log10 of the probability that the output is preferred, -8..0."""


@dataclass(frozen=True, slots=True)
class Graded:
    """Graded outputs to one instruction, sorted by system name."""

    source: str
    line: int
    query: str
    outputs: tuple[GradedOutput, ...]


def read_graded(folder: str) -> list[Graded]:
    """Read instructions with graded outputs. Raises InputError for a grade without an output."""
    preferences, outputs = f"{folder}/preferences.jsonl.gz", f"{folder}/outputs.jsonl.gz"
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for _, row in _read_fields(preferences, "annotator", "instruction", "second", "preference"):
        if row["annotator"] == GRADER:
            score = math.log10(max(LOWEST, float(row["preference"])))
            scores[row["instruction"]][row["second"]] = score
    rows = []
    for line, row in _read_fields(outputs, "instruction", "outputs"):
        query, texts = row["instruction"], row["outputs"]
        system_scores = scores.pop(query, {})
        if missing := system_scores.keys() - texts.keys():
            raise InputError(f"{outputs}:{line}: no output of {', '.join(sorted(missing))}")
        graded = tuple(
            GradedOutput(name, texts[name], system_scores[name]) for name in sorted(system_scores)
        )
        if graded:
            rows.append(Graded(outputs, line, query, graded))
    if scores:
        raise InputError(
            f"{outputs}: no outputs for {len(scores)} of the instructions preferred on"
        )
    return rows


def extract_plain_words(text: str) -> str:
    """Return the words of a text in lower case; instructions with equal ones are the same."""
    return " ".join(re.findall(r"\w+", text.lower()))


def split_of(query: str, data: GradedData, trained: Set[str]) -> Split:
    """Return the split of an instruction.

    trained: `extract_plain_words` of the queries of other training data. An instruction among them
    belongs to the training split.
    """
    if extract_plain_words(query) in trained:
        return "training"
    place = int.from_bytes(hashlib.sha256(query.encode()).digest()[:8], "big") / 2**64
    if place < data.test:
        return "test"
    return "validation" if place < data.test + data.validation else "training"


def read_splits(
    folder: str, data: GradedData, trained: Iterable[str]
) -> Callable[[Split], list[Graded]]:
    """Return a function that returns the instructions of a split with their outputs.

    Training excludes outputs of validation and test systems, validation those of test systems.
    All splits exclude `left_out` systems. trained: training queries of other data.
    """
    rows, trained_queries = read_graded(folder), {extract_plain_words(query) for query in trained}

    def split(name: Split) -> list[Graded]:
        hidden = {
            "training": {*data.left_out, *data.test_systems, *data.validation_systems},
            "validation": {*data.left_out, *data.test_systems},
            "test": {*data.left_out},
        }[name]
        return [
            replace(row, outputs=tuple(o for o in row.outputs if o.system not in hidden))
            for row in rows
            if split_of(row.query, data, trained_queries) == name
        ]

    return split


def _read_fields(source: str, *fields: str) -> tuple[tuple[int, dict[str, Any]], ...]:
    """Read every row as (line number, fields). Raises InputError with rows that lack a field."""

    def build(line: int, row: Any) -> tuple[int, dict[str, Any]]:
        missing = [name for name in fields if not isinstance(row, dict) or name not in row]
        if missing:
            raise BadField(missing[0], f"missing; a row needs {', '.join(fields)}")
        return line, row

    rows = read_rows(source, build)
    require_clean(rows)
    return rows.rows
