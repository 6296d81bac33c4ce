"""Cost of scoring a response by a rubric: tokens and seconds by number of items.

    python -m experiments.speed.rubric_cost --config configs/experiments/rubric_cost.yaml

Each part is one way of judging items, with a reason or without, in an engine of its own. `items`
asks for one judgement of each item, `checklist` for one of all items, and `overall` for one rating
that weighs them. Every measurement scores one made response alone, with texts that no other one
has, so that only what the judgements of one response share comes from the prefix cache.

Finished parts are kept. Results: rubric_cost.json, rubric_cost.md.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, islice
from typing import Any, Literal

from pydantic import Field

from autoj_reward.client.client import RewardClient
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig, RubricConfig
from autoj_reward.conversation import Context
from autoj_reward.models.spec import judge_spec
from autoj_reward.questions.rubric import RubricScore
from autoj_reward.rubric_items import RubricItem
from autoj_reward.types import Candidate, Usage
from experiments.speed.work import BACKGROUND, QUESTIONS, SENTENCES
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled


@dataclass(frozen=True, slots=True)
class RubricWay:
    """One way of judging the items of a rubric."""

    by: Literal["items", "checklist", "overall"]
    """Way of the reward's config."""
    format: str
    """Judge format for it."""
    critique: bool
    """Whether the judge writes its reasons."""

    @property
    def name(self) -> str:
        """Name of the way in tables."""
        return f"`{self.by}`, {'with' if self.critique else 'without'} reasons"

    @property
    def how(self) -> RubricConfig:
        """Config of the rubric."""
        return RubricConfig(by=self.by)

    def judge(self, base: JudgeConfig) -> JudgeConfig:
        """Return the config of a judge that scores rubrics this way."""
        config = base.model_copy(update={"format": self.format, "critique": self.critique})
        return judge_spec(config).that_scores(self.how).config


RUBRIC_WAYS = {
    "items": RubricWay("items", "rubric-item", False),
    "checklist": RubricWay("checklist", "rubric-checklist", False),
    "overall": RubricWay("overall", "rubric-overall", False),
    "items-reasons": RubricWay("items", "rubric-item", True),
    "checklist-reasons": RubricWay("checklist", "rubric-checklist", True),
    "overall-reasons": RubricWay("overall", "rubric-overall", True),
}
"""Ways by part."""
PARTS = tuple(RUBRIC_WAYS)
WARM_UP = "warm-up"
"""Mark of the response that is scored before the measurements."""


class RubricCostConfig(StudyConfig):
    """Judge, and the rubrics that it judges."""

    judge: JudgeConfig = JudgeConfig()
    """Judge on vLLM. The format is set by each part."""
    items: tuple[int, ...] = Field((1, 4, 12, 20), min_length=1)
    """Numbers of items."""
    item_words: int = Field(25, ge=1)
    """Words of an item."""
    response_words: int = Field(330, ge=1)
    """Words of a response."""
    rounds: int = Field(3, ge=1)
    """Responses that are scored with each number of items."""

    def possible(self) -> Sequence[str]:
        """Return the names of the study's parts."""
        return PARTS


def made_response(config: RubricCostConfig, mark: str, count: int) -> Candidate:
    """Return a response with a rubric of `count` items. Its texts begin with the mark."""
    said = [*f"{mark} answer:".split(), *BACKGROUND.split()]
    response = " ".join(islice(cycle(said), config.response_words))
    items = tuple(_item(n, config.item_words) for n in range(1, count + 1))
    query = f"{mark} question: {QUESTIONS[0]}"
    return Candidate(query, response, context=Context(rubric=items))


def _item(number: int, words: int) -> RubricItem:
    about = " ".join(SENTENCES[number % len(SENTENCES) :] + SENTENCES).split()
    begun = f"Criterion {number} asks that the response says:".split()
    return RubricItem(" ".join([*begun, *about][:words]))


async def timed_scores(
    client: RewardClient, candidates: Sequence[Candidate], how: RubricConfig
) -> tuple[list[RubricScore], float]:
    """Return the scores of all responses, asked for at once, and the seconds that they took."""
    questions = [client.question_of_rubric(own, how) for own in candidates]
    started = time.monotonic()
    scores = await client.answer(questions)
    return scores, time.monotonic() - started


def cost_of(scores: Sequence[RubricScore]) -> dict[str, int]:
    """Return calls, failed calls and tokens of the judgements behind scores."""
    judgements = list(chain.from_iterable(own.judgements for own in scores))
    usage = sum((own.usage for own in judgements), Usage())
    return {
        "calls": len(judgements),
        "failed": sum(not own.ok for own in judgements),
        "tokens_in": usage.tokens_in,
        "tokens_cached": usage.tokens_cached,
        "tokens_out": usage.tokens_out,
    }


async def measure_way(config: RubricCostConfig, part: str) -> list[dict[str, Any]]:
    """Return the cost of one way for each number of items: means of the rounds."""
    way, rows = RUBRIC_WAYS[part], []
    async with open_judge(way.judge(config.judge)) as client:
        await timed_scores(client, [made_response(config, WARM_UP, 1)], way.how)
        for count in config.items:
            costs, seconds = [], []
            for number in range(config.rounds):
                asked = made_response(config, f"{part} {count} {number}", count)
                scores, spent = await timed_scores(client, [asked], way.how)
                costs.append(cost_of(scores))
                seconds.append(spent)
            means = {name: statistics.fmean(own[name] for own in costs) for name in costs[0]}
            rows.append({"items": count} | means | {"seconds": statistics.median(seconds)})
    return rows


COLUMNS = {
    "way": "{way}",
    "items": "{items}",
    "calls": "{calls:.0f}",
    "failed": "{failed:.1f}",
    "tokens in": "{tokens_in:,.0f}",
    "from the cache": "{tokens_cached:,.0f}",
    "computed": "{computed:,.0f}",
    "times one item's": "{ratio:.2f}",
    "out": "{tokens_out:,.0f}",
    "s": "{seconds:.2f}",
}
NOTE = (
    "Means over the responses, and the median of the seconds of one response alone. Computed: "
    "tokens in that did not come from the cache. A slot that is read counts its whole context anew "
    "as tokens in."
)


def rows_of(steps: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row of the table for each way and number of items."""
    rows = []
    for part, measured in steps.items():
        computed = {own["items"]: own["tokens_in"] - own["tokens_cached"] for own in measured}
        for own in measured:
            read, alone = computed[own["items"]], computed.get(1)
            ratio = read / alone if alone else None
            rows.append(own | {"way": RUBRIC_WAYS[part].name, "computed": read, "ratio": ratio})
    return rows


def markdown(found: dict[str, Any]) -> str:
    """Write the costs as a Markdown table."""
    title = "Cost of a rubric"
    return report(title, found, [(title, tabled(rows_of(found["steps"]), COLUMNS), NOTE)])


def study(run: Study[RubricCostConfig]) -> str:
    """Measure the parts that are not done yet."""
    work = {part: partial(_run, run.config, part) for part in PARTS}
    return run.steps("rubric_cost", work, markdown)


def _run(config: RubricCostConfig, part: str) -> list[dict[str, Any]]:
    return asyncio.run(measure_way(config, part))


main = study_command(RubricCostConfig, study, PARTS)

if __name__ == "__main__":
    sys.exit(main())
