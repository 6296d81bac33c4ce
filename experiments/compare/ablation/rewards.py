"""The rewards that the ablation compares: what each asks of whom, and its score of a candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoj_reward.config import JUDGE
from autoj_reward.evaluate.statistics import Array
from autoj_reward.trainer.parts import Parts
from autoj_reward.types import JudgeInput, Judgement, Usage
from experiments.compare.ablation.bias import log_length
from experiments.compare.ablation.measures import Scored
from experiments.compare.panel import Answers


@dataclass(frozen=True, slots=True)
class Reward:
    """part: the part of the command that asks for it. judge: who is asked (a key of the config's
    `judges`). view: which number of the judgement it is. costly: asked of a part of the
    candidates only."""

    title: str
    part: str
    judge: str
    view: str
    costly: bool = True


KNOWN = {
    "direct": Reward("judge, expected, no critique", "direct", "direct", "expected", costly=False),
    "scalar": Reward("scalar reward model", "scalar", "scalar", "rating", costly=False),
    "rating": Reward("judge, rating", "critique", "greedy", "rating"),
    "expected": Reward("judge, expected, critique", "critique", "greedy", "expected"),
}
"""Rewards that ask a judge, by name."""
FREE = {
    "logprob": "policy log-probability",
    "length": "log length of the response",
    "random": "random",
}
"""Rewards that ask nobody."""
PANEL = ("direct", "scalar")
"""Whose scores a panel joins; both score every candidate."""
PANELS = {
    "panel_mean": "panel of judge and scalar model, mean",
    "panel_min": "panel of judge and scalar model, least",
}
"""Rewards that join the scores of others, as a reward of several parts does."""
TITLES = {name: reward.title for name, reward in KNOWN.items()} | PANELS | FREE


@dataclass(frozen=True, slots=True)
class Group:
    """The graded candidates of one query: gold 0..1 from a program, or a gold judge's number.

    logprobs: of the sequences under the policy, in nats; None where the engine gives none.
    """

    query: str
    responses: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    gold: tuple[float, ...]

    def head(self, count: int) -> Group:
        """The first candidates alone; they are exchangeable, being samples."""
        parts = (self.responses, self.logprobs, self.gold)
        return Group(self.query, *(part[:count] for part in parts))  # type: ignore[arg-type]


def singles(groups: Sequence[Group]) -> list[JudgeInput]:
    """Every candidate alone."""
    return [JudgeInput("single", g.query, (response,)) for g in groups for response in g.responses]


def rated(reward: Reward, query: str, response: str, answers: Answers) -> float | None:
    """The reward of a response; None where the judge abstains."""
    return answers[JudgeInput("single", query, (response,))].view(reward.view)


def scored(
    groups: Sequence[Group],
    answers: Mapping[str, Answers],
    rewards: Sequence[str],
    seed: int,
    panels: Mapping[str, Parts],
) -> list[Scored]:
    """The candidates with every named reward, panels after those that they join."""
    found = []
    for row, group in enumerate(groups):
        free: dict[str, Sequence[float | None]] = {
            "logprob": group.logprobs,
            "length": [log_length(response) for response in group.responses],
            "random": list(np.random.default_rng([seed, row]).random(len(group.responses))),
        }
        scores: dict[str, Array] = {}
        for name in rewards:
            if name in free:
                scores[name] = np.array(free[name], dtype=float)
            elif name in panels:
                scores[name] = joined(panels[name], *(scores[of] for of in PANEL))
            else:
                reward = KNOWN[name]
                own = answers[reward.judge]
                values = [rated(reward, group.query, r, own) for r in group.responses]
                scores[name] = np.array(values, dtype=float)
        gold = np.array(group.gold, dtype=float)
        found.append(Scored(group.query, group.responses, gold, scores))
    return found


def joined(parts: Parts, judge: Array, scalar: Array) -> Array:
    """The reward of both parts for each candidate; nan where both abstain."""
    values = (
        {
            name: None if np.isnan(value) else float(value)
            for name, value in zip((JUDGE, "scalar"), own, strict=True)
        }
        for own in zip(judge, scalar, strict=True)
    )
    rewards = (parts.reward(own) for own in values)
    return np.array([np.nan if reward is None else reward for reward in rewards])


def cost(judgements: Sequence[Judgement]) -> dict[str, float | int]:
    """Means a judgement: tokens read, of these cached, tokens written, seconds until answered."""
    total = sum((judgement.usage for judgement in judgements), Usage())
    mean = len(judgements) or 1
    return {
        "judgements": len(judgements),
        "tokens_in": total.tokens_in / mean,
        "tokens_cached": total.tokens_cached / mean,
        "tokens_out": total.tokens_out / mean,
        "seconds": (total.latency_s + total.queued_s) / mean,
    }
