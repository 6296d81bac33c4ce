"""What runs inside a replica: an engine and the judge or the policy on it. Knows nothing of Ray."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from operator import itemgetter
from typing import Any

from autoj_reward.config import PolicyConfig, View
from autoj_reward.config.urls import without_secrets
from autoj_reward.engine.base import Sampling, counted
from autoj_reward.errors import AutojError, ConfigError, EngineUnavailable
from autoj_reward.formats.render import user_prompt
from autoj_reward.journal import Sampled
from autoj_reward.judge.generative import GenerativeJudge
from autoj_reward.judge.make import make_engine
from autoj_reward.judge.scalar import ScalarReward
from autoj_reward.logs import LOG
from autoj_reward.models import policy_wrapper, resolve
from autoj_reward.models.fingerprint import engine_facts
from autoj_reward.types import Asking, JudgeInput, Judgement, Outcome


def policy_name(config: PolicyConfig) -> str:
    """Names everything that can change what a policy samples."""
    model = resolve(config)
    facts = config.model_dump(
        mode="json", include={"n", "temperature", "top_p", "max_tokens", "seed", "system"}
    )
    if (wrapper := policy_wrapper(config)) != "chat":
        facts["wrapper"] = wrapper
    return f"{model.identity}:{json.dumps(facts | engine_facts(config, model))}"


class JudgeReplica:
    """A judge on its engine, neither yet started.

    A dead engine ends the process at once (`on_death`), so that whoever supervises it starts a new
    one; a replica that lived on would swallow requests until its next health check.
    """

    def __init__(
        self, judge: GenerativeJudge | ScalarReward, on_death: Callable[[], None] | None = None
    ) -> None:
        self._judge, self._engine = judge, judge.engine
        self.judge_name = judge.name
        self._on_death = on_death

    @property
    def views(self) -> frozenset[View]:
        """The numbers that the judge gives; of an endpoint, once `contact` has returned."""
        return self._judge.views

    @property
    def distributions(self) -> str:
        """Where label probabilities come from, for a log; of an endpoint, once `contact` has
        returned."""
        return self._judge.distributions

    @property
    def place(self) -> str:
        """The kind of engine, and the endpoint's address without its secrets."""
        config = self._judge.config
        at = f" at {without_secrets(config.base_url).rstrip('/')}" if config.base_url else ""
        return f"{config.kind}{at}"

    @property
    def problem(self) -> str:
        """What keeps an endpoint from answering at the moment; empty if nothing does."""
        return getattr(self._engine, "problem", "")

    async def start(self) -> None:
        await self._engine.start()

    async def contact(self, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask an endpoint what it can, unless `known` says; return what is known then."""
        return await self._judge.contact(known)

    async def stream(self, items: list[JudgeInput]) -> AsyncGenerator[tuple[int, Judgement]]:
        """(index, judgement) as each is done."""
        async with aclosing(self.batches(items)) as batches:
            async for batch in batches:
                for answer in batch:
                    yield answer

    async def batches(self, items: list[JudgeInput]) -> AsyncGenerator[list[tuple[int, Judgement]]]:
        """The same, all that is done by then at once: each piece is one message of Ray's."""
        left = {asyncio.create_task(self._one(k, item)) for k, item in enumerate(items)}
        try:
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                yield sorted((task.result() for task in done), key=itemgetter(0))
        finally:
            for task in left:
                task.cancel()

    async def _one(self, index: int, item: JudgeInput) -> tuple[int, Judgement]:
        try:
            return index, await self._judge.judge(item)
        except EngineUnavailable as error:
            await self._die_if_dead()
            reason = str(error)
        except AutojError:
            raise
        except Exception as error:  # costs this input, not all that are asked with it
            LOG.exception("a judgement failed")
            await self._die_if_dead()
            reason = f"the judge failed with {type(error).__name__}: the replica's log has it"
        return index, Judgement(Outcome.UNAVAILABLE, reason=reason, judge=self.judge_name)

    async def _die_if_dead(self) -> None:
        try:
            await self._engine.check()
        except EngineUnavailable:
            if self._on_death is None:
                return
            self._on_death()

    async def check(self) -> None:
        await self._engine.check()

    async def close(self) -> None:
        await self._engine.close()


class PolicyReplica:
    """One engine with the policy on it."""

    def __init__(self, config: PolicyConfig) -> None:
        if config.kind in ("openai", "transformers"):
            raise ConfigError(
                f"policy.kind {config.kind} is not supported: bring responses in the input"
            )
        self._config = config
        self._engine = make_engine(config, resolve(config), policy_wrapper(config))

    async def start(self) -> None:
        await self._engine.start()

    async def sample(self, asked: Asking) -> Sampled:
        """n responses to one query. InputRejected if that does not fit, EngineUnavailable if
        there are more or fewer."""
        c = self._config
        prepared = await self._engine.prepare(user_prompt(asked, c.system), c.max_tokens, "reject")
        sampling = Sampling(c.max_tokens, c.temperature, c.top_p, c.seed, c.n, logprob=True)
        drawn = counted(await self._engine.generate(prepared, sampling), c.n)
        return Sampled(
            tuple(g.text for g in drawn),
            tuple(g.logprob for g in drawn),
            tuple(g.finished for g in drawn),
            sum(g.usage.tokens_out for g in drawn),
        )

    async def check(self) -> None:
        await self._engine.check()

    async def close(self) -> None:
        await self._engine.close()


def end_process() -> None:
    """Leave without unwinding: the engine is dead and its shutdown would hang."""
    os._exit(1)
