"""Preferences that a teacher is asked about: a query, two responses, and the human label.

A protocol whose teacher writes the responses reads queries alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar

from pydantic import Field

from autoj_reward.config import Block
from autoj_reward.conversation import Response
from autoj_reward.data.labelled import drawn_order
from autoj_reward.io.candidates import (
    PairRow,
    naming_layout,
    pairs_in,
    prompt_of_row,
    refuse_media,
    response_of_row,
)
from autoj_reward.io.checks import BadField
from autoj_reward.io.items import Item
from autoj_reward.io.layouts import PAIR, PROMPT
from autoj_reward.io.reader import read_items
from autoj_reward.io.rows import Rows, read_all
from autoj_reward.io.splits import RowSplit
from autoj_reward.types import Verdict


class SourceConfig(Block):
    """A file or dataset of preferences, or of queries."""

    removed_keys: ClassVar[Mapping[str, str]] = {
        "form": "leave it out: the layout is found from the columns, or named by `layout`"
    }

    path: str
    """Path or `hf://` address, as for every input. A relative path starts in the data folder."""
    layout: str | None = None
    """Layout of the source's rows. null: that of each row, found from its columns."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Path of each field, where a column has a name of its own, such as `prompt: question`."""
    split: RowSplit | None = None
    """Rows that are read; null reads all."""
    name: str | None = None
    """Name of its rows in the output's `source_dataset`; null takes the name of their layout."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Pair of responses to one query with the human preference label, or a query alone."""

    query: str
    responses: tuple[str, ...]
    """Both responses; empty for a query alone."""
    label: Verdict | None
    """FIRST, SECOND or TIE; None without a label."""
    scenario: str | None = None
    """Scenario given by the source; None if it gives none."""
    english: bool | None = None
    """Whether the source marks the row as English; None if it gives no language."""
    source: str = ""
    file: str = ""
    line: int = 0


def read_preferences(source: SourceConfig, path: str, wanted: str = PAIR) -> Rows[Preference]:
    """Read all usable rows of a source. The result also lists the bad rows by line.

    wanted: PAIR, or PROMPT for queries alone, which rows with responses have too. A dialogue gives
    only its first turn (paper, section 3.2). Raises InputError if the source as a whole cannot be
    read.
    """

    def build(item: Item) -> list[Preference]:
        if wanted == PROMPT:
            _take_query(item)
        else:
            _take_first_turn(item)
        refuse_media(item, "teachers")
        pairs = [((), None)] if wanted == PROMPT else _label_pairs(item)
        found = []
        for responses, label in pairs:
            query = prompt_of_row(item).text
            scenario = item.find("scenario")
            language = item.find("language")
            found.append(
                Preference(
                    query,
                    responses,
                    label,
                    scenario if isinstance(scenario, str) and scenario.strip() else None,
                    None if not language else language in ("English", "en"),
                    source.name or item.layout.name,
                    path,
                    item.line,
                )
            )
        return found

    items = read_items(path, wanted, source.columns, source.layout, split=source.split)
    return read_all(items.expanded(naming_layout(build)))


def _label_pairs(item: Item) -> list[tuple[tuple[str, ...], Verdict | None]]:
    """Return the pairs of a row in an order that tells nothing of the label."""
    if item.kind == PAIR and item.label is None:
        first, second = (response_of_row(item, n).text for n in (0, 1))
        return [((first, second), None)]
    return [drawn_order(_stripped(pair)) for pair in pairs_in(item)]


def _stripped(pair: PairRow) -> PairRow:
    """Return a pair without blanks around the texts, by which the better one might be told."""
    if not pair.better_first:
        return pair
    first, second = (Response(response.text.strip()) for response in pair.responses)
    return PairRow(pair.item, pair.prompt, (first, second), pair.label, pair.context)


def _take_first_turn(item: Item) -> None:
    """Cut the responses after their first turn.

    Raises BadField for a vote on a later turn, and for responses to one.
    """
    if item.given.get("turn", 1) != 1:
        raise BadField("turn", f"{item.given['turn']}: a vote on a later turn")
    turns: Sequence[Mapping[str, Any]] = item.prompt if isinstance(item.prompt, list) else ()
    if any(turn["role"] == "assistant" for turn in turns):
        raise BadField(item.names[0], "the responses answer a later turn")
    for n, response in enumerate(item.responses):
        if isinstance(response, list):
            content = response[0].get("content") or ""
            item.responses[n] = content if isinstance(content, str) else response[:1]


def _take_query(item: Item) -> None:
    """Leave of a row what its user asked before the first answer."""
    if isinstance(item.prompt, list):
        item.prompt = list(takewhile(lambda turn: turn["role"] != "assistant", item.prompt))
    item.responses = []
