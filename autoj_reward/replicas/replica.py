"""Content of a replica: an engine with a judge or a policy on it. Independent of Ray."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from operator import itemgetter
from typing import Any, TypeVar

from autoj_reward.config import PolicyConfig
from autoj_reward.config.urls import without_secrets
from autoj_reward.conversation import Prompt
from autoj_reward.engine.base import Generation, Sampling, require_one
from autoj_reward.errors import AutojError, ConfigError, EngineUnavailable
from autoj_reward.formats.render import user_prompt
from autoj_reward.judge.generative import GenerativeJudge
from autoj_reward.judge.make import make_engine
from autoj_reward.judge.scalar import ScalarReward
from autoj_reward.logs import LOG
from autoj_reward.models import policy_wrapper, resolve
from autoj_reward.models.fingerprint import engine_facts
from autoj_reward.models.views import Abilities
from autoj_reward.tracing import span
from autoj_reward.types import JudgeInput, Judgement, Outcome

T = TypeVar("T")


def policy_name(config: PolicyConfig) -> str:
    """Return a name that identifies every setting which can change a policy's samples."""
    model = resolve(config)
    facts = config.model_dump(
        mode="json", include={"n", "temperature", "top_p", "max_tokens", "seed", "system"}
    )
    if (wrapper := policy_wrapper(config)) != "chat":
        facts["wrapper"] = wrapper
    return f"{model.identity}:{json.dumps(facts | engine_facts(config, model))}"


class JudgeReplica:
    """A judge on its engine; `start` loads it.

    If the engine dies, `on_death` ends the process at once, so that its supervisor starts a new
    one. A process that lived on would fail requests until its next health check.
    """

    def __init__(
        self, judge: GenerativeJudge | ScalarReward, on_death: Callable[[], None] | None = None
    ) -> None:
        self._judge, self._engine = judge, judge.engine
        self.judge_name = judge.name
        self._on_death = on_death

    @property
    def abilities(self) -> Abilities:
        """Where the judge's engine tells probabilities; for an endpoint, once `contact`
        returned."""
        return self._judge.abilities

    @property
    def place(self) -> str:
        """Kind of engine, and the endpoint's address without secrets."""
        config = self._judge.config
        suffix = f" at {without_secrets(config.base_url).rstrip('/')}" if config.base_url else ""
        return f"{config.kind}{suffix}"

    @property
    def problem(self) -> str:
        """Reason why an endpoint does not answer at the moment; empty if it does."""
        return getattr(self._engine, "problem", "")

    async def start(self) -> None:
        await self._engine.start()

    async def contact(self, finding: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send an endpoint its first request and return its capabilities.

        finding: capabilities from an earlier contact, which are not tested again.
        """
        return await self._judge.contact(finding)

    async def stream(self, items: list[JudgeInput]) -> AsyncGenerator[tuple[int, Judgement]]:
        """Yield (input index, judgement) as each judgement is done."""
        async with aclosing(self.batches(items)) as batches:
            async for batch in batches:
                for answer in batch:
                    yield answer

    async def batches(
        self, items: list[JudgeInput], caller: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[tuple[int, Judgement]]]:
        """Yield lists of all (input index, judgement) that are done by then.

        Ray sends each list as one message. caller: trace headers of the calling process, if it is
        another one.
        """
        work = (self._judge_item(k, item, caller) for k, item in enumerate(items))
        async with aclosing(_yield_as_done(work)) as batches:
            async for batch in batches:
                yield batch

    async def _judge_item(
        self, index: int, item: JudgeInput, caller: Mapping[str, str] | None
    ) -> tuple[int, Judgement]:
        with span("autoj.judgement", caller=caller) as note:
            judgement = await self._answer(item)
            note(_describe_judgement(item, judgement))
        return index, judgement

    async def _answer(self, item: JudgeInput) -> Judgement:
        try:
            return await self._judge.judge(item)
        except EngineUnavailable as error:
            await self._die_if_dead()
            reason = str(error)
        except AutojError:
            raise
        except Exception as error:  # fails this input only, not the others of the call
            LOG.exception("a judgement failed")
            await self._die_if_dead()
            reason = f"the judge failed with {type(error).__name__}: the replica's log has it"
        return Judgement(Outcome.UNAVAILABLE, reason=reason, judge=self.judge_name)

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


def _describe_judgement(item: JudgeInput, judgement: Judgement) -> dict[str, str | int | float]:
    """Return the attributes of a judgement's span. The reason is left out: it may quote a text."""
    usage = judgement.usage
    return {
        "autoj.judge": judgement.judge,
        "autoj.protocol": item.protocol,
        "autoj.outcome": judgement.outcome.value,
        "autoj.forced": judgement.forced,
        "gen_ai.usage.input_tokens": usage.tokens_in,
        "gen_ai.usage.output_tokens": usage.tokens_out,
        "autoj.cached_tokens": usage.tokens_cached,
        "autoj.engine_seconds": usage.latency_s,
        "autoj.queue_seconds": usage.queued_s,
    }


class PolicyReplica:
    """A policy on its engine; `start` loads it."""

    def __init__(self, config: PolicyConfig) -> None:
        if config.kind in ("openai", "transformers"):
            raise ConfigError(
                f"policy.kind {config.kind} is not supported: bring responses in the input"
            )
        self._config = config
        self._engine = make_engine(config, resolve(config), policy_wrapper(config))

    async def start(self) -> None:
        await self._engine.start()

    async def batches(self, prompt: Prompt) -> AsyncGenerator[list[tuple[int, Generation]]]:
        """Sample n responses to one prompt; yield lists of all (index, response) that are done by
        then.

        Each response is a request of its own, with its index added to the seed. The engine's prefix
        cache still computes the query once. Raises InputRejected if the prompt does not fit, and
        EngineUnavailable if the engine does not answer.
        """
        c = self._config
        prepared_prompt = await self._engine.prepare(
            user_prompt(prompt, c.system), c.max_tokens, "reject"
        )

        async def sample_response(index: int) -> tuple[int, Generation]:
            seed = c.seed + index
            sampling = Sampling(c.max_tokens, c.temperature, c.top_p, seed, index, logprob=True)
            return index, require_one(await self._engine.generate(prepared_prompt, sampling))

        async with aclosing(_yield_as_done(map(sample_response, range(c.n)))) as batches:
            async for batch in batches:
                yield batch

    async def check(self) -> None:
        await self._engine.check()

    async def close(self) -> None:
        await self._engine.close()


async def _yield_as_done(
    work: Iterable[Coroutine[Any, Any, tuple[int, T]]],
) -> AsyncGenerator[list[tuple[int, T]]]:
    """Run all work concurrently; yield lists of all (index, result) that are done by then.

    The first exception cancels the rest and is raised.
    """
    open_tasks = {asyncio.create_task(coroutine) for coroutine in work}
    finished_tasks = set[asyncio.Task[tuple[int, T]]]()
    try:
        while open_tasks:
            finished_tasks, open_tasks = await asyncio.wait(
                open_tasks, return_when=asyncio.FIRST_COMPLETED
            )
            yield sorted((task.result() for task in finished_tasks), key=itemgetter(0))
    finally:
        for task in open_tasks:
            task.cancel()
        # No error is left unread.
        await asyncio.gather(*open_tasks, *finished_tasks, return_exceptions=True)


def end_process() -> None:
    """Exit without clean-up: the engine is dead and its shutdown would hang."""
    os._exit(1)
