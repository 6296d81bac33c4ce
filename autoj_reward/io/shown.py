"""What is read of a row, as one JSON record: `autoj data show --json`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autoj_reward.conversation import media_of, turns_of
from autoj_reward.errors import BadMessages, ConfigError, did_you_mean
from autoj_reward.io.checks import BadField
from autoj_reward.io.items import Item, pairs_of
from autoj_reward.io.layouts import GROUP, PAIR, SINGLE
from autoj_reward.io.markup import visible
from autoj_reward.io.messages import GIVEN, Text
from autoj_reward.io.paths import ROW_FIELDS
from autoj_reward.io.reader import read_items
from autoj_reward.media import Media, explain_media, with_marks
from autoj_reward.rubric_items import KIND_WORD, RULE, BadRubric, read_item_fields
from autoj_reward.types import BadRow

AVOIDANCE = re.compile(r"\s*(?:does not|do not|doesn't|avoids?|never|must not|is not)\b", re.I)
"""Beginning of a criterion whose fulfilment is the avoidance of a fault."""
SHOWN_ROWS = 3
"""Rows that are shown where no number is given."""
EXTRAS = ("score_lists", "games", "alternatives", "turn", "rank")
"""Values of a layout's own reader that are shown as they are."""


def show_rows(
    source: str, as_json: bool, layout: str | None, columns: Sequence[str], count: int | None
) -> int:
    """Print what is read of the first rows, as text or as JSON lines. Returns the exit code.

    columns: `FIELD=PATH` texts. count: number of rows; None shows 3, and all as JSON.
    """
    paths = dict(_split_column(column) for column in columns)
    stream = read_items(source, columns=paths, layout=layout)
    limit = count if count is not None else None if as_json else SHOWN_ROWS
    place = -1
    line = 0
    for row in stream:
        # Several items may be made of one row.
        if row.line != line:
            place += 1
            line = row.line
        if limit is not None and place >= limit:
            break
        if isinstance(row, BadRow):
            skipped = {"row": place, "line": line, "layout": row.layout or None}
            record: dict[str, Any] = {**skipped, "skip": str(row)}
        else:
            record = item_record(row, place)
        print(
            json.dumps(record, ensure_ascii=False, default=str) if as_json else _describe(record),
            flush=True,
        )
    return 0


def _split_column(text: str) -> tuple[str, str]:
    field, mark, path = text.partition("=")
    known = (*ROW_FIELDS, "reference", "rubric")
    if not mark or not path or field not in known:
        raise ConfigError(
            f"--columns {text!r}: write FIELD=PATH, with a field of {', '.join(known)}"
            f"{did_you_mean(field, known)}"
        )
    return field, path


def _describe(record: dict[str, Any]) -> str:
    """Return a record as lines of text."""
    place = f"row {record.pop('line')}"
    lines = [f"=== {place}, {record.pop('layout', None) or 'no layout'} ==="]
    record.pop("row", None)
    for name, value in record.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{name}: {visible(shown)}")
    return "\n".join([*lines, ""])


def item_record(item: Item, place: int) -> dict[str, Any]:
    """Return what is read of a row. place: number of the row, from 0.

    A row with media, which few judges read, whose label cannot be read, or that has nothing to
    judge holds `skip` with the reason. Media are shown as marks.
    """
    record: dict[str, Any] = {"row": place}
    if item.rows:
        first, second = item.rows
        record = {"rows": [place - (second - first), place]}
    record |= {"line": item.line, "layout": item.layout.name}
    media: list[Media] = []
    item = replace(
        item,
        prompt=_mark_media(item.prompt, media),
        responses=[_mark_media(response, media) for response in item.responses],
    )
    if media:
        record["skip"] = explain_media(media, "most judges")
    record |= _prompt_fields(item) | _response_fields(item)
    try:
        record |= _label_fields(item)
    except BadField as error:
        # Only what needs the label leaves the row out, so its texts are shown.
        return record | {"skip": f"field {error.field!r}: {error.reason}"}
    optional = {
        "rubric": _rubric_field(item),
        "reference": item.reference,
        "critique": item.find("critique"),
        "steps": item.find("steps"),
    }
    record |= {name: value for name, value in optional.items() if value not in (None, "")}
    record |= {name: item.given[name] for name in EXTRAS if name in item.given}
    if any(item.thoughts):
        record["reasoning"] = item.thoughts[0] if item.kind == SINGLE else item.thoughts
    identity = item.find("id")
    if identity is not None:
        record["id" if item.prompt is not None else "query_id"] = identity
    if item.layout.lacks:
        nothing = item.prompt is None and not item.responses and "score" not in record
        record["skip" if nothing and "label" not in record else "note"] = item.layout.lacks
    return record


