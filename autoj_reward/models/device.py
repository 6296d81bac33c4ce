"""What a model computes on here, found without a context on a GPU: its driver is asked (NVML).

A process that has touched CUDA keeps the GPUs that it saw then, and some of their memory, for good.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

AMPERE = (8, 0)
"""The first compute capability with bfloat16 and TF32."""


@dataclass(frozen=True, slots=True)
class Device:
    """A CPU, or a GPU with its memory, its compute capability and its driver's name for it."""

    kind: Literal["cpu", "cuda"]
    memory_gib: float = 0.0
    capability: tuple[int, int] = AMPERE
    name: str = ""

    @property
    def half(self) -> Literal["bfloat16", "float16"]:
        """The half precision that a GPU computes in: cards before Ampere have no bfloat16."""
        return "bfloat16" if self.capability >= AMPERE else "float16"


CPU = Device("cpu")


def device_here() -> Device:
    """The first GPU that this process may use, or the CPU."""
    return _device(os.environ.get("CUDA_VISIBLE_DEVICES"))


@lru_cache
def _device(visible: str | None) -> Device:
    import torch

    if not torch.cuda.device_count():  # counts by NVML too
        return CPU
    try:
        import pynvml
    except ImportError:  # torch knows it as well, but only by touching CUDA
        found = torch.cuda.get_device_properties(0)
        capability = (found.major, found.minor)
        return Device("cuda", found.total_memory / 2**30, capability, found.name)
    pynvml.nvmlInit()
    try:
        handle = _handle(pynvml, (visible or "0").split(",")[0].strip())
        capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
        name = pynvml.nvmlDeviceGetName(handle)
    finally:
        pynvml.nvmlShutdown()
    return Device("cuda", memory / 2**30, tuple(capability), name)


def _handle(pynvml: Any, name: str) -> Any:
    """A GPU by its place in the driver's list, or by its UUID."""
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)
