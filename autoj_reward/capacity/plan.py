"""`autoj plan`: rates, what binds them, devices for a target, cost, and what each lever brings."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from autoj_reward.capacity.machine import Machine, find_gpu, measure, memory_here
from autoj_reward.capacity.roofline import Lengths, Rate, Serving, roofline, works
from autoj_reward.capacity.shape import ModelShape, find_shape, unquantised
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.io.markdown import table

ASSUMPTIONS = (
    "steady state: as many sequences at once as fit, no ramp at the start and no tail at the end",
    "every length is its mean; a sequence holds half of its output while it runs",
    "prefill and decoding take turns; an engine that overlaps them can pass the roofline",
    "sharing saves prefill and memory of a query's prefix; each sequence still reads all its KV",
    "no time for communication of tensor-parallel devices, sampling, scheduling, or tokenizing",
    "no memory but weights and KV; fp8 weights leave head, embedding and attention in bf16",
    "fp8 weights compute in bf16 on a device with no fp8 peak above",
    "a comparison's template is as long as a rating's",
)


class PlanConfig(Lengths, Serving):
    """The flags of the command.

    tflops, tflops_fp8, bandwidth, memory: of `custom` and `cpu`; tflops in bf16, in float32 for
    float32 weights. wanted: judgements a minute. price: of a device-hour, in any currency; there
    is no default.
    """

    gpu: str
    model: str = "llama-2-13b"
    tflops: float | None = Field(None, gt=0)
    tflops_fp8: float | None = Field(None, gt=0)
    bandwidth: float | None = Field(None, gt=0)
    memory: float | None = Field(None, gt=0)
    measure: bool = False
    wanted: float | None = Field(None, gt=0)
    price: float | None = Field(None, gt=0)
    as_json: bool = False


def make_plan(config: PlanConfig) -> dict[str, Any]:
    """Everything that the command prints, as plain data; seconds and judgements a minute."""
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
        "rates": [_rate(shape, machine, config, name) for name in works(config)],
        "wanted": config.wanted,
        "price": config.price,
        "levers": levers(shape, machine, config),
        "assumptions": [
            f"{config.efficiency:.0%} of peak compute and bandwidth is reached",
            *ASSUMPTIONS,
        ],
    }


def find_machine(config: PlanConfig) -> Machine:
    """The device of the flags: of the table, measured here, or given. Raises ConfigError."""
    given = (config.tflops, config.tflops_fp8, config.bandwidth, config.memory)
    if config.measure and config.gpu != "cpu":
        raise ConfigError(f"--measure times this machine's cores: use --gpu cpu, not {config.gpu}")
    if config.gpu not in ("cpu", "custom"):
        if any(given):
            raise ConfigError(
                "--tflops, --tflops-fp8, --bandwidth and --memory are for --gpu custom or cpu, not "
                f"{config.gpu}"
            )
        return find_gpu(config.gpu)
    if config.measure:
        if any(given):
            raise ConfigError(
                "--measure takes no --tflops, --tflops-fp8, --bandwidth or --memory: leave them out"
            )
        return measure()
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


def levers(shape: ModelShape, machine: Machine, config: PlanConfig) -> list[dict[str, Any]]:
    """The rate with critiques: with no lever, with each alone, with all. The base is the plan
    without a prefix cache, in bf16 (float32 stays), with the critique as given. A rate that
    does not fit on the device is None, and so is a gain without both of its rates."""
    base = "float32" if config.weights == "float32" else "bf16"
    plain = {"sharing": False, "weights": base, "kv": base}
    single: dict[str, dict[str, Any]] = {
        "fp8 KV": {"kv": "fp8"},
        "prefix sharing": {"sharing": True},
        "critiques of a third": {"critique": max(1, config.critique // 3)},
        "fp8 weights": {"weights": "fp8"},
    }
    if base == "float32":
        single = {name: change for name, change in single.items() if "fp8" not in name}
    every = {key: value for change in single.values() for key, value in change.items()}
    rows: list[dict[str, Any]] = []
    for name, change in {"none": {}, **single, "all": every}.items():
        changed = config.model_copy(update={**plain, **change})
        rate = _fitting_rate(shape, machine, changed)
        rows.append(
            {
                "lever": name,
                "per_minute": rate and rate.per_minute,
                "sequences": rate and rate.sequences,
                "bound": rate and rate.bound,
            }
        )
    unaided = rows[0]["per_minute"]
    return [
        row | {"gain": unaided and row["per_minute"] and row["per_minute"] / unaided}
        for row in rows
    ]


def _fitting_rate(shape: ModelShape, machine: Machine, config: PlanConfig) -> Rate | None:
    try:
        return roofline(shape, machine, config, works(config)["with critique"])
    except ModelError:
        return None


def _rate(shape: ModelShape, machine: Machine, config: PlanConfig, name: str) -> dict[str, Any]:
    rate = roofline(shape, machine, config, works(config)[name])
    devices = config.tensor_parallel
    engines = math.ceil(config.wanted / rate.per_minute) if config.wanted else None
    return {
        "work": name,
        "per_minute_a_device": rate.per_minute / devices,
        "bound": rate.bound,
        "sequences": rate.sequences,
        "seconds": rate.seconds,
        "devices": engines and engines * devices,
        "cost_a_thousand": config.price and config.price * devices / (rate.per_minute * 60) * 1000,
    }


def render(found: dict[str, Any]) -> str:
    """The plan as Markdown."""
    model, device, serving = found["model"], found["device"], found["serving"]
    head = ["work", "judgements a minute a device", "bound by", "at once", "engine's time"]
    rows: list[list[str]] = []
    for row in found["rates"]:
        total = sum(row["seconds"].values())
        parts = ", ".join(f"{part} {value / total:.0%}" for part, value in row["seconds"].items())
        rate = figure(row["per_minute_a_device"])
        rows.append([row["work"], rate, row["bound"], str(row["sequences"]), parts])
        if found["wanted"]:
            rows[-1].append(str(row["devices"]))
        if found["price"]:
            rows[-1].append(figure(row["cost_a_thousand"]))
    head += [f"devices for {found['wanted']:g} a minute"] if found["wanted"] else []
    head += ["cost of 1,000"] if found["price"] else []
    peaks = ", ".join(f"{peak:.4g} TFLOPS {name}" for name, peak in device["tflops"].items())
    lines = [
        f"{model['name']}: {model['parameters'] / 1e9:.3f} billion parameters, "
        f"{model['weight_bytes'] / 1e9:.2f} GB in {serving['weights']}, "
        f"{model['kv_bytes_a_token'] / 1e6:.3f} MB of KV a token in {serving['kv']}",
        f"{device['name']}: {peaks}, {device['bandwidth_gbs']:.4g} GB/s, "
        f"{device['memory_gib']:.4g} GiB",
        "",
        *table(head, rows),
        "",
        *table(
            ["lever", "judgements a minute, with critique", "gain", "at once", "bound by"],
            map(_lever_cells, found["levers"]),
        ),
        "",
        "Assumed:",
        *(f"- {line}" for line in found["assumptions"]),
    ]
    return "\n".join(lines)


def _lever_cells(row: dict[str, Any]) -> list[str]:
    if row["per_minute"] is None:
        return [row["lever"], "does not fit", "-", "-", "-"]
    gain = "-" if row["gain"] is None else f"{row['gain']:.2f}"
    return [row["lever"], figure(row["per_minute"]), gain, str(row["sequences"]), row["bound"]]


def figure(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
