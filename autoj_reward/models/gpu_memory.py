"""Memory that an engine needs on its GPUs or on a CPU, checked before it starts."""

from __future__ import annotations

import math

from autoj_reward.capacity.memory import GIB, ModelShape, describe_parts, find_shape
from autoj_reward.config import EngineConfig, JudgeConfig, PolicyConfig
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.models import resolve
from autoj_reward.models.device import CPU, Device
from autoj_reward.models.settings import (
    CPU_KV_GIB,
    kv_tokens,
    resolve_engine_settings,
    weight_gib,
)

CONTEXT_GIB = 1.5
"""GiB that CUDA, NCCL and vLLM's graphs take."""
PROCESSES_GIB = 2.0
"""GiB that the processes of an engine on a CPU take beside weights and KV cache."""


def engine_parts(config: EngineConfig, device: Device) -> dict[str, float] | None:
    """Return the GiB that each part of an engine takes on each of its GPUs.

    None if the shape is unknown.

    The KV cache is the configured one, else what the other parts leave of gpu_memory_utilization.
    """
    try:
        shape = find_shape(config.model)
    except ModelError:
        return None
    config = resolve_engine_settings(config, device)
    parts_gib = {
        "weights": weight_gib(shape, config, device) / config.tensor_parallel,
        "a step": _estimate_step_gib(shape, config),
        "CUDA": CONTEXT_GIB,
    }
    remaining_gib = device.memory_gib * config.gpu_memory_utilization - sum(parts_gib.values())
    return parts_gib | {
        "KV cache": remaining_gib if config.kv_cache_gib is None else config.kv_cache_gib
    }


def cpu_engine_gib(config: JudgeConfig | PolicyConfig) -> float:
    """Return the GiB of memory that an engine takes on a CPU; infinity if the shape is unknown."""
    try:
        shape = find_shape(resolve(config).path)
    except ModelError:
        return math.inf
    weights = weight_gib(shape, config, CPU)
    return weights + PROCESSES_GIB + (config.kv_cache_gib or CPU_KV_GIB)


def require_engine_memory(config: JudgeConfig | PolicyConfig, device: Device) -> None:
    """Raise ConfigError with the sizes if an engine does not fit on its GPUs, or its share of one.

    A model of unknown shape passes.
    """
    parts_gib = engine_parts(config, device)
    if parts_gib is None:
        return
    share = min(1.0, config.serve.num_gpus or 1.0)
    have = device.memory_gib * (share if config.kv_cache_gib else config.gpu_memory_utilization)
    need = f"{config.model} does not fit on each of {config.tensor_parallel} GPUs: "
    remedy = "use more (tensor_parallel), fp8 weights (quantization: fp8_per_tensor) or larger ones"
    if parts_gib["KV cache"] <= 0 or sum(parts_gib.values()) > have * (1 + 1e-9):
        stated = " or a smaller kv_cache_gib" if config.kv_cache_gib else ""
        raise ConfigError(
            f"{need}{describe_parts(parts_gib)}, of {have:.1f} GiB that it may take of "
            f"{device.memory_gib:.1f}: "
            f"{remedy}{stated}"
        )
    sized = config.model_copy(update={"kv_cache_gib": parts_gib["KV cache"]})
    tokens = kv_tokens(sized, device)
    if tokens is not None and tokens < config.max_model_len:
        raise ConfigError(
            f"{need}its KV cache of {parts_gib['KV cache']:.1f} GiB holds {tokens} tokens and "
            f"max_model_len is {config.max_model_len}: lower it, or {remedy}"
        )


def _estimate_step_gib(shape: ModelShape, config: EngineConfig) -> float:
    """Return the GiB on each GPU for a step: the tokens' activations in a layer, and the logits."""
    assert config.max_batched_tokens and config.max_sequences
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = 2 * (4 * shape.hidden + queries + 2 * keys + 3 * shape.intermediate)
    logits = 3 * 4 * config.max_sequences * shape.vocabulary
    return (config.max_batched_tokens * layer + logits) / GIB / config.tensor_parallel
