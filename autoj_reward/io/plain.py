"""Records as JSON holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """The value as JSON can hold it: records to dicts, enums to their values, tuples to lists.

    Numbers that JSON lacks (NaN, infinity) become null. Array scalars and arrays become numbers
    and lists; anything else that is foreign to JSON becomes its text.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def to_json(record: Any) -> dict[str, Any]:
    """A record (dataclass or mapping) as a dict that `json` can write.

    Lone surrogates stay in the text; the writers here escape everything outside ASCII, so they
    survive the file.
    """
    result = plain(record)
    if not isinstance(result, dict):
        raise TypeError(f"{type(record).__name__} is not a record: pass a dataclass or a mapping")
    return result


def as_json(value: Any) -> Any:
    """A record, or a tuple of them, as `json.dumps` takes it: by its own `record` method if it has
    one, else `dataclasses.asdict` without its deep copies, which cost more than all the rest of an
    answer."""
    kind = type(value)
    if hasattr(kind, "record"):
        return value.record()
    if names := _names(kind):
        return {name: as_json(getattr(value, name)) for name in names}
    if kind is tuple and value and _names(type(value[0])):
        return [as_json(one) for one in value]
    return value


def _names(kind: type) -> tuple[str, ...]:
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(f.name for f in fields(kind)) if is_dataclass(kind) else ()
    return _FIELDS[kind]


_FIELDS: dict[type, tuple[str, ...]] = {}
