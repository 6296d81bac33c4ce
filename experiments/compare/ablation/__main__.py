"""Rewards compared on the same candidates: the judge's views, a scalar reward model, baselines.

    python -m experiments.compare.ablation --config configs/ablation.yaml [--parts direct,scalar]

The policy's candidates are graded by a program (or a gold judge) and scored by every reward: best
of N by gold, correlation with gold overall and within a query, ties, cost, over-optimization, and
what length, formatting and position do to a reward. Parts: `direct` (the judge's rating slot right
after the prompt), `scalar`, `critique` (greedy, its rating and expected rating), `sampled` (k
sampled critiques), `knockout` (comparisons), `eval_p` (labelled pairs) and `policies` (trained
ones). One model is loaded at a time, and everything is in the journal before it is used, so the
same command goes on where it stopped. Results: ablation.json, report.md and report.html.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import yaml

from autoj_reward.io.files import plain, write_json, write_text
from autoj_reward.io.provenance import describe_machine, installed_versions
from autoj_reward.judge.make import judge_name
from autoj_reward.replicas.replica import policy_name
from autoj_reward.types import BadRow
from experiments.compare.ablation.config import PARTS, RewardAblationConfig
from experiments.compare.ablation.figures import figures
from experiments.compare.ablation.gather import gather
from experiments.compare.ablation.report import render_page, render_text
from experiments.study import parts_flag, run_command


async def run(
    config: RewardAblationConfig, parts: tuple[str, ...], command: str, limit: int | None = None
) -> dict[str, Any]:
    """Sample, grade, score and measure; returns what is in `ablation.json`. Raises AutojError."""
    gathered, bad = await gather(config, parts, limit)
    found = _head(config, parts, command, list(gathered.answers), bad) | plain(figures(gathered))
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    write_json(config.output / "ablation.json", found)
    write_text(config.output / "report.md", render_text(found))
    write_text(config.output / "report.html", render_page(found, text))
    return found


def _head(
    config: RewardAblationConfig,
    parts: Sequence[str],
    command: str,
    asked: Sequence[str],
    bad: Sequence[BadRow],
) -> dict[str, Any]:
    return {
        "command": command,
        "at": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "versions": installed_versions(),
        "parts": list(parts),
        "policy": policy_name(config.policy),
        "judges": {name: judge_name(config.judges[name]) for name in asked},
        "gold": judge_name(config.gold) if config.gold else "program",
        "critiques": config.critiques,
        "bootstrap": config.bootstrap,
        "left_out": [plain(row) for row in bad],
        "left_out_by_file": dict(Counter(row.file for row in bad)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the tables."""

    def work(config: RewardAblationConfig, flags: argparse.Namespace, command: str) -> str:
        found = asyncio.run(run(config, config.parts(flags.parts), command, flags.limit))
        return f"{render_text(found)}\nreport: {config.output / 'report.html'}"

    extra = parts_flag(PARTS) | {
        "--limit": {"type": int, "metavar": "N", "help": "queries and rows, for a quick look"},
    }
    return run_command(
        "experiments.compare.ablation", __doc__, RewardAblationConfig, work, arguments, extra
    )


if __name__ == "__main__":
    sys.exit(main())
