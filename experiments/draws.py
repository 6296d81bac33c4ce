"""How the intervals of a study are drawn."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoj_reward.evaluate.metrics import Estimate, Statistic, bootstrap

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Draws:
    """Resamples of each 95 % interval, and their seed."""

    rounds: int = 2000
    seed: int = 0

    def mean(self, values: Array) -> Estimate:
        """Mean over the queries where it is defined; n counts these."""
        known = values[~np.isnan(values)]
        return self.over(lambda rows: float(known[rows].mean()), len(known))

    def over(
        self, statistic: Statistic, rows: int, groups: Sequence[Hashable] | None = None
    ) -> Estimate:
        """A statistic over rows, resampled one by one or in whole groups."""
        return bootstrap(statistic, rows, groups=groups, rounds=self.rounds, seed=self.seed)
