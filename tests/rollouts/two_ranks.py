"""Trainings in two gloo processes, as `accelerate launch` starts them with a shipped config:

    accelerate launch --config_file F --num_processes 2 tests/rollouts/two_ranks.py WORK.json

WORK.json lists [what, config]. Each is stopped after the checkpoint of its first step and run
again. accelerate keeps FSDP from CPUs; what it would do on GPUs is done here all the same.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import accelerate.state
from accelerate import PartialState
from accelerate.utils import DistributedType

from autoj_reward.config import RewardConfig
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.training import saving
from rollouts.train import main as policies
from rollouts.train import ppo


class Stopped(Exception):
    """The first run has saved its first step."""


def pretend_gpus() -> None:
    """Let accelerate take two gloo processes for two GPUs where FSDP is asked for."""
    initialize = PartialState.__init__

    def initialize_pretended(self: Any, cpu: bool = False, **options: Any) -> None:
        initialize(self, cpu, **options)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    accelerate.state.PartialState.__init__ = initialize_pretended


@contextmanager
def scripted_judge(config: RewardConfig, threads: int | None) -> Iterator[RewardModel]:
    """In place of a service, which two processes would share."""
    with RewardModel(config) as model:
        yield model


def stop_at_step_1(kind: Any, method: str, first: list[bool]) -> None:
    """Let a callback's method stop the run at step 1, where `first` is not empty."""
    original = getattr(kind, method)

    def stop(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        original(self, args, state, control, **more)
        if first and state.global_step == 1:
            PartialState().wait_for_everyone()
            first.clear()
            raise Stopped

    setattr(kind, method, stop)


def run(recipe: str, config: dict[str, Any]) -> None:
    """One training, whole or from where it was stopped."""
    if recipe in ("judge", "judge-grpo", "scalar"):
        if recipe != "scalar":
            from autoj_reward.training.judge.recipe import METHODS
            from autoj_reward.training.judge.train import train_judge as train

            Kind = METHODS[config.get("method", "sft")]
        else:
            from autoj_reward.training.scalar.data import (  # type: ignore[assignment]
                TrainScalarConfig as Kind,
            )
            from autoj_reward.training.scalar.train import (  # type: ignore[assignment]
                train_scalar as train,
            )
        train(Kind.model_validate(config))
    else:
        path = Path(f"{config['output']}-{os.environ['RANK']}.json")
        path.write_text(json.dumps(config), encoding="utf-8")
        policies.main(recipe, str(path))


def say(line: str) -> None:
    """A line in one write: an unbuffered print would let the other process in before its end."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(work: str) -> None:
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        pretend_gpus()
    setattr(policies, "beside_judge", scripted_judge)  # noqa: B010
    first: list[bool] = []
    stop_at_step_1(saving._Checkpoints, "on_save", first)
    stop_at_step_1(ppo._Checkpoints, "on_step_end", first)
    for recipe, config in json.loads(Path(work).read_text(encoding="utf-8")):
        first.append(True)
        try:
            run(recipe, config)
        except Stopped:
            say(f"stopped: {recipe}")
        run(recipe, config)
        say(f"done: {recipe}")


if __name__ == "__main__":
    main(sys.argv[1])
