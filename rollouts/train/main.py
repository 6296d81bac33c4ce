"""Run TRL's trainers beside a judge, with cores and GPUs divided between them: `autoj train`.

    autoj train grpo --config configs/trainers/grpo.yaml

The output folder gets checkpoints, TensorBoard logs (`logs/`), every judgement (`journal.sqlite`)
and the trained policy (`policy/`). The same command after a stop resumes from the last checkpoint.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.errors import AuditAlarm, BudgetExceeded, ConfigError
from autoj_reward.io.claims import claim, finish
from autoj_reward.io.files import require_apart
from autoj_reward.models.unused import load_run
from autoj_reward.processes import processes
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.training.common import log_to, require_fit
from rollouts.plan import training_load
from rollouts.train.learner import (
    TrainConfig,
    import_object,
    load_learner,
    load_policy_tokenizer,
    mark_opened_thinking,
    require_arguments,
)

ALGORITHMS = {
    "ppo": ("rollouts.train.ppo:train_ppo", "trl.experimental.ppo:PPOConfig"),
    "grpo": ("rollouts.train.online:train_grpo", "trl:GRPOConfig"),
    "rloo": ("rollouts.train.online:train_rloo", "trl:RLOOConfig"),
    "online-dpo": (
        "rollouts.train.online:train_online_dpo",
        "trl.experimental.online_dpo:OnlineDPOConfig",
    ),
}
"""Training function, and class of the trainer's arguments, of each algorithm."""


def main(algorithm: str, config: str, sets: Sequence[str] = (), strict: bool = False) -> int:
    """Train by one of ALGORITHMS, or by rejection sampling, and print where the policy is."""
    if algorithm == "rejection-sampling":
        from rollouts.train import rejection_sampling

        return rejection_sampling.main(config, sets, strict)
    checked = load_run(TrainConfig, config, sets, strict)
    inputs = (checked.input, checked.learner.model)
    require_apart(inputs, [checked.reward.journal], checked.output)
    train, arguments = ALGORITHMS[algorithm]
    require_arguments("trainer", checked.trainer, arguments)
    require_fit(lambda: training_load(checked, algorithm, processes()))
    claim(checked.output, checked, changeable={"output", "save_steps"})
    log_to(checked.output / "logs")
    if is_main_process():
        print(f"to watch: autoj watch {shlex.quote(str(checked.output))}", file=sys.stderr)
    journal = checked.reward.journal or checked.output / "journal.sqlite"
    reward = checked.reward.model_copy(update={"journal": journal})
    reward = mark_opened_thinking(reward, load_policy_tokenizer(checked.learner)[1])
    with beside_judge(reward, checked.threads) as model:
        learner = load_learner(checked)
        try:
            import_object(train)(checked, learner, model)
        except (BudgetExceeded, AuditAlarm) as error:
            raise type(error)(
                f"{error} (the same command goes on from the last checkpoint in {checked.output})"
            ) from error
    finish(checked.output)
    if is_main_process():
        print(f"policy: {checked.output / 'policy'}")
    return 0


def is_main_process() -> bool:
    """Return whether this is the process that writes the files of the run."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def beside_judge(config: RewardConfig, threads: int | None) -> Iterator[RewardModel]:
    """Open a reward model, with the machine divided between its judge and the trainer.

    Without a GPU the trainer keeps `threads` cores to itself (half of them by default), and
    replicas that start with the run get the others. With several GPUs the trainer keeps the first,
    and the Ray that starts with the run is shown the others. One GPU is shared by stated parts.
    Beside a running service the trainer keeps to `threads` cores, if given.

    Raises ConfigError where several training processes would each start a judge, and for one GPU
    without stated parts.
    """
    if config.started and processes() > 1:
        raise ConfigError(
            "several training processes share one judge: start it with `autoj serve` and name its "
            "address in reward.service"
        )
    own_judge = any(judge.on_replicas for judge in config.started)
    gpus = _share_out_gpus(config.started) if own_judge else None
    model = RewardModel(config, gpus)
    try:
        if own_judge and gpus is None:
            _share_out_cores(model, threads)
        elif threads:
            _restrict_cores(threads)
        model.open()
        yield model
    finally:
        model.close()


def _share_out_gpus(judges: Sequence[JudgeConfig]) -> str | None:
    """Restrict this process to one GPU; return CUDA_VISIBLE_DEVICES for the Ray of its judges.

    Returns None without GPUs. A single GPU is for both.
    """
    import torch

    gpus = torch.cuda.device_count()  # asks the driver: CUDA is not touched before this is settled
    if not gpus:
        return None
    if gpus == 1:
        _require_shares(judges)
    visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    first, _, others = visible_gpus.partition(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = first
    return others or first


def _require_shares(judges: Sequence[JudgeConfig]) -> None:
    """Raise ConfigError unless judges on the trainer's only GPU state their share of it."""
    share = 0.0
    for judge in judges:
        most = judge.serve.max_replicas or judge.serve.replicas
        stated = isinstance(most, int) and judge.serve.num_gpus and judge.kv_cache_gib
        share += most * judge.serve.num_gpus if stated else 1.0  # type: ignore[operator]
    if share >= 1:
        raise ConfigError(
            "one GPU for the trainer and its judge: state the judge's part, for example "
            "--set reward.judge.serve.replicas=1 --set reward.judge.serve.num_gpus=0.4 "
            "--set reward.judge.kv_cache_gib=8, so that vLLM leaves the rest alone; or name a "
            "service on another GPU in reward.service"
        )


def _share_out_cores(model: RewardModel, threads: int | None) -> None:
    """Start the judge's processes on their cores, then move this process to the trainer's."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        trainer_cores = threads or max(1, len(cores) // 2)
        # Threads and processes inherit the cores of the thread that starts them.
        os.sched_setaffinity(0, cores[trainer_cores:] or cores)
        model.open()
        os.sched_setaffinity(0, cores)
        _restrict_cores(trainer_cores)


def _restrict_cores(threads: int) -> None:
    """Restrict this process to the first `threads` cores."""
    import torch

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_num_threads(threads)
