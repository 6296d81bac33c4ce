"""The judges that are compared, the rows that measure them, and how they are asked.

Metrics are plain data for a report. Intervals are bootstrapped over queries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from autoj_reward.client.judging import asking
from autoj_reward.config import JudgeConfig
from autoj_reward.data.labelled import (
    Compared,
    JudgeData,
    Rated,
    data_path,
    is_held_out,
    read_compared,
    read_rated,
)
from autoj_reward.evaluate.statistics import Draws, Statistic, correlation, pearson, share, spearman
from autoj_reward.formats.schema import JudgeFormat, load_format
from autoj_reward.io.rows import Rows, require_usable
from autoj_reward.journal import Journal
from autoj_reward.models import format_and_wrapper
from autoj_reward.types import BadRow, JudgeInput, Judgement
from experiments.study import ResampledConfig

Answers = Mapping[JudgeInput, Judgement]


class PanelConfig(ResampledConfig):
    """A judge in its variants, and labelled rows.

    data: rated responses and human-labelled pairs; the tie threshold is searched on the held-out
        pairs. eval_p: the labelled pairs that measure, a path like those in data; nothing is
        fitted to their queries. Null: none.
    """

    data: JudgeData = JudgeData()
    eval_p: str | None = None
    judge: JudgeConfig = JudgeConfig()

    @property
    def format(self) -> JudgeFormat:
        """The judge's own."""
        return load_format(format_and_wrapper(self.judge)[0])

    @property
    def variants(self) -> dict[str, JudgeConfig]:
        """The judge without a critique, and with a greedy one."""
        return {"direct": greedy(self.judge, critique=False), "greedy": greedy(self.judge)}


def greedy(judge: JudgeConfig, critique: bool = True) -> JudgeConfig:
    """The judge with one judgement a response, at temperature 0."""
    return judge.model_copy(update={"critique": critique, "critiques": 1, "temperature": 0.0})


async def ask(judge: JudgeConfig, journal: Journal, inputs: Iterable[JudgeInput]) -> Answers:
    """The judgement of every input; the judge is started only if the journal lacks one."""
    items = list(dict.fromkeys(inputs))
    async with asking(judge, journal, len(items)) as asked:
        return dict(zip(items, await asked(items), strict=True))


Row = TypeVar("Row", Rated, Compared)
Values = Sequence[float | None]
CORRELATIONS = {"spearman": spearman, "pearson": pearson}


@dataclass(frozen=True, slots=True)
class Material:
    """The rows, and how intervals are drawn.

    rated: held-out rated responses, which measure. training: the others, for rivals to fit.
    pairs: the test pairs (Eval-P). validation: held-out pairs, for the tie threshold only.
    """

    rated: tuple[Rated, ...] = ()
    training: tuple[Rated, ...] = ()
    pairs: tuple[Compared, ...] = ()
    validation: tuple[Compared, ...] = ()
    draws: Draws = field(default_factory=Draws)

    def estimate(self, statistic: Statistic, groups: Sequence[Hashable]) -> dict[str, Any]:
        """The statistic with its interval, as plain data."""
        return asdict(self.draws.over(statistic, len(groups), groups))


def read_material(
    config: PanelConfig, fmt: JudgeFormat, limit: int | None = None
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
        draws=config.draws,
    )
    return material, bad


def _chained(files: Iterable[list[Row]]) -> tuple[Row, ...]:
    return tuple(row for rows in files for row in rows)


def ratings(material: Material, rows: Sequence[Rated], values: Values) -> dict[str, Any]:
    """Compare a rater's values with the reference ratings: correlations and mean absolute error.

    values: one a row; None where the rater abstained, which leaves the row out.
    """
    known = [(v, row) for v, row in zip(values, rows, strict=True) if v is not None]
    queries = [row.query for _, row in known]
    given = np.array([v for v, _ in known])
    wanted = np.array([row.rating for _, row in known])
    figures = {
        name: material.estimate(correlation(measure, given, wanted), queries)
        for name, measure in CORRELATIONS.items()
    }
    return figures | {"mae": material.estimate(share(np.abs(given - wanted)), queries)}
