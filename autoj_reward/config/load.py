"""Base class of config blocks, and functions that read them from YAML files with overrides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from autoj_reward.errors import ConfigError, did_you_mean

MAX_YAML = 2**18
"""Limit of a YAML text in characters. A longer one is rows or weights, named by mistake."""
KEY_TAGS = ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")
"""Tags of the keys `<<` and `=`, which stand for no value."""


SOURCE = "source"
"""Key of a config's file in the context of its validation, for paths that start beside it."""
SECRET_KEYS = frozenset({"extra_headers"})
"""Keys whose values no error shows."""


class Block(BaseModel):
    """Base class of config blocks. Blocks are frozen; unknown keys and infinite or NaN numbers are
    errors."""

    removed_keys: ClassVar[Mapping[str, str]] = {}
    """Keys that the block once had, with what to write in their place, for the error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


T = TypeVar("T", bound=Block)


def load_config(kind: type[T], path: str | Path | None, sets: Sequence[str] = ()) -> T:
    """Read a YAML config and check it.

    path: None starts from an empty config. sets: overrides such as `judge.max_tokens=256`. Relative
    paths in the config stay relative to the working directory. Raises ConfigError naming file, key,
    value and what was expected.
    """
    return check(kind, read_config(path, sets), str(path or "command line"))


def read_config(path: str | Path | None, sets: Sequence[str]) -> dict[str, Any]:
    """Read a YAML config with its overrides, unchecked.

    Raises ConfigError if the file cannot be read or is not a mapping.
    """
    data: Any = {}
    if path is not None:
        try:
            data = read_yaml(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot read the config: {error.strerror}") from error
        data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the config must be a mapping, not {type(data).__name__}")
    for item in sets:
        _override(data, item)
    return data


def read_yaml(path: str | Path, tags: Mapping[str, Callable[[str], Any]] | None = None) -> Any:
    """Read a YAML file that a user wrote; see `parse_yaml`. Raises OSError or ConfigError."""
    with open(path, encoding="utf-8") as file:
        try:
            text = file.read(MAX_YAML + 1)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not valid YAML: {error}") from error
    return parse_yaml(text, str(path), tags)


def parse_yaml(
    text: str, source: str, tags: Mapping[str, Callable[[str], Any]] | None = None
) -> Any:
    """Parse a YAML text into plain data. Aliases are copied, so that no two places share an object.

    source: name of the text in errors. tags: functions that turn the text of a scalar into a value,
    by tag. Raises ConfigError for invalid YAML, for a key that stands twice in a mapping, and for a
    text that is too long or too deep.
    """
    if len(text) > MAX_YAML:
        raise ConfigError(f"{source}: longer than {MAX_YAML:,} characters: is it the right file?")
    try:
        return _copy_shared(_Loader(text, source, tags or {}).get_single_data())
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: not valid YAML: nested too deeply") from error


class _Loader(yaml.SafeLoader):
    """YAML loader that builds plain data only and refuses a key that stands twice."""

    def __init__(self, text: str, source: str, tags: Mapping[str, Callable[[str], Any]]) -> None:
        super().__init__(text)
        self.tags = tags
        self._source = source

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping, and refuse a key that stands twice. PyYAML would keep the last
        value."""
        node = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                plain = key.tag in KEY_TAGS or key.tag.startswith("!")
                name, line = key.value if plain else self.construct_object(key), _get_line(key)
                if name in lines:
                    raise ConfigError(
                        f"{self._source}: line {line}: the key {name!r} stands twice, first on "
                        f"line {lines[name]}: keep one"
                    )
                lines[name] = line
        return node


def _construct_tagged(loader: _Loader, name: str, node: yaml.Node) -> Any:
    make = loader.tags.get(f"!{name}")
    if make is None or not isinstance(node, yaml.ScalarNode):
        return loader.construct_undefined(node)
    return make(node.value)


_Loader.add_multi_constructor("!", _construct_tagged)


