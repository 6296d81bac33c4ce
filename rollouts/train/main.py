"""What `autoj train` does around every TRL trainer: prompts and policy in, judge beside it, logs.

    autoj train grpo --config configs/trainers/grpo.yaml

The trainers are TRL's own. The run's folder gets checkpoints, TensorBoard logs (`logs/`), every
judgement (`journal.sqlite`) and the trained policy (`policy/`). The same command after a stop goes
on from the last checkpoint.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from autoj_reward.errors import BudgetExceeded
from autoj_reward.io.claims import claim
from autoj_reward.io.files import require_apart
from autoj_reward.models.unused import load_run
from autoj_reward.processes import processes
from autoj_reward.training.common import log_to, require_fit
from rollouts.plan import training_load
from rollouts.train.config import TrainConfig
from rollouts.train.learner import load_learner, named, require_arguments
from rollouts.train.placement import beside_judge, is_main_process

ALGORITHMS = {
    "ppo": ("rollouts.train.ppo:train", "trl.experimental.ppo:PPOConfig"),
    "grpo": ("rollouts.train.online:train_grpo", "trl:GRPOConfig"),
    "rloo": ("rollouts.train.online:train_rloo", "trl:RLOOConfig"),
    "online-dpo": (
        "rollouts.train.online:train_online_dpo",
        "trl.experimental.online_dpo:OnlineDPOConfig",
    ),
}
"""The function that trains, and the class of the trainer's arguments."""


def main(algorithm: str, config: str, sets: Sequence[str] = (), strict: bool = False) -> int:
    """Train by one of ALGORITHMS, or by rejection sampling; prints where the policy is."""
    if algorithm == "rejection-sampling":
        from rollouts.train import rejection_sampling

        return rejection_sampling.main(config, sets, strict)
    checked = load_run(TrainConfig, config, sets, strict)
    read = (checked.input, checked.learner.model)
    require_apart(read, [checked.reward.journal], checked.output)
    train, arguments = ALGORITHMS[algorithm]
    require_arguments("trainer", checked.trainer, arguments)
    require_fit(lambda: training_load(checked, algorithm, processes()))
    claim(checked.output, checked, changeable={"output", "save_steps"})
    log_to(checked.output / "logs")
    if is_main_process():
        print(f"to watch: autoj watch {shlex.quote(str(checked.output))}", file=sys.stderr)
    journal = checked.reward.journal or checked.output / "journal.sqlite"
    reward = checked.reward.model_copy(update={"journal": journal})
    with beside_judge(reward, checked.threads) as model:
        learner = load_learner(checked)
        try:
            named(train)(checked, learner, model)
        except BudgetExceeded as error:
            raise BudgetExceeded(
                f"{error} (the same command goes on from the last checkpoint in {checked.output})"
            ) from error
    if is_main_process():
        print(f"policy: {checked.output / 'policy'}")
    return 0
