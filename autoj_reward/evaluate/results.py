"""Result files: one JSON of figures, the judged rows beside it as JSON lines.

Shares are percentages with two decimals, each followed by its 95 % interval under `NAME_95`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path

from autoj_reward.config import JudgeConfig
from autoj_reward.errors import InputError
from autoj_reward.evaluate.config import EvaluateConfig
from autoj_reward.evaluate.intervals import Figures
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import OutputFile, filling, require_apart, to_json, write_json
from autoj_reward.io.provenance import as_typed, describe_machine, installed_versions
from autoj_reward.judge.make import judge_name
from autoj_reward.types import Judgement, Usage

ROWS = ".rows.jsonl"
"""Ending of the file of judged rows beside a result."""


def journal_path(config: EvaluateConfig, result: str) -> Path:
    """The journal that a config names, else the one beside the result."""
    return config.journal or beside(result, ".journal.sqlite")


def beside(result: str, ending: str) -> Path:
    """The file that belongs to a result: its name with another ending than .json."""
    path = Path(result)
    return path.with_name(path.name.removesuffix(".json") + ending)


class Cost:
    """Of judgements, none of which it keeps: how many, how they ended, and what they took."""

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._forced, self._usage = 0, Usage()

    def add(self, judgements: Iterable[Judgement]) -> None:
        for judgement in judgements:
            self._outcomes[judgement.outcome.value] += 1
            self._forced += judgement.forced
            self._usage += judgement.usage

    def figures(self) -> Figures:
        """With the mean cost of a judgement: tokens, and seconds in the replica."""
        n, total = self._outcomes.total(), asdict(self._usage)
        return {
            "judgements": n,
            "outcomes": dict(self._outcomes),
            "forced": self._forced,
            "mean": {name: round(value / n, 3) if n else None for name, value in total.items()},
        }


def require_own(result: str, config: EvaluateConfig, *sources: str | None) -> None:
    """Refuse an evaluation whose result, or what goes beside it, is one of the files it reads.
    Raises OutputError; nothing is opened."""
    endings = (beside(result, ending) for ending in (ROWS, ".svg"))
    require_apart(sources, [result, *endings, journal_path(config, result)])


def claimed(result: str, *judges: JudgeConfig | str) -> AbstractContextManager[None]:
    """Hold a result for this process and these judges, or files of answers; see `judged_by`."""
    return judged_by(" and ".join(map(_named, judges)), Path(result), Path(result))


@contextmanager
def writing_rows(result: str, *judges: JudgeConfig | str) -> Iterator[OutputFile]:
    """Claim a result, and yield the file of judged rows that goes beside it; it is there, whole,
    once the block has ended without an error."""
    with claimed(result, *judges), filling(beside(result, ROWS)) as rows:
        yield rows


def save(
    result: str,
    task: str,
    config: EvaluateConfig,
    judge: JudgeConfig | str,
    sources: Mapping[str, str],
    figures: Figures,
) -> Figures:
    """Write the result; returns what was written.

    judge: its config, or the file that its verdicts came from. sources: role to file or folder.
    """
    name = judge.model if isinstance(judge, JudgeConfig) else Path(judge).stem
    content: Figures = {
        "task": task,
        "judge": _named(judge),
        "name": name,
        "sources": {role: _source(path) for role, path in sources.items()},
        "settings": config.model_dump(mode="json", exclude={"judge", "grader", "journal"}),
        "command": as_typed(),
        "at": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "versions": installed_versions(),
        **figures,
    }
    write_json(result, content)
    return to_json(content)


def load(result: str) -> Figures:
    """A result file; InputError if it is none."""
    try:
        found = json.loads(Path(result).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{result}: cannot be read as a result file: {error}") from error
    if not isinstance(found, dict) or not {"task", "judge", "name"} <= set(found):
        raise InputError(f"{result}: no result of `autoj evaluate`: it has no task and judge")
    return found


def load_rows(result: str) -> list[Figures]:
    """The judged rows beside a result; none if there is no such file."""
    path = beside(result, ROWS)
    if not path.is_file():
        return []
    rows: list[Figures] = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            rows.append(json.loads(line))
    except (ValueError, RecursionError) as error:
        where = f"{path}:{len(rows) + 1}"
        raise InputError(f"{where}: not JSON lines: {error}; evaluate again") from error
    return rows


def _named(judge: JudgeConfig | str) -> str:
    return judge if isinstance(judge, str) else judge_name(judge)


def _source(path: str) -> Figures:
    file = Path(path)
    if not file.is_file():
        return {"path": path}
    return {"path": path, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
