"""What a judge is asked about rows: the one place where items become texts, turns and context."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.conversation import (
    FOLLOWS,
    ROLES,
    Context,
    ContextColumn,
    Prompt,
    Response,
    Turn,
    media_of,
    turns_of,
)
from autoj_reward.errors import BadMessages, did_you_mean
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, show
from autoj_reward.io.items import Item, pairs_of
from autoj_reward.io.labels import A, B
from autoj_reward.io.layouts import GROUP, PAIR, PROMPT
from autoj_reward.io.messages import Message
from autoj_reward.io.paths import find
from autoj_reward.io.reader import read_items
from autoj_reward.io.rows import QueryRow, Rows, Stream, TextRow, read_all
from autoj_reward.io.splits import RowSplit
from autoj_reward.logs import announce
from autoj_reward.media import explain_media
from autoj_reward.rubric_items import ROW_NAMES, RUBRIC, BadRubric, RubricItem, items_in
from autoj_reward.types import Verdict

VERDICTS = {A: Verdict.FIRST, B: Verdict.SECOND}
"""Verdict of each label. All others are a tie, also where both responses are bad."""
TOOL_ROLES = {"tool_call": "assistant", "tool_response": "tool"}
"""Roles of ms-swift for turns with tools."""
Columns = Mapping[str, str]
"""Paths by field, for rows with names of their own."""


@dataclass(slots=True)
class PairRow:
    """Two responses to one prompt, with the label of which is better."""

    item: Item
    prompt: Prompt
    responses: tuple[Response, Response]
    label: Verdict
    """FIRST, SECOND or TIE."""
    context: Context

    @property
    def line(self) -> int:
        """Number of the row, from 1."""
        return self.item.line

    @property
    def better_first(self) -> bool:
        """Whether its layout always puts the better response first."""
        return self.item.layout.coding == "first"


def text_rows(
    source: str,
    wanted: str,
    asked: Sequence[ContextColumn] = (),
    columns: Columns | None = None,
    layout: str | None = None,
) -> Stream[TextRow]:
    """Stream the texts of every row: its prompt, then the responses that are wanted.

    wanted: SINGLE, PAIR, GROUP or PROMPT, which is a prompt alone. asked: context fields to read.
    columns, layout, source: as for `read_items`.
    """

    def convert(item: Item) -> TextRow:
        count = 0 if wanted == PROMPT else len(item.responses)
        prompt = prompt_of_row(item)
        if wanted == PAIR and count != 2:
            raise BadField("responses", f"{count} responses, and a pair has two")
        responses = tuple(response_of_row(item, n) for n in range(count))
        beside = read_context(item.fields, asked, item)
        return TextRow(item.line, prompt, responses, item.fields, *beside)

    return read_items(source, wanted, columns, layout).mapped(naming_layout(convert))


def read_queries(
    source: str,
    asked: Sequence[ContextColumn] = (),
    columns: Columns | None = None,
    layout: str | None = None,
) -> Rows[QueryRow]:
    """Read all rows of `queries` at once."""
    return read_all(queries(source, asked, columns=columns, layout=layout))


def queries(
    source: str,
    asked: Sequence[ContextColumn] = (),
    answered: bool = False,
    columns: Columns | None = None,
    layout: str | None = None,
    say: Callable[[str], object] = announce,
) -> Stream[QueryRow]:
    """Stream prompts with the responses of a group and their log-probabilities, if there are any.

    asked: context fields to read. answered: whether a row without responses is bad, since no policy
    can sample them. The two responses of a pair then count as a group; otherwise the policy answers
    such prompts anew. columns, layout, say, source: as for `read_items`.
    """

    def convert(item: Item) -> QueryRow:
        prompt = prompt_of_row(item)
        is_group = item.kind == GROUP or (answered and item.kind == PAIR)
        responses: tuple[Response, ...] | None = None
        if is_group and item.responses:
            responses = tuple(response_of_row(item, n) for n in range(len(item.responses)))
        if answered and responses is None:
            raise BadField("responses", "none given, and the config has no policy")
        # Without a path of the layout the column has this package's name.
        name = item.layout.path("logprobs")[0] if item.layout.path("logprobs") else "logprobs"
        logprobs = check.numbers(item.view, name, None if responses is None else len(responses))
        extra = {
            k: v for k, v in item.fields.items() if k not in ("query", "responses", "logprobs")
        }
        beside = read_context(item.fields, asked, item)
        return QueryRow(item.line, prompt, responses, logprobs, extra, *beside)

    return read_items(source, PROMPT, columns, layout, say).mapped(naming_layout(convert))


def pair_rows(
    source: str,
    asked: Sequence[ContextColumn] = (),
    columns: Columns | None = None,
    layout: str | None = None,
    split: RowSplit | None = None,
) -> Stream[PairRow]:
    """Stream labelled pairs; a group with scores or ranks gives several.

    asked: context fields to read. columns, layout, split, source: as for `read_items`.
    """

    items = read_items(source, PAIR, columns, layout, split=split)
    return items.expanded(naming_layout(lambda item: pairs_in(item, asked)))


def pairs_in(item: Item, asked: Sequence[ContextColumn] = ()) -> list[PairRow]:
    """Return the labelled pairs of a row. Raises BadField for one without a label."""
    prompt = prompt_of_row(item)
    context, _ = read_context(item.fields, asked, item)
    responses = [response_of_row(item, n) for n in range(len(item.responses))]
    pairs = []
    for first, second, label in pairs_of(item):
        verdict = VERDICTS.get(label, Verdict.TIE)
        pair = responses[first], responses[second]
        pairs.append(PairRow(item, prompt, pair, verdict, context))
    return pairs


def naming_layout(convert: Any) -> Any:
    """Return a function of an item whose BadField names the item's layout."""

    def convert_item(item: Item) -> Any:
        try:
            return convert(item)
        except BadField as error:
            layout = "" if item.layout.own else item.layout.name
            raise BadField(error.field, error.reason, layout) from None

    return convert_item


