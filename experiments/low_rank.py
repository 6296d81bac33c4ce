"""Matrices of a merged model, written back into the LoRA adapter that it was merged from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
SMALLEST = 1e-4
"""Singular values below this share of the largest are left out: float16 keeps no more."""


def factors(change: Tensor) -> tuple[Tensor, Tensor]:
    """A [rank, inputs] and B [outputs, rank] with B A = change, of the least rank that float16
    tells."""
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
