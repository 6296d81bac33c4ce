"""`autoj plan`: every shipped GPU config fits the node that it states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.capacity.memory import (
    Training,
    TrainingDevices,
    adapter_parameters,
    find_shape,
    memory_parts,
)
from autoj_reward.cli.main import main
from autoj_reward.config import JudgeConfig
from autoj_reward.config.load import load_config, read_config
from autoj_reward.errors import ConfigError
from autoj_reward.models.device import GPUS, Device
from autoj_reward.models.gpu_memory import engine_parts, require_engine_memory
from autoj_reward.training.judge.recipe import JudgeDPOConfig
from rollouts.plan import Row, place_of, plan

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
H100 = GPUS["h100"]
FSDP, DDP = (str(CONFIGS / f"trainers/accelerate_{kind}.yaml") for kind in ("fsdp", "ddp"))

SERVED = [
    "jobs/best_of_32_13b", "serve/autoj_13b", "serve/autoscaling", "serve/cluster",
    "serve/fractional", "serve/tensor_parallel", "judges/autoj_13b_dpo",
]  # fmt: skip
# The file, what runs it, accelerate's config and the GPUs that its comment states.
TRAINED = [
    ("trainers/grpo_7b", "grpo", FSDP, 4),
    ("trainers/grpo_7b", "rloo", FSDP, 4),
    ("trainers/online_dpo_7b", "online-dpo", FSDP, 4),
    ("trainers/ppo_7b", "ppo", DDP, 4),
    ("judges/autoj_13b", "judge", FSDP, 8),
    ("judges/autoj_13b_grpo", "judge", FSDP, 8),
    ("judges/rm_r1_7b_grpo", "judge", FSDP, 8),
    ("judges/autoj_13b_dpo", "judge", FSDP, 8),
    ("judges/scalar_13b", "scalar", FSDP, 8),
]


def plan_file(name: str, place: TrainingDevices, *sets: str) -> list[Row]:
    return plan(read_config(CONFIGS / f"{name}.yaml", sets), H100, place)


@pytest.mark.parametrize("name", SERVED)
def test_every_engine_of_a_shipped_config_fits_an_h100(name: str) -> None:
    rows = plan_file(name, TrainingDevices(H100.memory_gib))
    rows = [row for row in rows if row.what != "train judge"]
    assert rows and [row.fault for row in rows] == [None] * len(rows)
    assert all(row.parts["KV cache"] > 1 and row.sequences and row.replicas for row in rows)


def plan_judge(**settings: Any) -> Row:
    [row] = plan({"judge": settings}, H100, TrainingDevices(H100.memory_gib))
    return row


def test_replicas_share_a_gpu_if_their_kv_cache_is_set() -> None:
    whole = plan_judge(model="llama-3-8b")
    assert whole.replicas == 1 and whole.total == pytest.approx(0.9 * H100.memory_gib)
    shared = plan_judge(model="llama-3-8b", kv_cache_gib=10)
    assert shared.replicas == 2 < H100.memory_gib / shared.total < 3
    # 10 GiB of 32 layers with 8 KV heads of 128 elements, in half precision.
    assert shared.kv_tokens == 10 * 2**30 // (2 * 32 * 8 * 128 * 2)
    assert plan_judge(model="llama-3-8b", kv_cache_gib=70).replicas == 0


def test_what_an_h100_had_for_its_kv_cache_is_planned() -> None:
    """vLLM measured 60,031 tokens there for the 13B shape; docs/run/capacity.md has the figures."""
    row = plan_judge(model="llama-2-13b")
    assert row.kv_tokens == pytest.approx(60_031, rel=0.03)


@pytest.mark.parametrize(("name", "algorithm", "accelerate", "gpus"), TRAINED)
def test_every_training_of_a_shipped_config_fits_its_node(
    name: str, algorithm: str, accelerate: str, gpus: int
) -> None:
    place = place_of(H100, accelerate, gpus)
    rows = plan_file(name, place)
    [row] = [row for row in rows if row.what == f"train {algorithm}"]
    assert row.fault is None and row.gpus == gpus
    # What FSDP shares out does not fit where every GPU holds it whole.
    whole = plan_file(name, place_of(H100, DDP, gpus))
    [fault] = [other.fault for other in whole if other.what == row.what]
    assert (fault is None) == (accelerate == DDP)
    assert fault is None or "does not fit: a step takes" in fault


def test_pairs_of_outputs_are_two_sequences_beside_a_reference() -> None:
    name = "judges/autoj_13b_dpo"
    whole, lora = (
        plan_file(name, place_of(H100, FSDP, 8), *sets) for sets in ((), ("lora={rank: 16}",))
    )
    engine, training = whole
    assert engine.what == "train judge sample" and engine.parts["KV cache"] > 1
    shape = find_shape("llama-2-13b")
    assert training.parts["references"] == pytest.approx(4 * shape.parameters / 8 / 2**30)
    length = load_config(JudgeDPOConfig, CONFIGS / f"{name}.yaml").max_length
    assert training.parts["logits"] == pytest.approx(2 * length * 32000 * 10 / 2**30)
    assert "references" not in lora[1].parts


def test_parts_worked_out_by_hand() -> None:
    shape = find_shape("llama-2-13b")
    full = memory_parts(
        Training(shape, sequences=1, length=1000), TrainingDevices(80, gpus=8, sharded=True)
    )
    billions = shape.parameters / 2**30
    assert full["weights"] == full["gradients"] == pytest.approx(4 * billions / 8)
    assert full["optimizer"] == pytest.approx(8 * billions / 8)
    assert full["logits"] == pytest.approx(1000 * 32000 * 10 / 2**30)
    lora = memory_parts(
        Training(shape, sequences=1, length=1000, lora_rank=8, learners=2), TrainingDevices(80)
    )
    # Four square matrices and three of 5,120 by 13,824, in each of 40 blocks.
    assert adapter_parameters(shape, 8) == 40 * 8 * (4 * 2 * 5120 + 3 * (5120 + 13824))
    assert lora["weights"] == pytest.approx(
        2 * billions + 4 * 2 * adapter_parameters(shape, 8) / 2**30
    )
    plain = Training(shape, sequences=1, length=1000, checkpointing=False)
    assert memory_parts(plain, TrainingDevices(80))["activations"] > 4 * full["activations"]


def test_lora_counts_what_peft_makes() -> None:
    import torch
    from peft import get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    from autoj_reward.capacity.memory import shape_of
    from autoj_reward.training.common import lora_config

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    with torch.device("meta"):
        model = get_peft_model(LlamaForCausalLM(config), lora_config(8, "CAUSAL_LM"))
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert count == adapter_parameters(shape_of(config.to_dict(), "it"), 8)


T4 = Device("cuda", 15.0, (7, 5))
BIG = Device("cuda", 79.6, (9, 0))
UNFIT = {
    "weights": ({"model": "llama-2-13b"}, T4, r"llama-2-13b does not fit.*weights 24.2.*13.5 GiB"),
    "stated KV": (
        {"model": "llama-2-13b", "kv_cache_gib": 60},
        BIG,
        "KV cache 60.0.*or a smaller kv_cache_gib",
    ),
    "half a GPU": (
        {"model": "llama-2-13b", "kv_cache_gib": 20, "serve": {"num_gpus": 0.5}},
        BIG,
        "of 39.8 GiB that it may take of 79.6",
    ),
    "a short KV": ({"model": "llama-2-13b", "kv_cache_gib": 1}, BIG, "1310 tokens and max_model"),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "device", "message"), UNFIT.values(), ids=UNFIT)
def test_an_engine_that_does_not_fit_is_named_with_numbers(
    settings: dict[str, Any], device: Device, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        require_engine_memory(JudgeConfig.model_validate(settings), device)


def test_a_shape_that_is_not_known_is_not_planned() -> None:
    config = JudgeConfig(model="owner/name")
    assert engine_parts(config, T4) is None
    require_engine_memory(config, T4)


def test_the_command_plans_a_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(CONFIGS / "jobs/best_of_32_13b.yaml")
    assert main(["plan", "--config", path, "--gpu", "h100"]) == 0
    output = capsys.readouterr().out
    assert "| judge | 1 | 71.6 | yes | 1 | 58,497 | 242 | weights 24.2, " in output
    assert "| policy | 1 |" in output
    assert main(["plan", "--config", path, "--gpu", "rtx-4090", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["fault"] is None, row["replicas"]) for row in rows] == [(True, 1), (False, 0)]
    uneven = ["--set", "judge.tensor_parallel=3", "--gpu", "h100"]
    assert main(["plan", "--config", path, *uneven]) == 0
    assert "does not divide the 40 attention heads" in capsys.readouterr().out
    path = str(CONFIGS / "trainers/grpo_7b.yaml")
    command = ["plan", "--config", path, "--gpu", "h100", "--accelerate", FSDP, "--processes", "4"]
    assert main(command) == 0
    assert "| train grpo | 4 |" in capsys.readouterr().out
    nothing = tmp_path / "run.yaml"
    nothing.write_text("swap: true\n", encoding="utf-8")
    assert main(["plan", "--config", str(nothing), "--gpu", "h100"]) == 1
    assert "nothing to plan" in capsys.readouterr().err


def test_the_command_plans_a_judge_without_a_run_file(capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["--set", "judge.quantization=fp8_per_tensor"]
    assert main(["plan", "--gpu", "H100", "--model", "GAIR/autoj-13b", *sets]) == 0
    assert "| yes | 1 | 73,957 | 303 | weights 12.4, " in capsys.readouterr().out
    assert main(["plan", "--gpu", "custom", "--memory", "20", "--model", "llama-2-13b"]) == 1
    assert "- judge: llama-2-13b does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--gpu h2000 --model default", "'h2000' is not in the table: use one of a100-40, a100-80"),
        ("--gpu custom --model default", "--gpu custom needs --memory"),
        ("--gpu h100 --memory 80 --model default", "--memory is for --gpu custom, not h100"),
        ("--gpu h100 --model llama-4", "no shape of 'llama-4': name a folder with its config"),
        ("--gpu h100", "nothing to plan: name a run file with --config, or a judge with --model"),
        ("--gpu h100 --model default --config c.yaml", "use --set judge.model=NAME"),
    ],
)
def test_flags_that_plan_nothing_are_explained(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *flags.split()]) == 1
    assert message in capsys.readouterr().err


def test_a_training_that_does_not_fit_is_named_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autoj_reward.training import common
    from rollouts.train.main import main as train

    monkeypatch.setattr(common, "detect_device", lambda: BIG)
    sets = [f"output={tmp_path / 'run'}", "device_batch_size=32"]
    with pytest.raises(ConfigError, match=r"qwen2\.5-7b does not fit: a step takes .* of 1 GPUs"):
        train("grpo", str(CONFIGS / "trainers/grpo_7b.yaml"), sets)
    assert not (tmp_path / "run").exists()
    common.require_fit(lambda: Training(find_shape("default"), 1, 512))
