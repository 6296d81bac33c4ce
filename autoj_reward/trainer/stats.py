"""Metrics of a batch of rewards, with the same names for every batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import stdev

from autoj_reward.judge.health import BOUNDS, JudgeHealth
from autoj_reward.questions.rank import ORDER_SPREAD, POSITION_CORRELATION, STANDARD_ERROR
from autoj_reward.questions.rate import VOTE_SPREAD
from autoj_reward.questions.tie_break import count_tied_pairs
from autoj_reward.rubric_items import RUBRIC
from autoj_reward.trainer.parts import Parts, Reward
from autoj_reward.types import Candidate, GroupKey, Judgement, Outcome, group_key

RELATIVE_SLOTS = STANDARD_ERROR, ORDER_SPREAD, POSITION_CORRELATION
"""Slots of a response that was judged beside others."""


def batch_metrics(rewards: Sequence[Reward], candidates: Sequence[Candidate]) -> dict[str, float]:
    """Return the metrics of a batch; {} for an empty one. A metric without data is NaN.

    - `judge/<outcome>`, `judge/forced`, `judge/flagged`: share of the batch, 0 to 1.
    - `judge/tie_rate`: share of the pairs within a group that have equal raw rewards.
    - `judge/group_std`: standard deviation of a group's raw rewards, mean over groups of several.
    - `judge/raw`, `judge/shaped`: mean reward before and after shaping, without missing ones.
    - `judge/tokens_in`, `judge/tokens_out`: mean tokens of a judgement.
    - `judge/seconds`, `judge/queued_seconds`: mean seconds in the judge's engine and in its queue.
    - `judge/response_characters`: mean length of the responses.
    - `parts/<name>`: mean of a part's numbers in its own unit, with several parts.
    - `parts/<name>_abstains`: share of the responses on which the part abstains.

    - `rubric/met`, `rubric/abstained`: mean share that holds of the items with positive points, and
      share of items without a verdict, if rubrics are scored. `rubric/tag/<tag>`: mean share of the
      items of a tag.
    - `judge/vote_spread`: standard deviation of the ratings of a response's critiques, mean over
      responses with several.
    - `judge/standard_error`, `judge/order_spread`, `judge/position_correlation`: means over the
      responses, if groups are judged together; see `Ranking`.
    - `audit/…`: metrics of the audits that have ended, with `reward.audit`; see `Audit`.

    With several parts, raw and shaped rewards are those of all parts together.
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
        if outcome is not Outcome.ABANDONED  # only best-of-N with a shortlist has it
    }
    groups: dict[GroupKey, list[float]] = {}
    for reward, candidate in zip(rewards, candidates, strict=True):
        if reward.raw is not None:
            groups.setdefault(group_key(candidate), []).append(reward.raw)
    several = [values for values in groups.values() if len(values) > 1]
    pairs = sum(math.comb(len(values), 2) for values in several)
    ties = sum(map(count_tied_pairs, several))
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
        **_average_slots(judgements, (VOTE_SPREAD,), mean),
        **_average_slots(judgements, RELATIVE_SLOTS, mean),
        **_average_rubric_slots(judgements, mean),
        **_average_parts([reward.parts for reward in rewards], mean),
        **rewards[-1].audit,
    }


def _average_slots(
    judgements: Sequence[Judgement],
    names: Sequence[str],
    mean: Callable[[Sequence[float]], float],
) -> dict[str, float]:
    """Return the mean value of each of these slots; {} if no judgement has any of them."""
    readings = {
        name: [reading for j in judgements if (reading := j.reading(name))] for name in names
    }
    values = {
        name: [r.value for r in slot_readings if r.value is not None]
        for name, slot_readings in readings.items()
    }
    return {
        f"judge/{name}": mean(slot_values)
        for name, slot_values in values.items()
        if any(readings.values())
    }


def _average_rubric_slots(
    judgements: Sequence[Judgement], mean: Callable[[Sequence[float]], float]
) -> dict[str, float]:
    """Of responses that were scored by rubric items; nothing for others.

    The names begin with `rubric/`. They are those of this call's rubrics: tags may differ by row.
    """
    values_by_slot: dict[str, list[float]] = {}
    for reading in (reading for j in judgements for reading in j.readings):
        if reading.slot.startswith(f"{RUBRIC}/") and reading.value is not None:
            values_by_slot.setdefault(reading.slot, []).append(reading.value)
    return {name: mean(values) for name, values in values_by_slot.items()}


def _average_parts(
    parts: Sequence[Mapping[str, float | None]], mean: Callable[[Sequence[float]], float]
) -> dict[str, float]:
    figures = {}
    for name in parts[0]:
        values = [part_values[name] for part_values in parts]
        figures[f"parts/{name}"] = mean([value for value in values if value is not None])
        figures[f"parts/{name}_abstains"] = mean([float(value is None) for value in values])
    return figures


def row_figures(reward: Reward, parts: Parts) -> dict[str, float]:
    """Return the metrics of one reward. Names are always the same, and every value is finite.

    `judge_<outcome>`, `judge_forced` and `judge_flagged` are 0 or 1. `judge_raw` is the reward
    before shaping, or the middle of the scale if it is missing. `part_<name>` likewise is the
    middle of the part's scale where it abstains. The others are as in `batch_metrics`.
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
    """Return the judge's health over the last judgements of the run; see `JudgeHealth`.

    `judge/window_<figure>` is NaN without data. `judge/alarm_<figure>` is 1 while the metric is out
    of bounds, else 0.
    """
    alarms = health.alarms()
    figures = {f"judge/window_{name}": value for name, value in health.figures().items()}
    return figures | {f"judge/alarm_{name}": float(name in alarms) for name in BOUNDS}