def prompt_of_row(item: Item) -> Prompt:
    """Return the prompt of a row. Raises BadField without one that can be answered."""
    if item.prompt is None:
        rendered = item.layout.path("rendered")
        if rendered:
            raise BadField(rendered[0], "a judge's whole prompt, which trainings alone read")
        raise BadField(item.prompt_name, "no prompt")
    if isinstance(item.prompt, str):
        if not item.prompt.strip():
            raise BadField(item.prompt_name, f"blank: {show(item.prompt)}")
        return Prompt(item.prompt)
    turns = _turns(item.prompt, item.prompt_name)
    for n, turn in enumerate(turns):
        if not turn.text.strip() and not turn.media:
            raise BadField(f"{item.prompt_name}[{n}].content", f"blank: {turn.text!r:.40}")
    if not any(turn.role == "user" for turn in turns):
        raise BadField(item.prompt_name, "no turn of the user before the response")
    return Prompt.of(turns)


def refuse_media(item: Item, readers: str) -> None:
    """Raise BadField for media in a row, for what reads texts alone and so would lose them.

    readers: what that is, for the reason.
    """
    fields = [(item.prompt_name, item.prompt)]
    fields += [(_name_response(item, n), text) for n, text in enumerate(item.responses)]
    for name, text in fields:
        if isinstance(text, list):
            refuse_media_in(_turns(text, name), name, readers)


def refuse_media_in(turns: Sequence[Turn], name: str, readers: str) -> None:
    """Raise BadField for media in the turns of a field. readers: as for `refuse_media`."""
    if reason := explain_media(media_of(turns), readers):
        raise BadField(name, reason)


