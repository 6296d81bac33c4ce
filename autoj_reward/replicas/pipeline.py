"""Work on items in stages, each by workers of its own on the machines of a Ray cluster."""

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
    """The replicas that another process has deployed, for one of its workers."""

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
        """Others still ask them."""


@cache
def _made(pickled: bytes) -> Callable[[Any], Any]:
    """Return the stage of this worker process, made once and used for all of its items."""
    make, made_of = pickle.loads(pickled)
    stage: Callable[[Any], Any] = make(*made_of)
    return stage


def _work(row: dict[str, bytes], pickled: bytes) -> dict[str, bytes]:
    """Take one item through a stage."""
    item = pickle.loads(row["item"])
    if isinstance(item, AutojError):  # of the stage before
        return row
    try:
        item = _made(pickled)(item)
    except AutojError as error:  # raised here, it would reach nobody but as text
        item = error
    return {"item": pickle.dumps(item)}


def through(
    items: Sequence[Any],
    stages: Sequence[Callable[..., Callable[[Any], Any]]],
    made_of: Sequence[Any],
    workers: int,
) -> Iterator[Any]:
    """What the last stage makes of every item, in their order, as soon as it is made. While a
    stage has one item, the stage before it has the next.

    stages: classes or functions of which each worker makes one of its own with `made_of`, to be
    called with an item at a time. workers: of each stage; they take no whole core from replicas
    and are spread over the machines. The item of a worker that is lost goes to another one. The
    first AutojError of a stage ends all.
    """
    _quiet()
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    rows = [{"item": pickle.dumps(item)} for item in items]
    data = ray.data.from_items(rows, override_num_blocks=len(rows))
    workers = min(workers, len(rows))
    for number, stage in enumerate(stages):
        # Tasks, not actors: an actor of Ray Data's cannot be restarted once the arguments of its
        # constructor have left the object store, which Ray reports as an error at every start.
        data = data.map(
            _work,
            fn_args=(pickle.dumps((stage, tuple(made_of))),),
            compute=TaskPoolStrategy(size=workers),
            num_cpus=0,
            # Processes of its own: Ray Data would make one task of stages that could share them.
            runtime_env={
                "env_vars": {"AUTOJ_STAGE": str(number), PROCESSES_VARIABLE: str(workers)}
            },
        )
    # A row a block. `iter_rows` reads a block ahead: each item would wait for the next one.
    for block in data.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
        done = pickle.loads(block["item"].item())
        if isinstance(done, AutojError):
            raise done
        yield done


def _quiet() -> None:
    """What Ray Data says of its progress goes to its file alone."""
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.ERROR)
