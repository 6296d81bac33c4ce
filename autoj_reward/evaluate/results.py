"""Result files: a JSON file of metrics, with the judged rows beside it as JSON lines.

Shares are percentages with two decimals, each followed by its 95 % interval under `NAME_95`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autoj_reward.errors import InputError
from autoj_reward.evaluate.statistics import ResultFields
from autoj_reward.io.files import write_json
from autoj_reward.io.provenance import as_typed, describe_machine, installed_versions
from autoj_reward.models.spec import JudgeSpec

ROWS = ".rows.jsonl"
"""Suffix of the file of judged rows beside a result."""


def path_beside(result: str, ending: str) -> Path:
    """Return the path of a file that belongs to a result: `ending` in place of `.json`."""
    path = Path(result)
    return path.with_name(path.name.removesuffix(".json") + ending)


def answerer_name(judge: JudgeSpec | str) -> str:
    """Return the full name of a judge, or the path of the file that its answers come from."""
    return judge if isinstance(judge, str) else judge.name


def write_result(
    result: str,
    task: str,
    judges: Sequence[JudgeSpec | str],
    sources: Mapping[str, str],
    settings: Mapping[str, Any],
    fields: ResultFields,
) -> None:
    """Write a result file: task, judge, sources, settings, command and machine, then `fields`.

    judges: the measured judges, each a spec or the path of the file that its answers come from.
    sources: files and folders that were read, by role. settings: the config of the evaluation.
    """
    content = {
        "task": task,
        "judge": " and ".join(map(answerer_name, judges)),
        "name": " and ".join(map(_short_name, judges)),
        "sources": {role: _describe_source(path) for role, path in sources.items()},
        "settings": settings,
        "command": as_typed(),
        "at": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "versions": installed_versions(),
        **fields,
    }
    write_json(result, content)


def load_result(result: str) -> ResultFields:
    """Read a result file. Raises InputError for any other file."""
    try:
        fields = json.loads(Path(result).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{result}: cannot be read as a result file: {error}") from error
    if not isinstance(fields, dict) or not {"task", "judge", "name"} <= set(fields):
        raise InputError(f"{result}: no result of `autoj evaluate`: it has no task and judge")
    return fields


def load_rows(result: str) -> list[ResultFields]:
    """Read the judged rows beside a result; empty if there is no such file.

    Raises InputError for a line that is not JSON.
    """
    path = path_beside(result, ROWS)
    if not path.is_file():
        return []
    rows: list[ResultFields] = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            rows.append(json.loads(line))
    except (ValueError, RecursionError) as error:
        where = f"{path}:{len(rows) + 1}"
        raise InputError(f"{where}: not JSON lines: {error}; evaluate again") from error
    return rows


def _short_name(judge: JudgeSpec | str) -> str:
    return judge.config.model if isinstance(judge, JudgeSpec) else Path(judge).stem


def _describe_source(path: str) -> ResultFields:
    file = Path(path)
    if not file.is_file():
        return {"path": path}
    return {"path": path, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
