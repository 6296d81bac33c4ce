"""Criteria files: YAML in the published dialect, with `!include`, read without running anything.

A file maps sections to criteria; a criterion is a mapping with `content` (the sentence), `type`
(`basic`, `content`, `format` or `style`) and an optional `weight`, which the authors gave up and
nobody reads. A section may be `!include some/file.yaml`, taken from a root folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from autoj_reward.config.load import read_yaml
from autoj_reward.errors import ConfigError

CriterionKind = Literal["basic", "content", "format", "style"]
KINDS: tuple[CriterionKind, ...] = get_args(CriterionKind)
FIELDS = {"content", "type", "weight"}
MAX_FILES = 200
"""Files that are read for one, included ones counted each time."""
Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that a good response does: a name, one sentence, and the aspect it belongs to."""

    name: str
    text: str
    kind: CriterionKind


def read_criteria(path: Path, *roots: Path) -> Data:
    """Return the mapping in a file, its includes filled in from the first root that has them.

    Raises ConfigError naming the file for text that is no YAML or no mapping, a key that stands
    twice, an include that leaves the roots, and a file that includes itself, however indirectly.
    """
    return _read(path.resolve(), tuple(root.resolve() for root in roots), (), [])


def criteria_in(data: dict[str, Any], source: str) -> tuple[Criterion, ...]:
    """All criteria of a file's sections, in their order. ConfigError names a wrong one."""
    return tuple(_walk(data, source))


def _walk(data: dict[str, Any], source: str) -> Iterator[Criterion]:
    for name, value in data.items():
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: {name!r} is no criterion and no section: {value!r:.60}")
        if "content" not in value and "type" not in value:
            yield from _walk(value, source)
            continue
        if unknown := set(value) - FIELDS:
            raise ConfigError(f"{source}: criterion {name!r} has unknown keys {sorted(unknown)}")
        text, kind = value.get("content"), value.get("type")
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"{source}: criterion {name!r} needs a sentence as its content")
        if kind not in KINDS:
            raise ConfigError(
                f"{source}: criterion {name!r} has type {kind!r}; name one of {', '.join(KINDS)}"
            )
        yield Criterion(str(name), " ".join(text.split()), kind)


def _read(path: Path, roots: tuple[Path, ...], above: tuple[Path, ...], read: list[Path]) -> Data:
    by = f", included by {above[-1]}" if above else ""
    read.append(path)
    if len(read) > MAX_FILES:
        raise ConfigError(f"{path}{by}: more than {MAX_FILES} files are included: include fewer")

    def include(name: str) -> Data:
        paths = [(root / name).resolve() for root in roots]
        if not all(map(Path.is_relative_to, paths, roots)):
            raise ConfigError(
                f"{path}: !include {name!r} leaves the folder that includes come from"
            )
        found = next((path for path in paths if path.is_file()), paths[0])
        if found in (*above, path):
            raise ConfigError(f"{path}: !include {name!r} comes back to a file that is being read")
        return _read(found, roots, (*above, path), read)

    try:
        data = read_yaml(path, {"!include": include})
    except OSError as error:
        raise ConfigError(f"{path}{by}: cannot be read: {error.strerror}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: criteria are a mapping, not {type(data).__name__}")
    return data
