"""Ways of ranking a group by a real judge, against GPT-4's graded preference.

    python -m experiments.compare.real_judge --config configs/experiments/real_judge.yaml

An untrained chat model and the default judge rank short outputs of several systems to each of a few
validation instructions. Each part is one way of one judge, in an engine of its own, so that no part
finds another's prompts in the prefix cache. A part rates each response alone, judges the group in
one or several orders, or compares pairs in a circle. `length` asks nobody.

Judgements are saved in a journal for each part, and finished parts are kept. The same command thus
resumes. A part that was resumed has no seconds. Results: real_judge.json, real_judge.md.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, pairwise
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import Field

from autoj_reward.client.client import JudgeClient
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig, RelativeConfig
from autoj_reward.data.graded import Graded, read_splits
from autoj_reward.data.labelled import JudgeData, data_path, trained_pairs
from autoj_reward.errors import InputError
from autoj_reward.evaluate.selection_metrics import tie_counts
from autoj_reward.evaluate.statistics import Draws, spearman
from autoj_reward.formats.schema import load_format
from autoj_reward.journal import Journal
from autoj_reward.journal.reading import Reader
from autoj_reward.questions.relative import rank_question
from autoj_reward.types import Candidate, Judgement, Usage, Verdict
from experiments.study import ResampledConfig, Study, study_command
from experiments.tables import report, tabled

Scores = Sequence[float | None]
"""Scores of the responses of a group, in order; None where the judge abstained."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which a judge ranks a group."""

    judge: str
    """Key of the config's `judges`."""
    name: str
    """Name in tables."""
    keys: Mapping[str, Any]
    """Keys of the judge that this way sets."""
    relative: RelativeConfig | None = None
    """How the group is judged together. None rates each response alone."""


def _make_listwise(orders: int) -> RelativeConfig:
    return RelativeConfig(by="listwise", orders=orders)


CIRCULAR = RelativeConfig(by="comparisons", neighbours=2)
BRIEF = {"format": "listwise-brief", "max_tokens": 96}
SLOTS = {"format": "listwise-brief", "critique": False}
DIRECT = {"format": "general", "critique": False}
WAYS = {
    "alone": Way("chat", "each alone", DIRECT),
    "listwise": Way("chat", "listwise, scores only, 1 order", BRIEF, _make_listwise(1)),
    "orders": Way("chat", "listwise, scores only, 3 orders", BRIEF, _make_listwise(3)),
    "slots": Way("chat", "listwise, no text, 1 order", SLOTS, _make_listwise(1)),
    "slots-orders": Way("chat", "listwise, no text, 3 orders", SLOTS, _make_listwise(3)),
    "critiques": Way(
        "chat",
        "listwise, critiques, 3 orders",
        {"format": "listwise", "max_tokens": 448},
        _make_listwise(3),
    ),
    "circular": Way("chat", "circular, 2 neighbours", DIRECT, CIRCULAR),
    "default-alone": Way("default", "each alone", {"critique": False}),
    "default-circular": Way("default", "circular, 2 neighbours", {"critique": False}, CIRCULAR),
}
"""Ways by part."""
PARTS = (*WAYS, "length")
MOST_CALLS = 10**6
"""More judge calls than any part makes."""


class RealJudgeConfig(ResampledConfig):
    """Judges, and the groups that they rank."""

    data: JudgeData = JudgeData()
    """Graded outputs, split as for the default judge's training."""
    judges: dict[str, JudgeConfig]
    """`chat`, a chat model that was not trained to judge, and `default`."""
    groups: int = Field(12, ge=2)
    """Validation instructions."""
    responses: int = Field(6, ge=3)
    """Responses to each, first of systems that no training used."""
    query_chars: int = 300
    """Longest instruction, in characters."""
    response_chars: int = 500
    """Longest response, in characters."""

    def possible(self) -> Sequence[str]:
        """Return the names of the study's parts."""
        return PARTS


