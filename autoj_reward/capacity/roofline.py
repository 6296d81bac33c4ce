"""Roofline model: maximum judgements a minute for a model, a device and mean lengths.

    prefill   = (2 blocks n + attention) / peak                  n: prompt tokens not cached
    step      = max(compute of C tokens / peak, (weights + C context kv) / bandwidth)
    judgement = prefill + (output - 1) step / C                  C: sequences that fit at once

It assumes a steady state with continuous batching, every length at its mean, and no overlap of
prefill and decoding. docs/run/capacity.md derives it and lists what it omits. Devices come from
`gpus.yaml`, from the user's figures, or from measuring this machine's cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml
from pydantic import Field

from autoj_reward.capacity.memory import GIB, ModelShape, Precision, unquantised
from autoj_reward.config import Block, check
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.io.provenance import memory_here

READS = 2
"""Tokens that read a rating's distribution: the label, and the digit that may follow it."""
MATRIX = 2048
"""Rows and columns of the square matrices that are multiplied."""
COPIED = 1 << 28
"""Bytes copied in a bandwidth measurement: more than caches hold."""
MEASURED_S = 3.0
"""Seconds for which each measurement is repeated.

With more rounds it is likelier that one of them had the cores to itself.
"""


class Machine(Block):
    """One device, or the cores of one replica."""

    tflops: dict[Precision, float] = Field(min_length=1)
    """Dense peak by precision, in 10^12 operations a second. A multiplication and an addition count
    as two."""
    memory_gib: float = Field(gt=0)
    """Memory in GiB."""
    bandwidth_gbs: float = Field(gt=0)
    """Memory bandwidth in 10^9 bytes a second."""
    device: str | None = None
    """Name that the device's driver reports."""
    capability: tuple[int, int] = (9, 0)
    """CUDA compute capability."""

    def peak(self, precision: Precision) -> float:
        """Return the operations a second in a precision.

        fp8 without fp8 units computes in bf16. Raises ConfigError if the peak is not known.
        """
        for usable in (precision, unquantised(precision)):
            if usable in self.tflops:
                return self.tflops[usable] * 1e12
        precisions = ", ".join(self.tflops)
        raise ConfigError(f"no peak in {precision} is known: plan weights and kv in {precisions}")


@lru_cache
def known_gpus() -> dict[str, Machine]:
    """Return the GPUs of the table by name.

    Source: NVIDIA's data sheets of the A100, H100, H200, L40S and HGX B200, and the Ada
    architecture paper for the RTX 4090. If a GPU has several variants, the table has the SXM one.
    """
    path = Path(__file__).parent / "gpus.yaml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: check(Machine, entry, f"{path}: {name}") for name, entry in data.items()}


def find_gpu(name: str) -> Machine:
    """Return the GPU with this name in the table. Raises ConfigError with the known names."""
    try:
        return known_gpus()[name.lower()]
    except KeyError:
        raise ConfigError(
            f"gpu {name!r} is not in the table: use one of {', '.join(known_gpus())}, or custom "
            "or cpu with --tflops, --bandwidth and --memory"
        ) from None


def find_gpu_by_driver_name(device: str) -> Machine:
    """Return the GPU of the table whose driver reports this name. Raises ConfigError."""
    for machine in known_gpus().values():
        if machine.device == device:
            return machine
    raise ConfigError(
        f"no peaks of {device!r} are in the table: give `machine` with tflops, memory_gib and "
        "bandwidth_gbs from its data sheet"
    )


