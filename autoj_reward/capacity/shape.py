"""The shape of a decoder: what it weighs and what its KV cache takes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml

from autoj_reward.errors import ModelError

Precision = Literal["float32", "bf16", "fp8"]
BYTES: dict[Precision, int] = {"float32": 4, "bf16": 2, "fp8": 1}
MODEL_TYPES = ("llama", "mistral", "qwen2")
"""Dense decoders with gated feed-forward blocks and RMS norms; others are refused."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a dense decoder in elements; `tied` if the embedding is the output head as well."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qkv_bias: bool

    @property
    def blocks(self) -> int:
        """Parameters of all layers: what every token is multiplied by."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * (queries + keys)
        bias = queries + 2 * keys if self.qkv_bias else 0
        gated, norms = 3 * self.hidden * self.intermediate, 2 * self.hidden
        return self.layers * (attention + bias + gated + norms)

    @property
    def head(self) -> int:
        """Parameters of the output head; the embedding has as many."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.blocks + self.hidden + self.head * (1 if self.tied else 2)

    def kv_bytes(self, precision: Precision) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES[precision]

    def read_bytes(self, precision: Precision) -> int:
        """Bytes of the weights that a decoding step reads.

        Quantised to fp8 are the blocks; head and embedding stay bf16, as vLLM keeps them.
        """
        return self.blocks * BYTES[precision] + self.head * BYTES[unquantised(precision)]

    def weight_bytes(self, precision: Precision) -> int:
        """Bytes of all weights in memory."""
        rest = self.parameters - self.blocks
        return self.blocks * BYTES[precision] + rest * BYTES[unquantised(precision)]


def unquantised(precision: Precision) -> Precision:
    """The precision of what is never quantised: output head and attention."""
    return "bf16" if precision == "fp8" else precision


@lru_cache
def known_shapes() -> dict[str, ModelShape]:
    """Shapes by name, the names of judges of that shape included."""
    data = yaml.safe_load((Path(__file__).parent / "shapes.yaml").read_text(encoding="utf-8"))
    found: dict[str, ModelShape] = {}
    for name, entry in data.items():
        shape = shape_of(entry, name)
        found |= {known: shape for known in (name, *entry.get("known_as", ()))}
    return found


def find_shape(model: str) -> ModelShape:
    """The shape of a model known by name, or of a local folder. Raises ModelError."""
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
    """The shape in a transformers config. Raises ModelError naming a key that is missing or a kind
    of model whose parameters would be miscounted."""
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
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=kind == "qwen2",
        )
    except KeyError as error:
        raise ModelError(
            f"{where}key {error} is missing: is this a model's config.json?"
        ) from error
