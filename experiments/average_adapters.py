"""The weighted mean of LoRA adapters of one lineage: what one training brought beside another.

    python -m experiments.average_adapters --config configs/average_default_judge.yaml

A training that orders responses takes something of the ratings that an earlier one taught; between
the two lie adapters with most of both (weights of one lineage may be averaged: arXiv 2109.01903).
The factors A and B are averaged each for itself, which is near the mean of their products where one
adapter went on from the other. Writes a folder of an adapter and its merged judge beside it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pydantic import Field, field_validator

from autoj_reward.config import JudgeConfig
from autoj_reward.errors import InputError
from autoj_reward.models import resolve
from autoj_reward.training.adapters import merge_adapter
from experiments.study import Study, StudyConfig, command

WEIGHTS = "adapter_model.safetensors"


class AverageConfig(StudyConfig):
    """model: the base of all. adapters: folders and their weights, which sum to 1. output: a folder
    that gets `adapter/` and `judge/`."""

    model: str
    adapters: dict[Path, float] = Field(min_length=1)

    @field_validator("adapters")
    @classmethod
    def _sum(cls, adapters: dict[Path, float]) -> dict[Path, float]:
        if abs(sum(adapters.values()) - 1) > 1e-6:
            raise ValueError(f"the weights sum to {sum(adapters.values()):g}, not to 1")
        return adapters


def average(adapters: dict[Path, float], target: Path) -> None:
    """Write the mean adapter. Raises InputError for adapters of different shapes."""
    from safetensors.torch import load_file, save_file

    loaded = {folder: load_file(folder / WEIGHTS) for folder in adapters}
    first = next(iter(loaded.values()))
    for folder, own in loaded.items():
        if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in first.items()}:
            raise InputError(f"{folder}: not of the layers and rank of {next(iter(loaded))}")
    mean = {
        name: sum(w * loaded[folder][name].float() for folder, w in adapters.items()).to(kind.dtype)
        for name, kind in first.items()
    }
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(next(iter(adapters)) / "adapter_config.json", target)
    save_file(mean, target / WEIGHTS, metadata={"format": "pt"})


async def study(run: Study[AverageConfig]) -> str:
    """Average, and merge into the base."""
    from transformers import AutoTokenizer

    config = run.config
    average(config.adapters, config.output / "adapter")
    base = resolve(JudgeConfig(model=config.model)).path
    tokenizer = AutoTokenizer.from_pretrained(base)
    merge_adapter(base, None, config.output / "adapter", tokenizer, config.output / "judge")
    return f"adapter and judge: {config.output}"


main = command(AverageConfig, study)

if __name__ == "__main__":
    sys.exit(main())
