"""vLLM's own check of engine arguments on simulated hardware: a node of eight H100s.

    python tests/support/pretended_h100.py < arguments.json    # a list for AsyncEngineArgs

Prints one line for each item: the config that vLLM derived. Kernels are stubbed if the CPU build
lacks them; the config code is vLLM's own.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

MEMORY = 80 * 2**30
KERNELS = (
    "vllm._C_stable_libtorch",
    "vllm._qutlass_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)


def pretend() -> None:
    """Make vLLM see eight H100s. Must be called before anything else of vLLM is imported."""
    for kernels in KERNELS:
        sys.modules.setdefault(kernels, ModuleType(kernels))
    import vllm.platforms as platforms
    import vllm.platforms.cuda as cuda
    import vllm.triton_utils as triton
    import vllm.triton_utils.importing as importing
    from vllm.platforms.interface import DeviceCapability

    class H100(cuda.NonNvmlCudaPlatform):
        """Platform that reports an H100's properties."""

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA H100 80GB HBM3"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return MEMORY

        @classmethod
        def is_fully_connected(cls, ids: list[int]) -> bool:
            return True

        @classmethod
        def device_count(cls) -> int:
            return 8

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 132

        @classmethod
        def get_device_numa_node(cls, device_id: int = 0) -> None:
            return None

    platforms._current_platform = H100()
    import vllm._custom_ops as operations

    for name in dir(operations):  # which kernels a card has is asked of the kernels
        if name.startswith("cutlass_") and "support" in name:
            setattr(operations, name, lambda *_: True)
    importing.HAS_TRITON = triton.HAS_TRITON = True


def read_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of vLLM's config that this package decides."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    config = AsyncEngineArgs(**arguments).create_engine_config()
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    return {
        "device": config.device_config.device_type,
        "runner": model.runner_type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": model.quantization and str(model.quantization),
        "length": model.max_model_len,
        "sequences": scheduler.max_num_seqs,
        "tokens": scheduler.max_num_batched_tokens,
        "gpus": config.parallel_config.tensor_parallel_size,
        "utilization": cache.gpu_memory_utilization,
        "kv_bytes": cache.kv_cache_memory_bytes,
        "prefix_caching": cache.enable_prefix_caching,
    }


if __name__ == "__main__":
    pretend()
    import vllm.config.vllm as vllm_config

    vllm_config.HAS_TRITON = True
    for arguments in json.load(sys.stdin):
        print("told", json.dumps(read_settings(arguments)))
