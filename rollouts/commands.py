"""Commands that run a policy (`autoj best-of-n`, `autoj train` for policies), and those that read
their run files: `autoj plan` and `autoj preview`."""

from __future__ import annotations

from typing import Any

from autoj_reward.cli import inspection
from autoj_reward.cli.main import (
    CONFIG,
    RUN,
    SET,
    STRICT,
    STRICT_KEYS,
    calling,
    command,
    flag,
)

TRAIN = "rollouts.train.main:main"

best_of_n = calling("rollouts.best_of_n.job:main", RUN, SET, STRICT)
ppo = calling(TRAIN, RUN, SET, STRICT_KEYS, algorithm="ppo")
grpo = calling(TRAIN, RUN, SET, STRICT_KEYS, algorithm="grpo")
rloo = calling(TRAIN, RUN, SET, STRICT_KEYS, algorithm="rloo")
online_dpo = calling(TRAIN, RUN, SET, STRICT_KEYS, algorithm="online-dpo")
rejection_sampling = calling(TRAIN, RUN, SET, STRICT_KEYS, algorithm="rejection-sampling")
preview = calling(
    "rollouts.preview:main",
    CONFIG,
    SET,
    flag("--input", metavar="FILE", dest="source", help="rows to show (the run file's input)"),
    flag("--rows", type=int, default=3, metavar="N", dest="count", help="rows to show (3)"),
    flag(
        "--response",
        action="append",
        default=[],
        metavar="TEXT",
        dest="responses",
        help="response to judge in rows without one; repeat it for a group",
    ),
)

ACCELERATE = flag("--accelerate", metavar="FILE", help="accelerate's config that trains --config")
PROCESSES = flag("--processes", type=int, metavar="N", help="GPUs that train, over that file's")


@command(*inspection.plan.flags, CONFIG, SET, ACCELERATE, PROCESSES)
def plan(
    config: str | None, sets: list[str], accelerate: str | None, processes: int | None, **keys: Any
) -> int:
    """Print the GPU memory of a run file's engines and trainings, and the rates of its judges.

    Without a run file, print the rate of a judge."""
    if config is None:
        return inspection.plan.run(**keys)
    from rollouts.plan import main

    return main(config, sets, accelerate, processes, **keys)
