"""`autoj plan --config F`: what the engines and the training of a run file take of each GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from autoj_reward.capacity.machine import Machine, find_gpu
from autoj_reward.capacity.memory import Place, parts, require_room
from autoj_reward.config import Block, JudgeConfig, PolicyConfig
from autoj_reward.config.load import read_config
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.io.markdown import table
from autoj_reward.models.device import Device
from autoj_reward.models.room import engine_parts, require_engine_room
from autoj_reward.training.fine_tuning import memory_load
from autoj_reward.training.judge.recipe import TrainJudgeConfig, sequences_of
from autoj_reward.training.scalar.recipe import TrainScalarConfig
from rollouts.train.config import TrainConfig
from rollouts.train.memory import LOADS, load

ENGINES: dict[str, type[JudgeConfig] | type[PolicyConfig]] = {
    "judge": JudgeConfig,
    "scalar": JudgeConfig,
    "policy": PolicyConfig,
}
"""Blocks of a run file that are engines, wherever they are."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one part of a run takes of each of its GPUs, in GiB. fault: why it does not fit."""

    what: str
    gpus: int
    parts: dict[str, float]
    fault: str | None

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def main(
    config: str,
    sets: Sequence[str],
    accelerate: str | None,
    processes: int | None,
    gpu: str,
    as_json: bool,
) -> int:
    """Print the plan; 1 if nothing of a kind fits."""
    machine, data = find_gpu(gpu), read_config(config, sets)
    place = place_of(machine, accelerate, processes)
    rows = plan(data, machine, place)
    if not rows:
        raise ConfigError(f"{config}: no model in it whose shape is known, so nothing to plan")
    print(json.dumps([asdict(row) for row in rows], indent=2) if as_json else render(rows, machine))
    return 0 if any(row.fault is None for row in rows) else 1


def place_of(machine: Machine, accelerate: str | None, processes: int | None) -> Place:
    """Where a training runs: by accelerate's config, or on so many GPUs that each hold it whole."""
    told: dict[str, Any] = {}
    if accelerate is not None:
        told = read_config(accelerate, ())
    gpus = processes or int(told.get("num_processes", 1))
    return Place(machine.memory_gib, gpus, told.get("distributed_type") == "FSDP")


def plan(data: Mapping[str, Any], machine: Machine, place: Place) -> list[Row]:
    """A row for each engine, and for each trainer that could run the file."""
    device = Device("cuda", machine.memory_gib, machine.capability)
    return [*_engines(data, device), *_trainings(data, place)]


def _engines(data: Mapping[str, Any], device: Device, where: str = "") -> Iterator[Row]:
    for key, value in data.items():
        if not isinstance(value, dict):
            continue
        name = f"{where}{key}"
        if key in ENGINES and data.get("service") is None:
            yield from _engine(name, ENGINES[key].model_validate(value), device)
        elif key not in ENGINES:
            yield from _engines(value, device, f"{name}.")


def _engine(name: str, config: JudgeConfig | PolicyConfig, device: Device) -> Iterator[Row]:
    found = engine_parts(config, device) if config.kind == "vllm" else None
    if found is not None:
        fault = _fault(lambda: require_engine_room(config, device))
        yield Row(name, config.tensor_parallel, found, fault)


def _trainings(data: Mapping[str, Any], place: Place) -> Iterator[Row]:
    makers: list[tuple[str, type[Block], Callable[[Any], Any]]] = [
        ("train judge", TrainJudgeConfig, lambda c: memory_load(c, sequences_of(c))),
        ("train scalar", TrainScalarConfig, lambda c: memory_load(c, 2)),
        *(
            (f"train {name}", TrainConfig, lambda c, name=name: load(c, name, place.gpus))
            for name in LOADS
        ),
    ]
    for name, kind, make in makers:
        try:
            training = make(kind.model_validate(data))
        except (ValidationError, ModelError):
            continue
        fault = _fault(lambda training=training: require_room(training, place))  # type: ignore[misc]
        yield Row(name, place.gpus, parts(training, place), fault)


def _fault(check: Callable[[], object]) -> str | None:
    try:
        check()
    except ConfigError as error:
        return str(error)
    return None


def render(rows: Sequence[Row], machine: Machine) -> str:
    """The plan as Markdown."""
    cells = [
        [
            row.what,
            str(row.gpus),
            f"{row.total:.1f}",
            "yes" if row.fault is None else "no",
            ", ".join(f"{name} {size:.1f}" for name, size in row.parts.items()),
        ]
        for row in rows
    ]
    head = ["what", "GPUs", f"GiB of {machine.memory_gib:g} on each", "fits", "parts"]
    faults = [f"- {row.what}: {row.fault}" for row in rows if row.fault]
    return "\n".join([*table(head, cells), *([""] if faults else []), *faults])
