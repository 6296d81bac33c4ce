"""The judges that are compared, the rows that measure them, and how they are asked."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from autoj_reward.client.judging import asking
from autoj_reward.config import JudgeConfig
from autoj_reward.data.labelled import (
    JudgeData,
    Rated,
    data_path,
    excluded_queries,
    is_held_out,
    read_rated,
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
PARTS = ("single", "single_direct", "base", "rivals", "ordered", "candidates")


class JudgeQualityConfig(ResampledConfig):
    """Judges and rows of a measurement: the held-out rated responses measure, the rivals fit the
    others.

    judge: the judge that is measured. scalar: the reward model beside it where responses to one
        query are ordered; null: none.
    base: the judge before its training, as a rival; its hidden states are the probe's.
    probe_layers: layers of the base that the probe may choose from.
    ordered: which graded outputs of systems the part `ordered` takes.
    candidates: of the part of that name; null leaves it out.
    """

    data: JudgeData = JudgeData()
    judge: JudgeConfig = JudgeConfig()
    scalar: JudgeConfig | None = None
    base: JudgeConfig | None = None
    probe_layers: tuple[int, ...] = tuple(range(6, 25, 3))
    ordered: OrderedConfig = OrderedConfig()
    candidates: CandidatesConfig | None = None

    @property
    def judges(self) -> dict[str, JudgeConfig]:
        """Judges by the name that the parts use."""
        found = {"greedy": greedy(self.judge), "direct": greedy(self.judge, critique=False)}
        return found | ({"base": greedy(self.base)} if self.base else {})

    def possible(self) -> Sequence[str]:
        """Return the parts that this config has."""
        has = {
            "base": self.base is not None,
            "ordered": self.data.graded.folder is not None,
            "candidates": self.candidates is not None,
        }
        return [part for part in PARTS if has.get(part, True)]


def greedy(judge: JudgeConfig, critique: bool = True) -> JudgeConfig:
    """Return the judge with one judgement a response, at temperature 0."""
    return judge.model_copy(update={"critique": critique, "critiques": 1, "temperature": 0.0})


def format_of_judge(judge: JudgeConfig) -> JudgeFormat:
    """Return the judge's own format."""
    return load_format(format_and_wrapper(judge)[0])


async def ask(judge: JudgeConfig, journal: Journal, inputs: Iterable[JudgeInput]) -> Answers:
    """Return the judgement of every input; start the judge only if the journal lacks one."""
    items = list(dict.fromkeys(inputs))
    async with asking(judge_spec(judge), journal, len(items)) as asked:
        return dict(zip(items, await asked(items), strict=True))


@dataclass(frozen=True, slots=True)
class Material:
    """The rated rows, and how intervals are drawn.

    rated: held-out responses, which measure. training: the others, for rivals to fit.
    """

    rated: tuple[Rated, ...] = ()
    training: tuple[Rated, ...] = ()
    draws: Draws = field(default_factory=Draws)

    def estimate(self, statistic: Statistic, groups: Sequence[Hashable]) -> dict[str, Any]:
        """Return the statistic with its interval, as plain data."""
        return asdict(self.draws.over(statistic, len(groups), groups))


def read_material(
    config: JudgeQualityConfig, limit: int | None = None
) -> tuple[Material, list[BadRow]]:
    """Return the rows of every file, and the malformed ones that were left out.

    Rows carry the file's name in the config, so that results do not depend on where the data is.
    Queries of `data.exclude` are not fitted on. limit: rows of a file on either side of the split,
    for a quick look.
    """
    fmt, bad = format_of_judge(config.judge), list[BadRow]()
    barred = excluded_queries(config.data, fmt)
    rated, training = list[Rated](), list[Rated]()
    for name in config.data.rated:
        source = data_path(config.data, name)
        rows = read_rated(source, fmt)
        require_usable(rows, source)
        bad += [replace(row, file=name) for row in rows.bad]
        named = [replace(row, source=name) for row in rows.rows]
        held = [is_held_out(row.query, config.data.held_out) for row in named]
        rated += [row for row, own in zip(named, held, strict=True) if own][:limit]
        others = (row for row, own in zip(named, held, strict=True) if not own)
        training += [row for row in others if row.query not in barred][:limit]
    return Material(tuple(rated), tuple(training), config.draws), bad
