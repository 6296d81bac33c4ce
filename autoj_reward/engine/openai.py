"""Any OpenAI-compatible endpoint, by one of two roads.

With `tokenizer` set (a folder or hub name that matches the served model) prompts go to
/completions as token ids: control tokens in untrusted text are impossible, and label
probabilities come from the endpoint's top log-probabilities. Without it, messages go to
/chat/completions: the endpoint tokenizes, so the spelling of control tokens in untrusted text is
broken up first, and label probabilities are unknown.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from typing import Any, Literal

import httpx

from autoj_reward.config import EngineConfig
from autoj_reward.engine.base import Generation, LabelProbs, Prepared, Sampling
from autoj_reward.engine.labels import slot_tokens, trie_probs
from autoj_reward.errors import ConfigError, EngineUnavailable, InputRejected
from autoj_reward.prompts.render import Prompt, defuse
from autoj_reward.prompts.tokens import PromptTokenizer
from autoj_reward.types import Usage

ATTEMPTS = 5
REFUSED = {400, 413, 422}
BUSY = {408, 409, 425, 429, 500, 502, 503, 504}


class OpenAIEngine:
    """A client of one endpoint. Retries what may pass; refuses what never will."""

    def __init__(self, config: EngineConfig, wrapper: str) -> None:
        self.config = config
        self.wrapper = wrapper
        self.tokens: PromptTokenizer | None = None

    async def start(self) -> None:
        headers = {}
        if name := self.config.api_key_env:
            if not (key := os.environ.get(name)):
                raise ConfigError(f"api_key_env names {name}, which is not set in the environment")
            headers["Authorization"] = f"Bearer {key}"
        self._http = httpx.AsyncClient(
            base_url=str(self.config.base_url), headers=headers, timeout=httpx.Timeout(600, connect=10)
        )
        if self.config.tokenizer:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self.config.tokenizer)
            self.tokens = PromptTokenizer(tokenizer, self.wrapper)

    async def prepare(
        self, prompt: Prompt, max_tokens: int, over_long: Literal["truncate", "reject"]
    ) -> Prepared:
        if self.tokens is None:
            return Prepared(prompt)
        budget = self.config.max_model_len - max_tokens
        if over_long == "truncate":
            prompt, ids, cut = self.tokens.fit(prompt, budget)
            return Prepared(prompt, tuple(ids), cut)
        ids = self.tokens.ids(prompt)
        if len(ids) > budget:
            raise InputRejected(f"the prompt has {len(ids)} tokens and only {budget} fit")
        return Prepared(prompt, tuple(ids))

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
        body = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "n": sampling.n,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if self.tokens is None:
            body["messages"] = [
                {"role": m.role, "content": "".join(p.text if p.trusted else defuse(p.text) for p in m.parts)}
                for m in prepared.prompt
            ]
            answer, seconds = await self._post("/chat/completions", body)
            texts = [choice["message"]["content"] or "" for choice in answer["choices"]]
        else:
            body["prompt"] = list(prepared.ids)
            answer, seconds = await self._post("/completions", body)
            texts = [choice["text"] for choice in answer["choices"]]
        usage = _usage(answer, seconds, len(texts))
        return [
            Generation(text, finished=choice.get("finish_reason") != "length", usage=usage)
            for text, choice in zip(texts, answer["choices"], strict=True)
        ]

    async def label_probs(
        self, prepared: Prepared, own: Generation, keep: int, slot: str, labels: Sequence[str]
    ) -> LabelProbs | None:
        if self.tokens is None:
            return None
        context, spelled = slot_tokens(self.tokens, prepared, own, keep, slot, labels)
        return await trie_probs(context, spelled, self._read)

    async def _read(self, context: list[int], wanted: list[int]) -> tuple[dict[int, float], Usage]:
        body = {"prompt": context, "max_tokens": 1, "temperature": 0, "logprobs": 20}
        answer, seconds = await self._post("/completions", body)
        top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        assert self.tokens is not None
        spelled = {i: self.tokens.tokenizer.decode([i]) for i in wanted}
        return {i: top[s] for i, s in spelled.items() if s in top}, _usage(answer, seconds, 1)

    async def _post(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], float]:
        started = time.monotonic()
        pause, problem = 0.5, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(30.0, pause * 2)
            try:
                reply = await self._http.post(path, json={"model": self.config.model, **body})
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if reply.status_code in REFUSED:
                raise InputRejected(f"{self._where(path)} answered {reply.status_code}: {reply.text[:200]}")
            if reply.status_code in BUSY:
                problem = f"status {reply.status_code}: {reply.text[:200]}"
                pause = max(pause, _retry_after(reply))
                continue
            if reply.status_code != 200:
                raise ConfigError(
                    f"{self._where(path)} answered {reply.status_code}: {reply.text[:200]}; check "
                    "base_url, model and api_key_env"
                )
            try:
                answer = reply.json()
                answer["choices"][0]
            except (ValueError, KeyError, IndexError, TypeError):
                problem = f"an answer without choices: {reply.text[:200]!r}"
                continue
            return answer, time.monotonic() - started
        raise EngineUnavailable(f"{self._where(path)}: no answer in {ATTEMPTS} attempts; last: {problem}")

    def _where(self, path: str) -> str:
        return f"{str(self.config.base_url).rstrip('/')}{path}"

    async def check(self) -> None:
        """Each request finds out for itself whether the endpoint answers."""

    async def close(self) -> None:
        await self._http.aclose()


def _usage(answer: dict[str, Any], seconds: float, share: int) -> Usage:
    told = answer.get("usage") or {}
    cached = (told.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(
        (told.get("prompt_tokens") or 0) // share,
        cached // share,
        (told.get("completion_tokens") or 0) // share,
        seconds,
    )


def _retry_after(reply: httpx.Response) -> float:
    try:
        return min(60.0, float(reply.headers.get("retry-after", 0)))
    except ValueError:
        return 0.0
