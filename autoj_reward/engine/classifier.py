"""Scalar reward model on transformers, for architectures that vLLM does not support."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from autoj_reward.config import EngineConfig, OverLong
from autoj_reward.engine.base import Prepared, Score, fit_prompt
from autoj_reward.engine.builds import require_fitting_builds
from autoj_reward.errors import EngineUnavailable, ModelError
from autoj_reward.formats.render import RenderedPrompt
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models import ResolvedModel
from autoj_reward.models.classifier import check_classifier, scores
from autoj_reward.models.settings import dtype_of
from autoj_reward.types import Usage

BATCH = 16
"""Maximum prompts in one forward pass."""

Waiting = tuple[tuple[int, ...], asyncio.Future[tuple[float, float]]]
"""Token ids of a queued prompt, and the future of (score, `time.monotonic()` at the batch's start).
"""


class TransformersScorer:
    """Engine over one AutoModelForSequenceClassification; queued prompts are scored in batches,
    shortest first."""

    def __init__(self, config: EngineConfig, model: ResolvedModel, wrapper: str) -> None:
        self.config = config
        self.model = model
        self.wrapper = wrapper
        self._waiting: list[Waiting] = []
        self._working: asyncio.Task[None] | None = None

    async def start(self) -> None:
        require_fitting_builds()
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        config = self.config
        if config.tensor_parallel > 1 or config.quantization:
            raise ModelError("kind transformers has no tensor_parallel and no quantization")
        self._pad = check_classifier(self.model, config)
        options = {"revision": self.model.revision, "trust_remote_code": config.trust_remote_code}
        dtype = getattr(torch, dtype_of(config, self.model.device))
        tokenizer = AutoTokenizer.from_pretrained(self.model.path, **options)
        self.tokens = PromptTokenizer(tokenizer, self.wrapper)
        self._net: Any = AutoModelForSequenceClassification.from_pretrained(
            self.model.path, dtype=dtype, **options
        )
        self._net.eval().to(self.model.device)

    async def prepare(
        self, prompt: RenderedPrompt, max_tokens: int, over_long: OverLong
    ) -> Prepared:
        return fit_prompt(self.tokens, prompt, self.config.max_model_len, max_tokens, over_long)

    async def score(self, prepared: Prepared) -> Score:
        queued_at = time.monotonic()
        answer: asyncio.Future[tuple[float, float]] = asyncio.get_running_loop().create_future()
        self._waiting.append((prepared.ids, answer))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        value, began = await answer
        return Score(value, Usage(len(prepared.ids), queued_s=began - queued_at))

    async def _work(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # let other ready tasks add their prompts to the batch
            self._waiting.sort(key=lambda waiting: len(waiting[0]))
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            batch = [waiting for waiting in batch if not waiting[1].done()]
            if not batch:
                continue
            began = time.monotonic()
            try:
                values = await asyncio.to_thread(
                    scores, self._net, [ids for ids, _ in batch], self._pad
                )
            except Exception as error:  # any error must reach the callers that wait for an answer
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(EngineUnavailable(f"transformers failed: {error}"))
                continue
            for (_, answer), value in zip(batch, values, strict=True):
                if not answer.done():
                    answer.set_result((value, began))

    async def check(self) -> None:
        """Do nothing: the model runs in the caller's process."""

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
        self._net = None
