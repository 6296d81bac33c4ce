"""How rows are read: the layout of each is found, and every command gets what it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoj_reward.conversation import MAX_TURNS
from autoj_reward.errors import InputError, did_you_mean
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, show
from autoj_reward.io.items import MEDIA_COLUMNS, Item, explain_kind, read_texts
from autoj_reward.io.labels import label_of_numbers
from autoj_reward.io.layouts import (
    GROUP,
    PAIR,
    PROMPT,
    SINGLE,
    Layout,
    Match,
    find_layouts,
    layout_named,
    nearest_layouts,
    shape,
    with_responses,
)
from autoj_reward.io.messages import Message, prompt_of
from autoj_reward.io.paths import OWN_COLUMNS, ROW_FIELDS, column_of, explain_missing, find
from autoj_reward.io.rows import Records, Stream
from autoj_reward.io.special import READERS
from autoj_reward.io.splits import RowSplit
from autoj_reward.logs import announce
from autoj_reward.types import BadRow

MORE_FIELDS = {*ROW_FIELDS, "reference", "rubric"} - set(OWN_COLUMNS)
"""Keys of `columns` for what stands beside prompt and responses."""
MAX_PLANS = 1000
"""Maximum combinations of columns and shapes that are remembered."""
LISTED = 5
"""Maximum layouts of one source that are announced."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows with the same columns are read, found out once."""

    layout: Layout
    prompt: str
    """Column of the prompt."""
    sides: tuple[str, ...]
    """Columns of the responses."""
    plain: bool
    """Whether all of these are texts, and nothing stands beside them."""


def make_plan(layout: Layout, shapes: Mapping[str, str]) -> Plan:
    """Return how rows of a layout are read whose columns have these shapes."""
    field = {SINGLE: "response", PAIR: "sides", GROUP: "responses"}.get(layout.kind, "")
    parts = layout.paths.get(field, ())
    names = []
    for alternatives in (layout.path("prompt"), *parts):
        names.append(next((path for path in alternatives if path in shapes), ""))
    prompt, *sides = names
    wanted = "texts" if layout.kind == GROUP else "text"
    beside = any(find_any(shapes, layout.path(name)) for name in ("system", "history", "more"))
    media = any(MEDIA_COLUMNS.fullmatch(name) for name in shapes) or "rejected_images" in shapes
    is_plain = bool(
        shapes.get(prompt) == "text"
        and all(shapes.get(side) == wanted for side in sides)
        and not (layout.reader or beside or media or layout.lacks or layout.path("rendered"))
    )
    return Plan(layout, prompt, tuple(sides), is_plain)


def find_any(shapes: Mapping[str, str], paths: Sequence[str]) -> bool:
    """Return whether a row has the column in which any of these paths begins."""
    return any(column_of(path) in shapes for path in paths)


def _read_plain(
    line: int, plan: Plan, fields: dict[str, Any], view: Mapping[str, Any]
) -> Item | None:
    """Return what a row of texts holds; None for one that needs a closer look."""
    layout = plan.layout
    prompt = view[plan.prompt]
    names = list(plan.sides)
    if layout.kind == GROUP:
        responses = view[names[0]]
        if len(responses) > check.MAX_RESPONSES:
            return None
        names = [f"{names[0]}[{n}]" for n in range(len(responses))]
    else:
        responses = [view[name] for name in names]
    for text in responses:
        if type(text) is not str or "\0" in text:
            return None
        if layout.kind == PAIR and text[:1] == "[":  # it may be JSON
            return None
    if "\0" in prompt or not prompt.strip():
        return None
    return Item(line, layout, fields, view, layout.kind, prompt, responses, names, plan.prompt)