def _prompt_fields(item: Item) -> dict[str, Any]:
    if item.prompt is None:
        return {}
    answers = [response for response in item.responses if isinstance(response, list)]
    has_turns = any(isinstance(m, dict) and m["role"] in GIVEN for r in answers for m in r)
    if not isinstance(item.prompt, str):
        return {"messages": item.prompt}
    # Responses that go on with turns of the user's answer a conversation.
    return (
        {"messages": [{"role": "user", "content": item.prompt}]}
        if has_turns
        else {"query": item.prompt}
    )


def _response_fields(item: Item) -> dict[str, Any]:
    """Return the responses; one of several turns of the assistant's alone also as one text."""
    if "styles" in item.given:
        styles: dict[str, Any] = item.given["styles"]
        return styles
    if item.kind != SINGLE:
        return {"responses": item.responses} if item.responses else {}
    if not item.responses:
        return {}
    [response] = item.responses
    is_talk = isinstance(response, list) and all(
        set(message) == {"role", "content"}
        and message["role"] == "assistant"
        and isinstance(message["content"], str)
        for message in response
    )
    if not is_talk:
        return {"response": response}
    texts = [message["content"] for message in response]
    return {"response": "\n\n".join(texts), "responses_turns": response}


def _label_fields(item: Item) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if item.kind in (PAIR, SINGLE) or "label" in item.given:
        fields["label"] = item.label
    scores = item.given.get("scores")
    fields["scores"] = scores if isinstance(scores, dict) else item.scores
    if item.kind == SINGLE and not fields["scores"]:
        fields["score"] = item.score
    if "score" in item.given:
        fields["score"] = item.given["score"]
    fields["labels"] = item.labels
    fields["ranks"] = item.ranks
    fields["margin"] = item.margin
    if item.kind == GROUP:
        fields |= _best_field(item)
    if item.layout.scale and (fields.get("score") is not None or fields["scores"]):
        fields["scale"] = list(item.layout.scale)
    # A rating that its source says is none is shown as null.
    return {
        name: value
        for name, value in fields.items()
        if value is not None or (name == "score" and "score" in item.given)
    }


def _best_field(item: Item) -> dict[str, Any]:
    if "pairs" in item.given:
        pairs = [
            {"responses": [item.responses[first], item.responses[second]], "label": label}
            for first, second, label in item.given["pairs"]
        ]
        return {"pairs": pairs}
    ranks = item.ranks
    if not ranks or None in ranks:
        return {}
    if len(ranks) == 2:
        [(_, _, label)] = pairs_of(item)
        return {"label": label}
    return {"best": ranks.index(min(rank for rank in ranks if rank is not None))}


def _rubric_field(item: Item) -> str | list[Any] | None:
    """Return a rubric as its text, or its items with criterion and weight."""
    rubric = item.rubric
    if not isinstance(rubric, list):
        return rubric
    items: list[dict[str, Any]] = []
    for n, value in enumerate(rubric):
        try:
            fields = read_item_fields(value, f"[{n}]")
        except BadRubric as error:
            items.append({"skip": str(error)})
            continue
        shown = {"criterion": fields.get("criterion")}
        weight = fields.get("points")
        shown |= {} if weight is None else {"weight": weight}
        shown |= {RULE: fields[RULE]} if RULE in fields else {}
        if isinstance(weight, int | float) and weight < 0 and _is_avoidance(shown["criterion"]):
            shown["warning"] = "negative weight on a criterion whose fulfilment is good"
        items.append(shown)
    return items


def _is_avoidance(criterion: Any) -> bool:
    if not isinstance(criterion, str):
        return False
    kind = KIND_WORD.match(criterion)
    return AVOIDANCE.match(criterion, kind.end() if kind else 0) is not None


def _mark_media(text: Text | None, found: list[Media]) -> Text | None:
    """Return a text or messages with a mark in place of media, which are added to `found`."""
    if not isinstance(text, list):
        return text
    try:
        turns = turns_of(text)
    except BadMessages:
        return text
    media = media_of(turns)
    if not media:
        return text
    found += media
    return [{"role": turn.role, "content": with_marks(turn.text, turn.media)} for turn in turns]
