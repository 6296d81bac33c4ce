"""The ways to choose among the candidates of one query, and what each costs.

Every strategy meets a `Scene`, which answers what a judge would; the budgeted ones run
`autoj_reward.select.budget.select_within`, the code of the best-of-N job.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from autoj_reward.evaluate.intervals import Array
from autoj_reward.select.aggregate import mean_of_critiques, swap_consistent
from autoj_reward.select.budget import select_within
from autoj_reward.select.choose import choose
from autoj_reward.types import (
    Candidate,
    Comparison,
    Contest,
    JudgeInput,
    Judgement,
    Outcome,
    Rating,
    Usage,
)

Answer = Callable[[JudgeInput], Judgement]
RULES = ("policy_logprob", "first")
FULL = "full"


def halving(share: float) -> str:
    """The name of the job's own rule on this budget."""
    return f"halving {share:.0%}"


@dataclass(frozen=True, slots=True)
class Scene:
    """One query as a strategy meets it: its candidates, their gold, and who answers by name:
    `greedy`, and where they are there `sampled` (k critiques) and `scalar`."""

    candidates: tuple[Candidate, ...]
    gold: Array
    judges: Mapping[str, Answer]


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen candidate, and the cost of choosing it."""

    index: int
    usage: Usage


Strategy = Callable[[Scene], Awaitable[Choice]]


class Meter:
    """A judge of a scene that adds up what it is asked; what is asked again costs nothing."""

    def __init__(self, scene: Scene, judge: str) -> None:
        self._scene, self._answer = scene, scene.judges[judge]
        self._asked: set[JudgeInput] = set()
        self.usage = Usage()

    async def ask(self, items: Sequence[JudgeInput]) -> list[Judgement]:
        answers = [self._answer(item) for item in items]
        for item, answer in zip(items, answers, strict=True):
            if item not in self._asked:
                self._asked.add(item)
                self.usage += answer.usage
        return answers

    async def rate(
        self, indices: Sequence[int], k: int = 1, direct: bool = False
    ) -> list[Judgement]:
        """The mean of k judgements of each candidate, or its reading before the critique."""
        items = [self.item(i, sample, direct) for i in indices for sample in range(k)]
        answers = await self.ask(items)
        return [mean_of_critiques(answers[n : n + k]) for n in range(0, len(answers), k)]

    def item(self, index: int, sample: int = 0, direct: bool = False) -> JudgeInput:
        own = self._scene.candidates[index]
        return JudgeInput(own.query, (own.response,), sample, direct)


def strategies(
    parts: Sequence[str], shares: Sequence[float], rounds: Sequence[int], k: int, view: str
) -> dict[str, Strategy]:
    """Every strategy of these parts, by name.

    shares: of full judging with one critique. rounds: candidates of each knock-out.
    """
    found: dict[str, Strategy] = {
        FULL: partial(_everyone, view=view),
        "rating-only": partial(_everyone, view="expected", direct=True),
    }
    found |= {halving(s): partial(_budget, share=s, view=view) for s in shares}
    if "sampled" in parts:
        found[f"all-{k}"] = partial(_everyone, view=view, judge="sampled", k=k)
        found |= {
            f"adaptive-{k} {s:.0%}": partial(
                _budget, share=s / k, view=view, judge="sampled", critiques=k
            )
            for s in shares
        }
    if "scalar" in parts:
        found |= {f"scalar-first {s:.0%}": partial(_scalar, share=s, view=view) for s in shares}
    if "knockout" in parts:
        found |= {f"knock-out {n}": partial(_knockout, count=n) for n in rounds}
    return found


async def _everyone(
    scene: Scene, view: str, judge: str = "greedy", k: int = 1, direct: bool = False
) -> Choice:
    """Everyone is judged alike."""
    meter = Meter(scene, judge)
    judgements = await meter.rate(range(len(scene.candidates)), k, direct)
    chosen = await choose(scene.candidates, judgements, view=view, rules=RULES)
    return Choice(chosen.index, meter.usage)


async def _budget(
    scene: Scene, share: float, view: str, judge: str = "greedy", critiques: int = 1
) -> Choice:
    """The job's own rule on a budget."""
    meter = Meter(scene, judge)
    found = await select_within(
        scene.candidates, meter.ask, share=share, critiques=critiques, view=view, rules=RULES
    )
    return Choice(found.selection.index, meter.usage)


async def _scalar(scene: Scene, share: float, view: str) -> Choice:
    """A scalar reward model scores everyone, and the top share of them gets critiques."""
    scores, judge = Meter(scene, "scalar"), Meter(scene, "greedy")
    order = _ranked(await scores.rate(range(len(scene.candidates))))
    top = order[: max(1, math.floor(share * len(order) + 1e-9))]
    judgements = await judge.rate(top)
    chosen = await choose([scene.candidates[i] for i in top], judgements, view=view, rules=RULES)
    return Choice(top[chosen.index], scores.usage + judge.usage)


async def _knockout(scene: Scene, count: int) -> Choice:
    """The best by the cheap reading meet in a knock-out whose matches both orders decide."""
    meter = Meter(scene, "greedy")
    everyone = await meter.rate(range(len(scene.candidates)), direct=True)
    top = _ranked(everyone)[:count]

    async def compare(pairs: Sequence[Contest]) -> list[Comparison]:
        return [swap_consistent(*await meter.ask(pair.inputs())) for pair in pairs]

    level = [Judgement(Outcome.OK, rating=Rating(0))] * len(top)
    chosen = await choose(
        [scene.candidates[i] for i in top], level, rules=("pairwise", "first"), compare=compare
    )
    return Choice(top[chosen.index], meter.usage)


def _ranked(judgements: Sequence[Judgement]) -> list[int]:
    """Highest expected rating first; those that abstain last."""
    values = [-math.inf if (v := j.view("expected")) is None else v for j in judgements]
    return sorted(range(len(values)), key=lambda i: -values[i])


def finalists(scene: Scene, count: int) -> tuple[str, ...]:
    """The responses that meet in a knock-out of so many."""
    items = [JudgeInput(c.query, (c.response,), direct=True) for c in scene.candidates]
    top = _ranked([scene.judges["greedy"](item) for item in items])[:count]
    return tuple(scene.candidates[i].response for i in top)
