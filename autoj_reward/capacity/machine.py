"""What computes: the peaks of known GPUs, and of this machine measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import yaml
from pydantic import Field

from autoj_reward.capacity.shape import Precision, unquantised
from autoj_reward.config import Block, check
from autoj_reward.errors import ConfigError

MATRIX = 2048
"""Rows and columns of the square matrices that are multiplied."""
COPIED = 1 << 28
"""Bytes that are copied: more than caches hold."""
SECONDS = 3.0
"""How long each is repeated: the more often, the surer one round had the cores to itself."""


class Machine(Block):
    """One device, or the cores of one replica.

    tflops: dense peak in 10^12 operations a second, a multiplication and an addition being two.
    bandwidth_gbs: of its memory, 10^9 bytes a second. device: the name its driver reports.
    capability: its compute capability.
    """

    tflops: dict[Precision, float] = Field(min_length=1)
    memory_gib: float = Field(gt=0)
    bandwidth_gbs: float = Field(gt=0)
    device: str | None = None
    capability: tuple[int, int] = (9, 0)

    def peak(self, precision: Precision) -> float:
        """Operations a second. fp8 without fp8 units computes in bf16; raises ConfigError where
        the peak is not known."""
        for usable in (precision, unquantised(precision)):
            if usable in self.tflops:
                return self.tflops[usable] * 1e12
        known = ", ".join(self.tflops)
        raise ConfigError(f"no peak in {precision} is known: plan weights and kv in {known}")


@lru_cache
def known_gpus() -> dict[str, Machine]:
    """GPUs by name. Source: NVIDIA's data sheets of the A100, H100, H200, L40S, HGX B200, and the
    Ada architecture paper for the RTX 4090; the SXM variants where there are several."""
    path = Path(__file__).parent / "gpus.yaml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: check(Machine, entry, f"{path}: {name}") for name, entry in data.items()}


def find_gpu(name: str) -> Machine:
    """A GPU of the table by its name. Raises ConfigError listing the names."""
    try:
        return known_gpus()[name.lower()]
    except KeyError:
        raise ConfigError(
            f"gpu {name!r} is not in the table: use one of {', '.join(known_gpus())}, or custom "
            "or cpu with --tflops, --bandwidth and --memory"
        ) from None


def reported(device: str) -> Machine:
    """The GPU of the table that a driver reports under this name. Raises ConfigError."""
    for machine in known_gpus().values():
        if machine.device == device:
            return machine
    raise ConfigError(
        f"no peaks of {device!r} are in the table: give `machine` with tflops, memory_gib and "
        "bandwidth_gbs from its data sheet"
    )


def memory_here() -> float:
    """GiB of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def measure() -> Machine:
    """This machine's cores, in float32 by torch with the threads it was given.

    The peak is that of a product of two square matrices, the bandwidth that of a copy, read and
    written bytes counted; the best of many rounds.
    """
    import torch

    left, right = torch.rand(MATRIX, MATRIX), torch.rand(MATRIX, MATRIX)
    product = torch.empty(MATRIX, MATRIX)
    source = torch.rand(COPIED // 4)
    target = torch.empty_like(source)
    seconds = _best(lambda: torch.mm(left, right, out=product))
    return Machine(
        tflops={"float32": 2 * MATRIX**3 / seconds / 1e12},
        bandwidth_gbs=2 * COPIED / _best(lambda: target.copy_(source)) / 1e9,
        memory_gib=memory_here(),
    )


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest round in SECONDS; the first, which warms up, does not count."""
    work()
    times: list[float] = []
    until = time.perf_counter() + SECONDS
    while not times or time.perf_counter() < until:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
