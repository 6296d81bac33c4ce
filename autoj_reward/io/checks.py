"""Validation of input rows' fields. Every check returns the typed value or raises BadField.

All fields of a row are written next to its verdict later, so they must have a JSON form. Any number
that is not finite (NaN, Infinity, 1e999) and any lone surrogate therefore makes its row bad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from reprlib import Repr
from typing import Any

MAX_DEPTH = 64
"""Maximum nesting depth of a field's value."""
MAX_RESPONSES = 1024
"""Maximum responses to one query."""
_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 40
_repr.maxlist = _repr.maxdict = 6
_repr.maxlevel = 3


class BadField(Exception):
    """Raised for a bad row."""

    def __init__(self, field: str, reason: str, layout: str = "") -> None:
        """Create the error.

        field: the field at fault; "" for the row as a whole. layout: how the row was read; "" for
        the package's own names.
        """
        super().__init__(field, reason, layout)
        self.field = field.encode("utf-8", "backslashreplace").decode()
        self.reason = reason
        self.layout = layout


def show(value: Any) -> str:
    """Return a value abbreviated for a message, as printable text."""
    return "null" if value is None else _repr.repr(value)


def own_fields(value: Any) -> dict[str, Any]:
    """Return all fields of a row in order, each in its JSON form."""
    if not isinstance(value, dict):
        raise BadField("", f"not a JSON object: {show(value)}; write one object a line")
    fields = {}
    for name, field in value.items():
        # Most values are texts of ASCII, which are in their JSON form.
        is_plain = type(field) is str and field.isascii()
        own_name = name if type(name) is str and name.isascii() else _to_json_form(name, name)
        fields[own_name] = field if is_plain else _to_json_form(field, name)
    return fields


def text(fields: dict[str, Any], name: str, *, blank: bool = True) -> str:
    """Return a required text field.

    blank: whether it may be empty or all white space.
    """
    if name not in fields:
        raise BadField(name, f"missing; the row has {show(list(fields))}")
    value = require_text(fields[name], name)
    if not blank and not value.strip():
        raise BadField(name, f"blank: {show(value)}")
    return value


def numbers(fields: Mapping[str, Any], name: str, count: int | None) -> tuple[float, ...] | None:
    """Return a list field of finite numbers, one for each response, or None if it is absent or
    null."""
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise BadField(name, f"not a list: {show(value)}")
    if count is None:
        raise BadField(name, "given without responses")
    if len(value) != count:
        raise BadField(name, f"{len(value)} numbers for {count} responses")
    return tuple(number(item, f"{name}[{i}]") for i, item in enumerate(value))


def number(value: Any, name: str) -> float:
    """Return the value of field `name`, which must be a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadField(name, f"not a number: {show(value)}")
    try:
        return float(value)
    except OverflowError:
        raise BadField(name, f"too large a number: {show(value)}") from None


def require_text(value: Any, name: str) -> str:
    """Return the value of field `name`, which must be a text without NUL."""
    if not isinstance(value, str):
        raise BadField(name, f"not a string: {show(value)}")
    if "\0" in value:
        raise BadField(name, f"NUL at character {value.index(chr(0)) + 1}: {show(value)}")
    return value


def _to_json_form(value: Any, field: str, depth: int = 0) -> Any:
    """Return a value in its JSON form: dates, times and decimals become text, tuples
    become lists."""
    if depth > MAX_DEPTH:
        raise BadField(field, f"nested more than {MAX_DEPTH} levels deep")
    match value:
        case str():
            return value if value.isascii() else _require_encodable(value, field)
        case float() if not math.isfinite(value):
            raise BadField(field, f"{value} is not a finite number; write null if it is missing")
        case None | bool() | int() | float():
            return value
        case dict():
            items = value.items()
            return {_to_json_form(k, field): _to_json_form(v, field, depth + 1) for k, v in items}
        case list() | tuple():
            return [_to_json_form(item, field, depth + 1) for item in value]
        case date() | time() | timedelta() | Decimal():
            return str(value)
    if hasattr(value, "tolist"):  # an array of numpy or torch
        return _to_json_form(value.tolist(), field, depth + 1)
    raise BadField(field, f"{type(value).__name__} has no JSON form: {show(value)}; drop it")


def _require_encodable(value: str, field: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        code, at = ord(value[error.start]), error.start + 1
        raise BadField(field, f"lone surrogate U+{code:04X} at character {at}") from None
    return value