class RowReader:
    """Reads rows as items, each by its own layout, and says once how they are read."""

    def __init__(
        self,
        wanted: str,
        columns: Mapping[str, str] | None = None,
        layout: str | None = None,
        say: Callable[[str], object] = announce,
    ) -> None:
        """wanted: what the command asks for: SINGLE, PAIR, GROUP, PROMPT, or "" for what there is.

        columns: paths by field, for rows with names of their own. layout: name of the layout of all
        rows; None finds that of each row. Raises ConfigError for an unknown layout.
        """
        named = dict(columns or {})
        self._wanted = wanted
        self._structure = {
            OWN_COLUMNS[name]: path for name, path in named.items() if name in OWN_COLUMNS
        }
        self._more = {name: path for name, path in named.items() if name in MORE_FIELDS}
        self._only = layout_named(layout) if layout else None
        self._say = say
        self._plans: dict[tuple[tuple[str, ...], tuple[str, ...]], Plan] = {}
        self._said: set[str] = set()

    def read(self, line: int, value: Any, source: str = "") -> Item:
        """Return what a row holds. Raises BadField, and InputError for an ambiguous row."""
        fields = check.own_fields(value)
        view = self._rename(fields) if self._structure else fields
        plan = self._find_plan(view, source, line)
        if plan.plain:
            item = _read_plain(line, plan, fields, view)
            if item is not None:
                return item
        try:
            return read_item(line, plan.layout, fields, view)
        except BadField as error:
            name = "" if plan.layout.own else plan.layout.name
            raise BadField(self._user_name(error.field), error.reason, name) from None

    def _rename(self, fields: dict[str, Any]) -> Mapping[str, Any]:
        """Return the row with prompt and responses under this package's names."""
        view = {}
        used = {column_of(path) for path in self._structure.values()}
        for name, path in self._structure.items():
            view[name] = find(fields, path)
            if view[name] is None:
                raise BadField(path, explain_missing(fields, path))
        rest = {name: value for name, value in fields.items() if name not in used}
        if "query" in view:
            rest.pop("messages", None)
        # A column may also hold what a path beside prompt and responses leads to.
        for path in self._more.values():
            if column_of(path) in used:
                rest[path] = find(fields, path)
        return rest | view

    def _find_plan(self, view: Mapping[str, Any], source: str, line: int) -> Plan:
        key = (tuple(view), tuple(map(shape, view.values())))
        plan = self._plans.get(key)
        if plan is None:
            shapes = {name: kind for name, kind in zip(*key, strict=True) if kind != "null"}
            layout = self._only or self._choose(find_layouts(shapes), shapes, view, source, line)
            layout = with_responses(layout, shapes, self._wanted)
            if self._more:
                layout = _with_paths(layout, self._more)
            plan = make_plan(layout, shapes)
            if len(self._plans) < MAX_PLANS:
                self._plans[key] = plan
            self._announce(layout, shapes)
        return plan

    def _choose(
        self,
        matches: Sequence[Match],
        shapes: Mapping[str, str],
        view: Mapping[str, Any],
        source: str,
        line: int,
    ) -> Layout:
        """Return the one layout that a row may have."""
        if not matches:
            raise BadField(*_explain_unknown(view, shapes, self._wanted))
        own = [match.layout for match in matches if match.layout.own]
        if len(own) == len(matches):
            order = (self._wanted, GROUP, PAIR, SINGLE, PROMPT)
            return min(own, key=lambda layout: order.index(layout.kind))
        if len(matches) > 1:
            readings = " or ".join(
                f"{match.layout.name} ({', '.join(sorted(match.required))})" for match in matches
            )
            raise InputError(
                f"{source}:{line}: rows may be read as {readings}: say which by --layout NAME, or "
                "by the key `layout`"
            )
        return matches[0].layout

    def _announce(self, layout: Layout, shapes: Mapping[str, str]) -> None:
        if layout.name in self._said or len(self._said) >= LISTED:
            return
        self._said.add(layout.name)
        names = [column.matched(shapes) for column in layout.columns]
        if self._structure:
            names = [self._user_name(name) for name in names]
        self._say(f"rows read as {layout.title} ({layout.name}): {', '.join(filter(None, names))}")

    def _user_name(self, name: str) -> str:
        """Return the user's own name of a field, for errors."""
        head = column_of(name)
        return self._structure[head] + name[len(head) :] if head in self._structure else name


def read_item(line: int, layout: Layout, fields: dict[str, Any], view: Mapping[str, Any]) -> Item:
    """Return what a row of a layout holds. Raises BadField for one that is malformed."""
    item = Item(line, layout, fields, view, layout.kind)
    if layout.reader:
        READERS[layout.reader](item)
    elif not layout.path("rendered"):  # only a judge's format can take its prompt apart
        read_texts(item)
    return item


def _with_paths(layout: Layout, paths: Mapping[str, str]) -> Layout:
    """Return the layout with other paths of some fields."""
    more = {name: ((path,),) for name, path in paths.items()}
    coding = "0, 1, 2" if "label" in paths and layout.kind == PAIR else layout.coding
    return replace(layout, paths=dict(layout.paths) | more, coding=coding)


def _explain_unknown(
    view: Mapping[str, Any], shapes: Mapping[str, str], wanted: str
) -> tuple[str, str]:
    """Return the field at fault of a row that no layout recognises, and the reason."""
    if "query" in view and "query" not in shapes:
        return "query", "not a string: null"
    nearest = nearest_layouts(shapes)
    hint = f"; nearest layouts: {'; '.join(nearest)}" if nearest else ""
    known = ("query", "prompt", "messages", "response", "responses", "chosen", "rejected")
    wrong = next((name for name in view if name not in known and did_you_mean(name, known)), None)
    if wrong is not None:
        hint = did_you_mean(wrong, known)
        return "query", f"missing; the row has {show(list(view))}: for {wrong!r}{hint}"
    return "query", f"missing; the row has {show(list(view))}{hint}"


