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
GPUS: dict[str, Device] = {
    "a100-40": Device("cuda", 40.0, (8, 0), "NVIDIA A100-SXM4-40GB"),
    "a100-80": Device("cuda", 80.0, (8, 0), "NVIDIA A100-SXM4-80GB"),
    "h100": Device("cuda", 79.6, (9, 0), "NVIDIA H100 80GB HBM3"),
    "h200": Device("cuda", 140.4, (9, 0), "NVIDIA H200"),
    "l40s": Device("cuda", 45.0, (8, 9), "NVIDIA L40S"),
    "rtx-4090": Device("cuda", 24.0, (8, 9), "NVIDIA GeForce RTX 4090"),
    "b200": Device("cuda", 179.1, (10, 0), "NVIDIA B200"),
}
"""GPUs that `autoj plan` knows by name, with the memory that the driver shows. Of several variants
of a GPU it is the SXM one."""


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