def read_short_groups(config: RealJudgeConfig) -> list[Graded]:
    """Return the validation instructions with their responses, drawn by the seed.

    Raises InputError if too few instructions have that many short responses.
    """
    data = config.data
    if data.graded.folder is None:
        raise InputError("data.graded.folder is null: name the folder of the graded outputs")
    trained_queries = [pair.query for pair in trained_pairs(data, load_format("autoj-en"))]
    rng, groups = random.Random(config.seed), list[Graded]()
    for row in read_splits(data_path(data, data.graded.folder), data.graded, trained_queries)(
        "validation"
    ):
        unseen = data.graded.validation_systems
        short_outputs = [
            output for output in row.outputs if 1 <= len(output.text) <= config.response_chars
        ]
        short_outputs.sort(key=lambda output: (output.system not in unseen, rng.random()))
        distinct = {output.text: output for output in reversed(short_outputs)}
        chosen_outputs = tuple(
            output for output in short_outputs if distinct[output.text] is output
        )[: config.responses]
        if len(row.query) <= config.query_chars and len(chosen_outputs) == config.responses:
            groups.append(replace(row, outputs=chosen_outputs))
    if len(groups) < config.groups:
        raise InputError(
            f"{len(groups)} validation instructions have {config.responses} short responses, and "
            f"groups is {config.groups}: lower it, or raise response_chars"
        )
    return rng.sample(groups, config.groups)


async def rank_groups(config: RealJudgeConfig, part: str) -> dict[str, Any]:
    """Let one judge rank all groups in one way. Return its scores and cost."""
    way, groups = WAYS[part], read_short_groups(config)
    judge = JudgeConfig.model_validate(
        config.judges[way.judge].model_dump(exclude_unset=True) | dict(way.keys)
    )
    path = config.output / "journals" / f"{part}.sqlite"
    path.parent.mkdir(parents=True, exist_ok=True)
    was_resumed = path.exists()

    with closing(Journal(path)) as journal:
        async with open_judge(judge, journal=journal) as client:
            await client.contact()  # the engine is up
            started = time.monotonic()
            ranking = await (
                _rate_alone(client, groups)
                if way.relative is None
                else _rank_together(client, groups, way.relative)
            )
            seconds = time.monotonic() - started
    # From the journal, so that a part that was resumed counts all of it, and no judgement twice.
    entries = Reader(path).newer(MOST_CALLS, lambda keys: {})
    cost = _sum_cost([entry.judgement for entry in entries])
    return ranking | cost | {"seconds": None if was_resumed else seconds}


async def _rate_alone(client: JudgeClient, groups: Sequence[Graded]) -> dict[str, Any]:
    judgements = await client.rate(list(chain(*map(_make_candidates, groups))), view="expected")
    size = len(groups[0].outputs)
    scores = {
        f", {view} rating": _split([judgement.view(name) for judgement in judgements], size)
        for view, name in (("parsed", "rating"), ("expected", "expected"))
    }
    return {"scores": scores, "position": None}


async def _rank_together(
    client: JudgeClient, groups: Sequence[Graded], relative: RelativeConfig
) -> dict[str, Any]:
    questions = [
        rank_question(_make_candidates(row), client.facts, client.asks, relative) for row in groups
    ]
    rankings = await client.answer(questions)
    correlations = [ranking.position_correlation for ranking in rankings]
    known_correlations = [correlation for correlation in correlations if correlation is not None]
    scores = [ranking.scores for ranking in rankings]
    return {
        "scores": {"": scores},
        "position": fmean(known_correlations) if known_correlations else None,
    }


def _make_candidates(row: Graded) -> list[Candidate]:
    return [Candidate(row.query, output.text) for output in row.outputs]


def _split(values: Scores, size: int) -> list[Scores]:
    ends = range(0, len(values) + 1, size)
    return [values[start:end] for start, end in pairwise(ends)]


def _sum_cost(judgements: Sequence[Judgement]) -> dict[str, Any]:
    usage = sum((judgement.usage for judgement in judgements), Usage())
    verdicts = [judgement.verdict for judgement in judgements if judgement.verdict]
    first_flags = [verdict is Verdict.FIRST for verdict in verdicts if verdict is not Verdict.TIE]
    forced_flags = [reading.forced for judgement in judgements for reading in judgement.readings]
    return {
        "calls": len(judgements),
        "failed": sum(not judgement.ok for judgement in judgements),
        "forced": fmean(forced_flags) if forced_flags else None,
        "first": fmean(first_flags) if first_flags else None,
        "tokens_in": usage.tokens_in,
        "tokens_cached": usage.tokens_cached,
        "tokens_out": usage.tokens_out,
    }


