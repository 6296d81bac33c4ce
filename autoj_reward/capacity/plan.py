"""`autoj plan`: whether a judge fits, its maximum rate, devices for a target rate, and cost."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from autoj_reward.capacity.memory import ModelShape, find_shape, unquantised
from autoj_reward.capacity.roofline import (
    JudgementTokens,
    Lengths,
    Machine,
    Serving,
    find_gpu,
    judgement_tokens,
    kv_memory_gib,
    measure_machine,
    roofline,
)
from autoj_reward.errors import ConfigError
from autoj_reward.io.markup import table
from autoj_reward.io.provenance import memory_here


class PlanConfig(Lengths, Serving):
    """Flags of `autoj plan`. `tflops`, `tflops_fp8`, `bandwidth` and `memory` are for `custom` and
    `cpu`."""

    gpu: str
    """Name of a GPU in the table, `custom`, or `cpu`."""
    model: str = "llama-2-13b"
    """Name of a model in the table, or a folder with config.json."""
    tflops: float | None = Field(None, gt=0)
    """Dense peak in bf16, or in float32 for float32 weights, in 10^12 operations a second."""
    tflops_fp8: float | None = Field(None, gt=0)
    """Dense peak in fp8, in 10^12 operations a second. Without it, fp8 computes in bf16."""
    bandwidth: float | None = Field(None, gt=0)
    """Memory bandwidth of the device, in 10^9 bytes a second."""
    memory: float | None = Field(None, gt=0)
    """Memory of the device in GiB."""
    measure: bool = False
    """Whether to measure this machine's cores."""
    wanted: float | None = Field(None, gt=0)
    """Target rate in judgements a minute, for which devices are counted."""
    price: float | None = Field(None, gt=0)
    """Price of a device-hour, in any currency; there is no default."""
    as_json: bool = False
    """Whether to print JSON."""


def make_plan(config: PlanConfig) -> dict[str, Any]:
    """Return the plan as plain data: everything that the command prints."""
    shape, machine = find_shape(config.model), find_machine(config)
    kv_bytes = shape.kv_bytes(config.kv)
    return {
        "model": {
            "name": config.model,
            "parameters": shape.parameters,
            "weight_bytes": shape.weight_bytes(config.weights),
            "kv_bytes_a_token": kv_bytes,
        },
        "device": {"name": config.gpu, **machine.model_dump(exclude={"device", "capability"})},
        "serving": config.model_dump(include=set(Serving.model_fields)),
        "lengths": config.model_dump(include=set(Lengths.model_fields)),
        "rate": rate_of(shape, machine, config, judgement_tokens(config), config),
        "wanted": config.wanted,
        "price": config.price,
        "assumed": assumed(config),
    }


def find_machine(config: PlanConfig) -> Machine:
    """Return the device that the flags name, describe or ask to measure. Raises ConfigError."""
    figures = (config.tflops, config.tflops_fp8, config.bandwidth, config.memory)
    if config.measure and config.gpu != "cpu":
        raise ConfigError(f"--measure times this machine's cores: use --gpu cpu, not {config.gpu}")
    if config.gpu not in ("cpu", "custom"):
        if any(figures):
            raise ConfigError(
                "--tflops, --tflops-fp8, --bandwidth and --memory are for --gpu custom or cpu, not "
                f"{config.gpu}"
            )
        return find_gpu(config.gpu)
    if config.measure:
        if any(figures):
            raise ConfigError(
                "--measure takes no --tflops, --tflops-fp8, --bandwidth or --memory: leave them out"
            )
        return measure_machine()
    memory = config.memory or (memory_here() if config.gpu == "cpu" else None)
    if config.tflops is None or config.bandwidth is None or memory is None:
        needed = "--tflops and --bandwidth, or --measure" if config.gpu == "cpu" else (
            "--tflops, --bandwidth and --memory"
        )  # fmt: skip
        raise ConfigError(f"--gpu {config.gpu} needs {needed}")
    tflops = {unquantised(config.weights): config.tflops}
    if config.tflops_fp8 is not None:
        tflops["fp8"] = config.tflops_fp8
    return Machine(tflops=tflops, bandwidth_gbs=config.bandwidth, memory_gib=memory)


def rate_of(
    shape: ModelShape, machine: Machine, serving: Serving, work: JudgementTokens, config: PlanConfig
) -> dict[str, Any]:
    """Return the rate of one engine, with devices for the rate `wanted` and cost at `price`.

    Raises ConfigError or ModelError as `roofline`.
    """
    rate, devices = roofline(shape, machine, serving, work), serving.tensor_parallel
    engines = math.ceil(config.wanted / rate.per_minute) if config.wanted else None
    return {
        "kv_cache_gib": kv_memory_gib(shape, machine, serving),
        "sequences": rate.sequences,
        "per_minute_a_device": rate.per_minute / devices,
        "bound": rate.bound,
        "devices": engines and engines * devices,
        "cost_a_thousand": config.price and config.price * devices / (rate.per_minute * 60) * 1000,
    }


def assumed(config: PlanConfig) -> str:
    """Return a line that states the rate's assumptions."""
    return (
        f"At most: {config.efficiency:.0%} of peak compute or bandwidth in a steady state, "
        f"critiques of {config.critique} tokens, and time for nothing else."
    )


def rate_cells(rate: dict[str, Any], config: PlanConfig) -> list[str]:
    """Return the table cells of a rate, in the columns of `rate_columns`."""
    cells = [three_digits(rate["per_minute_a_device"]), rate["bound"]]
    cells += [str(rate["devices"])] if config.wanted else []
    return cells + ([three_digits(rate["cost_a_thousand"])] if config.price else [])


def rate_columns(config: PlanConfig) -> list[str]:
    """Return the column headings for `rate_cells`."""
    head = ["judgements a minute a device", "bound by"]
    head += [f"devices for {config.wanted:g} a minute"] if config.wanted else []
    return head + (["cost of 1,000"] if config.price else [])


def render_plan(plan: dict[str, Any], config: PlanConfig) -> str:
    """Return the plan as Markdown."""
    model, device, rate = plan["model"], plan["device"], plan["rate"]
    peaks = ", ".join(f"{peak:.4g} TFLOPS {name}" for name, peak in device["tflops"].items())
    cells = [f"{rate['kv_cache_gib']:.1f}", str(rate["sequences"]), *rate_cells(rate, config)]
    lines = [
        f"{model['name']}: {model['parameters'] / 1e9:.3f} billion parameters, "
        f"{model['weight_bytes'] / 1e9:.2f} GB in {config.weights}, "
        f"{model['kv_bytes_a_token'] / 1e6:.3f} MB of KV a token in {config.kv}",
        f"{device['name']}: {peaks}, {device['bandwidth_gbs']:.4g} GB/s, "
        f"{device['memory_gib']:.4g} GiB",
        "",
        *table(["GiB of KV cache", "sequences at once", *rate_columns(config)], [cells]),
        "",
        plan["assumed"],
    ]
    return "\n".join(lines)


def three_digits(value: float) -> str:
    """Return a number as text with three significant digits, or with all digits before the
    point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
