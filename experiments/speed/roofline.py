"""Roofline model: maximum judgements a minute for a model, a device and mean lengths.

    prefill   = (2 blocks n + attention) / peak                  n: prompt tokens not cached
    step      = max(compute of C tokens / peak, (weights + C context kv) / bandwidth)
    judgement = prefill + (output - 1) step / C                  C: sequences that fit at once

    attention = 4 layers heads head_dim pairs                    pairs: contexts of these tokens
    C         = KV memory / (prompt + output / 2) kv             kv: bytes of a token; shared
                                                                 prefixes are held once
    output    = critique + READS                                 the prefill gives the first token

Two operations count for each parameter and token. fp8 weights halve the layers and compute at the
device's fp8 peak, or bf16's where it has none; head, embedding and attention stay bf16. With tensor
parallelism, peaks, bandwidth and memory add up, and devices beyond the KV heads hold copies of KV.

It assumes a steady state with continuous batching, every length at its mean, and no overlap of
prefill and decoding. It leaves out the start and end of a job, the spread of lengths,
communication, scheduling, sampling, tokenizing and activations. An engine that overlaps prefill and
decoding, or that reads a shared prefix once for many, can pass this bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from autoj_reward.capacity.memory import (
    GIB,
    PRECISION_BYTES,
    ModelShape,
    Precision,
    check_parallel,
    unquantised,
)
from autoj_reward.config import Block
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.models.device import GPUS, Device

READS = 2
"""Tokens that read a rating's distribution: the label, and the digit that may follow it."""
PEAKS: dict[str, tuple[dict[Precision, float], float]] = {
    "a100-40": ({"bf16": 312}, 1555),
    "a100-80": ({"bf16": 312}, 2039),
    "h100": ({"bf16": 989, "fp8": 1979}, 3350),
    "h200": ({"bf16": 989, "fp8": 1979}, 4800),
    "l40s": ({"bf16": 362, "fp8": 733}, 864),
    "rtx-4090": ({"bf16": 165, "fp8": 330}, 1008),
    "b200": ({"bf16": 2250, "fp8": 4500}, 8000),
}
"""Dense peaks in 10^12 operations a second with fp32 accumulation, and memory bandwidth in 10^9
bytes a second, by the names of `GPUS`.

Source: NVIDIA's data sheets of the A100, H100, H200, L40S and HGX B200, and the Ada architecture
paper for the RTX 4090.
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

    def peak(self, precision: Precision) -> float:
        """Return the operations a second in a precision.

        fp8 without fp8 units computes in bf16. Raises ConfigError if the peak is not known.
        """
        for usable in (precision, unquantised(precision)):
            if usable in self.tflops:
                return self.tflops[usable] * 1e12
        precisions = ", ".join(self.tflops)
        raise ConfigError(f"no peak in {precision} is known: set weights and kv to {precisions}")


def find_machine(device: Device) -> Machine:
    """Return a GPU with its peaks. Raises ConfigError for one that is not in the table."""
    for name, gpu in GPUS.items():
        if gpu.name == device.name:
            tflops, bandwidth_gbs = PEAKS[name]
            return Machine(tflops=tflops, memory_gib=gpu.memory_gib, bandwidth_gbs=bandwidth_gbs)
    raise ConfigError(
        f"no peaks of {device.name!r} are in the table: give `machine` with tflops, memory_gib and "
        "bandwidth_gbs from its data sheet"
    )


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
    devices = serving.tensor_parallel
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
    weights = count_read_bytes(shape, serving.weights) / bandwidth / sequences
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


def count_read_bytes(shape: ModelShape, precision: Precision) -> int:
    """Return the bytes of the weights that a decoding step reads."""
    return (
        shape.blocks * PRECISION_BYTES[precision]
        + shape.head * PRECISION_BYTES[unquantised(precision)]
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


def three_digits(value: float) -> str:
    """Return a number as text with three significant digits, or with all digits before the
    point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
