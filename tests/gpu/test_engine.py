"""Engines on a GPU, without Ray: they start, answer, read slots, and leave no memory behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import torch

from autoj_reward.config import EngineConfig
from autoj_reward.engine.base import Generation, Sampling
from autoj_reward.engine.vllm import VllmEngine
from autoj_reward.errors import EngineUnavailable
from autoj_reward.formats.render import user_prompt
from autoj_reward.models import resolve
from autoj_reward.models.device import detect_device
from tests.processes import wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

LABELS = [str(n) for n in range(1, 11)]


def make_config(folder: Path, **more: Any) -> EngineConfig:
    settings = {"model": str(folder), "max_model_len": 1024, "kv_cache_gib": 1.0}
    return EngineConfig.model_validate(settings | more)


def measure_used_gib() -> float:
    """Memory that all processes together hold on the first GPU."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return float(pynvml.nvmlDeviceGetMemoryInfo(handle).used) / 2**30
    finally:
        pynvml.nvmlShutdown()


def make_engine(folder: Path) -> VllmEngine:
    engine_config = make_config(folder)
    return VllmEngine(engine_config, resolve(engine_config), "chat")


async def test_readings_at_a_slot_are_those_of_transformers(judge_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    ours = make_engine(judge_folder)
    await ours.start()
    try:
        prepared = await ours.prepare(user_prompt("How do I boil an egg?"), 64, "reject")
        [generation] = await ours.generate(prepared, Sampling(max_tokens=16))
        assert generation.ids
        reading = await ours.label_probs(prepared, Generation(""), 0, "Rating: [[", LABELS)
        slot = ours.tokens.continuation("Rating: [[")
        labels = {label: ours.tokens.continuation(label) for label in LABELS}
    finally:
        await ours.close()
    half = getattr(torch, detect_device().half)
    plain = AutoModelForCausalLM.from_pretrained(judge_folder, dtype=half).cuda().eval()

    def after(ids: list[int]) -> torch.Tensor:
        context = torch.tensor([[*prepared.ids, *slot, *ids]]).cuda()
        with torch.inference_mode():
            return torch.softmax(plain(context).logits[0, -1].float(), -1)

    for label, p in reading.probs:
        ids, expected = labels[label], 1.0
        for n in range(len(ids)):
            expected *= float(after(ids[:n])[ids[n]])
        assert p == pytest.approx(expected, abs=0.01, rel=0.1)


async def test_a_killed_engine_is_noticed_and_frees_its_memory(judge_folder: Path) -> None:
    before = measure_used_gib()
    ours = make_engine(judge_folder)
    await ours.start()
    assert measure_used_gib() > before + 0.9  # the KV cache alone
    children = psutil.Process(os.getpid()).children(recursive=True)
    [core] = [child for child in children if "EngineCore" in child.name()]
    core.kill()

    async def wait_for_notice() -> None:
        while True:
            await ours.check()
            await asyncio.sleep(0.1)

    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(wait_for_notice(), 600)
    wait_until(lambda: measure_used_gib() < before + 0.3)
    await ours.close()


async def test_two_engines_start_at_once_on_one_gpu(judge_folder: Path) -> None:
    """With KV caches of their own sizes neither counts the other's memory."""
    both = [make_engine(judge_folder), make_engine(judge_folder)]
    await asyncio.gather(*(engine.start() for engine in both))
    try:
        for engine in both:
            prepared = await engine.prepare(user_prompt("Say hello."), 8, "reject")
            assert await engine.generate(prepared, Sampling(max_tokens=4))
    finally:
        for engine in both:
            await engine.close()
