"""Ways of ranking a group: what each recovers of known strengths, and what it asks for.

    python -m experiments.compare.groups --config configs/experiments/groups.yaml [--set key=value]

`recovery`: scripted judges whose taste is known. Each response has a strength; a judge sees it with
noise that is drawn anew for each judge call, and may prefer a position. Measured are Spearman's
correlation of scores and strengths within a group, and the regret of the best: its strength below
the strongest response, in standard deviations. The ceiling is all pairs in both orders.

`cost`: prompt tokens of one group on the default judge's tokenizer, with responses of a stated
length, and those that a prefix cache leaves to compute.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import Field
from scipy.stats import spearmanr

from autoj_reward.config import JudgeConfig, RelativeConfig, View
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import load_format
from autoj_reward.models import resolve
from autoj_reward.models.facts import Asks, JudgeFacts
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.rank import Ranking
from autoj_reward.questions.rate import Rate, rate_all
from autoj_reward.questions.relative import rank_question
from autoj_reward.types import (
    GROUP,
    PAIRWISE,
    RATING,
    SINGLE,
    VERDICT,
    Candidate,
    JudgeInput,
    Judgement,
    Outcome,
    Reading,
    Verdict,
)
from experiments.study import ResampledConfig, Study, study_command
from experiments.tables import report, tabled

PARTS = ("recovery", "cost")
SCALE = (1.0, 10.0)
JUDGE = JudgeFacts(scale=SCALE, max_group=16)
BLOCK_TOKENS = 16
"""Tokens of a block of vLLM's prefix cache."""

COMPARISONS: dict[str, dict[str, Any]] = {
    "all pairs": {"schedule": "all"},
    "all pairs, one order": {"schedule": "all", "orders": "alternate"},
    "circular, 4 neighbours": {},
    "circular, 4 neighbours, one order": {"orders": "alternate"},
}
LISTWISE = {"listwise, 1 order": 1, "listwise, 2 orders": 2, "listwise, 4 orders": 4}
JUDGES: dict[str, dict[str, float]] = {
    "noise 1": {"noise": 1.0},
    "noise 1, prefers the first": {"noise": 1.0, "first": 1.0},
    "always says first": {"taste": 0.0, "first": 3.0},
}
"""Scripted judges. noise: standard deviation of a seen strength. first: advantage of the first
position over the last. taste: weight of the true strength."""
CEILING = "all pairs"
STOCK = ("light", "air", "blue", "red", "wave", "small", "child", "sky", "because", "long", "eye")
"""Words of the made responses in the part `cost`."""


class GroupStudyConfig(ResampledConfig):
    """Settings of the study."""

    sizes: tuple[int, ...] = (4, 8, 16, 32)
    """Group sizes."""
    groups: int = Field(100, ge=2)
    """Groups of each size."""
    spread: float = Field(1.5, gt=0)
    """Standard deviation of strengths within a group, in points of the scale."""
    response_words: int = Field(150, ge=1)
    """Words of a response in the part `cost`."""


