"""Candidates of one query for best-of-N, in the authors' form (Eval-R)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autoj_reward.evaluate.rows import Fields, Measured, counted, group, strictly, texts
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, text

Scores = tuple[float | None, ...]
FLAT = "responses"


@dataclass(frozen=True, slots=True)
class Candidates:
    """The responses of one base model to one query.

    logprobs: log-probability of each under that model, None if unknown. scores: numbers that the
    row brings for each, by the name of who gave them; None where one is missing.
    """

    line: int
    query: str
    group: str
    base: str
    responses: tuple[str, ...]
    logprobs: tuple[float, ...] | None
    scores: dict[str, Scores]


def read_candidates(source: str, wanted: int) -> Measured[Candidates]:
    """Rows of `scenario`, `prompt` and `outputs`: by base model, `outputs`, `logprobs` and `scores`
    (by the name of who gave them), or these three in the row itself.

    wanted: candidates that each query must have. InputError names every bad row.
    """

    def build(line: int, row: Fields) -> list[Candidates]:
        query, name = text(row, "prompt", blank=False), group(row)
        given = row.get("outputs")
        blocks = {FLAT: row} if isinstance(given, list) else given
        if not isinstance(blocks, dict) or not blocks:
            raise BadField("outputs", f"{check.show(given)} is no list and no lists by base model")
        found = []
        for base, block in blocks.items():
            where = "outputs" if block is row else f"outputs.{base}"
            if not isinstance(block, dict):
                raise BadField(where, f"not an object: {check.show(block)}")
            found.append(Candidates(line, query, name, base, *_lists(block, where, wanted)))
        return found

    rows = strictly(source, build)
    count = counted(rows, size=len)
    return Measured(lambda: (one for row in rows.usable() for one in row), range(count))


def _lists(
    block: dict[str, Any], where: str, wanted: int
) -> tuple[tuple[str, ...], tuple[float, ...] | None, dict[str, Scores]]:
    responses = texts(block, "outputs")
    if len(responses) < wanted:
        raise BadField(where, f"{len(responses)} responses; best of {wanted} needs {wanted}")
    logprobs = check.numbers(block, "logprobs", len(responses))
    scores = block.get("scores") or {}
    if not isinstance(scores, dict):
        raise BadField(f"{where}.scores", f"not lists by name: {check.show(scores)}")
    found = {}
    for name, values in scores.items():
        if not isinstance(values, list) or len(values) != len(responses):
            shown = f"{len(values)} numbers" if isinstance(values, list) else check.show(values)
            raise BadField(f"{where}.scores.{name}", f"{shown} for {len(responses)} responses")
        found[name] = tuple(_score(value, f"{where}.scores.{name}") for value in values)
    return responses, logprobs, found


def _score(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadField(where, f"{check.show(value)} is no number and not null")
    return float(value)
