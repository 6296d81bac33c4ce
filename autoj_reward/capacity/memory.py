"""What a training takes of each GPU's memory, part by part, before anything is loaded.

docs/capacity.md states the rules and what they leave out.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoj_reward.capacity.shape import ModelShape
from autoj_reward.errors import ConfigError

GIB = 2**30
ADAM = 8
"""Bytes of a weight's two moments; the weight and its gradient take four each."""
LOGITS = 10
"""Bytes of a logit in a step: in half precision, in float32, and its gradient."""
RESERVE_GIB = 3.0
"""CUDA's and NCCL's own, and what the allocator cannot use."""


@dataclass(frozen=True, slots=True)
class Training:
    """One step's load. lora_rank: None trains all weights, which then are float32; a LoRA base is
    in half precision. learners: models that are trained on one base (2: policy and value).
    references: frozen copies of the whole model beside it. sequences: at a time on one GPU.
    length: tokens of each, of which `written` were sampled. sampled: sequences that a GPU samples
    at once. scores: float32 logits kept of everything sampled, by how many copies."""

    shape: ModelShape
    sequences: int
    length: int
    lora_rank: int | None = None
    learners: int = 1
    references: int = 0
    checkpointing: bool = True
    sampled: int = 0
    written: int = 0
    scores: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a training runs. gpus: one process on each. sharded: FSDP shares weights, gradients and
    optimizer states out; without it every GPU holds them whole."""

    memory_gib: float
    gpus: int = 1
    sharded: bool = False


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Of LoRA on every linear layer of the blocks."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * (shape.hidden + queries) + 2 * (shape.hidden + keys)
    return shape.layers * rank * (attention + 3 * (shape.hidden + shape.intermediate))


def parts(training: Training, place: Place) -> dict[str, float]:
    """GiB on each GPU by part."""
    shape, shares = training.shape, place.gpus if place.sharded else 1
    whole = shape.parameters
    if training.lora_rank is None:
        trained, base = training.learners * whole, 4 * training.learners * whole
    else:
        trained = training.learners * adapter_parameters(shape, training.lora_rank)
        base = 2 * whole + 4 * trained
    frozen = training.references * whole * (4 if training.lora_rank is None else 2)
    tokens = training.sequences * training.length
    found = {
        "weights": base / shares,
        "gradients": 4 * trained / shares,
        "optimizer": ADAM * trained / shares,
        "references": frozen / shares,
        "a step's copies": _copies(training, place, trained),
        "activations": tokens * _activations(training),
        "logits": tokens * shape.vocabulary * LOGITS,
        "sampling": training.sampled * training.length * shape.kv_bytes("bf16")
        + 4 * training.scores * training.sampled * training.written * shape.vocabulary,
    }
    return {name: size / GIB for name, size in found.items() if size} | {"reserve": RESERVE_GIB}


def require_room(training: Training, place: Place) -> dict[str, float]:
    """The parts, if they fit. Raises ConfigError with all of them."""
    found = parts(training, place)
    if sum(found.values()) <= place.memory_gib:
        return found
    shared = "shared out by FSDP" if place.sharded else "each of which holds everything"
    lighter = ["a smaller device_batch_size"]
    if training.lora_rank is None:
        lighter.append("LoRA")
    if not training.checkpointing:
        lighter.append("gradient_checkpointing")
    if not place.sharded and training.lora_rank is None:
        lighter.append("accelerate launch with configs/trainers/accelerate_fsdp.yaml")
    raise ConfigError(
        f"{training.shape.name} does not fit: a step takes {listed(found)}, of {place.gpus} GPUs "
        f"with {place.memory_gib:.1f} GiB, {shared}: take {', '.join(lighter)}, or more GPUs"
    )


def listed(found: dict[str, float]) -> str:
    """The sum and its parts, in words."""
    each = ", ".join(f"{name} {size:.1f}" for name, size in found.items())
    return f"{sum(found.values()):.1f} GiB ({each})"


def _copies(training: Training, place: Place, trained: int) -> float:
    """What a step makes of the weights: autocast's halves and DDP's buckets, or with FSDP the two
    blocks that are whole at a time, their gradients, and embedding and head."""
    shape = training.shape
    if place.sharded:
        block = shape.blocks / shape.layers
        return 2 * block * (2 + 4) + 2 * shape.head * (2 + 4)
    halves = 2 * trained if training.lora_rank is None else 0
    return halves + (4 * trained if place.gpus > 1 else 0)


def _activations(training: Training) -> float:
    """Bytes a token: what a block keeps for its backward pass, for all blocks, or for the one
    that is recomputed beside every block's input."""
    shape = training.shape
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    block = 2 * (6 * shape.hidden + 2 * (queries + 2 * keys) + 4 * shape.intermediate)
    whole = training.learners * shape.layers
    return 4 * whole * shape.hidden + block if training.checkpointing else whole * block
