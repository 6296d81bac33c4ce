"""A judge that thinks on vLLM itself: cut at its bound, it goes on to its verdict."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.config import JudgeConfig
from autoj_reward.models import resolve
from autoj_reward.prompts.format import FORMATS
from autoj_reward.types import JudgeInput
from tests.engine.asking import judged

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_vllm_goes_on_from_a_block_that_was_cut(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    default, model = Path(resolve(JudgeConfig()).path), tmp_path / "model"
    judge_format = tmp_path / "thinks"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).symlink_to(default / name)
    tokenizer = AutoTokenizer.from_pretrained(default)
    tokenizer.chat_template += "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
    tokenizer.save_pretrained(model)
    shutil.copytree(FORMATS / "autoj-en", judge_format)
    data = yaml.safe_load((judge_format / "format.yaml").read_text(encoding="utf-8"))
    data["thinking"] = {"open": "<think>", "close": "</think>"}
    (judge_format / "format.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    config: dict[str, Any] = {
        "model": str(model),
        "format": str(judge_format),
        "thinking_tokens": 5,
        "max_tokens": 7,
        "max_model_len": 512,
        "kv_cache_gib": 0.5,
        "direct": True,
    }
    once = JudgeInput("Why?", ("Because.",))
    found, direct = judged(tmp_path, config, [once, replace(once, direct=True)])
    assert found["outcome"] == "ok" and found["forced"]
    assert found["flags"] == ["output_truncated", "thinking_cut"]
    assert found["thinking"] and found["thinking"] not in found["critique"]
    assert 5 + 7 < found["usage"]["tokens_out"] <= 5 + 7 + 12  # two slots, one read twice
    # The reading right after the prompt is the same, with a critique and without.
    assert found["rating"]["direct"] == pytest.approx(direct["rating"]["expected"], abs=1e-3)
    assert (direct["thinking"], direct["critique"]) == ("", "")
