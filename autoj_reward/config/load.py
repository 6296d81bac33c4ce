"""From a YAML file and overrides to a checked block, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from autoj_reward.config.block import Block
from autoj_reward.errors import ConfigError

T = TypeVar("T", bound=Block)


def load_config(kind: type[T], path: str | Path | None, sets: Sequence[str] = ()) -> T:
    """Read a YAML config and check it; `sets` are overrides such as `judge.max_tokens=256`.

    path None starts from an empty config. Relative paths inside stay relative to the working
    directory. Raises ConfigError naming file, key, value and what was expected.
    """
    return check(kind, read_config(path, sets), str(path or "command line"))


def read_config(path: str | Path | None, sets: Sequence[str]) -> dict[str, Any]:
    """A YAML config with its overrides, not yet checked. Raises ConfigError for what is none."""
    data: Any = {}
    if path is not None:
        try:
            data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot read the config: {error.strerror}") from error
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"{path}: not valid YAML: {error}") from error
        data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the config must be a mapping, not {type(data).__name__}")
    for item in sets:
        _override(data, item)
    return data


def check(kind: type[T], data: dict[str, Any], source: str) -> T:
    """Build a block from plain data; ConfigError lists every wrong key at once."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        lines = [_explain(kind, dict(item)) for item in error.errors()]
        raise ConfigError(f"{source}: " + "; ".join(lines)) from error


def _explain(kind: type[Block], item: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in item["loc"]) or "config"
    if item["type"] == "extra_forbidden":
        return f"unknown key {key!r} (known here: {', '.join(_known(kind, item['loc'][:-1]))})"
    if item["type"] == "missing":
        return f"key {key!r} is missing"
    shown = "" if item["loc"] == () else f" (value: {str(item.get('input'))[:80]!r})"
    return f"{key}: {item['msg'].removeprefix('Value error, ')}{shown}"


def _known(kind: type[Block], loc: Sequence[int | str]) -> list[str]:
    block: Any = kind
    keys = iter(loc)
    for key in keys:
        annotation = block.model_fields[key].annotation
        options = [annotation, *_args(annotation)]
        block = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
        if get_origin(annotation) is dict:
            next(keys)  # a name of the user's own
    return sorted(block.model_fields)


def _args(annotation: Any) -> tuple[Any, ...]:
    return getattr(annotation, "__args__", ())


def _override(data: dict[str, Any], item: str) -> None:
    key, sep, value = item.partition("=")
    if not sep or not key:
        raise ConfigError(f"--set {item!r}: write it as key=value, for example judge.model=PATH")
    *parents, last = key.split(".")
    for part in parents:
        child = data.get(part)
        if child is None:
            child = data[part] = {}
        if not isinstance(child, dict):
            raise ConfigError(f"--set {item!r}: {part!r} is not a block")
        data = child
    try:
        data[last] = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--set {item!r}: the value is not valid YAML: quote it") from error
