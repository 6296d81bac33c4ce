"""What best-of-N keeps of its gain if only the best K of a query get critiques.

    python -m experiments.compare.shortlist --config configs/experiments/shortlist.yaml

Parts:

- `systems`: a judge chooses among the outputs of many systems to one instruction, graded by GPT-4.
- `simulated`: simulated judges choose among simulated candidates.

Both replay `Choose` on judgements that were made once. Those of `systems` are saved in the output
folder's journal before they are used, so the same command resumes. The gain is the mean grade of
the chosen candidates less that of a random choice, as a share of what an oracle gains. The results
are shortlist.json and shortlist.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pydantic import Field

from autoj_reward.client.judging import open_ask
from autoj_reward.config import Block, JudgeConfig, View
from autoj_reward.data.labelled import JudgeData
from autoj_reward.evaluate.statistics import Array, difference, ratio
from autoj_reward.journal import Journal
from autoj_reward.models.spec import judge_spec
from autoj_reward.questions.choose import Choose
from autoj_reward.questions.rate import Rate
from autoj_reward.types import (
    RATING,
    Candidate,
    JudgeInput,
    Judgement,
    Outcome,
    Reading,
    Usage,
)
from experiments.compare.outputs import OrderedConfig, read_graded_outputs
from experiments.compare.panel import load_judge_format, make_greedy
from experiments.study import ResampledConfig, Study, study_command
from experiments.tables import report, tabled

PARTS = ("systems", "simulated")
"""Parts of the study."""
Answer = Callable[[JudgeInput], Judgement]
"""Judgement of each input."""


class NoisyJudge(Block):
    """A simulated judge. Noise is in standard deviations of the grade within a query."""

    full: float = Field(ge=0)
    """Noise of the rating after a critique."""
    direct: float = Field(ge=0)
    """Noise of the rating right after the prompt."""
    correlation: float = Field(0.5, ge=0, le=1)
    """Correlation of the direct rating's noise with what all critiques of a response share."""
    resampled: float = Field(0.5, ge=0, le=1)
    """Share of the variance of `full` that each critique draws anew."""


class Simulation(Block):
    """Simulated queries whose candidates have normally distributed grades."""

    queries: int = Field(1000, ge=2)
    candidates: int = Field(32, ge=2)
    judges: dict[str, NoisyJudge] = Field(min_length=1)
    """Simulated judges by name."""
    critiques: int = Field(4, ge=1)
    """Critiques of each response in the rows of several critiques."""
    critique_tokens: int = Field(330, ge=1)
    """Mean tokens of a critique."""
    length_spread: float = Field(0.3, ge=0)
    """Sigma of the log-normal lengths of critiques."""


class ShortlistConfig(ResampledConfig):
    """Judges, candidates and sizes of the shortlist."""

    sizes: tuple[int, ...] = Field((1, 4, 8, 11), min_length=1)
    """Sizes of the shortlist that are compared."""
    view: View = "expected"
    """The number after a critique that ranks the shortlist."""
    judge: JudgeConfig = JudgeConfig()
    """Judge of the part `systems`."""
    data: JudgeData = JudgeData()
    """Data with the graded outputs of the part `systems`."""
    ordered: OrderedConfig = OrderedConfig()
    """Selection of the graded outputs."""
    simulation: Simulation
    """Settings of the part `simulated`."""

    def possible(self) -> Sequence[str]:
        """Return the parts that this config can run."""
        return [part for part in PARTS if part != "systems" or self.data.graded.folder]


@dataclass(frozen=True, slots=True)
class Scene:
    """Candidates of one query, their grades, and a judge that answers about them."""

    candidates: tuple[Candidate, ...]
    grades: Array
    answer: Answer


@dataclass(frozen=True, slots=True)
class Chosen:
    """Choices in all queries."""

    gains: list[float]
    """Grade of each chosen candidate less the mean grade of its query."""
    tokens: int
    """Tokens that the judge wrote."""


async def study(run: Study[ShortlistConfig]) -> str:
    """Measure the parts and return the report."""
    config = run.config
    tables: dict[str, Any] = {}
    if "systems" in run.parts:
        scenes = await _judge_outputs(config, run.limit)
        tables["outputs of systems"] = await _measure(config, scenes, 1)
    if "simulated" in run.parts:
        settings = config.simulation
        for name, judge in settings.judges.items():
            for critiques in sorted({1, settings.critiques}):
                rows = range(run.limit or settings.queries)
                scenes = [_simulate(settings, judge, [config.seed, row]) for row in rows]
                label = f"simulated, {name}, critiques: {critiques}"
                tables[label] = await _measure(config, scenes, critiques)
    return run.write("shortlist", {"tables": tables}, markdown)


