"""Labelled queries: the training file of the authors' scenario classifier, and Eval-P."""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from tqdm import tqdm

from autoj_reward.config import Block
from autoj_reward.data.filters import measured_queries
from autoj_reward.data.labelled import JudgeData, data_path
from autoj_reward.errors import InputError
from autoj_reward.formats.criteria import Scenarios, load_scenarios
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField
from autoj_reward.io.rows import Rows, read_rows

GIVEN_UP = ("rejecting", "peer_review")
"""Early scenarios that the authors removed (paper, Table 7)."""


class ScenarioRows(Block):
    """Files of labelled queries, relative to the folder of the judge's data or from ./.

    training: rows of `category`, `instruction`, `input`. held_out: share of each scenario in them
        that is kept for validation. exclude: files whose queries are not to be trained on.
    extra: further training rows, of `scenario` and `prompt`. measure: such rows to measure on;
        null: none.
    """

    training: str
    extra: str | None = None
    measure: str | None = None
    exclude: tuple[str, ...] = ()
    held_out: float = Field(0.2, gt=0, lt=1)


@dataclass(frozen=True, slots=True)
class Labelled:
    """A query and its scenario by its name in the registry."""

    line: int
    query: str
    scenario: str


@dataclass(frozen=True, slots=True)
class Split:
    """Labelled queries for training, for validation, and of a further set that is only measured."""

    training: tuple[Labelled, ...]
    validation: tuple[Labelled, ...]
    measured: tuple[Labelled, ...] = ()


def load(rows: ScenarioRows, data: JudgeData) -> Split:
    """Read and split the rows; bad ones are named on standard error and left out."""
    known = load_scenarios()
    found = read_labelled(data_path(data, rows.training), known)
    for row in found.bad:
        if "given up" not in row.reason:
            tqdm.write(f"left out {row}", file=sys.stderr)
    kept = without(found.rows, measured_queries(data_path(data, name) for name in rows.exclude))
    extra, measured = (
        read_labelled(data_path(data, name), known).rows if name else ()
        for name in (rows.extra, rows.measure)
    )
    parts = split(kept, rows.held_out)
    return Split((*parts.training, *extra), parts.validation, measured)


def read_labelled(path: str, known: Scenarios) -> Rows[Labelled]:
    """Rows of `category`, `instruction` and `input`, or of `scenario` and `prompt`.

    Rows of a scenario that is none are named by line and left out. Raises InputError if the file
    as a whole cannot be read.
    """

    def build(line: int, value: Any) -> Labelled:
        fields = check.own_fields(value)
        own = "instruction" in fields
        name = check.text(fields, "category" if own else "scenario", blank=False)
        query = check.text(fields, "instruction" if own else "prompt", blank=False)
        if own and fields.get("input"):
            query += " " + check.text(fields, "input")
        if name in GIVEN_UP:
            raise BadField("category", f"{name}: a scenario that was given up")
        if name not in known:
            raise BadField("category" if own else "scenario", f"no scenario {name!r}")
        return Labelled(line, query.strip(), known[name].name)

    found = read_rows(path, build, ())
    if not found.rows:
        raise InputError(f"{path}: no usable row; {len(found.bad)} left out")
    return found


def without(rows: Iterable[Labelled], measured: Collection[str]) -> tuple[Labelled, ...]:
    """Rows whose query neither is, begins with, nor begins one of those that measure.

    White space aside; queries of less than 40 characters must be equal.
    """
    plain = {" ".join(query.split()) for query in measured}
    heads = {query[:40] for query in plain if len(query) >= 40}

    def meets(row: Labelled) -> bool:
        query = " ".join(row.query.split())
        if query in plain:
            return True
        if query[:40] not in heads:
            return False
        return any(query.startswith(m) or m.startswith(query) for m in plain if len(m) >= 40)

    return tuple(row for row in rows if not meets(row))


def split(rows: Sequence[Labelled], share: float) -> Split:
    """Of each scenario the given share for validation, drawn by the query's hash: at least one
    query, unless there is only one."""
    groups: dict[str, list[Labelled]] = defaultdict(list)
    for row in rows:
        groups[row.scenario].append(row)
    held: set[int] = set()
    for group in groups.values():
        drawn = sorted(group, key=lambda row: hashlib.sha256(row.query.encode()).hexdigest())
        held |= {
            row.line for row in drawn[: min(len(drawn) - 1, max(1, round(share * len(drawn))))]
        }
    return Split(
        tuple(row for row in rows if row.line not in held),
        tuple(row for row in rows if row.line in held),
    )
