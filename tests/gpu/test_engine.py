"""Engines on a GPU, without Ray: they start, answer, read slots, and leave no memory behind."""

from __future__ import annotations

import asyncio
import os
import time
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

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

LABELS = [str(n) for n in range(1, 11)]


def config(folder: Path, **more: Any) -> EngineConfig:
    given = {"model": str(folder), "max_model_len": 1024, "kv_cache_gib": 1.0}
    return EngineConfig.model_validate(given | more)


def used_gib() -> float:
    """Memory that all processes together hold on the first GPU."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return float(pynvml.nvmlDeviceGetMemoryInfo(handle).used) / 2**30
    finally:
        pynvml.nvmlShutdown()


def eventually(holds: Any, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it has not come about"
        time.sleep(0.2)


def engine(folder: Path) -> VllmEngine:
    given = config(folder)
    return VllmEngine(given, resolve(given), "chat")


async def test_readings_at_a_slot_are_those_of_transformers(judge_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    ours = engine(judge_folder)
    await ours.start()
    try:
        prepared = await ours.prepare(user_prompt("How do I boil an egg?"), 64, "reject")
        [own] = await ours.generate(prepared, Sampling(max_tokens=16))
        assert own.ids
        found = await ours.label_probs(prepared, Generation(""), 0, "Rating: [[", LABELS)
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

    for label, p in found.probs:
        ids, expected = labels[label], 1.0
        for n in range(len(ids)):
            expected *= float(after(ids[:n])[ids[n]])
        assert p == pytest.approx(expected, abs=0.01, rel=0.1)


async def test_a_killed_engine_is_noticed_and_frees_its_memory(judge_folder: Path) -> None:
    before = used_gib()
    ours = engine(judge_folder)
    await ours.start()
    assert used_gib() > before + 0.9  # the KV cache alone
    children = psutil.Process(os.getpid()).children(recursive=True)
    [core] = [child for child in children if "EngineCore" in child.name()]
    core.kill()

    async def noticed() -> None:
        while True:
            await ours.check()
            await asyncio.sleep(0.1)

    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(noticed(), 60)
    eventually(lambda: used_gib() < before + 0.3)
    await ours.close()


async def test_two_engines_start_at_once_on_one_gpu(judge_folder: Path) -> None:
    """With KV caches of their own sizes neither counts the other's memory."""
    both = [engine(judge_folder), engine(judge_folder)]
    await asyncio.gather(*(one.start() for one in both))
    try:
        for one in both:
            prepared = await one.prepare(user_prompt("Say hello."), 8, "reject")
            assert await one.generate(prepared, Sampling(max_tokens=4))
    finally:
        for one in both:
            await one.close()
