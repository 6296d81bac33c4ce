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
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import httpx

from autoj_reward.config import EngineConfig, OverLong
from autoj_reward.engine.base import Generation, LabelProbs, Prepared, Sampling
from autoj_reward.engine.fitting import continued, fitted
from autoj_reward.engine.labels import slot_tokens, trie_probs
from autoj_reward.errors import ConfigError, EngineUnavailable, InputRejected
from autoj_reward.logs import LOG
from autoj_reward.prompts.render import Prompt, broken_up, defuse
from autoj_reward.prompts.tokens import PromptTokenizer
from autoj_reward.types import Usage

ATTEMPTS = 5
TOP = 20
"""Log-probabilities that are asked for at a slot."""
REFUSED = {400, 413, 422}
BUSY = {408, 409, 425, 429, 500, 502, 503, 504}
T = TypeVar("T")


class _NoLogprobs(Exception):
    """The endpoint answers, but without log-probabilities."""


class OpenAIEngine:
    """A client of one endpoint. Retries what may pass; refuses what never will."""

    def __init__(
        self,
        config: EngineConfig,
        wrapper: str,
        marks: Sequence[str] = (),
        pause_s: float = 0.5,
    ) -> None:
        """marks: those of the judge's thinking block. pause_s: wait before the second attempt; it
        doubles from one attempt to the next."""
        self.config = config
        self.marks = marks
        self._pause_s = pause_s
        self._key = ""
        self._logprobs = True
        self.wrapper = wrapper
        self.tokens: PromptTokenizer | None = None

    async def start(self) -> None:
        headers = {}
        if name := self.config.api_key_env:
            self._key = os.environ.get(name, "").strip()
            if not self._key:
                raise ConfigError(f"api_key_env names {name}, which is not set in the environment")
            if not (self._key.isascii() and self._key.isprintable()):
                raise ConfigError(
                    f"the key in {name} holds characters that no HTTP header can carry"
                )
            headers["Authorization"] = f"Bearer {self._key}"
        url = str(self.config.base_url)
        try:
            valid = httpx.URL(url).scheme in ("http", "https") and bool(httpx.URL(url).host)
        except httpx.InvalidURL:
            valid = False
        if not valid:
            raise ConfigError(f"base_url {url!r} is no URL: write it like http://127.0.0.1:8000/v1")
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=httpx.Timeout(600, connect=10)
        )
        if self.config.tokenizer:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self.config.tokenizer)
            self.tokens = PromptTokenizer(tokenizer, self.wrapper, self.marks)

    async def prepare(self, prompt: Prompt, max_tokens: int, over_long: OverLong) -> Prepared:
        if self.tokens is None:
            return Prepared(prompt)
        return fitted(self.tokens, prompt, self.config.max_model_len, max_tokens, over_long)

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
        body: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "n": sampling.n,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.frequency_penalty:  # not every endpoint knows it
            body["frequency_penalty"] = sampling.frequency_penalty
        if self.tokens is None:
            body["messages"] = [
                {
                    "role": m.role,
                    "content": "".join(
                        p.text if p.trusted else broken_up(defuse(p.text), self.marks)
                        for p in m.parts
                    ),
                }
                for m in prepared.prompt
            ]
            return await self._post("/chat/completions", body, _generations)
        body["prompt"] = list(prepared.ids)
        return await self._post("/completions", body, _generations)

    def continued(self, prepared: Prepared, own: Generation, text: str) -> Prepared:
        assert self.tokens is not None  # without, no prompt has a tail
        return continued(self.tokens, prepared, own, text)

    async def label_probs(
        self, prepared: Prepared, own: Generation, keep: int, slot: str, labels: Sequence[str]
    ) -> LabelProbs | None:
        if self.tokens is None or not self._logprobs:
            return None
        context, spelled = slot_tokens(self.tokens, prepared, own, keep, slot, labels)
        try:
            return await trie_probs(context, spelled, self._read)
        except _NoLogprobs:
            return None
        except InputRejected as error:
            if "logprob" in str(error).lower():
                self._do_without()
            elif not own.text:  # with a text, the input itself was taken: only its slot is not
                raise
            return None

    def _do_without(self) -> None:
        """The endpoint refuses log-probabilities: say so once, and ask for none any more."""
        if self._logprobs:
            self._logprobs = False
            LOG.warning(
                "%s refuses log-probabilities (%d were asked for): ratings go without their "
                "distribution, so that `expected` and forced slots are unknown",
                self._where("/completions"),
                TOP,
            )

    async def _read(self, context: list[int], wanted: list[int]) -> tuple[dict[int, float], Usage]:
        body = {"prompt": context, "max_tokens": 1, "temperature": 0, "logprobs": TOP}
        top, usage = await self._post("/completions", body, _top_logprobs)
        assert self.tokens is not None
        spelled = {i: self.tokens.tokenizer.decode([i]) for i in wanted}
        return {i: top[s] for i, s in spelled.items() if s in top}, usage

    async def _post(
        self, path: str, body: dict[str, Any], read: Callable[[dict[str, Any], float], T]
    ) -> T:
        """What `read` makes of the answer and the seconds it took; asked again if it cannot."""
        started = time.monotonic()
        pause, asked_for, problem = self._pause_s, 0.0, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(max(asked_for, pause * random.uniform(0.5, 1.5)))
                pause, asked_for = min(30.0, pause * 2), 0.0
            try:
                reply = await self._http.post(path, json={"model": self.config.model, **body})
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if reply.status_code in REFUSED:
                raise InputRejected(f"{self._where(path)} answered {self._told(reply)}")
            if reply.status_code in BUSY:
                problem = f"status {self._told(reply)}"
                asked_for = _retry_after(reply)
                continue
            if reply.status_code != 200:
                raise ConfigError(
                    f"{self._where(path)} answered {self._told(reply)}; check base_url, model and "
                    "api_key_env"
                )
            try:
                return read(reply.json(), time.monotonic() - started)
            except (ValueError, KeyError, IndexError, TypeError, AttributeError):
                problem = f"an answer that is no completion: {self._told(reply)}"
        raise EngineUnavailable(
            f"{self._where(path)}: no answer in {ATTEMPTS} attempts; last: {problem}"
        )

    def _told(self, reply: httpx.Response) -> str:
        """Status and the head of the body, without the key should the endpoint repeat it."""
        text = reply.text.replace(self._key, "[key]") if self._key else reply.text
        return f"{reply.status_code}: {text[:200]}"

    def _where(self, path: str) -> str:
        return f"{str(self.config.base_url).rstrip('/')}{path}"

    async def check(self) -> None:
        """Each request finds out for itself whether the endpoint answers."""

    async def close(self) -> None:
        await self._http.aclose()


def _generations(answer: dict[str, Any], seconds: float) -> list[Generation]:
    choices = answer["choices"]
    texts = [c["message"]["content"] or "" if "message" in c else c["text"] for c in choices]
    thoughts = [_reasoning(choice.get("message") or {}) for choice in choices]
    if not texts or not all(isinstance(text, str) for text in (*texts, *thoughts)):
        raise ValueError("no texts")
    usage = _usage(answer, seconds, len(texts))
    return [
        Generation(
            text,
            finished=choice.get("finish_reason") != "length",
            usage=usage,
            reasoning=thought,
        )
        for text, thought, choice in zip(texts, thoughts, choices, strict=True)
    ]


def _reasoning(message: dict[str, Any]) -> str:
    """What the model thought, by either of the names that endpoints have for it."""
    return message.get("reasoning_content") or message.get("reasoning") or ""


def _top_logprobs(answer: dict[str, Any], seconds: float) -> tuple[dict[str, float], Usage]:
    told = answer["choices"][0].get("logprobs")
    if not told or not told.get("top_logprobs"):
        raise _NoLogprobs
    top = {str(token): float(logprob) for token, logprob in told["top_logprobs"][0].items()}
    return top, _usage(answer, seconds, 1)


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
