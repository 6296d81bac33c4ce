from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoj_reward.capacity.memory import (
    MODEL_TYPES,
    ModelShape,
    check_parallel,
    find_shape,
    known_shapes,
    shape_of,
)
from autoj_reward.errors import ConfigError, ModelError

LLAMA = find_shape("llama-2-13b")
TINY = ModelShape("tiny", 1, 4, 1, 2, 1, 2, 10, tied=True)


def test_a_shape_worked_out_by_hand() -> None:
    # Blocks: queries and output 2 x 4 x 4, keys and values 2 x 4 x 2, gated 3 x 4 x 1, norms 2 x 4.
    assert TINY.blocks == 32 + 16 + 12 + 8 == 68
    assert TINY.head == 40 and TINY.parameters == 68 + 4 + 40
    assert TINY.kv_bytes("bf16") == 2 * 1 * 1 * 2 * 2 == 8


PUBLISHED = {
    # Elements of all tensors, as the model pages of the checkpoints' safetensors files count them.
    "llama-2-13b": 13_015_864_320,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "smollm2-135m": 134_515_008,
    "yi-6b": 6_061_035_520,
}


def test_every_shape_has_a_published_count() -> None:
    assert {shape.name for shape in known_shapes().values()} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    assert find_shape(name).parameters == pytest.approx(PUBLISHED[name], rel=0.005)


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_parameters_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    """Read the `config.json` of each type's default model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert find_shape(str(tmp_path)).parameters == pytest.approx(model.num_parameters(), rel=1e-3)


def test_an_output_head_is_tied_where_the_config_is_silent_and_the_type_ties_it() -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 9}
    heads = {"num_attention_heads": 2}
    tied = {k: shape_of(sizes | heads | {"model_type": k}, k).tied for k in ("gemma", "llama")}
    assert tied == {"gemma": True, "llama": False}


def test_fp8_leaves_head_and_embedding() -> None:
    rest = LLAMA.parameters - LLAMA.blocks
    assert LLAMA.weight_bytes("fp8") == LLAMA.blocks + 2 * rest
    assert LLAMA.weight_bytes("bf16") == 2 * LLAMA.parameters


def test_the_default_judge_has_the_shape_in_the_table(smollm2: Any) -> None:
    from autoj_reward.models.built_in import build_model

    there = find_shape(str(build_model("smollm2-135m-instruct")))
    table = find_shape("default")
    assert there.parameters == table.parameters
    assert there.kv_bytes("bf16") == table.kv_bytes("bf16")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "mixtral"}', "config.json: model_type is 'mixtral': only dense"),
        ('{"model_type": "llama", "num_attention_heads": 2}', "key 'hidden_size' is missing"),
        ("{", "not valid JSON"),
    ],
)
def test_a_config_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        find_shape(str(tmp_path))


def test_heads_that_cannot_be_shared_out_are_refused() -> None:
    check_parallel(LLAMA, 8)
    with pytest.raises(ConfigError, match=r"3 does not divide the 40 attention.*1, 2, 4, 5, 8"):
        check_parallel(LLAMA, 3)


def test_an_unknown_model_is_named_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"no shape of 'llama-4'.*qwen2.5-7b"):
        find_shape("llama-4")
