"""Rows whose query is a conversation, in the forms of TRL and the hub."""

from __future__ import annotations

from typing import Any

from autoj_reward.conversation import BadMessages, Turn, before_response, content_text, plain
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField
from autoj_reward.io.sources import CONVERSATIONS


def with_query(
    fields: dict[str, Any], rated: bool = False
) -> tuple[dict[str, Any], tuple[Turn, ...]]:
    """The fields of a row with its query as a text, and the turns that this is of.

    Without `query` it is the conversation of `messages`, or of `prompt` where that holds messages:
    all turns up to the response, which is a last turn of the assistant's. rated: that turn is
    `response` where the row has no own; a `completion`, as TRL has it, is a response too. BadField
    names the message.
    """
    name = next((one for one in CONVERSATIONS if fields.get(one) is not None), "")
    if fields.get("query") is not None or not isinstance(fields.get(name), list):
        return fields, ()
    own = _completion(fields) if rated else None
    try:
        turns, said = before_response(fields[name], not rated or own is not None)
    except BadMessages as error:
        raise BadField(f"{name}{error.where}", error.reason) from None
    for n, turn in enumerate(turns):
        check.text({f"{name}[{n}].content": turn.text}, f"{name}[{n}].content")
    response = {"response": said if own is None else own} if rated else {}
    return fields | {"query": plain(turns)} | response, turns


def _completion(fields: dict[str, Any]) -> Any:
    """The row's own response, if it has one."""
    if fields.get("response") is not None:
        return fields["response"]
    given = fields.get("completion")
    if not isinstance(given, list):
        return given
    if len(given) != 1 or not isinstance(given[0], dict) or given[0].get("role") != "assistant":
        raise BadField("completion", f"not one turn of the assistant's: {check.show(given)}")
    try:
        return content_text(given[0])
    except BadMessages as error:
        raise BadField(f"completion[0]{error.where}", error.reason) from None
