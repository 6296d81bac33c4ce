"""LoRA adapters as files: the mean of several, and merged matrices written back into one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from autoj_reward.errors import InputError

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
SMALLEST = 1e-4
"""Singular values below this share of the largest are left out: float16 keeps no more."""


def average(adapters: dict[Path, float], target: Path) -> None:
    """Write the weighted mean of adapters, each trained on from the one before.

    Training on ranking costs some of the rating accuracy that the earlier training gave; a mean of
    the two adapters keeps most of both (averaged weights: arXiv 2109.01903). The LoRA factors A and
    B are averaged separately. This is close to the mean of their products, because one adapter was
    trained on from the other.

    adapters: folder to weight; the weights sum to 1. target: folder that is written. Raises
    InputError for adapters of different shapes.
    """
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


def factors(change: Tensor) -> tuple[Tensor, Tensor]:
    """Factor a weight change [outputs, inputs] into A [rank, inputs] and B [outputs, rank], so that
    B A = change, with the smallest rank that float16 can express."""
    left, values, right = torch.linalg.svd(change.double(), full_matrices=False)
    rank = max(1, int((values > SMALLEST * values[0]).sum()))
    root = values[:rank].sqrt()
    return root[:, None] * right[:rank], left[:, :rank] * root


def write_adapter(adapter: Path, base: str, changed: Mapping[str, Tensor], target: Path) -> None:
    """Write the adapter with some modules' merged weights in place of its own for them.

    base: folder of the model it belongs to. changed: weights by module name. Raises KeyError for a
    module that the adapter does not have.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    facts = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
    own = load_file(adapter / WEIGHTS)
    scale = facts["lora_alpha"] / facts["r"]
    with safe_open(str(Path(base) / "model.safetensors"), "pt") as weights:
        for module, now in changed.items():
            first, second = (f"base_model.model.{module}.lora_{n}.weight" for n in "AB")
            kind = own[first].dtype
            a, b = factors((now - weights.get_tensor(f"{module}.weight").float()) / scale)
            own[first], own[second] = a.to(kind).contiguous(), b.to(kind).contiguous()
            facts["rank_pattern"][module] = len(a)
            facts["alpha_pattern"][module] = len(a) * scale
    target.mkdir(parents=True, exist_ok=True)
    save_file(own, target / WEIGHTS, metadata={"format": "pt"})
    (target / CONFIG).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