def measure_machine() -> Machine:
    """Measure this machine's cores in float32, using torch with the threads it was given.

    The peak is that of a product of two square matrices. The bandwidth is that of a copy, counting
    bytes read and written. The best of many rounds counts.
    """
    import torch

    first_matrix, second_matrix = torch.rand(MATRIX, MATRIX), torch.rand(MATRIX, MATRIX)
    product = torch.empty(MATRIX, MATRIX)
    source = torch.rand(COPIED // 4)
    target = torch.empty_like(source)
    seconds = _time_fastest_round(lambda: torch.mm(first_matrix, second_matrix, out=product))
    return Machine(
        tflops={"float32": 2 * MATRIX**3 / seconds / 1e12},
        bandwidth_gbs=2 * COPIED / _time_fastest_round(lambda: target.copy_(source)) / 1e9,
        memory_gib=memory_here(),
    )


def _time_fastest_round(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest round within MEASURED_S, after one round of warm-up."""
    work()
    times: list[float] = []
    until = time.perf_counter() + MEASURED_S
    while not times or time.perf_counter() < until:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


class Lengths(Block):
    """Mean tokens of a judgement. The defaults are those of Auto-J's released judgements."""

    template: int = Field(40, ge=0)
    """Tokens of the judge's template before the response."""
    query: int = Field(115, ge=0)
    """Tokens of the query."""
    response: int = Field(235, ge=0)
    """Tokens of the response."""
    closing: int = Field(60, ge=0)
    """Tokens of the judge's template after the response."""
    critique: int = Field(330, ge=0)
    """Tokens of the critique before the rating; 0 for a rating alone."""
    candidates: int = Field(32, ge=1)
    """Responses to each query, which share its prefix."""


class Serving(Block):
    """Settings of the engine that serves the model."""

    weights: Precision = "bf16"
    """Precision of the weights."""
    kv: Precision = "bf16"
    """Precision of the KV cache."""
    sharing: bool = True
    """Whether prefix caching is on."""
    tensor_parallel: int = Field(1, ge=1)
    """Devices of each engine."""
    memory_share: float = Field(0.9, gt=0, le=1)
    """Share of each device's memory for weights and KV cache."""
    kv_cache_gib: float | None = Field(None, gt=0)
    """Fixed size of an engine's KV cache in GiB (CPU replicas). As in vLLM, `memory_share` is then
    ignored, and weights and KV cache may take the whole memory."""
    max_sequences: int | None = Field(None, ge=1)
    """Maximum sequences that the engine runs at once, or that the job has."""
    efficiency: float = Field(1.0, gt=0, le=1)
    """Share of peak compute and bandwidth that is reached; 1 is the roofline."""


@dataclass(frozen=True, slots=True)
class JudgementTokens:
    """Tokens of one judgement."""

    prefix: int
    """Prompt tokens that `sharers` judgements have in common."""
    own: int
    """Prompt tokens after the prefix."""
    output: int
    """Tokens that the judge generates."""
    sharers: int = 1
    """Judgements that share the prefix."""

    @property
    def prompt(self) -> int:
        return self.prefix + self.own


@dataclass(frozen=True, slots=True)
class Roofline:
    """Maximum rate of one engine."""

    per_minute: float
    """Judgements a minute."""
    sequences: int
    """Sequences that run at once."""
    seconds: dict[str, float]
    """Seconds of the engine's time for one judgement, by part."""
    bound: str
    """The bottleneck: the part that takes most time."""


def judgement_tokens(lengths: Lengths) -> JudgementTokens:
    """Return the tokens of a judgement with a critique and a rating of one response."""
    prefix, suffix = lengths.template + lengths.query, lengths.response + lengths.closing
    return JudgementTokens(prefix, suffix, lengths.critique + READS, lengths.candidates)


def roofline(
    shape: ModelShape, machine: Machine, serving: Serving, work: JudgementTokens
) -> Roofline:
    """Return the maximum rate of one engine.

    Raises ConfigError if tensor_parallel does not divide the attention heads, and ModelError if the
    model or a single sequence does not fit.
    """
    check_parallel(shape, serving.tensor_parallel)
    devices = serving.tensor_parallel * serving.efficiency
    linear_peak = machine.peak(serving.weights) * devices
    unquantised_peak = machine.peak(unquantised(serving.weights)) * devices
    bandwidth = machine.bandwidth_gbs * 1e9 * devices
    kv = _count_kv_bytes(shape, serving)
    sequences = fitting(shape, machine, serving, work)
    limited = serving.max_sequences is not None and serving.max_sequences <= sequences
    if limited and serving.max_sequences:
        sequences = serving.max_sequences

    new, attended = _count_prefill_tokens(serving, work)
    attention = 4 * shape.layers * shape.heads * shape.head_dim
    prefill = (
        2 * shape.blocks * new / linear_peak
        + (2 * shape.head + attention * attended) / unquantised_peak
    )

    context = work.prompt + work.output / 2
    token = (
        2 * shape.blocks / linear_peak + (2 * shape.head + attention * context) / unquantised_peak
    )
    weights = shape.read_bytes(serving.weights) / bandwidth / sequences
    cache = context * kv / bandwidth
    steps = work.output - 1
    seconds = {"compute in prefill": prefill}
    if token >= weights + cache:
        seconds["compute in decoding"] = steps * token
    else:
        seconds["reading weights"] = steps * weights
        seconds["reading KV"] = steps * cache
    largest = max(seconds, key=lambda part: seconds[part])
    names = {
        "reading weights": "weights bandwidth" if limited else "KV memory",
        "reading KV": "KV bandwidth",
    }
    return Roofline(
        per_minute=60 / sum(seconds.values()),
        sequences=sequences,
        seconds=seconds,
        bound=names.get(largest, largest),
    )


def fitting(shape: ModelShape, machine: Machine, serving: Serving, work: JudgementTokens) -> int:
    """Return how many sequences fit into the KV cache at once.

    A sequence counts with its prompt and half of its output, which is its mean length while the
    output grows. Raises ModelError if the weights, the KV cache or a single sequence does not fit.
    """
    cache_gib = kv_memory_gib(shape, machine, serving)
    tokens = cache_gib * GIB / _count_kv_bytes(shape, serving)
    half = work.output / 2
    count = int(tokens / (work.prompt + half))
    if serving.sharing:
        # There is one copy of the prefix for every `sharers` sequences, and at least one.
        sequence_tokens = work.own + half
        count = int(
            min(
                (tokens - work.prefix) / sequence_tokens,
                tokens / (sequence_tokens + work.prefix / work.sharers),
            )
        )
    if count < 1:
        sequence = f"a sequence of {work.prompt + work.output} tokens"
        if serving.kv_cache_gib is not None:
            raise ModelError(
                f"a KV cache of {cache_gib:g} GiB does not hold {sequence}: raise kv_cache_gib"
            )
        why = f"which leaves {max(cache_gib, 0):.1f} GiB for the KV of {sequence}:"
        raise _make_unfit_error(shape, serving, why)
    return count


def kv_memory_gib(shape: ModelShape, machine: Machine, serving: Serving) -> float:
    """Return the GiB that an engine's devices have for its KV cache; negative if the weights alone
    do not fit.

    Raises ModelError if a fixed cache size does not fit beside the weights.
    """
    weights = shape.weight_bytes(serving.weights) / GIB
    memory, fixed_gib = machine.memory_gib * serving.tensor_parallel, serving.kv_cache_gib
    if fixed_gib is None:
        return memory * serving.memory_share - weights
    if weights + fixed_gib > memory:
        lower = " lower kv_cache_gib," if weights < memory else ""
        raise _make_unfit_error(
            shape, serving, f"and kv_cache_gib {fixed_gib:g} more, of {memory:.1f} GiB:{lower}"
        )
    return fixed_gib


def _make_unfit_error(shape: ModelShape, serving: Serving, why: str) -> ModelError:
    weights = shape.weight_bytes(serving.weights) / GIB
    lighter = " or" if serving.weights == "fp8" else ", fp8 weights or"
    return ModelError(
        f"{shape.name} does not fit: its weights take {weights:.1f} GiB in {serving.weights}, "
        f"{why} use more devices (tensor_parallel is {serving.tensor_parallel}){lighter} a device "
        "with more memory"
    )


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


def _count_kv_bytes(shape: ModelShape, serving: Serving) -> float:
    """Return the bytes of each token's KV on all devices of an engine.

    Devices beyond the number of KV heads hold copies.
    """
    return shape.kv_bytes(serving.kv) * max(1.0, serving.tensor_parallel / shape.kv_heads)


def _count_prefill_tokens(serving: Serving, work: JudgementTokens) -> tuple[float, float]:
    """Return (prompt tokens that a request computes, sum of the contexts they attend to)."""
    all_pairs = work.prompt * (work.prompt + 1) / 2
    if not serving.sharing:
        return work.prompt, all_pairs
    prefix_pairs = work.prefix * (work.prefix + 1) / 2
    saved = 1 - 1 / work.sharers
    return work.prompt - saved * work.prefix, all_pairs - saved * prefix_pairs