class ScriptedJudge:
    """A judge with a known taste. Call it as `Ask`; `calls` counts its inputs."""

    def __init__(self, strengths: dict[str, float], seed: int, **settings: float) -> None:
        self.calls = 0
        self._strengths, self._seed = strengths, seed
        self._noise, self._first = settings.get("noise", 0.0), settings.get("first", 0.0)
        self._taste = settings.get("taste", 1.0)

    async def __call__(
        self, items: Sequence[JudgeInput], view: View | None = None
    ) -> list[Judgement]:
        self.calls += len(items)
        return [self._judge_item(item) for item in items]

    def _judge_item(self, item: JudgeInput) -> Judgement:
        texts = tuple(response.text for response in item.responses)
        rng = random.Random(f"{self._seed} {item.protocol} {texts}")
        last = max(1, len(item.responses) - 1)
        seen_strengths = [
            self._taste * self._strengths[text]
            + rng.gauss(0, self._noise)
            + self._first * (1 - place / last) * (len(item.responses) > 1)
            for place, text in enumerate(texts)
        ]
        if item.protocol == PAIRWISE:
            p = 1 / (1 + math.exp(seen_strengths[1] - seen_strengths[0]))
            distribution = (("first", p), ("second", 1 - p))
            verdict = Verdict.FIRST if p > 0.5 else Verdict.SECOND
            return Judgement(
                Outcome.OK, readings=(Reading(VERDICT, verdict, distribution=distribution),)
            )
        names = (
            [RATING]
            if item.protocol == SINGLE
            else [f"response_{n + 1}" for n in range(len(seen_strengths))]
        )
        values = (min(SCALE[1], max(SCALE[0], 5.5 + strength)) for strength in seen_strengths)
        readings = (Reading(n, f"{v:g}", v, expected=v) for n, v in zip(names, values, strict=True))
        return Judgement(Outcome.OK, readings=tuple(readings))


Ranker = Callable[[Sequence[Candidate], Ask, int], Any]


async def rank_pointwise(group: Sequence[Candidate], ask: Ask, seed: int) -> list[float]:
    """Return the rating of each response alone."""
    return [
        judgement.view("expected") or 0.0
        for judgement in await rate_all([Rate(c) for c in group], ask)
    ]


async def rank_together(
    group: Sequence[Candidate], ask: Ask, seed: int, settings: dict[str, Any]
) -> list[float]:
    """Return the scores of a group that is judged together."""
    relative = RelativeConfig(**settings, seed=seed)
    question = rank_question(group, JUDGE, Asks(), relative)
    ranking: Ranking = await question.answer(ask)
    return [0.0 if score is None else score for score in ranking.scores]


def make_rankers() -> dict[str, Ranker]:
    """Return every way of ranking, by its name in tables."""
    by_name: dict[str, Ranker] = {"each alone": rank_pointwise}
    for name, orders in LISTWISE.items():
        by_name[name] = partial(rank_together, settings={"by": "listwise", "orders": orders})
    for name, settings in COMPARISONS.items():
        by_name[name] = partial(rank_together, settings={"by": "comparisons", **settings})
    return by_name


def recover(config: GroupStudyConfig) -> list[dict[str, Any]]:
    """Return a row for each judge, group size and way of ranking."""
    rows = []
    for judge, settings in JUDGES.items():
        for size in config.sizes:
            figures_by_name = {
                name: _measure_recovery(config, size, settings, rank)
                for name, rank in make_rankers().items()
            }
            ceiling = figures_by_name[CEILING]
            for name, figures in figures_by_name.items():
                ceiling_share = None
                if "taste" not in settings:  # else there is nothing to recover
                    ceiling_share = figures["spearman"]["value"] / ceiling["spearman"]["value"]
                extra = {
                    "of_ceiling": ceiling_share,
                    "calls_share": figures["calls"] / ceiling["calls"],
                }
                rows.append({"judge": judge, "size": size, "by": name} | figures | extra)
            print(f"{judge}: groups of {size}", file=sys.stderr)
    return rows


def _measure_recovery(
    config: GroupStudyConfig, size: int, settings: dict[str, float], rank: Ranker
) -> dict[str, Any]:
    order, regret, calls, spread = [], [], [], []
    for number in range(config.groups):
        rng = np.random.default_rng([config.seed, size, number])
        values = [float(v) for v in rng.normal(0, config.spread, size)]
        strengths = {f"response {n}": value for n, value in enumerate(values)}
        judge = ScriptedJudge(strengths, number, **settings)
        group = [Candidate(f"query {number}", text) for text in strengths]
        scores = asyncio.run(rank(group, judge, number))
        order.append(float(spearmanr(scores, values).statistic) if len(set(scores)) > 1 else 0.0)
        regret.append((max(values) - values[int(np.argmax(scores))]) / config.spread)
        calls.append(judge.calls)
        spread.append(max(scores) - min(scores))
    return {
        "spearman": asdict(config.draws.mean(np.array(order))),
        "regret": asdict(config.draws.mean(np.array(regret))),
        "calls": fmean(calls),
        "spread": fmean(spread),
    }


