"""Layouts of rows: how a row's layout is found from its columns.

The table is `layouts.yaml`: for each public layout the columns that identify it, where each field
is, and how its label is coded. A new layout is an entry of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from autoj_reward.errors import ConfigError, did_you_mean
from autoj_reward.io.messages import is_dialogue

PATHS = {
    "prompt": "the prompt: a text, or messages",
    "system": "a system turn before the prompt",
    "history": "earlier turns: messages, or pairs of question and answer",
    "more": "a text that goes behind the prompt, on a line of its own",
    "response": "the response to rate, or the conversation that it ends",
    "sides": "the two responses of a pair",
    "responses": "the responses of a group",
    "rendered": "a judge's whole prompt, which holds prompt and responses",
    "label": "which side of a pair is better, or whether a response is good",
    "labels": "a label of each response or step",
    "score": "the rating of the response",
    "scores": "a rating of each response",
    "ranks": "the place of each response, of which the lowest is best",
    "margin": "how much better the better side is",
    "logprobs": "the log-probability of each response under the policy",
    "reference": "the reference answer",
    "rubric": "the criteria: items, or a text",
    "critique": "a judge's text about the response",
    "steps": "the steps of one response",
    "group": "the group that metrics are reported by",
    "id": "the row's own id",
    "scenario": "the scenario of the prompt",
    "language": "the language of the row",
}
"""Fields of a layout that hold a path, and what they are. Alternatives stand between `|`, of which
the first with a value counts; parts of `sides` and `scores` stand between commas."""
SINGLE, PAIR, GROUP, PROMPT = "response", "pair", "responses", "prompt"
"""What a row is: one response, two of them, several, or a prompt alone."""
ADDED = {
    GROUP: ("responses",),
    SINGLE: ("response",),
    PAIR: ("response_1", "response_2"),
}
"""Columns with responses that a user may have added to rows of prompts, by what a row then is."""
COMPLETION = "completion"
"""TRL's name of an added response."""
Shapes = Mapping[str, str]
"""Shape of the value of each column that is not null."""


@dataclass(frozen=True, slots=True)
class Column:
    """Condition on a row's columns."""

    names: tuple[str, ...]
    """Names of which the row has one; the first one that it has counts."""
    kinds: frozenset[str]
    """Shapes that the value may have; empty for any."""
    optional: bool
    """Whether the row may be without it."""

    def matched(self, shapes: Shapes) -> str:
        """Return the column of the row that meets the condition; "" without one."""
        name = next((name for name in self.names if name in shapes), "")
        return name if name and (not self.kinds or shapes[name] in self.kinds) else ""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one public layout has each field of a row, and how its label is coded."""

    name: str
    title: str
    """Name for people."""
    columns: tuple[Column, ...]
    """Columns by which a row is recognised."""
    paths: Mapping[str, tuple[tuple[str, ...], ...]]
    """Paths of each of PATHS: alternatives of each part."""
    kind: str
    """What its rows are: SINGLE, PAIR, GROUP or PROMPT."""
    coding: str = ""
    """How `label` is coded: a name of `labels.CODINGS` or `labels.READERS`; empty: true or
    false."""
    reader: str = ""
    """Name of the function of `special` that reads what paths cannot say."""
    scale: tuple[float, float] | None = None
    """Lowest and highest score."""
    rubric_as: str = ""
    """How a rubric that is a text is read: as `text`, `lines`, `numbered` lines, or one `item`."""
    also: str = ""
    """Further public data with the same columns."""
    own: bool = False
    """Whether it is one of the package's own layouts, between which a command's needs decide."""
    weak: bool = False
    """Whether any other layout goes before it, since its columns are names of many things."""
    takes_responses: bool = False
    """Whether a user adds responses to its rows, though some rows bring their own."""
    lacks: str = ""
    """Why no row of this layout can be judged. Empty if it can."""

    def path(self, field: str) -> tuple[str, ...]:
        """Return the alternatives of a field's path."""
        parts = self.paths.get(field)
        return parts[0] if parts else ()

    @property
    def needed(self) -> str:
        """Columns that a row needs, for people."""
        names = (" or ".join(c.names) for c in self.columns if not c.optional)
        return ", ".join(names)


@dataclass(frozen=True, slots=True)
class Match:
    """A layout that a row may have."""

    layout: Layout
    required: frozenset[str]
    """Columns of the row that meet its conditions."""
    known: frozenset[str]
    """The same with the optional ones."""
    shaped: int
    """Number of conditions that a shape met."""

    def goes_before(self, other: Match) -> bool:
        """Return whether this one recognises more of the row than the other.

        It knows all columns of the other, which lacks one of its own. Of two that know the same, it
        is the one that looked at the values, and else the one that comes first in the table.
        """
        if not other.required <= self.known:
            return False
        if not self.required <= other.known:
            return True
        if self.required != other.required:
            return self.required > other.required
        return self.shaped > other.shaped