def read_context(
    fields: dict[str, Any], columns: Sequence[ContextColumn], item: Item | None = None
) -> tuple[Context, tuple[RubricItem, ...]]:
    """Return the requested context fields of a row, and the items of its rubric.

    A number becomes its text. A missing or null column gives no field, but makes the row bad if the
    field is required. item: what the row's layout says of it, for a reference answer and a rubric
    that have no column of this package's name.
    """
    texts: dict[str, str] = {}
    rubric: tuple[RubricItem, ...] = ()
    for column in columns:
        if column.items:
            rubric = _read_items(fields, column, item)
            continue
        value = find(fields, column.column)
        if value is None and item is not None and column.column == column.field:
            value = _find_in_layout(column.field, item)
        if value is None and column.required:
            problem = "null" if column.column in fields else "missing"
            hint = "" if column.column == column.field else f" ({column.column!r} holds it)"
            near = did_you_mean(column.column, fields) if problem == "missing" else ""
            reason = f"{problem}, and the judge's format needs {column.field!r}{hint}"
            raise BadField(column.column, f"{reason}; the row has {show(list(fields))}{near}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if value is not None:
            texts[column.field] = check.text({column.column: value}, column.column, blank=False)
    return Context(texts), rubric


def _find_in_layout(field: str, item: Item) -> str | None:
    if field == "reference":
        return item.reference
    rubric = item.rubric if field == RUBRIC else None
    return rubric if isinstance(rubric, str) else None


def _read_items(
    fields: dict[str, Any], column: ContextColumn, item: Item | None
) -> tuple[RubricItem, ...]:
    row = {name: find(fields, name) for name in column.names}
    name = next((name for name in column.names if row[name] is not None), column.column)
    if item is not None and column.column in column.names and column.column in ROW_NAMES:
        found = item.rubric
        if found is not None:
            row = {column.column: found}
            name = item.found_at(RUBRIC)
    try:
        return items_in(row, column.names)
    except BadRubric as error:
        raise BadField(f"{name}{error.where}", error.reason) from None


def response_of_row(item: Item, place: int) -> Response:
    """Return a response: a text, or the turns of which it consists."""
    response = item.responses[place]
    name = _name_response(item, place)
    if isinstance(response, str):
        return Response(response)
    if not isinstance(response, list):
        raise BadField(name, f"not a string: {show(response)}")
    messages = [_standard_message(message) for message in response]
    _require_roles(messages, name)
    if not any(message["role"] == "assistant" for message in messages):
        raise BadField(name, f"no turn of the assistant's: {show(response)}")
    try:
        read = Response.of(messages)
    except BadMessages as error:
        raise BadField(f"{name}{error.where}", error.reason) from None
    check.require_text(read.text, name)
    return read


def _name_response(item: Item, place: int) -> str:
    return item.names[place] if place < len(item.names) else "response"


def _turns(messages: Sequence[Message], name: str) -> tuple[Turn, ...]:
    standard = [_standard_message(message) for message in messages]
    _require_roles(standard, name)
    try:
        return turns_of(standard)
    except BadMessages as error:
        raise BadField(f"{name}{error.where}", error.reason) from None


def _require_roles(messages: Sequence[Message], name: str) -> None:
    for n, message in enumerate(messages):
        role = message["role"]
        if not role or ROLES.get(role, role) not in FOLLOWS:
            known = ", ".join(filter(None, FOLLOWS))
            reason = f"unknown role {role!r:.40}: write one of {known}"
            raise BadField(f"{name}[{n}].role", reason)


def _standard_message(message: Any) -> Message:
    """Return a message as chat APIs write it: calls of tools stand in `tool_calls`."""
    if not isinstance(message, Mapping):
        raise BadField("", f"not a message with a role: {show(message)}")
    role = message["role"]
    call = message.get("tool_call")
    if role == "tool_call":
        call = message.get("content")
    if call is None:
        return {**message, "role": TOOL_ROLES.get(role, role)}
    return {"role": "assistant"} | _read_call(call)


def _read_call(call: Any) -> Message:
    """Return the call that a message holds as JSON; a text that is none stays one."""
    value = call
    if isinstance(call, str):
        try:
            value = json.loads(call)
        except (ValueError, RecursionError):
            return {"content": call}
    calls = value if isinstance(value, list) else [value]
    named = [c for c in calls if isinstance(c, Mapping) and isinstance(c.get("name"), str)]
    if not calls or len(named) != len(calls):
        return {"content": call if isinstance(call, str) else json.dumps(call)}
    return {"tool_calls": [{"function": dict(c)} for c in named]}
