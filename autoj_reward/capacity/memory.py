"""Memory estimates before anything is loaded: weights, KV cache, and each part of a training step.

docs/run/capacity.md states the rules and what they omit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml

from autoj_reward.errors import ConfigError, ModelError

GIB = 2**30
ADAM = 8
"""Bytes of Adam's two moments for each weight. The weight and its gradient take four bytes each."""
LOGITS = 10
"""Bytes of each logit in a training step: in half precision, in float32, and its gradient."""
RESERVE_GIB = 3.0
"""GiB that CUDA and NCCL take, and that the allocator cannot use."""
Precision = Literal["float32", "bf16", "fp8"]
PRECISION_BYTES: dict[Precision, int] = {"float32": 4, "bf16": 2, "fp8": 1}
MODEL_TYPES = (
    "cohere", "gemma", "glm", "glm4", "granite", "llama", "ministral3", "mistral", "olmo2", "phi3",
    "qwen2", "qwen3", "seed_oss", "smollm3",
)  # fmt: skip
"""Supported `model_type` values: dense decoders with gated feed-forward blocks and the same kind of
attention in every layer.

`ModelShape` counts their parameters within 0.1 %. Other types are refused. transformers could count
them too, but its import takes 4 s, and a plan takes 0.2 s.
"""
TIED = ("cohere", "gemma")
"""Model types whose output head is the embedding, unless their config says otherwise."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a dense decoder, in elements.

    Biases and the norms of queries and keys are not counted; they are under 0.1 % of the
    parameters.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """Whether the embedding is the output head as well."""

    @property
    def blocks(self) -> int:
        """Parameters of all layers; each is multiplied with every token."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * (queries + keys)
        gated, norms = 3 * self.hidden * self.intermediate, 2 * self.hidden
        return self.layers * (attention + gated + norms)

    @property
    def head(self) -> int:
        """Parameters of the output head; the embedding has as many."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.blocks + self.hidden + self.head * (1 if self.tied else 2)

    def kv_bytes(self, precision: Precision) -> int:
        """Return the bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * PRECISION_BYTES[precision]

    def weight_bytes(self, precision: Precision) -> int:
        """Return the bytes of all weights in memory.

        With fp8, only the blocks are quantised. Head and embedding stay bf16, as in vLLM.
        """
        rest = self.parameters - self.blocks
        return (
            self.blocks * PRECISION_BYTES[precision]
            + rest * PRECISION_BYTES[unquantised(precision)]
        )


def unquantised(precision: Precision) -> Precision:
    """Return the precision of output head and attention, which are never quantised."""
    return "bf16" if precision == "fp8" else precision


@lru_cache
def known_shapes() -> dict[str, ModelShape]:
    """Return the shapes of the table by name, including the names of judges with that shape."""
    data = yaml.safe_load((Path(__file__).parent / "shapes.yaml").read_text(encoding="utf-8"))
    shapes: dict[str, ModelShape] = {}
    for name, entry in data.items():
        shape = shape_of(entry, name)
        shapes |= {alias: shape for alias in (name, *entry.get("known_as", ()))}
    return shapes