async def _judge_outputs(config: ShortlistConfig, limit: int | None) -> list[Scene]:
    """Judge every output of the instructions right after the prompt and after a critique."""
    spec = judge_spec(make_greedy(config.judge)).that_reads(config.view, "choose")
    fmt = load_judge_format(config.judge)
    graded = read_graded_outputs(config.data, config.ordered, fmt, config.draws).graded[:limit]
    scenes = []
    total = sum(2 * len(row.outputs) for row in graded)
    with closing(Journal(config.output / "journal.sqlite")) as journal:
        async with open_ask(spec, journal, total) as ask:
            # One instruction after another, so that the first ones are complete in a cut run.
            for row in graded:
                candidates = tuple(Candidate(row.query, output.text) for output in row.outputs)
                items = []
                for candidate in candidates:
                    items += Rate(candidate, direct=True).inputs()
                    items += Rate(candidate).inputs()
                answers = dict(zip(items, await ask(items), strict=True))
                grades = np.array([output.score for output in row.outputs])
                scenes.append(Scene(candidates, grades, answers.__getitem__))
    return scenes


def _simulate(settings: Simulation, judge: NoisyJudge, seed: Sequence[int]) -> Scene:
    """Return a query of simulated candidates. Judges meet the same grades under one seed."""
    rng = np.random.default_rng(seed)
    size, critiques = settings.candidates, settings.critiques
    grades, shared, apart = rng.normal(size=(3, size))
    lasting = judge.full * np.sqrt(1 - judge.resampled) * shared
    fresh = judge.full * np.sqrt(judge.resampled) * rng.normal(size=(critiques, size))
    rho = judge.correlation
    direct = grades + judge.direct * (rho * shared + np.sqrt(1 - rho**2) * apart)
    full = grades + lasting + fresh
    spread = settings.length_spread
    mean_log = np.log(settings.critique_tokens) - spread**2 / 2
    lengths = np.maximum(1, rng.lognormal(mean_log, spread, size=(critiques, size)).round())

    def answer(item: JudgeInput) -> Judgement:
        index = int(item.responses[0].text)
        if item.direct:
            value, tokens = float(direct[index]), 1
        else:
            value = float(full[item.sample, index])
            tokens = int(lengths[item.sample, index]) + 1
        reading = Reading(RATING, f"{value:g}", value, expected=value)
        return Judgement(Outcome.OK, readings=(reading,), usage=Usage(tokens_out=tokens))

    candidates = tuple(Candidate("query", str(n)) for n in range(size))
    return Scene(candidates, grades, answer)


async def _measure(
    config: ShortlistConfig, scenes: Sequence[Scene], critiques: int
) -> list[dict[str, Any]]:
    """Return a row for the choice in full, and one for each size of the shortlist."""
    queries = len(scenes)
    best_gains = [scene.grades.max() - scene.grades.mean() for scene in scenes]
    full = await _choose_all(scenes, config.view, critiques, None)
    full_gain = ratio(full.gains, best_gains)
    rows = []
    for size in (None, *config.sizes):
        chosen = full if size is None else await _choose_all(scenes, config.view, critiques, size)
        gain = ratio(chosen.gains, best_gains)
        rows.append(
            {
                "size": "all" if size is None else size,
                "written": chosen.tokens / full.tokens,
                "gain": asdict(config.draws.over(gain, queries)),
                "less": asdict(config.draws.over(difference(gain, full_gain), queries)),
                "queries": queries,
            }
        )
    return rows


async def _choose_all(
    scenes: Sequence[Scene], view: View, critiques: int, size: int | None
) -> Chosen:
    """Choose in every query. size: of the shortlist."""
    gains = []
    tokens = 0
    for scene in scenes:
        index, written = await _choose(scene, view, critiques, size)
        gains.append(float(scene.grades[index] - scene.grades.mean()))
        tokens += written
    return Chosen(gains, tokens)


async def _choose(scene: Scene, view: View, critiques: int, size: int | None) -> tuple[int, int]:
    """Return the index of the chosen candidate, and the tokens that the judge wrote.

    An input that is asked twice is written once.
    """
    asked: dict[JudgeInput, Judgement] = {}

    async def ask(items: Sequence[JudgeInput], _view: View | None = None) -> list[Judgement]:
        asked.update((item, scene.answer(item)) for item in items if item not in asked)
        return [asked[item] for item in items]

    question = Choose(
        scene.candidates,
        view=view,
        rules=("first",),
        critiques=critiques,
        compares=False,
        shortlist=size,
    )
    choice = await question.answer(ask)
    tokens = sum(judgement.usage.tokens_out for judgement in asked.values())
    return choice.selection.index, tokens


COLUMNS = {
    "shortlist": "{size}",
    "tokens written": "{written:.3f}",
    "gain recovered": "{gain}",
    "less that of all": "{less}",
}
"""Columns of every table."""
NOTE = "{queries} queries. Tokens are a share of those of all critiques; brackets are 95 %."
"""Note under every table."""


def markdown(result: Mapping[str, Any]) -> str:
    """Return the report."""
    return report("Shortlist", dict(result), _make_sections(result))


def _make_sections(result: Mapping[str, Any]) -> Iterator[Any]:
    for name, rows in result["tables"].items():
        yield name, tabled(rows, COLUMNS), NOTE.format(queries=rows[0]["queries"])


main = study_command(ShortlistConfig, study, PARTS, limit="instructions, or simulated queries")

if __name__ == "__main__":
    sys.exit(main())
