"""What `auto` means on a device: number type, and how much an engine takes on at once.

docs/run/capacity.md states the rules. Everything that starts an engine asks here, so what a
benchmark measures is what the service runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeVar

from autoj_reward.capacity.memory import ModelShape, Precision, find_shape
from autoj_reward.config import EngineConfig, JudgeConfig, PolicyConfig
from autoj_reward.errors import ModelError
from autoj_reward.models.device import CPU, Device, device_here
from autoj_reward.processes import processes

C = TypeVar("C", bound=EngineConfig)
CPU_SEQUENCES = 64
"""Most sequences a CPU replica runs at once; more would only evict each other's KV cache."""
CPU_BATCH = 4096
"""Tokens a step of a CPU replica, which reads prompts whole."""
CPU_KV_GIB = 2.0
LARGE_GIB = 70.0
"""Memory from which a GPU is a large one, unless it is an A100."""
HOPPER = (9, 0)
GPU_SEQUENCES, SMALL_GPU_SEQUENCES = 1024, 256
GPU_BATCH, SMALL_GPU_BATCH = 8192, 2048
SHORT = 256
"""Tokens of a short judgement with its prompt. Of more sequences than the KV cache has room for at
this length, the rest would be thrown out and read again."""
REQUESTS, PROMPT = 8, 1024
"""Requests to an endpoint that one judgement takes, its slots included, and tokens of each prompt;
most take fewer."""
WAITING = 1024
"""Most candidates that wait in a replica beside those that its engine runs."""


def settled(config: C, device: Device) -> C:
    """The config with every `auto` and None of its engine as the device means it."""
    sequences, batch = _sizes(config, device)
    return config.model_copy(
        update={
            "dtype": dtype_on(config, device),
            "max_sequences": config.max_sequences or sequences,
            "max_batched_tokens": config.max_batched_tokens or batch,
        }
    )


def dtype_of(config: EngineConfig, kind: Literal["cpu", "cuda"]) -> str:
    """The number type that a config means on this machine's `cuda` or `cpu`."""
    return dtype_on(config, CPU if kind == "cpu" else replace(device_here(), kind=kind))


def dtype_on(config: EngineConfig, device: Device) -> str:
    """The number type that a config means on a device."""
    if config.dtype != "auto":
        return config.dtype
    return "float32" if device.kind == "cpu" else device.half


def max_ongoing(config: JudgeConfig | PolicyConfig, gpus: float) -> int:
    """Candidates that one replica takes at a time: four times what its engine runs, since a call
    starts only where there is room for all of it, but no more than WAITING beside it. Of an
    endpoint with limits a minute no more than it answers before their deadline."""
    if config.serve.max_ongoing is not None:
        return config.serve.max_ongoing
    sequences = config.max_sequences or (GPU_SEQUENCES if gpus else CPU_SEQUENCES)
    most = [4 * sequences, sequences + WAITING]
    minutes = config.serve.deadline_s / 60 / processes()
    if config.kind == "openai" and config.requests_per_minute:
        most.append(int(minutes * config.requests_per_minute / REQUESTS))
    if config.kind == "openai" and config.tokens_per_minute:
        tokens = REQUESTS * PROMPT + config.max_tokens
        most.append(int(minutes * config.tokens_per_minute / tokens))
    return max(1, min(most))


def _sizes(config: EngineConfig, device: Device) -> tuple[int, int]:
    """Sequences at once, and tokens of one step."""
    if device.kind == "cpu":
        return CPU_SEQUENCES, max(CPU_BATCH, config.max_model_len)
    large = device.memory_gib >= LARGE_GIB and device.capability >= HOPPER
    limit = GPU_SEQUENCES if large else SMALL_GPU_SEQUENCES
    tokens = kv_tokens(config, device)
    sequences = limit if tokens is None else max(1, min(limit, tokens // SHORT))
    return sequences, GPU_BATCH if large else SMALL_GPU_BATCH


def kv_tokens(config: EngineConfig, device: Device) -> int | None:
    """Tokens that the KV cache of an engine on GPUs holds; None where the model's shape is not
    known."""
    try:
        shape = find_shape(config.model)
    except ModelError:
        return None
    gpus = config.tensor_parallel
    room = config.kv_cache_gib
    if room is None:
        weights = weight_gib(shape, config, device) / gpus
        room = device.memory_gib * config.gpu_memory_utilization - weights
    # GPUs beyond the KV heads hold copies.
    each = shape.kv_bytes(kv_precision(config, device)) / min(gpus, shape.kv_heads)
    return max(0, int(room * 2**30 / each))


def weight_gib(shape: ModelShape, config: EngineConfig, device: Device) -> float:
    """GiB of a model's weights, over all GPUs of an engine."""
    return shape.weight_bytes(weight_precision(config, device)) / 2**30


def weight_precision(config: EngineConfig, device: Device) -> Precision:
    """Of quantizations only fp8 is known; others count as unquantized."""
    fp8 = (config.quantization or "").startswith("fp8")
    return "fp8" if fp8 else kv_precision(config, device)


def kv_precision(config: EngineConfig, device: Device) -> Precision:
    return "float32" if dtype_on(config, device) == "float32" else "bf16"
