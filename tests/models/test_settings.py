"""Values of `auto` on a device, and the queries that find the device."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoj_reward.config import EngineConfig, JudgeConfig, PolicyConfig, ReplicaConfig
from autoj_reward.engine.vllm import IN_ONE_PROCESS, UNMEASURED, engine_arguments
from autoj_reward.models import ResolvedModel, device
from autoj_reward.models.device import CPU, Device, detect_device
from autoj_reward.models.settings import max_ongoing, resolve_engine_settings

H100 = Device("cuda", 79.6, (9, 0))
A100 = Device("cuda", 80.0, (8, 0))
T4 = Device("cuda", 15.0, (7, 5))
AUTOJ = "llama-2-13b"


@pytest.mark.parametrize(
    ("given", "on", "dtype", "sequences", "batch"),
    [
        pytest.param({}, CPU, "float32", 64, 4096, id="a CPU"),
        pytest.param({"max_model_len": 8192}, CPU, "float32", 64, 8192, id="long prompts, whole"),
        # 79.6 GiB x 0.9 - 24.2 of weights is 47.4, at 0.82 MB a token 62,100 tokens, 256 each.
        pytest.param({"model": AUTOJ}, H100, "bfloat16", 242, 8192, id="13B on an H100"),
        # 79.6 x 0.9 - 12.4 is 59.2 GiB beside fp8 weights.
        pytest.param(
            {"model": AUTOJ, "quantization": "fp8_per_tensor"},
            H100, "bfloat16", 303, 8192, id="fp8 weights",
        ),
        # Two GPUs: 71.6 - 12.1 GiB on each, for half a token's keys and values.
        pytest.param(
            {"model": AUTOJ, "tensor_parallel": 2}, H100, "bfloat16", 609, 8192, id="two GPUs"
        ),
        pytest.param(
            {"model": AUTOJ, "kv_cache_gib": 2}, H100, "bfloat16", 10, 8192, id="given KV"
        ),
        pytest.param({"model": "default"}, H100, "bfloat16", 1024, 8192, id="a small model"),
        pytest.param({"model": "a/b"}, H100, "bfloat16", 1024, 8192, id="a shape not known"),
        pytest.param({"model": "default"}, A100, "bfloat16", 256, 2048, id="Ampere"),
        pytest.param({"model": "default"}, T4, "float16", 256, 2048, id="before Ampere"),
        pytest.param(
            {"max_sequences": 7, "max_batched_tokens": 99, "dtype": "float32"},
            T4, "float32", 7, 99, id="as stated",
        ),
    ],
)  # fmt: skip
def test_settings_go_by_device_and_kv_cache(
    given: dict[str, Any], on: Device, dtype: str, sequences: int, batch: int
) -> None:
    found = resolve_engine_settings(EngineConfig.model_validate(given), on)
    assert (found.dtype, found.max_sequences, found.max_batched_tokens) == (dtype, sequences, batch)
    assert resolve_engine_settings(found, on) == found
    arguments = engine_arguments(found, ResolvedModel("m", "m", on.kind), on)
    assert (arguments["max_num_seqs"], arguments["max_num_batched_tokens"]) == (sequences, batch)


@pytest.mark.parametrize(
    ("config", "gpus", "ongoing"),
    [
        pytest.param(JudgeConfig(), 0, 256, id="a CPU"),
        pytest.param(JudgeConfig(), 1, 2048, id="a GPU not known yet"),
        pytest.param(JudgeConfig(max_sequences=242), 1, 968, id="settled"),
        pytest.param(PolicyConfig(max_sequences=1024), 1, 2048, id="a policy"),
        pytest.param(JudgeConfig(serve=ReplicaConfig(max_ongoing=5)), 1, 5, id="as stated"),
    ],
)
def test_a_replica_takes_more_than_its_engine_runs(
    config: JudgeConfig | PolicyConfig, gpus: float, ongoing: int
) -> None:
    assert max_ongoing(config, gpus) == ongoing


@pytest.mark.parametrize(
    ("limits", "processes", "ongoing"),
    [
        # In the 1800 s of a judgement 300 requests, of which one takes 8.
        pytest.param({"requests_per_minute": 10}, "1", 37, id="requests"),
        pytest.param({"requests_per_minute": 10}, "4", 9, id="four processes"),
        # 900,000 tokens: 8 prompts of 1024, and a critique of 1024.
        pytest.param({"tokens_per_minute": 30_000}, "1", 97, id="tokens"),
        pytest.param({"tokens_per_minute": 30_000, "requests_per_minute": 10}, "1", 37, id="both"),
        pytest.param({"requests_per_minute": 0.1}, "1", 1, id="slow"),
        pytest.param({"requests_per_minute": 10_000}, "1", 256, id="wide"),
    ],
)
def test_no_more_wait_than_limits_let_through_before_their_deadline(
    limits: dict[str, float], processes: str, ongoing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOJ_PROCESSES", processes)
    judge = JudgeConfig(kind="openai", base_url="http://127.0.0.1/v1", **limits)
    assert max_ongoing(judge, 0) == ongoing


@pytest.mark.parametrize("kv", [None, 6.0])
def test_a_kv_cache_of_its_own_size_measures_no_gpu(kv: float | None) -> None:
    config = EngineConfig(model=AUTOJ, kv_cache_gib=kv)
    found = engine_arguments(config, ResolvedModel("m", "m", "cuda"), H100)
    assert found.get("kv_cache_memory_bytes") == (kv and kv * 2**30)
    assert found["gpu_memory_utilization"] == (0.9 if kv is None else UNMEASURED)


@pytest.mark.parametrize(
    ("on", "parts", "executor"),
    [
        pytest.param(CPU, 1, IN_ONE_PROCESS, id="a CPU"),
        pytest.param(CPU, 2, None, id="a model in two parts"),
        pytest.param(H100, 1, None, id="a GPU, as vLLM does by itself"),
    ],
)
def test_an_engine_runs_its_model_in_its_own_process(
    on: Device, parts: int, executor: str | None
) -> None:
    config = EngineConfig(model="default", tensor_parallel=parts)
    found = engine_arguments(config, ResolvedModel("m", "m", on.kind), on)
    assert found.get("distributed_executor_backend") == executor


class Nvml(SimpleNamespace):
    """Stand-in for pynvml with two GPUs."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        super().__init__(
            nvmlInit=lambda: None,
            nvmlShutdown=lambda: None,
            nvmlDeviceGetHandleByIndex=self.ask,
            nvmlDeviceGetHandleByUUID=self.ask,
            nvmlDeviceGetCudaComputeCapability=lambda handle: (7, 5),
            nvmlDeviceGetName=lambda handle: "Tesla T4",
            nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=15 * 2**30),
        )

    def ask(self, name: Any) -> Any:
        self.asked.append(name)
        return name