def _get_line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _copy_shared(value: Any) -> Any:
    """Copy the containers that aliases share, so that changing one place changes no other."""
    if isinstance(value, dict):
        return {key: _copy_shared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy_shared(item) for item in value]
    return value


def check(kind: type[T], data: dict[str, Any], source: str) -> T:
    """Build a block from plain data. Raises ConfigError that lists every wrong key.

    source: name of the config in errors.
    """
    try:
        return kind.model_validate(data, context={SOURCE: source})
    except ValidationError as error:
        lines = [_explain(kind, dict(item)) for item in error.errors()]
        raise ConfigError(f"{source}: " + "; ".join(lines)) from error


def _explain(kind: type[Block], item: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in item["loc"]) or "config"
    if item["type"] == "extra_forbidden":
        return f"unknown key {key!r}{_suggest_keys(kind, item['loc'])}"
    if item["type"] == "missing":
        return f"key {key!r} is missing"
    is_shown = item["loc"] and not SECRET_KEYS.intersection(item["loc"])
    value_note = f" (value: {str(item.get('input'))[:80]!r})" if is_shown else ""
    return f"{key}: {item['msg'].removeprefix('Value error, ')}{value_note}"


def _suggest_keys(kind: type[Block], loc: Sequence[int | str]) -> str:
    """Return a hint for an unknown key: the key that was probably meant, and the keys known there.

    The suggestion comes from the same block, else from another block of the config.
    """
    *above, last = loc
    types: list[Any] = [kind]
    for key in above:
        types = [below for kind_above in types for below in _list_below(kind_above, key)]
    for block in types:
        if last in getattr(block, "removed_keys", {}):
            return f", which was removed: {block.removed_keys[last]}"
    keys = sorted({name for block in types if _is_block(block) for name in block.model_fields})
    nearest = did_you_mean(str(last), keys, "".join(f"{part}." for part in above))
    if not nearest and (
        matches := [path for path in _list_paths(kind) if path.split(".")[-1] == last]
    ):
        nearest = f": did you mean `{min(matches, key=len)}`?"
    if not nearest:
        nearest = _find_elsewhere(str(last))
    return f"{nearest} (known here: {', '.join(keys)})"


def _find_elsewhere(key: str) -> str:
    """Return a hint that names the blocks of other run files that have a key; "" for none."""
    owners = set()
    waiting: list[type[Block]] = [Block]
    while waiting:
        block = waiting.pop()
        # Blocks of other packages are only known once their command is imported.
        own = [kind for kind in block.__subclasses__() if kind.__module__.startswith(__package__)]
        waiting += own
        if not own and key in block.model_fields:
            owners.add(block.__name__)
    if not owners:
        return ""
    return f": here it has no place, it is a key of {', '.join(sorted(owners))}"


def _list_below(kind: Any, key: int | str) -> list[Any]:
    """Return the types of the value under a block's key, a list index or a user-chosen name."""
    if _is_block(kind):
        field = kind.model_fields.get(str(key))
        return _list_options(field.annotation) if field else []
    inner = get_args(kind)
    return _list_options(inner[-1] if get_origin(kind) is dict else inner[0]) if inner else []


def _list_options(annotation: Any) -> list[Any]:
    """Return the types of a union, or the one type in a list."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _list_options(inner[0])
    if origin in (Union, UnionType):
        return [option for member in inner for option in _list_options(member)]
    return [annotation]


def _is_block(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _list_paths(kind: Any, start: str = "") -> Iterator[str]:
    """Yield the dotted path of every key of a config."""
    for name, field in kind.model_fields.items():
        yield start + name
        for block in filter(_is_block, _list_options(field.annotation)):
            yield from _list_paths(block, f"{start}{name}.")


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
    # Alone, the sign of standard input is YAML for a list of one null.
    data[last] = value if value == "-" else parse_yaml(value, f"--set {item!r:.80}")


def with_layout(sets: Sequence[str], layout: str | None) -> list[str]:
    """Return the overrides of a run file with the layout that a flag names."""
    return [*sets, f"layout={layout}"] if layout else list(sets)
