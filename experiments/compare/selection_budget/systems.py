"""Outputs of ranked systems as candidates: real ones, for the systems' places are known."""

from __future__ import annotations

from autoj_reward.evaluate.labelled import JudgeData, data_path
from autoj_reward.evaluate.rows import drawn
from autoj_reward.evaluate.systems import read_leaderboard, read_outputs
from experiments.compare.ablation.rewards import Group
from experiments.compare.selection_budget.config import Systems


def read_systems(config: Systems, data: JudgeData, seed: int) -> list[Group]:
    """The outputs to each instruction drawn, with their systems' figures as gold.

    data: where relative paths start. Raises InputError for bad rows, and systems without a figure.
    """
    outputs = read_outputs(data_path(data, config.outputs))
    known = read_leaderboard(data_path(data, config.leaderboard), config.column, outputs)
    gold = tuple(known[system] for system in outputs)
    return [
        Group(text, tuple(own[text] for own in outputs.values()), (None,) * len(gold), gold)
        for text in drawn(list(next(iter(outputs.values()))), config.instructions, seed)
    ]
