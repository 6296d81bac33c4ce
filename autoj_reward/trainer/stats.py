"""Metrics of a batch of rewards. Their names depend on the config alone.

Trainers gather metrics over ranks name by name. A rank whose rows lack what a metric measures must
therefore log it as NaN: with a name less, all ranks would wait for it, or average two metrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

from autoj_reward.config import JUDGE, RewardConfig
from autoj_reward.judge.health import BOUNDS, JudgeHealth
from autoj_reward.questions.rank import ORDER_SPREAD, POSITION_CORRELATION, STANDARD_ERROR
from autoj_reward.questions.rate import VOTE_SPREAD
from autoj_reward.questions.rubric import ABSTAINED, MET, TAG
from autoj_reward.questions.tie_break import count_tied_pairs
from autoj_reward.trainer.audit import AUDIT_METRICS
from autoj_reward.trainer.parts import Parts, Reward
from autoj_reward.types import RETRIED_FLAG, Candidate, GroupKey, Outcome, group_key

RELATIVE_SLOTS = STANDARD_ERROR, ORDER_SPREAD, POSITION_CORRELATION
"""Slots of a response that was judged beside others."""


def batch_metrics(
    rewards: Sequence[Reward], candidates: Sequence[Candidate], config: RewardConfig
) -> dict[str, float]:
    """Return the metrics of a batch. A metric without data is NaN.

    config: that of the reward. It alone decides on the names.

    - `judge/<outcome>`, `judge/forced`, `judge/flagged`: share of the main judge's judgements, 0
      to 1. With `when` it is not asked about every response.
    - `judge/tie_rate`: share of the pairs within a group that have equal raw rewards.
    - `judge/group_std`: standard deviation of a group's raw rewards, mean over groups of several.
    - `judge/raw`, `judge/shaped`: mean reward before and after shaping, without missing ones.
    - `judge/tokens_in`, `judge/tokens_out`: mean tokens of a judgement.
    - `judge/seconds`, `judge/queued_seconds`: mean seconds in the judge's engine and in its queue.
    - `judge/response_characters`: mean length of the responses.
    - `judge/thinking`, `judge/thinking_characters`: share of the responses with thinking, and its
      mean length over the batch.
    - `judge/vote_spread`: standard deviation of the ratings of a response's critiques, mean over
      responses with several; with `judge.critiques` above 1.
    - `judge/usd`: mean US dollars of a judgement; with `judge.price`.
    - `judge/retried`: share of the judgements whose judge was asked more than once; with
      `judge.attempts` above 1.
    - `judge/standard_error`, `judge/order_spread`, `judge/position_correlation`: means over the
      responses, with `relative`; see `Ranking`.
    - `rubric/met`, `rubric/abstained`: mean share that holds of the items with positive points, and
      share of items without a verdict, if rubrics are scored item by item. `rubric/tag/<tag>`: mean
      share of the items of a tag, for the tags in the file `rubric.items`; see `tag_metrics`.
    - `parts/<name>`: mean of a part's numbers in its own unit, with several parts.
    - `parts/<name>_abstains`: share of the responses on which the part abstains.
    - `audit/…`: metrics of the audits that have ended, with `reward.audit`; see `Audit`.

    With several parts, raw and shaped rewards are those of all parts together.
    """
    judgements = [reward.judgement for reward in rewards if reward.asked]
    figures = {}
    for outcome in Outcome:
        if outcome is not Outcome.ABANDONED:  # only best-of-N with a shortlist has it
            shares = [float(judgement.outcome is outcome) for judgement in judgements]
            figures[f"judge/{outcome.value}"] = _mean(shares)
    groups: dict[GroupKey, list[float]] = {}
    for reward, candidate in zip(rewards, candidates, strict=True):
        if reward.raw is not None:
            groups.setdefault(group_key(candidate), []).append(reward.raw)
    several = [values for values in groups.values() if len(values) > 1]
    pairs = sum(math.comb(len(values), 2) for values in several)
    ties = sum(map(count_tied_pairs, several))
    figures |= {
        "judge/forced": _mean([float(j.forced) for j in judgements]),
        "judge/flagged": _mean([float(bool(j.flags)) for j in judgements]),
        "judge/tie_rate": ties / pairs if pairs else math.nan,
        "judge/group_std": _mean([stdev(values) for values in several]),
        "judge/raw": _mean([r.raw for r in rewards if r.raw is not None]),
        "judge/shaped": _mean([r.value for r in rewards if r.value is not None]),
        "judge/tokens_in": _mean([float(j.usage.tokens_in) for j in judgements]),
        "judge/tokens_out": _mean([float(j.usage.tokens_out) for j in judgements]),
        "judge/seconds": _mean([j.usage.latency_s for j in judgements]),
        "judge/queued_seconds": _mean([j.usage.queued_s for j in judgements]),
        "judge/response_characters": _mean([float(len(c.response.text)) for c in candidates]),
        "judge/thinking": _mean([float(r.thinking_characters > 0) for r in rewards]),
        "judge/thinking_characters": _mean([float(r.thinking_characters) for r in rewards]),
    }
    if config.judge.price is not None:
        figures["judge/usd"] = _mean([judgement.usage.usd for judgement in judgements])
    if config.judge.attempts > 1:
        shares = [float(RETRIED_FLAG in judgement.flags) for judgement in judgements]
        figures["judge/retried"] = _mean(shares)
    for name, slot in _slots_by_metric(config).items():
        readings = [judgement.reading(slot) for judgement in judgements]
        figures[name] = _mean([r.value for r in readings if r and r.value is not None])
    for name in part_names(config):
        values = [reward.parts[name] for reward in rewards]
        figures[f"parts/{name}"] = _mean([value for value in values if value is not None])
        figures[f"parts/{name}_abstains"] = _mean([float(value is None) for value in values])
    if config.audit:
        latest = rewards[-1].audit if rewards else {}
        figures |= {name: latest.get(name, math.nan) for name in AUDIT_METRICS}
    return figures


def _slots_by_metric(config: RewardConfig) -> dict[str, str]:
    """Return the slots of the main judge whose mean value is a metric, by the metric's name."""
    if config.relative:
        return {f"judge/{slot}": slot for slot in RELATIVE_SLOTS}
    if config.rubric:
        if config.rubric.by == "overall":  # one rating, without verdicts on items
            return {}
        tags = {tag for item in config.rubric.load() for tag in item.tags}
        slots = [MET, ABSTAINED, *(TAG + tag for tag in sorted(tags))]
        return {slot: slot for slot in slots}
    return {f"judge/{VOTE_SPREAD}": VOTE_SPREAD} if config.judge.critiques > 1 else {}


def tag_metrics(rewards: Sequence[Reward]) -> dict[str, float]:
    """Return `rubric/tag/<tag>` for each tag of this batch's rubrics: mean share of its items.

    Rows bring tags of their own, so the names differ by batch and by rank.
    """
    values_by_slot: dict[str, list[float]] = {}
    for reward in rewards:
        for reading in reward.judgement.readings:
            if reading.slot.startswith(TAG) and reading.value is not None:
                values_by_slot.setdefault(reading.slot, []).append(reading.value)
    return {slot: _mean(values) for slot, values in values_by_slot.items()}


def part_names(config: RewardConfig) -> tuple[str, ...]:
    """Return the names of a reward's parts, the main judge first; () for a judge alone."""
    return (JUDGE, *config.parts) if config.parts else ()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


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
        "judge_thinking_characters": float(reward.thinking_characters),
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
