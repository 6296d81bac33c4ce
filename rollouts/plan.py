"""Capacity plan of a run file: `autoj plan --config F`.

Estimates the GPU memory of its engines and training, and the maximum rate of its judges.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import ValidationError

from autoj_reward.capacity.memory import (
    ModelShape,
    Training,
    TrainingDevices,
    find_shape,
    memory_parts,
    require_memory,
    unquantised,
)
from autoj_reward.capacity.plan import (
    PlanConfig,
    assumed,
    find_machine,
    rate_cells,
    rate_columns,
    rate_of,
)
from autoj_reward.capacity.roofline import Machine, Serving, judgement_tokens
from autoj_reward.config import Block, JudgeConfig, PolicyConfig, check
from autoj_reward.config.load import read_config
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.formats.schema import ScalarFormat
from autoj_reward.io.markup import table
from autoj_reward.models.device import Device
from autoj_reward.models.gpu_memory import engine_parts, require_engine_memory
from autoj_reward.models.settings import kv_precision, resolve_engine_settings, weight_precision
from autoj_reward.models.spec import judge_spec
from autoj_reward.training.common import memory_load
from autoj_reward.training.judge.recipe import TrainJudgeConfig, sequences_of
from autoj_reward.training.scalar.data import TrainScalarConfig
from rollouts.train.learner import TrainConfig

ENGINES: dict[str, type[JudgeConfig] | type[PolicyConfig]] = {
    "judge": JudgeConfig,
    "scalar": JudgeConfig,
    "policy": PolicyConfig,
}
"""Config class of each block that is an engine, at any depth of a run file."""
FROM_THE_FILE = {"model", *Serving.model_fields} - {"efficiency"}
"""Flags that conflict with `--config`, since the run file has these values."""


@dataclass(frozen=True, slots=True)
class Row:
    """Memory use of one engine or training of a run."""

    what: str
    gpus: int
    parts: dict[str, float]
    """GiB on each of its GPUs, by use."""
    fault: str | None
    """Why it does not fit; None if it fits."""
    sequences: int | None = None
    """Sequences that an engine runs at once; None for a training, or if it does not fit."""
    rate: dict[str, Any] | None = None
    """Rate of a judge, see `rate_of`; None for anything else."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def main(
    config: str,
    sets: Sequence[str],
    accelerate: str | None,
    processes: int | None,
    **keys: Any,
) -> int:
    """Print the plan of a run file. Return 0, or 1 if no engine and no training fits.

    accelerate, processes: see `place_of`. keys: the keys of PlanConfig that the flags gave. Raises
    ConfigError for a key that the run file states itself.
    """
    flags = check(PlanConfig, keys, "command line")
    if flags.gpu == "cpu":
        raise ConfigError("--config plans GPUs: name one, or custom with its figures")
    if stated_keys := FROM_THE_FILE & set(keys):
        raise ConfigError(f"a run file states {', '.join(sorted(stated_keys))} itself: use --set")
    machine, data = find_machine(flags), read_config(config, sets)
    rows = plan(data, machine, place_of(machine, accelerate, processes), flags)
    if not rows:
        raise ConfigError(f"{config}: no model in it whose shape is known, so nothing to plan")
    records = [asdict(row) for row in rows]
    print(json.dumps(records, indent=2) if flags.as_json else render_run_plan(rows, machine, flags))
    return 0 if any(row.fault is None for row in rows) else 1


def place_of(machine: Machine, accelerate: str | None, processes: int | None) -> TrainingDevices:
    """Return the devices of a training.

    accelerate: path of accelerate's config; it says whether weights are sharded. processes: number
    of GPUs, in place of that in the config.
    """
    launch: dict[str, Any] = {}
    if accelerate is not None:
        launch = read_config(accelerate, ())
    gpus = processes or int(launch.get("num_processes", 1))
    return TrainingDevices(machine.memory_gib, gpus, launch.get("distributed_type") == "FSDP")


def plan(
    data: Mapping[str, Any], machine: Machine, place: TrainingDevices, flags: PlanConfig
) -> list[Row]:
    """Return a row for each engine, and for each trainer that could run the file."""
    return [*_plan_engines(data, machine, flags), *_plan_trainings(data, place)]


def _plan_engines(
    data: Mapping[str, Any], machine: Machine, flags: PlanConfig, where: str = ""
) -> Iterator[Row]:
    for key, value in data.items():
        if not isinstance(value, dict):
            continue
        name = f"{where}{key}"
        if key in ENGINES and data.get("service") is None:
            yield from _plan_engine(name, ENGINES[key].model_validate(value), machine, flags)
        elif key not in ENGINES:
            yield from _plan_engines(value, machine, flags, f"{name}.")


def _plan_engine(
    name: str, config: JudgeConfig | PolicyConfig, machine: Machine, flags: PlanConfig
) -> Iterator[Row]:
    device = Device("cuda", machine.memory_gib, machine.capability)
    parts = engine_parts(config, device) if config.kind == "vllm" else None
    if parts is None:
        return
    rate = None
    try:
        require_engine_memory(config, device)
        if isinstance(config, JudgeConfig):
            rate = _estimate_rate(config, parts["KV cache"], device, machine, flags)
    except (ConfigError, ModelError) as error:
        yield Row(name, config.tensor_parallel, parts, str(error))
        return
    sequences = rate["sequences"] if rate else resolve_engine_settings(config, device).max_sequences
    yield Row(name, config.tensor_parallel, parts, None, sequences, rate)


