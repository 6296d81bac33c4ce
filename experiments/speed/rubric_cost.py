"""Cost of scoring a response by a rubric: tokens and seconds by number of items.

    python -m experiments.speed.rubric_cost --config configs/experiments/rubric_cost.yaml

Each part is one way of judging items, with reasons or without. `items` asks for one judgement of
each item, `checklist` for one of all items, and `overall` for one rating that weighs them. Every
measurement scores one made response alone, with texts that no other one has. So only what the
judgements of one response share comes from the prefix cache.

The results rubric_cost.json and rubric_cost.md are rewritten after each part.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from pydantic import Field

from autoj_reward.client.client import JudgeClient
from autoj_reward.config import JudgeConfig
from autoj_reward.rubric_items import RubricItem
from autoj_reward.types import Candidate
from experiments.rubrics import RUBRIC_WAYS, open_ways, score_and_time, sum_judging_cost
from experiments.speed.work import BACKGROUND, QUESTIONS, SENTENCES
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

PARTS = tuple(RUBRIC_WAYS)
FIRST_MARK = "warm-up"
"""Mark of the response that each way scores before it is measured."""


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


def make_response(config: RubricCostConfig, mark: str, count: int) -> Candidate:
    """Return a response with a rubric of `count` items. Its texts begin with the mark."""
    words = [*f"{mark} answer:".split(), *BACKGROUND.split()]
    response = " ".join(islice(cycle(words), config.response_words))
    items = tuple(_make_item(n, config.item_words) for n in range(1, count + 1))
    query = f"{mark} question: {QUESTIONS[0]}"
    return Candidate(query, response, rubric=items)


def _make_item(number: int, words: int) -> RubricItem:
    about = " ".join(SENTENCES[number % len(SENTENCES) :] + SENTENCES).split()
    opening = f"Criterion {number} asks that the response says:".split()
    return RubricItem(" ".join([*opening, *about][:words]))


async def measure_way(
    config: RubricCostConfig, part: str, client: JudgeClient
) -> list[dict[str, Any]]:
    """Return the cost of one way for each number of items: means of the rounds."""
    rubric, rows = RUBRIC_WAYS[part].how, []
    await score_and_time(client, [make_response(config, f"{part} {FIRST_MARK}", 1)], rubric)
    for count in config.items:
        costs, seconds = [], []
        for number in range(config.rounds):
            candidate = make_response(config, f"{part} {count} {number}", count)
            scores, judging_s = await score_and_time(client, [candidate], rubric)
            costs.append(sum_judging_cost(scores))
            seconds.append(judging_s)
        means = {name: statistics.fmean(cost[name] for cost in costs) for name in costs[0]}
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


def make_cost_rows(steps: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row of the table for each way and number of items."""
    rows = []
    for part, measurements in steps.items():
        computed_tokens = {
            row["items"]: row["tokens_in"] - row["tokens_cached"] for row in measurements
        }
        for row in measurements:
            tokens, one_item_tokens = computed_tokens[row["items"]], computed_tokens.get(1)
            ratio = tokens / one_item_tokens if one_item_tokens else None
            rows.append(row | {"way": RUBRIC_WAYS[part].name, "computed": tokens, "ratio": ratio})
    return rows


def markdown(result: dict[str, Any]) -> str:
    """Write the costs as a Markdown table."""
    title = "Cost of a rubric"
    return report(title, result, [(title, tabled(make_cost_rows(result["steps"]), COLUMNS), NOTE)])


async def study(run: Study[RubricCostConfig]) -> str:
    """Measure the parts, and write the report after each. Return the last report."""
    results, text = dict[str, Any](), ""
    async with open_ways(run.config.judge) as open_way:
        for part in run.parts:
            async with open_way(RUBRIC_WAYS[part]) as client:
                results[part] = await measure_way(run.config, part, client)
            text = run.write("rubric_cost", {"steps": results}, markdown)
    return text


main = study_command(RubricCostConfig, study, PARTS)

if __name__ == "__main__":
    sys.exit(main())