def read_items(
    source: str,
    wanted: str = "",
    columns: Mapping[str, str] | None = None,
    layout: str | None = None,
    say: Callable[[str], object] = announce,
    split: RowSplit | None = None,
) -> Stream[Item]:
    """Stream what the rows of a source hold; a row that is not `wanted` is bad.

    wanted: SINGLE, PAIR, GROUP or PROMPT, or "" for whatever there is. columns, layout: as for
    `RowReader`. split: rows to read; None reads all. source: a file of JSON lines (`.jsonl`,
    `.ndjson`, `.json`), also with `.gz`, and `.json` also as one array, whose items then count as
    lines; `-` for JSON lines on standard input; a `.csv`, `.tsv` or `.parquet` file; a folder
    written by `save_to_disk`; or a hub dataset
    `hf://owner/name?split=train&config=main&revision=main`.
    """
    reader = RowReader(wanted, columns, layout, say)
    name = "<stdin>" if source == "-" else source
    items = Stream(source, lambda line, value: reader.read(line, value, name))
    return items.within(split).staged(lambda rows: _finish(rows, wanted, name))


def _finish(rows: Records, wanted: str, source: str) -> Records:
    """Yield the items that a command asks for; another row is bad."""
    for line, item in _join_rows(rows, wanted, source):
        if isinstance(item, BadRow):
            yield line, item
            continue
        for one in (item, *item.more) if item.more else (item,):
            try:
                if wanted:
                    _require(one, wanted)
                yield line, one
            except BadField as error:
                layout = "" if one.layout.own else one.layout.name
                yield line, BadRow(source, line, error.field, error.reason, layout)


def _require(item: Item, wanted: str) -> None:
    """Raise BadField for an item that is not what a command asks for."""
    if item.layout.lacks and (wanted != PROMPT or item.prompt is None):
        raise BadField("", item.layout.lacks)
    if item.prompt is None and not item.layout.path("rendered"):
        raise BadField(item.prompt_name, "no prompt")
    count = len(item.responses)
    if item.kind == SINGLE and item.layout.path("rendered"):
        count = 1
    if wanted == SINGLE and count != 1:
        _require_own(item, ("response",))
        raise BadField("response", explain_kind(item, SINGLE))
    if wanted == PAIR and item.kind not in (PAIR, GROUP) and not item.layout.path("rendered"):
        _require_own(item, ("response_1", "response_2"))
        raise BadField("response_1", explain_kind(item, PAIR))
    if wanted == GROUP and count < 2:
        raise BadField("responses", f"{count} given: a group has two or more")


def _require_own(item: Item, names: Sequence[str]) -> None:
    """Raise BadField for the first of the package's own columns that a row lacks."""
    if item.layout.own or item.kind == PROMPT:
        for name in names:
            if item.view.get(name) is None:
                check.text(item.fields, name)


def _join_rows(rows: Records, wanted: str, source: str) -> Records:
    """Yield the items, and those that several rows make together.

    Two neighbouring rows of HelpSteer 2 with one prompt are a pair. A message of OASST is an answer
    to those before it.
    """
    last: Item | None = None
    messages: dict[Any, tuple[Any, Message]] = {}
    for line, item in rows:
        if isinstance(item, BadRow) or not item.layout.reader:
            yield line, item
        elif item.layout.reader == "oasst_message":
            answer = _behind_parents(item, messages)
            if answer is not None:
                yield line, answer
        elif item.layout.reader != "helpsteer2":
            yield line, item
        else:
            if wanted != PAIR:
                yield line, item
            if last is not None and last.prompt == item.prompt:
                if wanted in ("", PAIR):
                    yield line, _make_pair(last, item)
                last = None
            else:
                yield from _left_alone(last, wanted, source)
                last = item
    yield from _left_alone(last, wanted, source)


def _left_alone(item: Item | None, wanted: str, source: str) -> Records:
    """Yield a rated row as a bad one where pairs are asked for and no neighbour has its prompt."""
    if item is not None and wanted == PAIR:
        reason = "no neighbouring row has the same prompt, so that there is no pair"
        name = item.prompt_name
        yield item.line, BadRow(source, item.line, name, reason, item.layout.name)


def _make_pair(first: Item, second: Item) -> Item:
    """Return the pair of two rows with one prompt, of which the higher score is better."""
    pair = replace(second, kind=PAIR, responses=[*first.responses, *second.responses], given={})
    pair.names = ["response", "response"]
    pair.thoughts = [*first.thoughts, *second.thoughts]
    pair.given["label"] = label_of_numbers((first.score, second.score))
    pair.rows = (first.line, second.line)
    return pair


def _behind_parents(item: Item, messages: dict[Any, tuple[Any, Message]]) -> Item | None:
    """Return the answer with the turns before it; None for a turn of the user's.

    messages: those read so far, by id, each with the id of its parent.
    """
    row = item.view
    role = "assistant" if row["role"] == "assistant" else "user"
    content = item.responses[0]
    messages[row["message_id"]] = (row.get("parent_id"), {"role": role, "content": content})
    if role == "user":
        return None
    turns: list[Message] = []
    parent = row.get("parent_id")
    # A bound on the turns also ends a circle of parents.
    while parent in messages and len(turns) < MAX_TURNS:
        parent, turn = messages[parent]
        turns.append(turn)
    turns.reverse()
    item.prompt = prompt_of(turns) if turns else None
    item.given["rank"] = row.get("rank")
    return item
