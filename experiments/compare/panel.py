"""Judges to compare, rows to measure them on, and the calls that ask them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from autoj_reward.client.judging import open_ask
from autoj_reward.config import JudgeConfig
from autoj_reward.data.labelled import (
    JudgeData,
    Rated,
    excluded_queries,
    is_held_out,
    rated_files,
)
from autoj_reward.evaluate.statistics import Draws, Statistic
from autoj_reward.formats.schema import JudgeFormat, load_format
from autoj_reward.io.rows import require_usable
from autoj_reward.journal import Journal
from autoj_reward.models import format_and_wrapper
from autoj_reward.models.spec import judge_spec
from autoj_reward.types import BadRow, JudgeInput, Judgement
from experiments.compare.outputs import CandidatesConfig, OrderedConfig
from experiments.study import ResampledConfig

Answers = Mapping[JudgeInput, Judgement]
"""Judgement of each input."""
PARTS = ("single", "single_direct", "base", "rivals", "ordered", "candidates")
"""All parts, in order."""


class JudgeQualityConfig(ResampledConfig):
    """Judges and rows of a measurement.

    The held-out rated responses measure, and the rivals are fitted on the others.
    """

    data: JudgeData = JudgeData()
    """Data of the judge's training."""
    judge: JudgeConfig = JudgeConfig()
    """Judge that is measured."""
    scalar: JudgeConfig | None = None
    """Scalar reward model that also orders responses to one query. null for none."""
    base: JudgeConfig | None = None
    """Judge before its training, as a rival. The probe reads its hidden states."""
    probe_layers: tuple[int, ...] = tuple(range(6, 25, 3))
    """Layers of the base among which the probe chooses."""
    ordered: OrderedConfig = OrderedConfig()
    """Graded outputs of systems for the part `ordered`."""
    candidates: CandidatesConfig | None = None
    """Settings of the part `candidates`. null leaves it out."""

    @property
    def judges(self) -> dict[str, JudgeConfig]:
        """Judges by the name that the parts use."""
        judges = {
            "greedy": make_greedy(self.judge),
            "direct": make_greedy(self.judge, critique=False),
        }
        return judges | ({"base": make_greedy(self.base)} if self.base else {})

    def possible(self) -> Sequence[str]:
        """Return the parts that this config has."""
        has = {
            "base": self.base is not None,
            "ordered": self.data.graded.folder is not None,
            "candidates": self.candidates is not None,
        }
        return [part for part in PARTS if has.get(part, True)]


def make_greedy(judge: JudgeConfig, critique: bool = True) -> JudgeConfig:
    """Return the judge's config with one judgement per response, at temperature 0."""
    return judge.model_copy(update={"critique": critique, "critiques": 1, "temperature": 0.0})


def load_judge_format(judge: JudgeConfig) -> JudgeFormat:
    """Load the judge's format."""
    return load_format(format_and_wrapper(judge)[0])


async def ask(judge: JudgeConfig, journal: Journal, inputs: Iterable[JudgeInput]) -> Answers:
    """Return the judgement of every input. The judge starts only if the journal lacks one."""
    items = list(dict.fromkeys(inputs))
    async with open_ask(judge_spec(judge), journal, len(items)) as ask_items:
        return dict(zip(items, await ask_items(items), strict=True))


@dataclass(frozen=True, slots=True)
class Material:
    """Rated rows, and the resamples of intervals."""

    rated: tuple[Rated, ...] = ()
    """Held-out responses, which measure."""
    training: tuple[Rated, ...] = ()
    """Other responses, on which rivals are fitted."""
    draws: Draws = field(default_factory=Draws)

    def estimate(self, statistic: Statistic, groups: Sequence[Hashable]) -> dict[str, Any]:
        """Return a statistic with its interval, as plain data."""
        return asdict(self.draws.over(statistic, len(groups), groups))


def read_material(
    config: JudgeQualityConfig, limit: int | None = None
) -> tuple[Material, list[BadRow]]:
    """Read the rows of every file. Also return the malformed rows, which are left out.

    Rows carry the file's name as in the config, so results do not depend on the data's folder. Rows
    with a query of `data.exclude` are not fitted on. `limit` is a maximum number of rows per file
    on each side of the split, for a quick look.
    """
    fmt, bad = load_judge_format(config.judge), list[BadRow]()
    barred_queries = excluded_queries(config.data, fmt)
    rated, training = list[Rated](), list[Rated]()
    for name, rows in rated_files(config.data, fmt):
        require_usable(rows, name)
        bad += [replace(row, file=name) for row in rows.bad]
        file_rows = [replace(row, source=name) for row in rows.rows]
        held_out_flags = [is_held_out(row.query, config.data.held_out) for row in file_rows]
        rated += [row for row, held_out in zip(file_rows, held_out_flags, strict=True) if held_out][
            :limit
        ]
        others = (
            row for row, held_out in zip(file_rows, held_out_flags, strict=True) if not held_out
        )
        training += [row for row in others if row.query not in barred_queries][:limit]
    return Material(tuple(rated), tuple(training), config.draws), bad