class InputRecorder:
    """An `Ask` that keeps the inputs and answers all of them with the middle of the scale."""

    def __init__(self) -> None:
        self.items: list[JudgeInput] = []

    async def __call__(
        self, items: Sequence[JudgeInput], view: View | None = None
    ) -> list[Judgement]:
        self.items += items
        judge = ScriptedJudge(
            {response.text: 0.0 for item in items for response in item.responses}, 0
        )
        return await judge(items)


def count_tokens(config: GroupStudyConfig) -> list[dict[str, Any]]:
    """Return a row for each group size and way of ranking, with the tokens of its prompts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve(JudgeConfig()).path)
    formats = {
        GROUP: load_format("listwise"),
        SINGLE: load_format("general"),
        PAIRWISE: load_format("general"),
    }
    words = random.Random(config.seed)
    rows = []
    for size in config.sizes:
        texts = [_make_text(words, config.response_words) for _ in range(size)]
        group = [Candidate("Explain why the sky is blue to a child.", text) for text in texts]
        for name, rank in make_rankers().items():
            recorder = InputRecorder()
            asyncio.run(rank(group, recorder, config.seed))
            seen_blocks, computed_tokens, total_tokens = set[tuple[int, ...]](), 0, 0
            for item in recorder.items:
                text = "".join(message.text for message in render(item, formats[item.protocol]))
                ids = tokenizer(text)["input_ids"]
                blocks = [
                    tuple(ids[: n + BLOCK_TOKENS])
                    for n in range(0, len(ids) - BLOCK_TOKENS, BLOCK_TOKENS)
                ]
                cached_tokens = BLOCK_TOKENS * sum(block in seen_blocks for block in blocks)
                seen_blocks.update(blocks)
                total_tokens, computed_tokens = (
                    total_tokens + len(ids),
                    computed_tokens + len(ids) - cached_tokens,
                )
            rows.append(
                {
                    "size": size,
                    "by": name,
                    "calls": len(recorder.items),
                    "tokens": total_tokens,
                    "computed": computed_tokens,
                }
            )
    return rows


def _make_text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(STOCK) for _ in range(words))


RECOVERY_COLUMNS = {
    "judge": "{judge}",
    "n": "{size}",
    "ranked by": "{by}",
    "calls": "{calls:.0f}",
    "of the ceiling's calls": "{calls_share:.0%}",
    "Spearman": "{spearman}",
    "of the ceiling": "{of_ceiling:.3f}",
    "regret of the best": "{regret}",
    "range of scores": "{spread:.3f}",
}
COST_COLUMNS = {
    "n": "{size}",
    "ranked by": "{by}",
    "calls": "{calls}",
    "prompt tokens": "{tokens:,}",
    "computed with the prefix cache": "{computed:,}",
}


def markdown(result: dict[str, Any]) -> str:
    """Write the figures as Markdown tables."""
    steps, sections = result["steps"], []
    if "recovery" in steps:
        title = "Known strengths, scripted judges"
        sections.append((title, tabled(steps["recovery"], RECOVERY_COLUMNS), ""))
    if "cost" in steps:
        sections.append(("Prompt tokens of one group", tabled(steps["cost"], COST_COLUMNS), ""))
    return report("Ranking a group", result, sections)


def study(run: Study[GroupStudyConfig]) -> str:
    """Measure the parts that are not done yet."""
    work = {
        "recovery": lambda: recover(run.config),
        "cost": lambda: count_tokens(run.config),
    }
    return run.steps("groups", work, markdown)


main = study_command(GroupStudyConfig, study, PARTS)

if __name__ == "__main__":
    sys.exit(main())
