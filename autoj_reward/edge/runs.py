"""Failure budgets of the training runs that share one service."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from autoj_reward.config import RewardConfig
from autoj_reward.edge.token import in_address
from autoj_reward.errors import BudgetExceeded
from autoj_reward.trainer.failures import FailureBudget, budgets_of
from autoj_reward.types import Judgement

RUN_HEADER = "x-run"
RUNS = 256
"""Runs whose failures are remembered; those that asked longest ago are forgotten first."""
OVER_S = 60.0
"""A refused run that has not asked for so many seconds is over: who asks by its name is new."""


class RunBudget(FailureBudget):
    """A spent budget that refuses only calls with a failure: what is judged well is answered."""

    spent = False

    def count(self, judgements: Sequence[Judgement]) -> None:
        """BudgetExceeded if the run's budget is spent and one of these has failed."""
        try:
            super().count(judgements)
            self.spent = False
        except BudgetExceeded:
            self.spent = True
            if not all(judgement.ok for judgement in judgements):
                raise


class Runs:
    """The budgets of each run, by its name."""

    def __init__(self, config: RewardConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._config, self._now = config, now
        self._runs: OrderedDict[str, tuple[dict[str, RunBudget], float]] = OrderedDict()

    def budgets(self, name: str) -> dict[str, RunBudget]:
        """The budgets of a run that asks now, by part."""
        found, asked = self._runs.pop(name, ({}, 0.0))
        spent = any(budget.spent for budget in found.values())
        if not found or (spent and self._now() - asked > OVER_S):
            found = budgets_of(self._config, RunBudget)
        self._runs[name] = found, self._now()
        if len(self._runs) > RUNS:
            self._runs.popitem(last=False)
        return found


def run_name(authorization: str, header: str = "") -> str:
    """The name that a caller gives its run: the header X-Run, or the user in its address
    (http://RUN:TOKEN@host). Empty for callers that give none: they share one budget."""
    return (header or in_address(authorization)[0])[:80]
