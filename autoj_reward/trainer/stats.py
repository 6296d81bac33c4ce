"""Figures of a batch of rewards, under the same names every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import stdev

from autoj_reward.judge.health import BOUNDS, JudgeHealth
from autoj_reward.questions.tie_break import tied_pairs
from autoj_reward.trainer.parts import Parts, Reward
from autoj_reward.types import Candidate, GroupKey, Outcome, group_key


def batch_figures(rewards: Sequence[Reward], candidates: Sequence[Candidate]) -> dict[str, float]:
    """Shares are of the batch, 0..1; a figure that has nothing to tell is left out with NaN.

    `judge/<outcome>`, `judge/forced`, `judge/flagged`: shares. `judge/tie_rate`: pairs of a group
    with equal raw rewards among all its pairs. `judge/group_std`: mean over groups of the standard
    deviation of raw rewards. `judge/raw`, `judge/shaped`: means over the judgements that are ok.
    `judge/tokens_in`, `judge/tokens_out`: means of a judgement. `judge/seconds`: mean time that a
    judgement took in the judge's engine; `judge/queued_seconds`: mean time that it waited for it.
    `judge/response_characters`: mean length of the responses.

    With several parts the rewards are theirs together. `parts/<name>`: mean of what a part says, in
    its own unit; `parts/<name>_abstains`: share of the responses of which it says nothing.

    An empty batch has no figures.
    """
    if not rewards:
        return {}
    judgements = [reward.judgement for reward in rewards]
    n = len(rewards)

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values) if values else math.nan

    figures = {
        f"judge/{outcome.value}": sum(j.outcome is outcome for j in judgements) / n
        for outcome in Outcome
        if outcome is not Outcome.ABANDONED  # no judge gives anybody up
    }
    groups: dict[GroupKey, list[float]] = {}
    for reward, candidate in zip(rewards, candidates, strict=True):
        if reward.raw is not None:
            groups.setdefault(group_key(candidate), []).append(reward.raw)
    several = [values for values in groups.values() if len(values) > 1]
    pairs = sum(math.comb(len(values), 2) for values in several)
    ties = sum(map(tied_pairs, several))
    return figures | {
        "judge/forced": mean([float(j.forced) for j in judgements]),
        "judge/flagged": mean([float(bool(j.flags)) for j in judgements]),
        "judge/tie_rate": ties / pairs if pairs else math.nan,
        "judge/group_std": mean([stdev(values) for values in several]),
        "judge/raw": mean([r.raw for r in rewards if r.raw is not None]),
        "judge/shaped": mean([r.value for r in rewards if r.value is not None]),
        "judge/tokens_in": mean([float(j.usage.tokens_in) for j in judgements]),
        "judge/tokens_out": mean([float(j.usage.tokens_out) for j in judgements]),
        "judge/seconds": mean([j.usage.latency_s for j in judgements]),
        "judge/queued_seconds": mean([j.usage.queued_s for j in judgements]),
        "judge/response_characters": mean([float(len(c.response)) for c in candidates]),
        **_part_figures([reward.parts for reward in rewards], mean),
    }


def _part_figures(
    parts: Sequence[Mapping[str, float | None]], mean: Callable[[Sequence[float]], float]
) -> dict[str, float]:
    figures = {}
    for name in parts[0]:
        said = [own[name] for own in parts]
        figures[f"parts/{name}"] = mean([value for value in said if value is not None])
        figures[f"parts/{name}_abstains"] = mean([float(value is None) for value in said])
    return figures


def row_figures(reward: Reward, parts: Parts) -> dict[str, float]:
    """Figures of one reward, the same names whatever failed and every value finite.

    `judge_<outcome>`, `judge_forced`, `judge_flagged`: 0 or 1. `judge_raw`: before shaping, and the
    middle of the scale if it abstains. The others as in `batch_figures`; what a part says is the
    middle of its scale where it abstains.
    """
    judgement = reward.judgement
    outcomes = {
        f"judge_{outcome.value}": float(judgement.outcome is outcome)
        for outcome in Outcome
        if outcome is not Outcome.ABANDONED
    }
    figures = outcomes | {
        "judge_raw": parts.middle if reward.raw is None else reward.raw,
        "judge_forced": float(judgement.forced),
        "judge_flagged": float(bool(judgement.flags)),
        "judge_tokens_in": float(judgement.usage.tokens_in),
        "judge_tokens_out": float(judgement.usage.tokens_out),
    }
    for name, value in reward.parts.items():
        figures[f"part_{name}"] = parts.by_name[name].middle if value is None else value
        figures[f"part_{name}_abstains"] = float(value is None)
    return figures


def health_figures(health: JudgeHealth) -> dict[str, float]:
    """`judge/window_<figure>` over the last judgements of the run, NaN where nothing is known, and
    `judge/alarm_<figure>`: 1 while it is out of its bounds, else 0. See `JudgeHealth`."""
    alarms = health.alarms()
    figures = {f"judge/window_{name}": value for name, value in health.figures().items()}
    return figures | {f"judge/alarm_{name}": float(name in alarms) for name in BOUNDS}
