"""Processes of a run: their number, values shared by rank 0, and garbage collection under load."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

from autoj_reward.errors import AutojError, ConfigError

PROCESSES_VARIABLE = "AUTOJ_PROCESSES"
"""Environment variable with the number of a job's worker processes.

Training launchers such as torchrun set WORLD_SIZE instead.
"""
GC_THRESHOLD = 20_000
"""New objects before the garbage collector runs; Python's default is 700."""
T = TypeVar("T")
R = TypeVar("R")


def processes() -> int:
    """Return the number of processes of this run; 1 if no launcher started several.

    Raises ConfigError if the environment variable that says so holds no such number.
    """
    for name in (PROCESSES_VARIABLE, "WORLD_SIZE"):
        if value := os.environ.get(name):
            if not re.fullmatch("[1-9][0-9]{0,8}", value):
                raise ConfigError(
                    f"the environment variable {name} is {value[:40]!r}: set it to the number of "
                    "processes, 1 or more, or unset it"
                )
            return int(value)
    return 1


def ranks() -> int:
    """Return the number of ranks that gather in torch.distributed; 1 without it."""
    distributed = _find_distributed()
    return 1 if distributed is None else int(distributed.get_world_size())


def is_first_rank() -> bool:
    """Return whether this process is rank 0, or the only one."""
    distributed = _find_distributed()
    if distributed is None:  # the launcher's word counts until the ranks are connected
        return int(os.environ.get("RANK") or 0) == 0
    return bool(distributed.get_rank() == 0)


def of_first_rank(name: str, value: T) -> T:
    """Share rank 0's `value` with all ranks and return it. A single process returns its own.

    Every rank calls this with the same name. value: JSON-compatible; only rank 0's counts. It goes
    through the key-value store of torch.distributed, not through a collective operation: rank 0
    does not wait, and the others wait for rank 0, up to the store's own timeout.
    """
    distributed = _find_distributed()
    if distributed is None:
        return value
    store = distributed.distributed_c10d._get_default_store()
    if is_first_rank():
        store.set(name, json.dumps(value))
        return value
    first_value: T = json.loads(store.get(name))
    return first_value


def on_first_rank(
    work: Callable[[list[T]], Sequence[R]], items: Sequence[T], timeout_s: float
) -> list[R]:
    """Run `work` on rank 0 over the items of all ranks, and return the results of this rank's own.

    work: returns one result an item, in order. An AutojError that it raises is raised on all
    ranks. Every rank must call this function equally often. The ranks exchange pickled objects in
    a gloo group of their own, so no collective of the training waits meanwhile. timeout_s: seconds
    to wait for rank 0.
    """
    distributed = _find_distributed()
    if distributed is None:
        return list(work(list(items)))
    group = _make_gloo_group(timeout_s)
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, list(items), group=group)
    answer: list[Any] = [None]
    if is_first_rank():
        try:
            results = iter(work([item for part in gathered for item in part]))
            answer = [[[next(results) for _ in part] for part in gathered]]
        except AutojError as error:
            answer = [error]
    distributed.broadcast_object_list(answer, src=0, group=group)
    if isinstance(answer[0], AutojError):
        raise answer[0]
    rank_results: list[R] = answer[0][distributed.get_rank()]
    return rank_results


@lru_cache(maxsize=1)
def _make_gloo_group(timeout_s: float) -> Any:
    """Return a process group of all ranks for objects on the CPU, made at its first use."""
    return _find_distributed().new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Raise the garbage collector's threshold within this context, and exempt all objects loaded so
    far.

    Use it while many requests are in flight. With 1,000 of them, the collector scans all their
    objects again and again: a third of the CPU, and stalls of 0.2 s. A request leaves no garbage
    cycles. Objects that the caller froze earlier stay frozen.
    """
    thresholds, frozen_count = gc.get_threshold(), gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if not frozen_count:
            gc.unfreeze()


def _find_distributed() -> Any:
    """Return torch.distributed, or None in a single process."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
