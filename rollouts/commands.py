"""Commands that run a policy (`autoj best-of-n`, `autoj train` for policies), and those that read
their run files: `autoj plan` and `autoj preview`."""

from __future__ import annotations

from autoj_reward.cli.main import (
    CONFIG,
    LAYOUT,
    RUN,
    SET,
    STRICT,
    STRICT_KEYS,
    calling,
    flag,
)

TRAIN = "rollouts.train.main:main"

best_of_n = calling(
    "rollouts.best_of_n.job:main",
    CONFIG,
    flag("--input", metavar="FILE", dest="source", help="input rows (the run file's input)"),
    flag("--output", metavar="FOLDER", help="output folder (the run file's output)"),
    *(SET, LAYOUT, STRICT),
)
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

plan = calling(
    "rollouts.plan:main",
    flag(
        "--gpu",
        required=True,
        metavar="NAME",
        help="name of a GPU, such as h100, or custom with --memory",
    ),
    flag("--memory", type=float, metavar="GIB", help="memory of a custom GPU"),
    flag(
        "--model",
        metavar="NAME",
        help="judge to plan without a run file: a known model, or a folder with config.json",
    ),
    *(CONFIG, SET, ACCELERATE, PROCESSES),
    flag("--json", action="store_true", dest="as_json", help="print JSON instead of a table"),
)
