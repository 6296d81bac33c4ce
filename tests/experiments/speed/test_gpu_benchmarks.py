"""The engines of the GPU benchmarks: vLLM takes them, and they are those of the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoj_reward.config import JudgeConfig, load_config
from autoj_reward.engine.vllm import engine_arguments
from autoj_reward.models import ResolvedModel
from experiments.speed.gpu_throughput import GpuThroughputConfig, throughput_arguments
from experiments.speed.roofline import Serving
from tests.support.simulated_gpus import (
    H100,
    derive_by_vllm,
    require_vllm_took,
    write_model_folders,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_vllm_takes_every_variant_of_the_benchmark(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    measured = load_config(GpuThroughputConfig, ROOT / "configs/experiments/gpu_throughput.yaml")
    model = write_model_folders(tmp_path)["llama-2-13b"]
    blocks = [
        throughput_arguments(measured, serving, model, H100)
        for serving in measured.variants.values()
    ]
    assert blocks
    require_vllm_took(blocks, derive_by_vllm(blocks))


def test_a_benchmark_of_the_13b_shape_runs_what_the_service_runs(tmp_path: Path) -> None:
    measured = load_config(GpuThroughputConfig, ROOT / "configs/experiments/gpu_throughput.yaml")
    ours = throughput_arguments(
        measured, Serving(), write_model_folders(tmp_path)["llama-2-13b"], H100
    )
    judge = JudgeConfig(model="llama-2-13b")
    service = engine_arguments(judge, ResolvedModel("m", "m", "cuda"), H100)
    for key in ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "dtype"):
        assert ours[key] == service[key]
