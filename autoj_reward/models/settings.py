"""Values of `auto` engine settings on a device: number type, sequences and tokens per step.

docs/run/capacity.md states the rules. Benchmarks and services both take their settings from here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeVar

from autoj_reward.capacity.memory import ModelShape, Precision, find_shape
from autoj_reward.config import EngineConfig, JudgeConfig, PolicyConfig
from autoj_reward.errors import ModelError
from autoj_reward.models.device import CPU, Device, detect_device
from autoj_reward.processes import processes

C = TypeVar("C", bound=EngineConfig)
CPU_SEQUENCES = 64
"""Maximum number of concurrent sequences of a CPU replica. More would evict each other's
KV cache."""
CPU_BATCH = 4096
"""Tokens in a step of a CPU replica. It rises to max_model_len, since prompts are not
split there."""
CPU_KV_GIB = 2.0
"""KV cache of a CPU replica in GiB."""
LARGE_GIB = 70.0
"""Memory in GiB from which a GPU counts as large, if it also has capability HOPPER. An
A100 does not."""
HOPPER = (9, 0)
"""Compute capability that a large GPU has at least."""
GPU_SEQUENCES, SMALL_GPU_SEQUENCES = 1024, 256
"""Maximum number of concurrent sequences on a large GPU and on others."""
GPU_BATCH, SMALL_GPU_BATCH = 8192, 2048
"""Maximum number of tokens in a step on a large GPU and on others."""
SHORT = 256
"""Tokens of a short judgement with its prompt.

It limits concurrent sequences to what the KV cache holds at this length. Others would be evicted
and computed again.
"""
REQUESTS, PROMPT = 8, 1024
"""Upper estimate of the requests that one judgement sends to an endpoint, and of each
prompt's tokens."""
WAITING = 1024
"""Maximum number of candidates that wait in a replica while others run."""


def resolve_engine_settings(config: C, device: Device) -> C:
    """Return the config with each engine setting that is `auto` or None set for the device."""
    sequences, batch = _resolve_sizes(config, device)
    return config.model_copy(
        update={
            "dtype": dtype_on(config, device),
            "max_sequences": config.max_sequences or sequences,
            "max_batched_tokens": config.max_batched_tokens or batch,
        }
    )


def dtype_of(config: EngineConfig, kind: Literal["cpu", "cuda"]) -> str:
    """Return the number type of a config on this machine's `cuda` or `cpu`."""
    return dtype_on(config, CPU if kind == "cpu" else replace(detect_device(), kind=kind))


def dtype_on(config: EngineConfig, device: Device) -> str:
    """Return the number type of a config on a device."""
    if config.dtype != "auto":
        return config.dtype
    return "float32" if device.kind == "cpu" else device.half


def max_ongoing(config: JudgeConfig | PolicyConfig, gpus: float) -> int:
    """Return the maximum number of candidates in one replica at a time.

    It is four times what the engine runs, because a call starts only if all of it fits. It is at
    most WAITING more than the engine runs. For an endpoint with limits per minute it is also at
    most what the endpoint can answer before the deadline.
    """
    if config.serve.max_ongoing is not None:
        return config.serve.max_ongoing
    sequences = config.max_sequences or (GPU_SEQUENCES if gpus else CPU_SEQUENCES)
    limits = [4 * sequences, sequences + WAITING]
    minutes = config.serve.deadline_s / 60 / processes()
    if config.kind == "openai" and config.requests_per_minute:
        limits.append(int(minutes * config.requests_per_minute / REQUESTS))
    if config.kind == "openai" and config.tokens_per_minute:
        tokens = REQUESTS * PROMPT + config.max_tokens
        limits.append(int(minutes * config.tokens_per_minute / tokens))
    return max(1, min(limits))


def _resolve_sizes(config: EngineConfig, device: Device) -> tuple[int, int]:
    """Return the maximum numbers of concurrent sequences and of tokens in a step."""
    if device.kind == "cpu":
        return CPU_SEQUENCES, max(CPU_BATCH, config.max_model_len)
    large = device.memory_gib >= LARGE_GIB and device.capability >= HOPPER
    limit = GPU_SEQUENCES if large else SMALL_GPU_SEQUENCES
    tokens = kv_tokens(config, device)
    sequences = limit if tokens is None else max(1, min(limit, tokens // SHORT))
    return sequences, GPU_BATCH if large else SMALL_GPU_BATCH


def kv_tokens(config: EngineConfig, device: Device) -> int | None:
    """Return how many tokens fit in the KV cache of an engine on GPUs.

    None if the shape is unknown.
    """
    try:
        shape = find_shape(config.model)
    except ModelError:
        return None
    gpus = config.tensor_parallel
    cache_gib = config.kv_cache_gib
    if cache_gib is None:
        weights = weight_gib(shape, config, device) / gpus
        cache_gib = device.memory_gib * config.gpu_memory_utilization - weights
    # With more GPUs than KV heads, the others hold copies.
    token_bytes = shape.kv_bytes(kv_precision(config, device)) / min(gpus, shape.kv_heads)
    return max(0, int(cache_gib * 2**30 / token_bytes))


def weight_gib(shape: ModelShape, config: EngineConfig, device: Device) -> float:
    """Return the size of a model's weights in GiB, summed over all GPUs of an engine."""
    return shape.weight_bytes(weight_precision(config, device)) / 2**30


def weight_precision(config: EngineConfig, device: Device) -> Precision:
    """Return the precision of the weights. Quantizations other than fp8 count as unquantized."""
    fp8 = (config.quantization or "").startswith("fp8")
    return "fp8" if fp8 else kv_precision(config, device)


def kv_precision(config: EngineConfig, device: Device) -> Precision:
    """Return the precision of the KV cache."""
    return "float32" if dtype_on(config, device) == "float32" else "bf16"
