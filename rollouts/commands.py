"""`autoj best-of-n`, and `autoj train` for policies: the jobs in which a policy speaks."""

from __future__ import annotations

from collections.abc import Sequence

from autoj_reward.commands.flags import RUN, SET, STRICT, Command, command


@command(RUN, SET, STRICT)
def best_of_n(config: str, sets: Sequence[str], strict: bool) -> int:
    """Judge N responses a query, and keep the best; print where the results are."""
    from rollouts.best_of_n.job import main

    return main(config, sets, strict)


def _trainer(algorithm: str) -> Command:
    @command(RUN, SET)
    def train(config: str, sets: Sequence[str]) -> int:
        from rollouts.train.main import main

        return main(algorithm, config, sets)

    return train


ppo = _trainer("ppo")
grpo = _trainer("grpo")
rloo = _trainer("rloo")
online_dpo = _trainer("online-dpo")
rejection_sampling = _trainer("rejection-sampling")
