"""The teacher: asks once, keeps what was answered, and stops before the budget is overspent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from autoj_reward.collect.answers import Answer, AnswerLog, Cost, question_key
from autoj_reward.collect.config import BudgetConfig, TeacherConfig
from autoj_reward.engine.base import Engine, Sampling
from autoj_reward.errors import EngineUnavailable, InputRejected
from autoj_reward.formats.render import Prompt
from autoj_reward.judge.make import make_engine
from autoj_reward.models import resolve

QUESTION_S = 600.0
"""Seconds that an endpoint has for a question, retries included."""
CHARS_PER_TOKEN = 4
"""Of English text, for budgets and estimates."""


class OutOfBudget(Exception):
    """The next question might cost more than is left. It stops a collection; it is no error."""


def estimated_tokens(prompt: Prompt) -> int:
    """Input tokens of a prompt by its length, chat template included."""
    return sum(len(m.text) // CHARS_PER_TOKEN + 8 for m in prompt)


def cost_of(config: TeacherConfig, tokens_in: int, tokens_out: int) -> Cost:
    """Tokens and their price."""
    usd = (tokens_in * config.price_in + tokens_out * config.price_out) / 1e6
    return Cost(tokens_in, tokens_out, usd)


class Teacher:
    """Asks an engine: `concurrency` questions at a time, each one once for all runs."""

    def __init__(
        self, config: TeacherConfig, engine: Engine, log: AnswerLog, budget: BudgetConfig
    ) -> None:
        self._config, self._engine, self._log, self._budget = config, engine, log, budget
        self._name = teacher_name(config)
        self._gate = asyncio.Semaphore(config.concurrency)
        self._reserved = Cost()
        self._unanswered = 0
        self._contact, self._met = asyncio.Lock(), False
        self.asked = 0
        """Questions put in this run; those answered earlier are not put again."""

    async def ask(self, prompt: Prompt, meta: dict[str, Any]) -> Answer | None:
        """The answer, from the record if it is there; None if nobody answered this time.

        Raises OutOfBudget before a question that might not be affordable, EngineUnavailable when
        nobody answers within `start_s` at the start or `patience` questions in a row, and
        ConfigError for what an endpoint refuses whatever it is asked.
        """
        key = question_key(self._name, prompt)
        if known := self._log.get(key):
            return known
        await self._meet()
        async with self._gate:
            if known := self._log.get(key):
                return known
            worst = cost_of(self._config, estimated_tokens(prompt), self._config.max_tokens)
            self._reserve(worst)
            try:
                answer = await self._put(prompt)
            except EngineUnavailable:
                self._unanswered += 1
                if self._unanswered >= self._config.patience:
                    raise
                return None
            finally:
                self._reserved += -worst
            self._unanswered = 0
            self._log.put(key, answer, meta)
            return answer

    async def _meet(self) -> None:
        """Find out once, before the first question, whether an endpoint answers at all and which
        parameters it takes."""
        async with self._contact:
            if not self._met:
                await self._engine.contact(_sampling(self._config), {})
                self._met = True

    async def _put(self, prompt: Prompt) -> Answer:
        c = self._config
        self.asked += 1
        try:
            prepared = await self._engine.prepare(prompt, c.max_tokens, "reject")
            [said] = await self._engine.generate(prepared, _sampling(c))
        except InputRejected as error:
            return Answer(str(error), "rejected")
        tokens_in = said.usage.tokens_in or estimated_tokens(prompt)
        tokens_out = said.usage.tokens_out or -(-len(said.text) // CHARS_PER_TOKEN)
        reason = "stop" if said.finished else "length"
        return Answer(said.text, reason, cost_of(c, tokens_in, tokens_out))

    def _reserve(self, worst: Cost) -> None:
        total = self._log.spent + self._reserved + worst
        for limit, used in ((self._budget.usd, total.usd), (self._budget.tokens, total.tokens)):
            if limit is not None and used > limit:
                raise OutOfBudget
        self._reserved += worst


def teacher_name(config: TeacherConfig) -> str:
    """Names everything that can change what a teacher answers."""
    kept = {"max_tokens", "temperature", "top_p", "seed", "script", "max_model_len", "revision"}
    return f"{resolve(config).identity}:{config.model_dump_json(include=kept)}"


def _sampling(config: TeacherConfig) -> Sampling:
    return Sampling(config.max_tokens, config.temperature, config.top_p, config.seed)


def _engine(config: TeacherConfig) -> Engine:
    if config.kind != "openai":
        return make_engine(config, resolve(config), "chat")
    from autoj_reward.engine.openai import OpenAIEngine

    return OpenAIEngine(
        config,
        "chat",
        at_once=config.concurrency,
        deadline_s=QUESTION_S,
        asks_logprobs=False,
    )


@asynccontextmanager
async def open_teacher(
    config: TeacherConfig, log: AnswerLog, budget: BudgetConfig
) -> AsyncIterator[Teacher]:
    """The teacher that a config names, its engine started here and closed at the end."""
    engine = _engine(config)
    await engine.start()
    try:
        yield Teacher(config, engine, log, budget)
    finally:
        await engine.close()
