"""Reward shaping, failure budgets, and fallbacks for failed judgements."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TypeVar

from autoj_reward.config import (
    JUDGE,
    FailureBudgetConfig,
    FailureConfig,
    RewardConfig,
    ShapingConfig,
)
from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.types import GroupKey, Judgement, Outcome

EPSILON = 1e-4
"""Added to standard deviations, as in TRL's GRPO, so that a group of equal rewards gets 0."""
CHANCE = 1e-5
"""Probability below which early failures spend the budget, before the window is full."""
FENCE = re.compile(r"[ \t]*(?:```|~~~)")
"""First characters of a line that opens or closes a code block."""
HEADING_OR_ITEM = re.compile(r"[ \t]*(?:#{1,6}|[-*+]|[0-9]{1,9}[.)])[ \t]")
"""First characters of a heading, or of an item of a list."""
BOLD = re.compile(r"\*\*[^*]++\*\*|__[^_]++__")
GONE = 8
"""Number of `unavailable` judgements in a row that means that the judge is gone."""


def needs_groups(config: RewardConfig) -> bool:
    """Return whether a reward needs all responses of a query in one call."""
    return "group" in _list_group_settings(config).values() or any(
        judged_config.relative for judged_config in config.judged.values()
    )


def _list_group_settings(config: RewardConfig) -> dict[str, str | float]:
    """Return the settings that need whole groups if they are `group`, by key."""
    return {
        "reward.shaping.whiten": config.shaping.whiten,
        "reward.shaping.penalty_by": config.shaping.penalty_by,
        "reward.failures.fallback": config.failures.fallback,
    }


def refuse_groups(config: RewardConfig, reason: str, gathered: bool = False) -> None:
    """Raise ConfigError if a setting needs whole groups, for a trainer without groups.

    reason: how the trainer sends responses, for the error. gathered: whether the trainer tells
    their groups, so that a service can gather them for relative rewards.
    """
    for key, value in _list_group_settings(config).items():
        if value == "group":
            raise ConfigError(
                f"{key} is group, which needs all responses of a query in one call, and {reason}: "
                "choose another, and let the trainer normalise its groups"
            )
    for name, judged_config in config.judged.items():
        if judged_config.relative and not (gathered and judged_config.service):
            key = config.key_of(name)
            remedy = "leave it out, so that each response is rated alone"
            if gathered:
                remedy = f"name a running service in {key}.service, which gathers each group"
            raise ConfigError(
                f"{key}.relative judges a query's responses beside each other, and {reason}: "
                f"{remedy}"
            )


def require_groups(key: str, groups: Sequence[GroupKey], is_set: str = "is group") -> None:
    """Raise ConfigError if a response of the call is alone in its group.

    key: the setting that needs groups, for the error. is_set: what makes it need them.
    """
    lone_groups = [group for group, n in Counter(groups).items() if n == 1]
    if lone_groups:
        group = lone_groups[0]
        name = group if isinstance(group, str) else group[0].text
        raise ConfigError(
            f"{key} {is_set}, which needs all responses of a query in one call, and this call has "
            f"one response of {name!r:.80}: choose another, and let the trainer normalise its "
            "groups"
        )


class Shaper:
    """Shapes raw rewards. A missing reward (None) stays None and is not in any mean."""

    def __init__(self, config: ShapingConfig) -> None:
        self._config = config

    def __call__(
        self, raw: Sequence[float | None], responses: Sequence[str], groups: Sequence[GroupKey]
    ) -> list[float | None]:
        """Return the shaped rewards.

        groups: group of each response. Raises ConfigError if a setting needs whole groups and a
        response is alone in its group.
        """
        c = self._config
        penalties = [self._compute_penalty(response) for response in responses]
        if c.penalty_by == "group":
            require_groups("shaping.penalty_by", groups)
            penalties = _subtract_group_means(penalties, groups)
        shaped = [
            None if r is None else self._clip((r - penalty) * c.scale + c.shift)
            for r, penalty in zip(raw, penalties, strict=True)
        ]
        if c.whiten == "group":
            require_groups("shaping.whiten", groups)
            return _whiten_groups(shaped, groups)
        return shaped

    def _compute_penalty(self, response: str) -> float:
        """Return the penalty for the response's length and style."""
        c = self._config
        style = c.style_penalty and c.style_penalty * markup_density(response)
        return c.length_penalty * len(response) / 1000 + style

    def neutral(self, middle: float) -> float:
        """Return the shaped middle of the judge's scale for an empty response; 0 if whitened."""
        if self._config.whiten != "none":
            return 0.0
        return self._clip(middle * self._config.scale + self._config.shift)

    def _clip(self, value: float) -> float:
        if self._config.clip is None:
            return value
        low, high = self._config.clip
        return min(high, max(low, value))


