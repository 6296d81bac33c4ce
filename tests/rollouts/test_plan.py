"""`autoj plan --config F`: every shipped GPU config fits the node that it states."""

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
from autoj_reward.capacity.plan import PlanConfig, make_plan
from autoj_reward.capacity.roofline import find_gpu
from autoj_reward.cli.main import main
from autoj_reward.config import JudgeConfig
from autoj_reward.config.load import read_config
from autoj_reward.errors import ConfigError
from autoj_reward.models.device import Device
from autoj_reward.models.gpu_memory import engine_parts, require_engine_memory
from rollouts.plan import Row, place_of, plan

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
H100 = find_gpu("h100")
FLAGS = PlanConfig(gpu="h100")
FSDP, DDP = (str(CONFIGS / f"trainers/accelerate_{kind}.yaml") for kind in ("fsdp", "ddp"))

SERVED = [
    "jobs/best_of_32_13b", "serve/autoj_13b", "serve/autoscaling", "serve/cluster",
    "serve/fractional", "serve/tensor_parallel",
]  # fmt: skip
# The file, what runs it, accelerate's config and the GPUs that its comment states.
TRAINED = [
    ("trainers/grpo_7b", "grpo", FSDP, 4),
    ("trainers/grpo_7b", "rloo", FSDP, 4),
    ("trainers/online_dpo_7b", "online-dpo", FSDP, 4),
    ("trainers/ppo_7b", "ppo", DDP, 4),
    ("judges/autoj_13b", "judge", FSDP, 8),
    ("judges/scalar_13b", "scalar", FSDP, 8),
]


def plan_file(
    name: str, place: TrainingDevices, *sets: str, flags: PlanConfig = FLAGS
) -> list[Row]:
    return plan(read_config(CONFIGS / f"{name}.yaml", sets), H100, place, flags)


@pytest.mark.parametrize("name", SERVED)
def test_every_engine_of_a_shipped_config_fits_an_h100(name: str) -> None:
    rows = plan_file(name, TrainingDevices(H100.memory_gib))
    assert rows and [row.fault for row in rows] == [None] * len(rows)
    assert all(row.parts["KV cache"] > 1 and row.sequences for row in rows)
    rates = [row.rate for row in rows if row.what.endswith("judge")]
    assert rates and all(rate and rate["per_minute_a_device"] > 100 for rate in rates)


def test_a_judges_rate_is_that_of_the_flags() -> None:
    """What a run file states is planned as the same figures given by flag."""
    place, cut = TrainingDevices(H100.memory_gib), "judge.kv_cache_gib=20"
    sets = (cut, "judge.tensor_parallel=2", "judge.quantization=fp8_per_tensor")
    flags = PlanConfig(gpu="h100", critique=100, price=2.0, wanted=5000, efficiency=0.5)
    [judge] = [
        row
        for row in plan_file("jobs/best_of_32_13b", place, *sets, flags=flags)
        if row.what == "judge"
    ]
    settings = {"tensor_parallel": 2, "weights": "fp8", "kv_cache_gib": 40, "max_sequences": 400}
    rate = make_plan(flags.model_copy(update=settings))["rate"]
    assert judge.rate == rate and judge.sequences == rate["sequences"]
    [alone] = [
        row
        for row in plan_file("jobs/best_of_32_13b", place, cut, "judge.critique=false")
        if row.what == "judge"
    ]
    alike = {"kv_cache_gib": 20, "critique": 0, "max_sequences": 102}
    assert alone.rate == make_plan(FLAGS.model_copy(update=alike))["rate"]
    model = {"model": "Skywork/Skywork-Reward-V2-Llama-3.1-8B", "format": "scalar"}
    [scalar] = plan({"judge": model}, H100, place, FLAGS)
    assert scalar.rate and scalar.rate["bound"] == "compute in prefill"


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
    assert "| judge | 1 | 71.6 | yes | 125 | 770 | KV bandwidth | weights 24.2, " in output
    assert "| policy | 1 |" in output and "At most: 100% of peak" in output
    assert main(["plan", "--config", path, "--gpu", "rtx-4090", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["fault"] is None for row in rows] == [True, False]
    uneven = ["--set", "judge.tensor_parallel=3", "--gpu", "h100"]
    assert main(["plan", "--config", path, *uneven]) == 0
    assert "does not divide the 40 attention heads" in capsys.readouterr().out
    assert main(["plan", "--config", path, "--gpu", "h100", "--kv", "fp8"]) == 1
    assert "a run file states kv itself: use --set" in capsys.readouterr().err
    assert main(["plan", "--config", path, "--gpu", "cpu"]) == 1
    assert "--config plans GPUs" in capsys.readouterr().err
    path = str(CONFIGS / "trainers/grpo_7b.yaml")
    command = ["plan", "--config", path, "--gpu", "h100", "--accelerate", FSDP, "--processes", "4"]
    assert main(command) == 0
    assert "| train grpo | 4 |" in capsys.readouterr().out
    nothing = tmp_path / "run.yaml"
    nothing.write_text("swap: true\n", encoding="utf-8")
    assert main(["plan", "--config", str(nothing), "--gpu", "h100"]) == 1
    assert "nothing to plan" in capsys.readouterr().err


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
