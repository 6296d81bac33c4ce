"""Capacity plan: `autoj plan`.

Estimates the GPU memory of the engines and trainings of a run file, or of one judge.
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
    check_parallel,
    find_shape,
    memory_parts,
    require_memory,
)
from autoj_reward.config import Block, JudgeConfig, PolicyConfig
from autoj_reward.config.load import read_config
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.io.markup import table
from autoj_reward.models.device import GPUS, Device
from autoj_reward.models.gpu_memory import engine_parts, require_engine_memory
from autoj_reward.models.settings import HOPPER, kv_tokens, resolve_engine_settings
from autoj_reward.training.common import dpo_load, memory_load
from autoj_reward.training.judge.recipe import JudgeDPOConfig, TrainJudgeConfig, sequences_of
from autoj_reward.training.scalar.data import TrainScalarConfig
from rollouts.train.learner import TrainConfig

ENGINES: dict[str, type[JudgeConfig] | type[PolicyConfig]] = {
    "judge": JudgeConfig,
    "scalar": JudgeConfig,
    "policy": PolicyConfig,
}
"""Config class of each block that is an engine, at any depth of a run file."""
CUSTOM = "custom"
"""Name of a GPU that is described by its memory."""


@dataclass(frozen=True, slots=True)
class Row:
    """Memory use of one engine or training of a run."""

    what: str
    gpus: int
    parts: dict[str, float]
    """GiB on each of its GPUs, by use."""
    fault: str | None
    """Why it does not fit; None if it fits."""
    replicas: int | None = None
    """Engines of this size that its GPUs have memory for; None for a training."""
    kv_tokens: int | None = None
    """Tokens that the KV cache of an engine holds; None for a training, or if it does not fit."""
    sequences: int | None = None
    """Sequences that an engine runs at once; None as for `kv_tokens`."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def main(
    gpu: str,
    memory: float | None,
    model: str | None,
    config: str | None,
    sets: Sequence[str],
    accelerate: str | None,
    processes: int | None,
    as_json: bool,
) -> int:
    """Print the plan of a run file, or of the judge `model`.

    gpu, memory: see `find_gpu`. accelerate, processes: see `place_of`. Return 0, or 1 if no engine
    and no training fits. Raises ConfigError or ModelError if there is nothing to plan.
    """
    device = find_gpu(gpu, memory)
    if model is not None:
        if config is not None:
            raise ConfigError("--config states its models itself: use --set judge.model=NAME")
        find_shape(model)
        sets = [f"judge.model={json.dumps(model)}", *sets]
    data = read_config(config, sets)
    rows = plan(data, device, place_of(device, accelerate, processes))
    if not rows:
        raise ConfigError(
            f"{config or 'command line'}: no model whose shape is known, so nothing to plan: name "
            "a run file with --config, or a judge with --model"
        )
    records = [asdict(row) for row in rows]
    print(json.dumps(records, indent=2) if as_json else render_plan(rows, device))
    return 0 if any(row.fault is None for row in rows) else 1


def find_gpu(name: str, memory: float | None) -> Device:
    """Return the GPU with this name in the table, or a `custom` one with this memory in GiB.

    Raises ConfigError for a name that is not in the table, and for memory beside one that is.
    """
    if name == CUSTOM:
        if memory is None or memory <= 0:
            raise ConfigError("--gpu custom needs --memory, in GiB")
        return Device("cuda", memory, HOPPER)
    if memory is not None:
        raise ConfigError(f"--memory is for --gpu custom, not {name}")
    if name.lower() not in GPUS:
        raise ConfigError(
            f"gpu {name!r} is not in the table: use one of "
            f"{', '.join(GPUS)}, or custom with --memory"
        )
    return GPUS[name.lower()]


def place_of(device: Device, accelerate: str | None, processes: int | None) -> TrainingDevices:
    """Return the devices of a training.

    accelerate: path of accelerate's config; it says whether weights are sharded. processes: number
    of GPUs, in place of that in the config.
    """
    launch: dict[str, Any] = {}
    if accelerate is not None:
        launch = read_config(accelerate, ())
    gpus = processes or int(launch.get("num_processes", 1))
    return TrainingDevices(device.memory_gib, gpus, launch.get("distributed_type") == "FSDP")


def plan(data: Mapping[str, Any], device: Device, place: TrainingDevices) -> list[Row]:
    """Return a row for each engine, and for each trainer that could run the file."""
    return [
        *_plan_engines(data, device),
        *_plan_sampling(data, device),
        *_plan_trainings(data, place),
    ]


def _plan_engines(data: Mapping[str, Any], device: Device, where: str = "") -> Iterator[Row]:
    for key, value in data.items():
        if not isinstance(value, dict):
            continue
        name = f"{where}{key}"
        if key in ENGINES and data.get("service") is None:
            yield from _plan_engine(name, ENGINES[key].model_validate(value), device)
        elif key not in ENGINES:
            yield from _plan_engines(value, device, f"{name}.")


def _plan_engine(name: str, config: JudgeConfig | PolicyConfig, device: Device) -> Iterator[Row]:
    parts = engine_parts(config, device) if config.kind == "vllm" else None
    if parts is None:
        return
    gpus = config.tensor_parallel
    try:
        check_parallel(find_shape(config.model), gpus)
        require_engine_memory(config, device)
    except (ConfigError, ModelError) as error:
        yield Row(name, gpus, parts, str(error), replicas=0)
        return
    # Without kv_cache_gib an engine takes its share of a whole GPU, so none fits beside it.
    shared = config.kv_cache_gib is not None
    sized = config.model_copy(update={"kv_cache_gib": parts["KV cache"]})
    yield Row(
        name,
        gpus,
        parts,
        None,
        replicas=int(device.memory_gib / sum(parts.values())) if shared else 1,
        kv_tokens=kv_tokens(sized, device),
        sequences=resolve_engine_settings(config, device).max_sequences,
    )


def _plan_sampling(data: Mapping[str, Any], device: Device) -> Iterator[Row]:
    """Yield the engine that samples the judge of a training on pairs."""
    try:
        judge = JudgeDPOConfig.model_validate(data).sampled_judge()
    except ValidationError:
        return
    yield from _plan_engine("train judge sample", judge, device)


def _plan_trainings(data: Mapping[str, Any], place: TrainingDevices) -> Iterator[Row]:
    makers: list[tuple[str, type[Block], Callable[[Any], Any]]] = [
        ("train judge", TrainJudgeConfig, lambda c: memory_load(c, sequences_of(c))),
        ("train judge", JudgeDPOConfig, dpo_load),
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


def render_plan(rows: Sequence[Row], device: Device) -> str:
    """Return the plan as Markdown."""
    cells = [
        [
            row.what,
            str(row.gpus),
            f"{row.total:.1f}",
            "yes" if row.fault is None else "no",
            "-" if row.replicas is None else str(row.replicas),
            "-" if row.kv_tokens is None else f"{row.kv_tokens:,}",
            "-" if row.sequences is None else str(row.sequences),
            ", ".join(f"{name} {size:.1f}" for name, size in row.parts.items()),
        ]
        for row in rows
    ]
    head = ["what", "GPUs", f"GiB of {device.memory_gib:g} on each", "fits", "replicas there"]
    head += ["tokens of KV cache", "sequences at once", "parts"]
    faults = [f"- {row.what}: {row.fault}" for row in rows if row.fault]
    return "\n".join([*table(head, cells), *([""] if faults else []), *faults])