def markup_density(text: str) -> float:
    """Return the Markdown headings, list items and bold passages per 1,000 characters.

    A shorter text counts as 1,000 characters, so that one mark in a few words has no large density.
    Fenced code blocks have no marks. Takes time linear in the length.
    """
    marks, in_code = 0, False
    for line in text.split("\n"):
        if FENCE.match(line):
            in_code = not in_code
        elif not in_code:
            marks += bool(HEADING_OR_ITEM.match(line)) + len(BOLD.findall(line))
    return 1000 * marks / max(1000, len(text))


def _subtract_group_means(penalties: Sequence[float], groups: Sequence[GroupKey]) -> list[float]:
    """Return each penalty minus the mean penalty of its group."""
    penalties_by_group: dict[GroupKey, list[float]] = {}
    for penalty, group in zip(penalties, groups, strict=True):
        penalties_by_group.setdefault(group, []).append(penalty)
    means = {
        group: sum(group_penalties) / len(group_penalties)
        for group, group_penalties in penalties_by_group.items()
    }
    return [p - means[group] for p, group in zip(penalties, groups, strict=True)]


def _whiten_groups(
    values: Sequence[float | None], groups: Sequence[GroupKey]
) -> list[float | None]:
    values_by_group: dict[GroupKey, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        if value is not None:
            values_by_group.setdefault(group, []).append(value)
    means = {
        group: sum(group_values) / len(group_values)
        for group, group_values in values_by_group.items()
    }
    spreads = {
        group: math.sqrt(
            sum((v - means[group]) ** 2 for v in group_values) / max(1, len(group_values) - 1)
        )
        for group, group_values in values_by_group.items()
    }
    return [
        None if v is None else (v - means[g]) / (spreads[g] + EPSILON)
        for v, g in zip(values, groups, strict=True)
    ]


class FailureBudget:
    """Counts failed judgements over the last `window`. Threads may share it.

    The budget is spent when more than `budget` of a whole window have failed. It is spent sooner
    when so many failures have a probability below CHANCE for a judge within the budget. So a broken
    judge also stops a run of a hundred judgements. GONE `unavailable` judgements in a row spend
    every budget below 1.

    Responses without an answer are no failures. They have a budget of their own: a share of a
    window of the same length.

    part: name of the reward part that it counts. no_answer_budget: largest share of responses
    without an answer; 1 for no limit.
    """

    def __init__(
        self, config: FailureBudgetConfig, part: str = JUDGE, no_answer_budget: float = 1.0
    ) -> None:
        self._config, self._part = config, part
        self._no_answer_budget = no_answer_budget
        self._unanswered_window: deque[bool] = deque(maxlen=config.window)
        self._window: deque[bool] = deque(maxlen=config.window)
        self._reasons: Counter[str] = Counter()
        self._unanswered = 0
        self._lock = threading.Lock()

    def count(self, judgements: Sequence[Judgement]) -> None:
        """Count judgements. Raises BudgetExceeded once too many of the window have failed."""
        with self._lock:
            for judgement in judgements:
                is_unanswered = judgement.outcome is Outcome.NO_ANSWER
                self._unanswered_window.append(is_unanswered)
                if is_unanswered:
                    continue
                self._window.append(judgement.ok)
                is_unavailable = judgement.outcome is Outcome.UNAVAILABLE
                self._unanswered = self._unanswered + 1 if is_unavailable else 0
                if not judgement.ok:
                    self._reasons[judgement.why[:200]] += 1
            self._require_answers()
            failed, total = self._window.count(False), len(self._window)
            max_failures = self._config.budget * self._config.window
            is_gone = self._unanswered >= GONE and self._config.budget < 1
            is_unlikely = _compute_tail_probability(failed, total, self._config.budget) < CHANCE
            if failed > max_failures or is_unlikely or is_gone:
                commonest = "; ".join(f"{n} x {why}" for why, n in self._reasons.most_common(3))
                is_judge = self._part == JUDGE
                broken_part = "judge" if is_judge else f"part {self._part}"
                key = "" if is_judge else f"parts.{self._part}."
                raise BudgetExceeded(
                    f"{failed} of the last {total} judgements failed, and the failure budget is "
                    f"{self._config.budget:g} of {self._config.window}: training stops rather than "
                    f"learn from noise. Commonest: {commonest}. Mend the {broken_part} and resume "
                    f"from the last checkpoint, or raise {key}failures.budget"
                )

    def _require_answers(self) -> None:
        unanswered, total = self._unanswered_window.count(True), len(self._unanswered_window)
        budget = self._no_answer_budget
        if unanswered <= budget * total:
            return
        is_unlikely = _compute_tail_probability(unanswered, total, budget) < CHANCE
        if unanswered > budget * self._config.window or is_unlikely:
            raise BudgetExceeded(
                f"{unanswered} of the last {total} responses hold no answer, and "
                f"no_answer_budget is {budget:g} of {self._config.window}: training stops rather "
                "than learn from a constant. If the responses do hold answers, their marks of "
                "thinking are not read rightly: set judge.thinking_marks, or "
                "judge.shows_thinking: true. If they stop within their thinking, raise the "
                "policy's token limit"
            )


B = TypeVar("B", bound=FailureBudget)
Budgets = Mapping[str, FailureBudget]
"""Failure budget of every part, by its name."""


def make_budgets(config: RewardConfig, kind: type[B]) -> dict[str, B]:
    """Return a failure budget for each part of a reward, by its name.

    kind: class of the budgets.
    """
    part_budgets = {name: kind(part.failures, name) for name, part in config.parts.items()}
    judge_budget = kind(config.failures, no_answer_budget=config.no_answer_budget)
    return {JUDGE: judge_budget} | part_budgets


def _compute_tail_probability(failed: int, count: int, share: float) -> float:
    """Return the binomial probability of at least `failed` failures among `count`.

    share: probability of one failure.
    """
    if share >= 1:
        return 1.0
    term, fewer = (1 - share) ** count, 0.0
    for k in range(failed):
        fewer += term
        term *= (count - k) / (k + 1) * share / (1 - share)
    return max(0.0, 1 - fewer)


class Fallback:
    """Replaces failed judgements by a number, for trainers that need one.

    The number depends on the rewards of the call alone. neutral: the shaped middle of the judge's
    scale. Its attribute `used` counts the replacements.
    """

    def __init__(self, config: FailureConfig, neutral: float) -> None:
        self._config = config
        self._neutral = neutral
        self.used = 0

    def fill(self, values: Sequence[float | None], groups: Sequence[GroupKey]) -> list[float]:
        """Return the values in order, with a number for each None.

        The fallback `group` is the mean of the group's valid values, else the neutral value. Raises
        ConfigError if it is set and a response is alone in its group.
        """
        if self._config.fallback == "group":
            require_groups("failures.fallback", groups)
        valid: dict[GroupKey, list[float]] = {}
        for value, group in zip(values, groups, strict=True):
            if value is not None:
                valid.setdefault(group, []).append(value)
        return [
            self._choose_substitute(valid.get(group, [])) if value is None else value
            for value, group in zip(values, groups, strict=True)
        ]

    def _choose_substitute(self, group: list[float]) -> float:
        self.used += 1
        rule = self._config.fallback
        if not isinstance(rule, str):
            return rule
        if rule == "group" and group:
            return sum(group) / len(group)
        return self._neutral