@pytest.mark.parametrize(
    ("visible", "asked"), [(None, 0), ("1,0", 1), ("GPU-5f", "GPU-5f")], ids=str
)
def test_the_driver_is_asked_and_cuda_is_not_touched(
    visible: str | None, asked: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for touching in ("is_available", "get_device_properties", "init", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, touching, lambda *_: pytest.fail("CUDA was touched"))
    device._find_device.cache_clear()
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    else:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    try:
        assert detect_device() == Device("cuda", 15.0, (7, 5), "Tesla T4") and nvml.asked == [asked]
        assert detect_device().half == "float16"
    finally:
        device._find_device.cache_clear()


@pytest.mark.parametrize(
    ("dtype", "on", "bf16", "fp16"),
    [
        pytest.param("auto", H100, True, False, id="a GPU"),
        pytest.param("auto", T4, False, True, id="before Ampere"),
        pytest.param("auto", CPU, False, False, id="a CPU"),
        pytest.param("float32", T4, False, False, id="float32 by name"),
        pytest.param("bfloat16", CPU, True, False, id="bfloat16 by name"),
    ],
)
def test_trainers_compute_in_the_half_precision_of_the_card(
    dtype: str, on: Device, bf16: bool, fp16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autoj_reward.training import common

    monkeypatch.setattr(common, "on_gpu", lambda: on.kind == "cuda")
    monkeypatch.setattr(common, "detect_device", lambda: on)
    assert common.half_precision(dtype) == {"bf16": bf16, "fp16": fp16}
