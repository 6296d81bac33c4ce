"""TRL online DPO that trains on decided pairs only.

    reward = OnlineDPOReward(model)
    trainer = DecidedPairsTrainer(reward_funcs=reward.compare, ...)

TRL's own trainer takes the first of two responses with equal rewards as the better one. With a
judge that cannot tell them apart, it would learn that the first is better.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from trl.experimental.online_dpo import OnlineDPOTrainer


class DecidedPairsTrainer(OnlineDPOTrainer):
    """TRL's OnlineDPOTrainer, except that a pair with equal rewards has no gradient.

    Such a pair adds a constant to the loss, and zeros to the logged means of log-probabilities. The
    other pairs keep their weight in the batch. The log holds the share of such pairs as
    `judge/undecided`, 0 to 1. `missing_eos_penalty` does not decide a pair with equal rewards.
    """

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        return self._keep_mask(super()._generate(*args, **kwargs))

    def _generate_vllm(self, *args: Any, **kwargs: Any) -> Any:
        return self._keep_mask(super()._generate_vllm(*args, **kwargs))

    def _keep_mask(self, generated: Any) -> Any:
        """Keep the completion mask of generated tokens, for the rewards.

        generated: prompt ids and mask, completion ids and mask, with all first completions before
        all second.
        """
        self._completion_mask = generated[3]
        return generated

    def _calculate_rewards_from_functions(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the summed rewards, and mask the completions of equal pairs.

        TRL sums over the mask's tokens afterwards, so masked completions have no gradient.
        """
        rewards: Tensor = super()._calculate_rewards_from_functions(
            *args, **kwargs, ties_left_out=True
        )
        first, second = rewards.chunk(2)
        undecided = first == second
        self._completion_mask[undecided.repeat(2)] = 0
        share = self.accelerator.gather_for_metrics(undecided.float().mean()).mean().item()
        self.stats.setdefault("judge/undecided", []).append(share)
        return rewards