def _estimate_rate(
    config: JudgeConfig, kv_cache_gib: float, device: Device, machine: Machine, flags: PlanConfig
) -> dict[str, Any] | None:
    """Return the rate of a judge's engine; None without a known peak of its number type."""
    serving = Serving(
        weights=weight_precision(config, device),
        kv=kv_precision(config, device),
        tensor_parallel=config.tensor_parallel,
        kv_cache_gib=kv_cache_gib * config.tensor_parallel,
        max_sequences=resolve_engine_settings(config, device).max_sequences,
        efficiency=flags.efficiency,
    )
    if unquantised(serving.weights) not in machine.tflops:
        return None
    writes = config.critique and not isinstance(judge_spec(config).format, ScalarFormat)
    critique = min(flags.critique, config.max_tokens) if writes else 0
    work = judgement_tokens(flags.model_copy(update={"critique": critique}))
    return rate_of(find_shape(config.model), machine, serving, work, flags)


def _plan_trainings(data: Mapping[str, Any], place: TrainingDevices) -> Iterator[Row]:
    makers: list[tuple[str, type[Block], Callable[[Any], Any]]] = [
        ("train judge", TrainJudgeConfig, lambda c: memory_load(c, sequences_of(c))),
        ("train scalar", TrainScalarConfig, lambda c: memory_load(c, 2)),
        *(
            (f"train {name}", TrainConfig, lambda c, name=name: training_load(c, name, place.gpus))
            for name in LOADS
        ),
    ]
    for name, kind, make in makers:
        try:
            training = make(kind.model_validate(data))
        except (ValidationError, ModelError):
            continue
        fault = None
        try:
            require_memory(training, place)
        except ConfigError as error:
            fault = str(error)
        yield Row(name, place.gpus, memory_parts(training, place), fault)


def training_load(config: TrainConfig, algorithm: str, gpus: int) -> Training:
    """Return the memory load of a training step on each of `gpus` GPUs.

    Raises ModelError if the shape of the model is unknown.
    """
    return LOADS[algorithm](config, find_shape(config.learner.model), gpus)


def _estimate_grouped(config: TrainConfig, shape: ModelShape, gpus: int) -> Training:
    """GRPO and RLOO sample a whole step at once, and keep the first policy beside full weights."""
    sampled, keeps_reference = config.batch_size // gpus, config.kl > 0
    return _estimate_load(config, shape, config.device_batch_size, sampled, keeps_reference)


def _estimate_pairs(config: TrainConfig, shape: ModelShape, gpus: int) -> Training:
    """Online DPO samples two responses a prompt, a device's batch at a time."""
    both = 2 * config.device_batch_size
    return _estimate_load(config, shape, both, both)


def _estimate_with_value(config: TrainConfig, shape: ModelShape, gpus: int) -> Training:
    """PPO trains a value model beside the policy, and keeps the logits of all that a process
    samples for a step, once as they come and once padded."""
    load = _estimate_load(config, shape, config.device_batch_size, config.batch_size // gpus)
    return replace(load, learners=2, scores=2)


def _estimate_load(
    config: TrainConfig,
    shape: ModelShape,
    sequences: int,
    sampled: int,
    keeps_reference: bool = True,
) -> Training:
    """Return the memory load of a training step.

    keeps_reference: the first policy stays beside the one that learns, unless that is an adapter on
    it.
    """
    learner = config.learner
    return Training(
        shape,
        sequences=sequences,
        length=learner.max_prompt_tokens + learner.max_response_tokens,
        lora_rank=learner.lora_rank,
        references=int(keeps_reference and learner.lora_rank is None),
        sampled=sampled,
        written=learner.max_response_tokens,
    )


LOADS: dict[str, Callable[[TrainConfig, ModelShape, int], Training]] = {
    "grpo": _estimate_grouped,
    "rloo": _estimate_grouped,
    "online-dpo": _estimate_pairs,
    "ppo": _estimate_with_value,
}


def render_run_plan(rows: Sequence[Row], machine: Machine, flags: PlanConfig) -> str:
    """Return the plan as Markdown."""
    has_rates = any(row.rate for row in rows)
    columns = rate_columns(flags) if has_rates else []
    cells = [
        [
            row.what,
            str(row.gpus),
            f"{row.total:.1f}",
            "yes" if row.fault is None else "no",
            str(row.sequences or "-"),
            *(rate_cells(row.rate, flags) if row.rate else ["-"] * len(columns)),
            ", ".join(f"{name} {size:.1f}" for name, size in row.parts.items()),
        ]
        for row in rows
    ]
    head = ["what", "GPUs", f"GiB of {machine.memory_gib:g} on each", "fits"]
    head += ["sequences at once", *columns, "parts"]
    faults = [f"- {row.what}: {row.fault}" for row in rows if row.fault]
    notes = [assumed(flags)] if has_rates else []
    return "\n".join([*table(head, cells), *([""] if notes or faults else []), *notes, *faults])
