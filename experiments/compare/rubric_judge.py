"""Rubric items judged by a real judge, against a program that checks them.

    python -m experiments.compare.rubric_judge --config configs/experiments/rubric_judge.yaml

A seeded program makes responses to a few tasks out of sentences that meet an item or only come
near it, and finds out by patterns which items hold. An untrained chat model then judges the same
responses without reasons: one token for each item. Each part is one way of judging.

The report has the accuracy of the verdicts, how well the probabilities are calibrated, how well the
rubric's score orders the responses, and the cost. The results rubric_judge.json and rubric_judge.md
are rewritten after each part.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from autoj_reward.client.client import JudgeClient
from autoj_reward.config import Block, JudgeConfig, check
from autoj_reward.config.load import read_yaml
from autoj_reward.evaluate.agreement import (
    CONFIDENCE_BINS,
    CalibrationBin,
    calibration_bins,
    calibration_error,
)
from autoj_reward.evaluate.statistics import Array, Draws, Indices, spearman
from autoj_reward.rubric_items import RubricItem
from autoj_reward.types import Candidate
from experiments.rubrics import RUBRIC_WAYS, open_ways, score_and_time, sum_judging_cost
from experiments.study import ResampledConfig, Study, study_command
from experiments.tables import report, tabled

PARTS = tuple(part for part, way in RUBRIC_WAYS.items() if not way.critique)


class CheckedItem(Block):
    """Rubric item that a program can check."""

    criterion: str
    """Statement that holds for a response or does not."""
    points: float
    """Points of a response for which it holds."""
    pattern: str
    """Regular expression that occurs in a response exactly if the item holds."""
    met: tuple[str, ...] = Field(min_length=1)
    """Sentences that meet the item."""
    unmet: tuple[str, ...] = Field(min_length=1)
    """Sentences that do not, and sound alike."""

    def holds(self, response: str) -> bool:
        """Return whether the item holds for a response."""
        return re.search(self.pattern, response) is not None


class CheckedTask(Block):
    """Query with its rubric."""

    query: str
    items: tuple[CheckedItem, ...] = Field(min_length=1)


class CheckedTasks(Block):
    """File of tasks."""

    tasks: tuple[CheckedTask, ...] = Field(min_length=1)


class RubricJudgeConfig(ResampledConfig):
    """Judge, and the responses that it judges."""

    judge: JudgeConfig
    """Chat model that was not trained to judge. The format is set by each part."""
    tasks: Path
    """File of tasks with items that a program checks."""
    responses: int = Field(10, ge=2)
    """Responses to each task."""

    def possible(self) -> Sequence[str]:
        """Return the names of the study's parts."""
        return PARTS


@dataclass(frozen=True, slots=True)
class CheckedResponse:
    """Made response, with the items that hold."""

    candidate: Candidate
    """Query, response and rubric."""
    holds: tuple[bool, ...]
    """Whether each item of the rubric holds, by the program."""
    score: float
    """Score that these verdicts give: earned points by positive ones, from 0 to 1."""


def make_responses(config: RubricJudgeConfig) -> list[CheckedResponse]:
    """Return the responses to all tasks, drawn by the seed. The same config makes the same ones."""
    rng = random.Random(config.seed)
    tasks = check(CheckedTasks, read_yaml(config.tasks), str(config.tasks)).tasks
    return [_make_response(task, rng) for task in tasks for _ in range(config.responses)]


def _make_response(task: CheckedTask, rng: random.Random) -> CheckedResponse:
    sentences = [rng.choice(item.met if rng.random() < 0.5 else item.unmet) for item in task.items]
    rng.shuffle(sentences)
    response = " ".join(sentences)
    items = tuple(RubricItem(item.criterion, item.points) for item in task.items)
    holds = tuple(item.holds(response) for item in task.items)
    earned_points = sum(item.points * met for item, met in zip(items, holds, strict=True))
    score = min(1.0, max(0.0, earned_points / sum(max(0.0, item.points) for item in items)))
    candidate = Candidate(task.query, response, rubric=items)
    return CheckedResponse(candidate, holds, score)


async def judge_responses(
    client: JudgeClient, part: str, checked_responses: Sequence[CheckedResponse]
) -> dict[str, Any]:
    """Let the judge score all responses in one way. Return shares of items, scores and cost."""
    candidates = [response.candidate for response in checked_responses]
    scores, seconds = await score_and_time(client, candidates, RUBRIC_WAYS[part].how)
    return {
        "shares": [[verdict.share for verdict in score.verdicts] for score in scores],
        "scores": [score.score for score in scores],
        "seconds": seconds,
    } | sum_judging_cost(scores)


def compute_area_under_curve(shares: Array, holds: Array) -> float | None:
    """Return how often an item that holds has a higher share than one that does not.

    Equal shares count half. None if all items hold or none does.
    """
    met, unmet = shares[holds == 1], shares[holds == 0]
    if not len(met) or not len(unmet):
        return None
    differences = np.sign(met[:, None] - unmet[None, :])
    return float((differences.mean() + 1) / 2)


def make_calibration_rows(bins: Sequence[CalibrationBin]) -> list[dict[str, Any]]:
    """Return a table row for each bin of item probabilities.

    A row holds the bin's range, its number of items, their mean probability, and the share of them
    that hold.
    """
    width = 1 / CONFIDENCE_BINS
    return [
        {
            "range": f"{interval.start:.1f} to {interval.start + width:.1f}",
            "count": interval.n,
            "share": interval.predicted,
            "holds": interval.observed,
        }
        for interval in bins
    ]


