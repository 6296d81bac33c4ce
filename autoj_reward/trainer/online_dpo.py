"""TRL online DPO that learns from decided pairs alone.

    reward = OnlineDPOReward(model)
    trainer = DecidedPairsTrainer(reward_funcs=reward.compare, ...)

TRL's trainer calls the first of two equally rewarded responses the better one, so that a judge
which cannot tell would teach that first is better.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from trl.experimental.online_dpo import OnlineDPOTrainer


class DecidedPairsTrainer(OnlineDPOTrainer):
    """TRL's OnlineDPOTrainer, but a pair with equal rewards has no gradient.

    Such a pair adds a constant to the loss and zeros to the logged means of log-probabilities, and
    the others weigh what they would beside a decided one. The log has its share as
    `judge/undecided`, 0..1. A `missing_eos_penalty` decides no pair that the rewards do not.
    """

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        return self._noted(super()._generate(*args, **kwargs))

    def _generate_vllm(self, *args: Any, **kwargs: Any) -> Any:
        return self._noted(super()._generate_vllm(*args, **kwargs))

    def _noted(self, generated: Any) -> Any:
        """generated: prompt ids and mask, completion ids and mask, first completions on top."""
        self._completion_mask = generated[3]
        return generated

    def _calculate_rewards_from_functions(self, *args: Any, **kwargs: Any) -> Tensor:
        """Sums of the rewards; empties the completions of equal pairs before TRL sums over their
        tokens."""
        rewards: Tensor = super()._calculate_rewards_from_functions(
            *args, **kwargs, ties_left_out=True
        )
        first, second = rewards.chunk(2)
        undecided = first == second
        self._completion_mask[undecided.repeat(2)] = 0
        share = self.accelerator.gather_for_metrics(undecided.float().mean()).mean().item()
        self.stats.setdefault("judge/undecided", []).append(share)
        return rewards
