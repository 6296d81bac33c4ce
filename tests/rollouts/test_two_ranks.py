"""Every trainer in two processes, by the shipped accelerate configs: a step, a stop, the rest.

On tiny models of the shipped configs' architectures. accelerate's own launcher reads the files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.bigrams import save_writer

ROOT = Path(__file__).parents[2]
QUERIES = [f"Name river {n}." for n in range(16)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def make_policy_config(folder: Path, name: str, model: str, **more: Any) -> dict[str, Any]:
    queries = write_rows(folder / "queries.jsonl", [{"query": query} for query in QUERIES])
    learner = {"model": model, "max_prompt_tokens": 64, "max_response_tokens": 6}
    return {
        "input": queries,
        "output": str(folder / name),
        "learner": learner | more.pop("learner", {}),
        "reward": {"judge": {"kind": "fake"}, "view": "rating"},
        "steps": 2,
        "batch_size": 4,
        "device_batch_size": 2,
        "group": 2,
        "learning_rate": 1e-3,
        "save_steps": 1,
        **more,
    }


def write_pairs(folder: Path) -> str:
    rows = [
        {"query": query, "response_1": f"It is {n}.", "response_2": "No.", "label": "first"}
        for n, query in enumerate(QUERIES[:8])
    ]
    return write_rows(folder / "pairs.jsonl", rows)


def make_judge_config(folder: Path, name: str, model: str, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "output": str(folder / name),
        "data": {"folder": str(folder), "compared": [write_pairs(folder)], "held_out": 0},
        "max_length": 512,
        "epochs": 1,
        "batch_size": 4,
        "device_batch_size": 2,
        "learning_rate": 1e-3,
        "gradient_checkpointing": True,
        "save_steps": 1,
        **more,
    }


def launch(config: str, work: list[tuple[str, dict[str, Any]]], folder: Path) -> str:
    """What two processes say that accelerate's launcher started with a shipped config."""
    path = folder / "work.json"
    path.write_text(json.dumps(work), encoding="utf-8")
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    command += [
        "--config_file",
        str(ROOT / "configs" / "trainers" / config),
        "--num_processes",
        "2",
    ]
    command += [
        "--main_process_port",
        "0",
        str(Path(__file__).with_name("two_ranks.py")),
        str(path),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
    for kind, _ in work:
        assert result.stdout.count(f"stopped: {kind}\n") == 2
        assert result.stdout.count(f"done: {kind}\n") == 2
    assert result.stderr.count("goes on from") >= len(work)
    return result.stderr


def has_learned(folder: Path, start: str, kind: Any = None) -> bool:
    """Whether a saved model loads whole and has learned."""
    from transformers import AutoModelForCausalLM

    kind = kind or AutoModelForCausalLM
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    before = AutoModelForCausalLM.from_pretrained(start).get_input_embeddings().weight
    after = model.get_input_embeddings().weight
    return after.shape == before.shape and not torch.equal(after, before)


@pytest.mark.training
@pytest.mark.timeout(900)
@pytest.mark.parametrize("config", ["accelerate_fsdp.yaml", "accelerate_ddp.yaml"])
def test_full_weights_are_trained_and_saved(
    tmp_path: Path, config: str, qwen: str, policy: str, smollm2: Any
) -> None:
    from transformers import AutoModelForSequenceClassification

    writer = str(save_writer(smollm2, tmp_path / "writer"))
    grpo = {"method": "grpo", "mix": {"rated": 0, "compared": 1}, "outputs": 2, "max_tokens": 16}
    grpo |= {"batch_size": 8, "validations": 1}
    grpo_config = make_judge_config(tmp_path, "judge_grpo", writer, **grpo)
    grpo_config["data"]["held_out"] = 0.2
    work = [
        ("grpo", make_policy_config(tmp_path, "grpo", qwen)),
        ("rloo", make_policy_config(tmp_path, "rloo", qwen)),
        (
            "online-dpo",
            make_policy_config(tmp_path, "dpo", qwen, device_batch_size=1, batch_size=2),
        ),
        ("judge", make_judge_config(tmp_path, "judge", policy, mix={"compared": 0.5})),
        ("judge-grpo", grpo_config),
        ("scalar", make_judge_config(tmp_path, "scalar", policy)),
    ]
    launch(config, work, tmp_path)
    for name in ("grpo", "rloo", "dpo"):
        assert has_learned(tmp_path / name / "policy", qwen)
    assert has_learned(tmp_path / "judge/judge", policy)
    assert has_learned(tmp_path / "judge_grpo/judge", writer)
    assert has_learned(tmp_path / "scalar/scalar", policy, AutoModelForSequenceClassification)


@pytest.mark.training
@pytest.mark.timeout(900)
def test_ppo_learns_by_adapters_on_one_base_in_two_processes(tmp_path: Path, qwen: str) -> None:
    from safetensors.torch import load_file

    work = [("ppo", make_policy_config(tmp_path, "ppo", qwen, learner={"lora_rank": 4}))]
    launch("accelerate_ddp.yaml", work, tmp_path)
    run = tmp_path / "ppo"
    adapter = load_file(run / "policy/adapter_model.safetensors")
    assert any("lora_B" in name and weights.abs().max() > 0 for name, weights in adapter.items())
    first, second = (load_file(run / f"ppo-{n}/value/value.safetensors") for n in (1, 2))
    assert first.keys() == second.keys() and "score.weight" in first
    assert all(".lora_" in name or name == "score.weight" for name in first)
    assert any(not torch.equal(first[name], second[name]) for name in first)
