"""The rows that a judge is measured on, and those that its rivals may fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from autoj_reward.evaluate.labelled import (
    Compared,
    Rated,
    data_path,
    is_held_out,
    read_compared,
    read_rated,
)
from autoj_reward.io.rows import Rows, require_usable
from autoj_reward.prompts.format import JudgeFormat
from autoj_reward.types import BadRow
from experiments.compare.judge_quality.config import JudgeQualityConfig
from experiments.compare.judge_quality.figures import Material

Row = TypeVar("Row", Rated, Compared)


def read_material(
    config: JudgeQualityConfig, fmt: JudgeFormat, limit: int | None = None
) -> tuple[Material, list[BadRow]]:
    """The rows of every file, and the bad ones that were left out and named.

    Rows carry the file's name in the config, so that results do not depend on where the data is.
    Queries of the test pairs and of `data.exclude` are neither fitted on nor searched on.
    limit: rows of a file on either side of the split, for a quick look.
    """
    bad: list[BadRow] = []

    def read(name: str, reader: Callable[[str, JudgeFormat], Rows[Row]]) -> list[Row]:
        source = data_path(config.data, name)
        rows = reader(source, fmt)
        require_usable(rows, source)
        bad.extend(replace(row, file=name) for row in rows.bad)
        return [replace(row, source=name) for row in rows.rows]

    def held(row: Rated | Compared) -> bool:
        return is_held_out(row.query, config.data.held_out)

    pairs = read(config.eval_p, read_compared) if config.eval_p else []
    measuring = [
        *pairs,
        *(row for name in config.data.exclude for row in read(name, read_compared)),
    ]
    barred = {row.query for row in measuring}
    rated = [read(name, read_rated) for name in config.data.rated]
    compared = [read(name, read_compared) for name in config.data.compared]
    material = Material(
        rated=_chained([r for r in rows if held(r)][:limit] for rows in rated),
        training=_chained(
            [r for r in rows if not held(r) and r.query not in barred][:limit] for rows in rated
        ),
        pairs=tuple(pairs[:limit]),
        validation=_chained(
            [r for r in rows if held(r) and r.query not in barred][:limit] for rows in compared
        ),
        sampled=config.critiques,
        rounds=config.bootstrap,
        seed=config.seed,
    )
    return material, bad


def _chained(files: Iterable[list[Row]]) -> tuple[Row, ...]:
    return tuple(row for rows in files for row in rows)
