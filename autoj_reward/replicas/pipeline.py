"""Pipeline of stages over the machines of a Ray cluster; each stage has its own workers."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import ray.data
from ray.data import DataContext, TaskPoolStrategy

from autoj_reward.errors import AutojError
from autoj_reward.processes import PROCESSES_VARIABLE
from autoj_reward.replicas.backend import RayBackend, RayPolicy
from autoj_reward.replicas.cluster import Cluster


class Deployed(Cluster):
    """Cluster of replicas that another process has deployed, as a worker process sees it."""

    def __init__(self, judge: RayBackend | None, policy: RayPolicy | None) -> None:
        super().__init__()
        self._judge, self._policy = judge, policy

    def deploy_judge(self, config: Any) -> RayBackend:
        assert self._judge is not None
        return self._judge

    def deploy_policy(self, config: Any) -> RayPolicy:
        assert self._policy is not None
        return self._policy

    def remove(self, name: str) -> None:
        """Do nothing: other workers still use the replicas."""


@cache
def _load_stage(pickled: bytes) -> Callable[[Any], Any]:
    """Return this worker process's stage, created once and used for all of its items."""
    make, made_of = pickle.loads(pickled)
    stage: Callable[[Any], Any] = make(*made_of)
    return stage


def _process_item(row: dict[str, bytes], pickled: bytes) -> dict[str, bytes]:
    """Process one item in a stage."""
    item = pickle.loads(row["item"])
    if isinstance(item, AutojError):  # raised by the stage before
        return row
    try:
        item = _load_stage(pickled)(item)
    except AutojError as error:  # passed on as an item: Ray would turn it into text
        item = error
    return {"item": pickle.dumps(item)}


def run_stages(
    items: Sequence[Any],
    stages: Sequence[Callable[..., Callable[[Any], Any]]],
    made_of: Sequence[Any],
    workers: int,
) -> Iterator[Any]:
    """Yield each item's result of the last stage in input order, as soon as it is ready.

    While a stage works on one item, the stage before it works on the next.

    stages: classes or functions. Each worker calls one once with `made_of`, and calls the result
    with each item. workers: number for each stage; they reserve no CPU and are spread over the
    machines. If a worker is lost, another one takes its item. The first AutojError of a stage ends
    the pipeline and is raised.
    """
    _hide_progress()
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    rows = [{"item": pickle.dumps(item)} for item in items]
    data = ray.data.from_items(rows, override_num_blocks=len(rows))
    workers = min(workers, len(rows))
    for number, stage in enumerate(stages):
        # Tasks, not actors: Ray Data cannot restart an actor once its constructor's arguments have
        # left the object store. Ray reports that as an error at every start.
        data = data.map(
            _process_item,
            fn_args=(pickle.dumps((stage, tuple(made_of))),),
            compute=TaskPoolStrategy(size=workers),
            num_cpus=0,
            # Separate processes for each stage: Ray Data would merge stages that could share them.
            runtime_env={
                "env_vars": {"AUTOJ_STAGE": str(number), PROCESSES_VARIABLE: str(workers)}
            },
        )
    # One row per block. `iter_rows` reads a block ahead, so each item would wait for the next.
    for block in data.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
        result = pickle.loads(block["item"].item())
        if isinstance(result, AutojError):
            raise result
        yield result


def _hide_progress() -> None:
    """Keep Ray Data's progress messages off the terminal; they still go to its log file."""
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.ERROR)