def rank_by_length(config: RealJudgeConfig) -> dict[str, Any]:
    """Return the lengths of the responses, in characters, as scores."""
    groups = read_short_groups(config)
    return {"scores": {"": [[float(len(output.text)) for output in row.outputs] for row in groups]}}


def correlate_within(scores: Scores, grades: Sequence[float]) -> float:
    """Return Spearman's correlation of scores and grades within a group.

    An abstention ranks below all scores. Equal scores order nothing and count 0.
    """
    known_scores = [score for score in scores if score is not None]
    lowest = min(known_scores, default=0.0) - 1
    return spearman([lowest if score is None else score for score in scores], grades) or 0.0


COLUMNS = {
    "judge": "{judge}",
    "ranked by": "{by}",
    "Spearman within a query": "{spearman}",
    "less the expected rating": "{less}",
    "ties": "{ties:.1%}",
    "abstained": "{abstained}",
    "position": "{position}",
    "forced": "{forced}",
    "calls": "{calls}",
    "failed calls": "{failed}",
    "tokens in": "{tokens_in}",
    "cached": "{tokens_cached}",
    "out": "{tokens_out}",
    "s": "{seconds}",
}
NOTE = (
    "Spearman's correlation with the grade, mean over queries; equal scores count 0. Less the "
    "expected rating: paired differences to the same judge's expected rating of each alone. Ties: "
    "share of pairs with equal scores. Position, listwise: correlation of score and place, without "
    "the response's own score. Position, comparisons: share of verdicts for the response shown "
    "first, ties left out. Forced: share of scores that the judge did not write."
)
COST = ("calls", "failed", "tokens_in", "tokens_cached", "tokens_out")


def make_result_rows(
    steps: Mapping[str, Any], grades: Sequence[Sequence[float]], draws: Draws
) -> list[Any]:
    """Return a row of the table for each way and view that was measured."""
    rows, alone_orders = list[dict[str, Any]](), dict[str, np.ndarray[Any, Any]]()
    for part, step in steps.items():
        way = WAYS.get(part)
        for view, scores in step["scores"].items():
            orders = np.array(list(map(correlate_within, scores, grades)))
            if way and view == ", expected rating":
                alone_orders[way.judge] = orders
            base = alone_orders.get(way.judge) if way else None
            less = None if base is None or base is orders else asdict(draws.mean(orders - base))
            tied_pairs, pairs = tie_counts(scores).sum(axis=0)
            seconds, forced_share = step.get("seconds"), step.get("forced")
            rows.append(
                {
                    "judge": way.judge if way else "none",
                    "by": way.name + view if way else part,
                    "spearman": asdict(draws.mean(orders)),
                    "less": less,
                    "ties": tied_pairs / pairs if pairs else None,
                    "abstained": sum(score is None for score in chain(*scores)),
                    "position": _format_position(step),
                    "forced": None if forced_share is None else f"{forced_share:.0%}",
                    "seconds": None if seconds is None else f"{seconds:.0f}",
                }
                | {name: f"{step[name]:,}" if name in step else None for name in COST}
            )
    return rows


def _format_position(step: Mapping[str, Any]) -> str | None:
    if step.get("first") is not None:
        return f"{step['first']:.0%} first"
    return None if step.get("position") is None else f"{step['position']:+.2f}"


def markdown(config: RealJudgeConfig, result: dict[str, Any]) -> str:
    """Write the figures as a Markdown table."""
    groups = read_short_groups(config)
    grades = [[output.score for output in row.outputs] for row in groups]
    rows = make_result_rows(result["steps"], grades, config.draws)
    about = (
        f"{len(groups)} validation instructions with {config.responses} responses of at most "
        f"{config.response_chars} characters; chat is `{config.judges['chat'].model}`."
    )
    table = ("A real judge ranks groups", tabled(rows, COLUMNS), NOTE)
    return report("A real judge ranks groups", result, [table], about)


def study(run: Study[RealJudgeConfig]) -> str:
    """Measure the parts that are not done yet."""
    config = run.config
    work: dict[str, Any] = {part: partial(_run, config, part) for part in WAYS} | {
        "length": partial(rank_by_length, config)
    }
    return run.steps("real_judge", work, partial(markdown, config))


def _run(config: RealJudgeConfig, part: str) -> dict[str, Any]:
    return asyncio.run(rank_groups(config, part))


main = study_command(RealJudgeConfig, study, PARTS)

if __name__ == "__main__":
    sys.exit(main())
