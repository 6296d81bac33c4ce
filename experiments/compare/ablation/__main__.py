"""Rewards compared on the same candidates: the judge's views, a scalar reward model, baselines.

    python -m experiments.compare.ablation --config configs/experiments/ablation.yaml

`--parts direct,scalar` runs some of its parts alone.

The policy's candidates are graded by a program (or a gold judge) and scored by every reward: best
of N by gold, correlation with gold overall and within a query, ties, cost, over-optimization, and
what length does to a reward. Parts: `direct` (the judge's rating slot right after the prompt),
`scalar`, `critique` (greedy, its rating and expected rating) and `eval_p` (labelled pairs). One
model is loaded at a time, and everything is in the journal before it is used, so the same command
goes on where it stopped. Results: ablation.json, .md and plots, .svg.
"""

from __future__ import annotations

import sys

from autoj_reward.judge.make import judge_name
from autoj_reward.replicas.replica import policy_name
from experiments.compare.ablation.config import PARTS, RewardAblationConfig
from experiments.compare.ablation.figures import figures
from experiments.compare.ablation.gather import gather
from experiments.compare.ablation.report import plots, render
from experiments.study import Study, command


async def study(run: Study[RewardAblationConfig]) -> str:
    """Sample, grade, score and measure. Raises AutojError."""
    config = run.config
    gathered, bad = await gather(config, run.parts, run.limit)
    found = {
        "policy": policy_name(config.policy),
        "judges": {name: judge_name(config.judges[name]) for name in gathered.answers},
        "gold": judge_name(config.gold) if config.gold else "program",
        "left_out": bad,
    }
    return run.write("ablation", found | figures(gathered), render, plots)


main = command(RewardAblationConfig, study, PARTS, limit="queries and rows")

if __name__ == "__main__":
    sys.exit(main())
