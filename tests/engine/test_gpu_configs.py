"""Every engine block of every GPU config, checked by vLLM's own config code on a simulated H100."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward import capacity
from autoj_reward.config import EngineConfig, JudgeConfig, PolicyConfig, load_config
from autoj_reward.engine.vllm import UNMEASURED, engine_arguments
from autoj_reward.models import ResolvedModel
from autoj_reward.models.device import Device
from experiments.speed.gpu_throughput import GpuThroughputConfig, throughput_arguments
from experiments.speed.roofline import Serving

ROOT = Path(__file__).parents[2]
H100 = Device("cuda", 79.6, (9, 0))
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


def write_model_folders(tmp_path: Path) -> dict[str, Path]:
    """Create a folder with each model's config, without weights; return it by the model's names."""
    text = (Path(capacity.__file__).parent / "shapes.yaml").read_text(encoding="utf-8")
    paths: dict[str, Path] = {}
    for name, entry in yaml.safe_load(text).items():
        kind = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}[entry["model_type"]]
        scalar = name == "llama-3-8b"
        facts = {k: v for k, v in entry.items() if k != "known_as"} | {
            "architectures": [f"{kind}{'ForSequenceClassification' if scalar else 'ForCausalLM'}"],
            "max_position_embeddings": 4096,
            "pad_token_id": 0,
            **({"num_labels": 1} if scalar else {}),
        }
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(facts), encoding="utf-8")
        paths |= dict.fromkeys((name, *entry.get("known_as", ())), folder)
    return paths


def derive_by_vllm(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return vLLM's derived config of each engine block, on a simulated H100."""
    quiet = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("pretended_h100.py"))],
        input=json.dumps(blocks), env=quiet, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    lines = [line for line in result.stdout.splitlines() if line.startswith("told ")]
    return [json.loads(line.removeprefix("told ")) for line in lines]


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
    measured = load_config(GpuThroughputConfig, ROOT / "configs/experiments/gpu_throughput.yaml")
    variants = measured.variants.values()
    blocks += [
        throughput_arguments(measured, serving, models["llama-2-13b"], H100) for serving in variants
    ]
    vllm_settings = derive_by_vllm(blocks)
    assert len(vllm_settings) == len(blocks)
    for block, settings in zip(blocks, vllm_settings, strict=True):
        assert settings["device"] == "cuda" and settings["prefix_caching"] is not None
        assert settings["runner"] == block.get("runner", "generate")
        keys = {
            "dtype": "dtype", "max_model_len": "length", "max_num_seqs": "sequences",
            "max_num_batched_tokens": "tokens", "tensor_parallel_size": "gpus",
            "gpu_memory_utilization": "utilization",
        }  # fmt: skip
        assert {settings[name] for name in keys.values()} == {block[key] for key in keys}
        assert settings["kv_bytes"] == block.get("kv_cache_memory_bytes")
        assert bool(settings["quantization"]) == bool(block["quantization"])
    by_name = dict(zip(configs, vllm_settings, strict=False))
    shared = by_name["serve/fractional.reward.judge"]
    assert (shared["kv_bytes"], shared["utilization"]) == (KV, UNMEASURED)
    assert by_name["serve/tensor_parallel.reward.judge"]["gpus"] == 2


def test_a_benchmark_of_the_13b_shape_runs_what_the_service_runs(tmp_path: Path) -> None:
    measured = load_config(GpuThroughputConfig, ROOT / "configs/experiments/gpu_throughput.yaml")
    ours = throughput_arguments(
        measured, Serving(), write_model_folders(tmp_path)["llama-2-13b"], H100
    )
    judge = JudgeConfig(model="llama-2-13b")
    service = engine_arguments(judge, ResolvedModel("m", "m", "cuda"), H100)
    for key in ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "dtype"):
        assert ours[key] == service[key]