def find_shape(model: str) -> ModelShape:
    """Return the shape of a model in the table, or of a local folder. Raises ModelError."""
    if model in known_shapes():
        return known_shapes()[model]
    path = Path(model).expanduser() / "config.json"
    if not path.is_file():
        raise ModelError(
            f"no shape of {model!r}: name a folder with its config.json, or one of "
            f"{', '.join(known_shapes())}"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from error
    return shape_of(config, str(model), f"{path}: ")


def shape_of(config: dict[str, Any], name: str, where: str = "") -> ModelShape:
    """Return the shape in a transformers config.

    where: prefix of error messages. Raises ModelError if a key is missing or the `model_type` is
    not supported.
    """
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise ModelError(
            f"{where}model_type is {kind!r}: only dense decoders can be planned "
            f"({', '.join(MODEL_TYPES)})"
        )
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return ModelShape(
            name=name,
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(config["intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", kind in TIED)),
        )
    except KeyError as error:
        raise ModelError(
            f"{where}key {error} is missing: is this a model's config.json?"
        ) from error


def check_parallel(shape: ModelShape, devices: int) -> None:
    """Raise ConfigError unless attention heads and KV heads can be split or copied evenly."""
    fits = [
        n
        for n in range(1, shape.heads + 1)
        if shape.heads % n == 0 and (shape.kv_heads % n == 0 or n % shape.kv_heads == 0)
    ]
    if devices not in fits:
        raise ConfigError(
            f"tensor_parallel {devices} does not divide the {shape.heads} attention heads and "
            f"{shape.kv_heads} KV heads of {shape.name}: use one of {', '.join(map(str, fits))}"
        )


@dataclass(frozen=True, slots=True)
class Training:
    """Load of one training step."""

    shape: ModelShape
    sequences: int
    """Sequences in one device batch."""
    length: int
    """Tokens of each sequence, including `written` sampled ones."""
    lora_rank: int | None = None
    """LoRA rank. None trains all weights, in float32; with LoRA the base is in half precision."""
    learners: int = 1
    """Models that are trained on one base (2: policy and value)."""
    references: int = 0
    """Frozen copies of the whole model."""
    checkpointing: bool = True
    """Whether activations are recomputed in the backward pass."""
    sampled: int = 0
    """Sequences that a GPU samples at once."""
    written: int = 0
    """Sampled tokens of each sequence."""
    scores: int = 0
    """Copies of the sampled tokens' float32 logits that are kept."""


@dataclass(frozen=True, slots=True)
class TrainingDevices:
    """GPUs of a training run."""

    memory_gib: float
    """Memory of each GPU."""
    gpus: int = 1
    """Number of GPUs, with one process on each."""
    sharded: bool = False
    """Whether FSDP shards weights, gradients and optimizer states. Without it every GPU holds all
    of them."""


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Return the parameters of LoRA adapters on every linear layer of the blocks."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * (shape.hidden + queries) + 2 * (shape.hidden + keys)
    return shape.layers * rank * (attention + 3 * (shape.hidden + shape.intermediate))


def memory_parts(training: Training, place: TrainingDevices) -> dict[str, float]:
    """Return the GiB that a training step takes on each GPU, by part."""
    shape, shares = training.shape, place.gpus if place.sharded else 1
    parameters = shape.parameters
    if training.lora_rank is None:
        trained, base = training.learners * parameters, 4 * training.learners * parameters
    else:
        trained = training.learners * adapter_parameters(shape, training.lora_rank)
        base = 2 * parameters + 4 * trained
    frozen = training.references * parameters * (4 if training.lora_rank is None else 2)
    tokens = training.sequences * training.length
    part_bytes = {
        "weights": base / shares,
        "gradients": 4 * trained / shares,
        "optimizer": ADAM * trained / shares,
        "references": frozen / shares,
        "a step's copies": _count_copied_bytes(training, place, trained),
        "activations": tokens * _count_activation_bytes(training),
        "logits": tokens * shape.vocabulary * LOGITS,
        "sampling": training.sampled * training.length * shape.kv_bytes("bf16")
        + 4 * training.scores * training.sampled * training.written * shape.vocabulary,
    }
    return {name: size / GIB for name, size in part_bytes.items() if size} | {
        "reserve": RESERVE_GIB
    }


def require_memory(training: Training, place: TrainingDevices) -> dict[str, float]:
    """Return the memory parts if they fit. Raises ConfigError with all parts if they do not."""
    parts_gib = memory_parts(training, place)
    if sum(parts_gib.values()) <= place.memory_gib:
        return parts_gib
    shared = "shared out by FSDP" if place.sharded else "each of which holds everything"
    lighter = ["a smaller device_batch_size"]
    if training.lora_rank is None:
        lighter.append("LoRA")
    if not training.checkpointing:
        lighter.append("gradient_checkpointing")
    if not place.sharded and training.lora_rank is None:
        lighter.append("accelerate launch with configs/trainers/accelerate_fsdp.yaml")
    raise ConfigError(
        f"{training.shape.name} does not fit: a step takes {describe_parts(parts_gib)}, of "
        f"{place.gpus} GPUs with {place.memory_gib:.1f} GiB, {shared}: take {', '.join(lighter)}, "
        "or more GPUs"
    )


def describe_parts(parts_gib: dict[str, float]) -> str:
    """Return the sum of the parts and each part as text."""
    part_texts = ", ".join(f"{name} {size:.1f}" for name, size in parts_gib.items())
    return f"{sum(parts_gib.values()):.1f} GiB ({part_texts})"


def _count_copied_bytes(training: Training, place: TrainingDevices, trained: int) -> float:
    """Return the bytes of a step's copies of the weights.

    They are autocast's half-precision copies and DDP's buckets. With FSDP they are two unsharded
    blocks with their gradients, and embedding and head.
    """
    shape = training.shape
    if place.sharded:
        block = shape.blocks / shape.layers
        return 2 * block * (2 + 4) + 2 * shape.head * (2 + 4)
    halves = 2 * trained if training.lora_rank is None else 0
    return halves + (4 * trained if place.gpus > 1 else 0)


def _count_activation_bytes(training: Training) -> float:
    """Return the bytes per token that the blocks keep for the backward pass.

    With checkpointing, these are every block's input and the activations of the one block that is
    recomputed.
    """
    shape = training.shape
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    block = 2 * (6 * shape.hidden + 2 * (queries + 2 * keys) + 4 * shape.intermediate)
    trained_layers = training.learners * shape.layers
    return (
        4 * trained_layers * shape.hidden + block
        if training.checkpointing
        else trained_layers * block
    )