def measure_verdicts(
    share_lists: Sequence[Sequence[float | None]],
    checked_responses: Sequence[CheckedResponse],
    draws: Draws,
) -> dict[str, Any]:
    """Return accuracy and calibration of the shares of items, with intervals by response.

    Items without a verdict are left out and counted.
    """
    truths = [float(holds) for response in checked_responses for holds in response.holds]
    owners = [n for n, response in enumerate(checked_responses) for _ in response.holds]
    verdicts = list(zip(chain.from_iterable(share_lists), truths, owners, strict=True))
    known_verdicts = [
        (share, holds, owner) for share, holds, owner in verdicts if share is not None
    ]
    shares, holds, responses = (np.array(column) for column in zip(*known_verdicts, strict=True))
    is_right = ((shares >= 0.5) == (holds == 1)).astype(float)
    squares = (shares - holds) ** 2

    def estimate(statistic: Any) -> dict[str, Any]:
        return asdict(draws.over(statistic, len(known_verdicts), responses.tolist()))

    def measure_area(at: Indices) -> float | None:
        return compute_area_under_curve(shares[at], holds[at])

    base, bins = float(holds.mean()), calibration_bins(shares, holds)
    return {
        "abstained": len(verdicts) - len(known_verdicts),
        "accuracy": estimate(lambda at: float(is_right[at].mean())),
        "majority": max(base, 1 - base),
        "yes": float((shares >= 0.5).mean()),
        "area": estimate(measure_area),
        "brier": estimate(lambda at: float(squares[at].mean())),
        "base_brier": base * (1 - base),
        "error": calibration_error(bins),
        "bins": make_calibration_rows(bins),
    }


def measure_checklist_order(
    scores: Sequence[float | None], checked_responses: Sequence[CheckedResponse], draws: Draws
) -> dict[str, Any]:
    """Return Spearman's correlation of the judge's scores and the program's, over responses."""
    indices = [n for n, score in enumerate(scores) if score is not None]
    judge_scores = np.array([scores[n] for n in indices], dtype=float)
    true_scores = np.array([checked_responses[n].score for n in indices])
    return asdict(draws.over(lambda at: spearman(judge_scores[at], true_scores[at]), len(indices)))


VERDICT_COLUMNS = {
    "way": "{way}",
    "accuracy": "{accuracy}",
    "judged to hold": "{yes:.0%}",
    "area under the curve": "{area}",
    "Brier score": "{brier}",
    "calibration error": "{error:.3f}",
    "abstained": "{abstained}",
}
SCORE_COLUMNS = {
    "way": "{way}",
    "Spearman": "{order}",
    "calls": "{calls:,}",
    "failed": "{failed}",
    "tokens in": "{tokens_in:,}",
    "from the cache": "{tokens_cached:,}",
    "out": "{tokens_out:,}",
    "s": "{seconds:.0f}",
}
BIN_COLUMNS = {
    "way": "{way}",
    "probability": "{range}",
    "items": "{count}",
    "mean probability": "{share:.3f}",
    "hold": "{holds:.3f}",
}
SCORE_NOTE = "Spearman's correlation of the rubric's score and the program's, over the responses."


def markdown(config: RubricJudgeConfig, result: dict[str, Any]) -> str:
    """Write the figures as Markdown tables."""
    checked_responses = make_responses(config)
    verdicts, scores, bins = [], [], []
    for part, step in result["steps"].items():
        way = {"way": RUBRIC_WAYS[part].name}
        scores.append(
            step
            | way
            | {"order": measure_checklist_order(step["scores"], checked_responses, config.draws)}
        )
        if RUBRIC_WAYS[part].by != "overall":
            row = measure_verdicts(step["shares"], checked_responses, config.draws)
            verdicts.append(way | row)
            bins += [way | bin_row for bin_row in row["bins"]]
    count = sum(len(response.holds) for response in checked_responses)
    met_share = sum(sum(response.holds) for response in checked_responses) / count
    about = (
        f"{len(checked_responses)} responses with {count} items, of which {met_share:.1%} hold. "
        f"A constant verdict is right in {max(met_share, 1 - met_share):.1%}, and the constant "
        f"probability {met_share:.3f} has a Brier score of {met_share * (1 - met_share):.3f}. "
        f"The judge is `{config.judge.model}`."
    )
    tables = [
        ("Verdicts on items", tabled(verdicts, VERDICT_COLUMNS), ""),
        ("Scores and cost", tabled(scores, SCORE_COLUMNS), SCORE_NOTE),
        ("Calibration", tabled(bins, BIN_COLUMNS), ""),
    ]
    return report("A real judge of rubric items", result, tables, about)


async def study(run: Study[RubricJudgeConfig]) -> str:
    """Measure the parts, and write the report after each. Return the last report."""
    results, text, checked_responses = dict[str, Any](), "", make_responses(run.config)
    async with open_ways(run.config.judge) as open_way:
        for part in run.parts:
            async with open_way(RUBRIC_WAYS[part]) as client:
                results[part] = await judge_responses(client, part, checked_responses)
            text = run.write("rubric_judge", {"steps": results}, partial(markdown, run.config))
    return text


main = study_command(RubricJudgeConfig, study, PARTS)

if __name__ == "__main__":
    sys.exit(main())
