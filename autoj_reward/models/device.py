"""Device of this machine, found by NVML, without creating a CUDA context.

Once a process has used CUDA, it keeps the GPUs visible at that time, and some GPU memory, until it
ends.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

AMPERE = (8, 0)
"""First compute capability with bfloat16 and TF32."""


@dataclass(frozen=True, slots=True)
class Device:
    """CPU or GPU."""

    kind: Literal["cpu", "cuda"]
    memory_gib: float = 0.0
    """GPU memory in GiB."""
    capability: tuple[int, int] = AMPERE
    """Compute capability of the GPU."""
    name: str = ""
    """Name that the driver gives the GPU."""

    @property
    def half(self) -> Literal["bfloat16", "float16"]:
        """Half precision that the GPU computes in: bfloat16, or float16 before Ampere."""
        return "bfloat16" if self.capability >= AMPERE else "float16"


CPU = Device("cpu")
"""The CPU of any machine."""


def detect_device() -> Device:
    """Return the first GPU that this process may use, else the CPU."""
    return _find_device(os.environ.get("CUDA_VISIBLE_DEVICES"))


@lru_cache
def _find_device(visible: str | None) -> Device:
    import torch

    if not torch.cuda.device_count():  # this also uses NVML
        return CPU
    try:
        import pynvml
    except ImportError:  # torch knows the device too, but creates a CUDA context
        properties = torch.cuda.get_device_properties(0)
        capability = (properties.major, properties.minor)
        return Device("cuda", properties.total_memory / 2**30, capability, properties.name)
    pynvml.nvmlInit()
    try:
        handle = _open_handle(pynvml, (visible or "0").split(",")[0].strip())
        capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
        name = pynvml.nvmlDeviceGetName(handle)
    finally:
        pynvml.nvmlShutdown()
    return Device("cuda", memory / 2**30, tuple(capability), name)


def _open_handle(pynvml: Any, name: str) -> Any:
    """Return the NVML handle of a GPU, by its index or its UUID."""
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)
