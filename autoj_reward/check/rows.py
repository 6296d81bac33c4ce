"""Rows of the package's own that a judge is checked on, and samples of rows."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from typing import Any, TypeVar

T = TypeVar("T")
SEED = 0
"""Seed of the sample of rows."""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A query with three responses of about the same length, in falling quality."""

    kind: str
    """Kind of the query, such as `code` or `summary`."""
    query: str
    good: str
    flaw: str
    """What is wrong with `flawed`."""
    flawed: str
    empty: str
    """Fluent response without content."""


def load_check_rows() -> list[CheckRow]:
    """Return the package's own rows: ten kinds of queries, six of each."""
    return [CheckRow(**row) for row in read_lines("rows.jsonl")]


def load_attacks() -> list[tuple[str, str]]:
    """Return attacks on judges as (family, text). `{a}` in the text stands for an answer."""
    return [(row["family"], _join_pieces(row["response"])) for row in read_lines("attacks.jsonl")]


def read_lines(name: str) -> Iterator[Any]:
    """Yield the rows of a file of this package."""
    lines = files("autoj_reward.check").joinpath(name).read_text("utf-8").splitlines()
    return map(json.loads, lines)


def _join_pieces(response: str | list[Any]) -> str:
    """Return a text that is written whole, or as a list of texts and of [text, times]."""
    pieces = [response] if isinstance(response, str) else response
    return "".join(p if isinstance(p, str) else p[0] * p[1] for p in pieces)


def stratified(rows: Sequence[T], kind: Callable[[T], str], sample: int | None) -> list[T]:
    """Return all rows, or `sample` of them with every kind as often as possible, in their order.

    Rows of one kind are drawn at random with `SEED`.
    """
    if sample is None or sample >= len(rows):
        return list(rows)
    generator, by_kind = random.Random(SEED), defaultdict[str, list[int]](list)
    for n, row in enumerate(rows):
        by_kind[kind(row)].append(n)
    shuffled_places = [generator.sample(places, len(places)) for places in by_kind.values()]
    places_in_turn = [n for turn in zip_longest(*shuffled_places) for n in turn if n is not None]
    return [rows[n] for n in sorted(places_in_turn[:sample])]
