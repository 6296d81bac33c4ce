"""From judgements to rewards: the arithmetic of a reward, which asks no judge."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoj_reward.config import JUDGE, RewardConfig
from autoj_reward.judge.health import BOUNDS, CHECK_EVERY, JudgeHealth
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.trainer.no_answer import fill_lowest, keep_lowest
from autoj_reward.trainer.parts import Parts, Reward
from autoj_reward.trainer.shaping import Budgets, FailureBudget, Fallback, Shaper, make_budgets
from autoj_reward.types import Candidate, Comparison, Judgement, Outcome, group_key

LOG = logging.getLogger("autoj_reward.trainer")
RECENT = 4096
"""Limit on rewards kept for the next log entry."""


class RewardRule:
    """The rule that turns judgements into rewards: parts, shaping, fallback and failure budget.

    It also watches the main judge's health, and logs its alarms as warnings.

    Attributes: `parts`, the reward's parts and their scales; `health`, of the main judge.
    """

    def __init__(self, config: RewardConfig, specs: Mapping[str, JudgeSpec]) -> None:
        """specs: the judges of the config, as `reward_judges` returns them."""
        self.parts = Parts(config, specs)
        self.health = JudgeHealth()
        self._budgets: Budgets = make_budgets(config, FailureBudget)
        self._shape = Shaper(config.shaping)
        self._gives_lowest = config.no_answer == "lowest"
        self._waits_for = config.when
        self._counts_thinking = config.shaping.length_of == "response"
        # The source's turns, whichever of them the judge reads.
        self._answers = replace(specs[JUDGE].asks, shows=None, shows_thinking=False)
        self._fallback = Fallback(config.failures, self._shape.neutral(self.parts.middle))
        self._recent: deque[tuple[Candidate, Reward]] = deque(maxlen=RECENT)
        self._alarms: tuple[str, ...] = ()
        self._unchecked = 0

    @property
    def fallbacks(self) -> int:
        """Return the number of fallbacks that `numbers` has returned in this run."""
        return self._fallback.used

    def count(
        self,
        candidates: Sequence[Candidate],
        answers: Mapping[str, Sequence[Judgement | None]],
        budgets: Budgets | None = None,
    ) -> None:
        """Count the judgements of each part in its failure budget, and in the judge's health.

        budgets: those of the calling run, in place of this rule's. Raises BudgetExceeded.
        """
        self._watch_health(candidates, answers[JUDGE])
        for name, budget in (budgets or self._budgets).items():
            budget.count([judgement for judgement in answers[name] if judgement])

    def count_comparisons(self, comparisons: Sequence[Comparison]) -> None:
        """Count the judgements of comparisons in the main judge's failure budget.

        Raises BudgetExceeded.
        """
        orders = [order for comparison in comparisons for order in comparison.orders]
        self._budgets[JUDGE].count(orders)

    def values(
        self, answers: Mapping[str, Sequence[Judgement | None]]
    ) -> list[dict[str, float | None]]:
        """Return, for each response, each part's number in its own unit."""
        values = []
        for n in range(len(answers[JUDGE])):
            values.append(self.parts.values({name: part[n] for name, part in answers.items()}))
        return values

    def rewards(
        self,
        candidates: Sequence[Candidate],
        answers: Mapping[str, Sequence[Judgement | None]],
        values: Sequence[Mapping[str, float | None]],
        audit: Mapping[str, float],
    ) -> list[Reward]:
        """Return one reward for each candidate, in order.

        answers: judgements of each part. values: as `values` returns them. audit: metrics of the
        audit, which the rewards carry. Raises ConfigError if shaping needs whole groups and a
        response is alone in its group.
        """
        judgements = answers[JUDGE]
        raw = [self.parts.reward(part_values) for part_values in values]
        groups = [group_key(candidate) for candidate in candidates]
        responses = [candidate.for_judge(self._answers).response for candidate in candidates]
        texts = [response.text for response in responses]
        if self._counts_thinking:
            texts = [response.thinking + response.text for response in responses]
        unanswered = [
            judgement is not None and judgement.outcome is Outcome.NO_ANSWER
            for judgement in judgements
        ]
        if self._gives_lowest:
            raw = fill_lowest(raw, unanswered, groups, self.parts.worst)
        else:
            raw = [None if u else value for u, value in zip(unanswered, raw, strict=True)]
        shaped = self._shape(raw, texts, groups)
        if self._gives_lowest:
            shaped = keep_lowest(shaped, unanswered, groups)
        rewards = []
        for n, judgement in enumerate(judgements):
            is_asked = judgement is not None
            if judgement is None:
                # The part that the main judge waits for has a number here.
                judgement = answers[self._waits_for or JUDGE][n]
                assert judgement is not None
            shown_values = {} if self.parts.alone else values[n]
            rewards.append(
                Reward(
                    judgement,
                    raw[n],
                    shaped[n],
                    shown_values,
                    len(responses[n].thinking),
                    audit,
                    is_asked,
                )
            )
        self._recent.extend(zip(candidates, rewards, strict=True))
        return rewards

    def numbers(self, rewards: Sequence[Reward], candidates: Sequence[Candidate]) -> list[float]:
        """Return the rewards' values, with the configured fallback where one abstains.

        Raises ConfigError if the fallback is `group` and a response is alone in its group.
        """
        groups = [group_key(candidate) for candidate in candidates]
        return self._fallback.fill([reward.value for reward in rewards], groups)

    def recent(self) -> list[tuple[Candidate, Reward]]:
        """Return the rewards since the last call, at most the newest RECENT, for a log."""
        return [self._recent.popleft() for _ in range(len(self._recent))]

    def _watch_health(
        self, candidates: Sequence[Candidate], judgements: Sequence[Judgement | None]
    ) -> None:
        for candidate, judgement in zip(candidates, judgements, strict=True):
            if judgement:
                answer = candidate.for_judge(self._answers).response
                self.health.observe(judgement, len(answer.text))
        self._unchecked += len(judgements)
        # The alarms need sorts over the window, so they are looked at now and then.
        if self._unchecked < CHECK_EVERY:
            return
        self._unchecked = 0
        alarms = self.health.alarms()
        for name in alarms:
            if name not in self._alarms:
                value = self.health.figures()[name]
                LOG.warning("judge health alarm: %s is %.3g, over %g", name, value, BOUNDS[name])
        self._alarms = alarms