def shape(value: Any) -> str:
    """Return the shape of a value, by which layouts with the same columns are told apart."""
    if value is None:
        return "null"
    if isinstance(value, str):
        is_marked = value[:1] in ("\n", "H", " ") and is_dialogue(value)
        return "dialogue" if is_marked else "text"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, Mapping):
        return "message" if "role" in value or "from" in value else "mapping"
    if not isinstance(value, list) or not value:
        return "empty"
    first = next((item for item in value if item is not None), None)
    if isinstance(first, Mapping):
        return "messages" if "role" in first or "from" in first else "mappings"
    if isinstance(first, str):
        return "texts"
    return "lists" if isinstance(first, list) else "numbers"


@cache
def load_layouts() -> dict[str, Layout]:
    """Return the layouts of the table by name."""
    text = (Path(__file__).parent / "layouts.yaml").read_text(encoding="utf-8")
    entries = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {name: _read_layout(name, entry) for name, entry in entries.items()}


def layout_named(name: str) -> Layout:
    """Return a layout. Raises ConfigError for a name that is not in the table."""
    layouts = load_layouts()
    if name not in layouts:
        raise ConfigError(
            f"layout {name!r} is unknown{did_you_mean(name, layouts)} (`autoj data layouts` lists "
            "them)"
        )
    return layouts[name]


def find_layouts(shapes: Shapes) -> list[Match]:
    """Return the layouts that a row may have: one, none, or several that differ."""
    matches = []
    for layout in load_layouts().values():
        match = _match(layout, shapes)
        if match is not None:
            matches.append(match)
    # `query` is this package's name of a prompt, and goes before all other names.
    if any("query" in match.required for match in matches):
        matches = [match for match in matches if "query" in match.required]
    found: list[Match] = []
    for n, match in enumerate(matches):
        others = matches[:n] + matches[n + 1 :]
        same_before = any(
            other.required == match.required and other.shaped == match.shaped
            for other in matches[:n]
        )
        if not same_before and not any(other.goes_before(match) for other in others):
            found.append(match)
    strong = [match for match in found if not match.layout.weak]
    return strong or found


def with_responses(layout: Layout, shapes: Shapes, wanted: str) -> Layout:
    """Return the layout with the responses that were added to its rows, of the kind that is wanted
    if there are several."""
    if layout.kind != PROMPT and not layout.takes_responses:
        return layout
    columns = dict(ADDED)
    if "response" not in shapes:
        columns[SINGLE] = (COMPLETION,)
    kinds = [kind for kind, names in columns.items() if all(name in shapes for name in names)]
    if not kinds:
        return layout
    kind = wanted if wanted in kinds else kinds[0]
    field = "sides" if kind == PAIR else kind
    parts = {field: tuple((name,) for name in columns[kind])}
    rest = {name: part for name, part in layout.paths.items() if name != "responses"}
    return replace(layout, paths=rest | parts, kind=kind)


def nearest_layouts(shapes: Shapes, count: int = 2) -> list[str]:
    """Return the layouts that lack the fewest columns of a row, with what they lack."""
    lacking = []
    for layout in load_layouts().values():
        missing = []
        met = 0
        for column in layout.columns:
            if not column.optional:
                name = column.matched(shapes)
                met += bool(name)
                missing += [] if name else [" or ".join(column.names)]
        if met:
            lacking.append((len(missing), -met, f"{layout.name} lacks {', '.join(missing)}"))
    return [text for _, _, text in sorted(lacking)[:count]]


def _match(layout: Layout, shapes: Shapes) -> Match | None:
    required: list[str] = []
    optional: list[str] = []
    shaped = 0
    for column in layout.columns:
        name = column.matched(shapes)
        if name:
            (optional if column.optional else required).append(name)
            shaped += bool(column.kinds) and not column.optional
        elif not column.optional:
            return None
    if layout.kind == PROMPT or layout.takes_responses:
        names = (*ADDED[GROUP], *ADDED[SINGLE], *ADDED[PAIR], COMPLETION)
        optional += [name for name in names if name in shapes]
    return Match(layout, frozenset(required), frozenset(required + optional), shaped)


def _read_layout(name: str, entry: dict[str, Any]) -> Layout:
    paths = {}
    for field in PATHS:
        if field in entry:
            parts = entry.pop(field).split(", ")
            paths[field] = tuple(tuple(part.split("|")) for part in parts)
    columns = tuple(_read_column(part) for part in entry.pop("columns").split(", "))
    scale = tuple(entry.pop("scale", ())) or None
    kinds = {"sides": PAIR, "responses": GROUP, "response": SINGLE, "rendered": SINGLE}
    kind = next((kind for field, kind in kinds.items() if field in paths), PROMPT)
    return Layout(name, columns=columns, paths=paths, kind=kind, scale=scale, **entry)


def _read_column(text: str) -> Column:
    """Read a condition: `prompt|question`, `chosen:texts+messages` or `system?`."""
    names, _, kinds = text.removesuffix("?").partition(":")
    shapes = frozenset(kinds.split("+")) if kinds else frozenset()
    return Column(tuple(names.split("|")), shapes, text.endswith("?"))
