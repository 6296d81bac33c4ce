"""vLLM's own check of engine arguments on a simulated H100, and folders of the models' configs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from autoj_reward import capacity
from autoj_reward.models.device import Device

H100 = Device("cuda", 79.6, (9, 0))


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


def require_vllm_took(blocks: list[dict[str, Any]], vllm_settings: list[dict[str, Any]]) -> None:
    """Require that vLLM derived from each engine block what the block says."""
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
