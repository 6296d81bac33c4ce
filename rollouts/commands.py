"""`autoj best-of-n`, and `autoj train` for policies: the jobs in which a policy speaks."""

from __future__ import annotations

from autoj_reward.commands.flags import RUN, SET, STRICT, calling

TRAIN = "rollouts.train.main:main"

best_of_n = calling("rollouts.best_of_n.job:main", RUN, SET, STRICT)
ppo = calling(TRAIN, RUN, SET, algorithm="ppo")
grpo = calling(TRAIN, RUN, SET, algorithm="grpo")
rloo = calling(TRAIN, RUN, SET, algorithm="rloo")
online_dpo = calling(TRAIN, RUN, SET, algorithm="online-dpo")
rejection_sampling = calling(TRAIN, RUN, SET, algorithm="rejection-sampling")
