"""Every engine block of every GPU config, checked by vLLM's own config code on a simulated H100."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.config import EngineConfig, JudgeConfig, PolicyConfig
from autoj_reward.engine.vllm import UNMEASURED, engine_arguments
from autoj_reward.models import ResolvedModel
from tests.support.simulated_gpus import (
    H100,
    derive_by_vllm,
    require_vllm_took,
    write_model_folders,
)

ROOT = Path(__file__).parents[2]
KINDS: dict[str, type[EngineConfig]] = {"judge": JudgeConfig, "policy": PolicyConfig}
FILES = (
    "jobs/best_of_32_13b",
    "serve/autoj_13b",
    "serve/autoscaling",
    "serve/cluster",
    "serve/fractional",
    "serve/tensor_parallel",
    "trainers/grpo_7b",
    "trainers/online_dpo_7b",
    "trainers/ppo_7b",
)
KV = 16 * 2**30
MORE: dict[str, EngineConfig] = {
    "fp8": JudgeConfig(model="llama-2-13b", quantization="fp8_per_tensor"),
    "scalar": JudgeConfig(model="Skywork/Skywork-Reward-V2-Llama-3.1-8B", format="scalar"),
    "qwen": PolicyConfig(model="Qwen/Qwen2.5-7B-Instruct", kv_cache_gib=16),
}


def find_engines(data: Any, where: str) -> Iterator[tuple[str, EngineConfig]]:
    for key, value in data.items() if isinstance(data, dict) else ():
        if key in KINDS:
            yield f"{where}.{key}", KINDS[key].model_validate(value)
        else:
            yield from find_engines(value, f"{where}.{key}")


def load_shipped_engines() -> dict[str, EngineConfig]:
    configs: dict[str, EngineConfig] = dict(MORE)
    for name in FILES:
        text = (ROOT / f"configs/{name}.yaml").read_text(encoding="utf-8")
        configs |= find_engines(yaml.safe_load(text), name)
    service = yaml.safe_load(
        (ROOT / "configs/serve/kuberay/rayservice.yaml").read_text(encoding="utf-8")
    )
    [application] = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    return configs | dict(find_engines(application["args"], "kuberay"))


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_vllm_takes_every_engine_of_every_gpu_config(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    configs, models = load_shipped_engines(), write_model_folders(tmp_path)
    assert len(configs) >= 12
    blocks = []
    for name, config in configs.items():
        model = ResolvedModel(str(models[config.model]), "m", "cuda")
        runner = {"runner": "pooling"} if name == "scalar" else {}
        blocks.append(engine_arguments(config, model, H100) | runner)
    vllm_settings = derive_by_vllm(blocks)
    require_vllm_took(blocks, vllm_settings)
    by_name = dict(zip(configs, vllm_settings, strict=True))
    shared = by_name["serve/fractional.reward.judge"]
    assert (shared["kv_bytes"], shared["utilization"]) == (KV, UNMEASURED)
    assert by_name["serve/tensor_parallel.reward.judge"]["gpus"] == 2
