"""Sampling of a policy's responses into the journal, each query once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, Protocol

from autoj_reward.client.in_flight import run_in_order
from autoj_reward.config import PolicyConfig
from autoj_reward.conversation import Prompt, media_of, messages_of
from autoj_reward.engine.base import Generation
from autoj_reward.errors import EngineUnavailable, InputRejected
from autoj_reward.io.backoff import Backoff
from autoj_reward.journal import Journal, SampledResponses
from autoj_reward.media import explain_media
from autoj_reward.replicas.replica import PolicyReplica, policy_name

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster

QUERIES_AT_ONCE = 16
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
"""Seconds between two attempts to sample, before jitter: at first, and at most."""
Sampled = SampledResponses | str
"""The responses to a query, or the reason why there are none."""
MISSED = "not there when the policy was asked"
"""Reason of a query that a source yields only after the policy is done."""


async def miss(prompt: Prompt) -> Sampled:
    """Return that there are no responses, for a job without a policy."""
    return MISSED


class JobSchedule(NamedTuple):
    """Source of a job's responses, and the times at which its judge starts and may judge."""

    sample: Callable[[Prompt], Awaitable[Sampled]] = miss
    """Returns the policy's responses to a query."""
    early: asyncio.Event | None = None
    """When it is set the judge starts, before its first input. None: it starts with that."""
    free: Callable[[], Awaitable[None]] | None = None
    """Returns when rows that have responses may be judged; None: at once."""


class Policy(Protocol):
    """Samples responses to one query."""

    def batches(self, prompt: Prompt) -> AsyncGenerator[list[tuple[int, Generation]]]:
        """Yield lists of all (index, response) that are done by then.

        Raises InputRejected if the prompt does not fit, and EngineUnavailable if a retry may help.
        """


class Sampler:
    """Samples responses to queries into the journal.

    The policy is opened for the first query that the journal lacks: on the cluster if its kind is
    `vllm`, else in this process.
    """

    def __init__(
        self,
        config: PolicyConfig,
        journal: Journal,
        cluster: Cluster | None,
        progress: Callable[[int], object],
        failed: Mapping[Prompt, str] | None = None,
    ) -> None:
        """progress: called with the number of further responses; it is negative where a lost
        replica's responses are sampled again. failed: queries without responses, known before."""
        self._config, self._journal, self._cluster = config, journal, cluster
        self._progress, self._name = progress, policy_name(config)
        self._tasks: dict[Prompt, asyncio.Task[Sampled]] = {}
        self._turns, self._starting = asyncio.Semaphore(QUERIES_AT_ONCE), asyncio.Lock()
        self._policy: Policy | None = None
        self.failed = dict(failed or {})
        """The queries without responses, with the reason."""
        self.needed = asyncio.Event()
        """Set when the journal lacks a query's responses, just before the policy is opened."""

    async def sample(self, prompt: Prompt) -> Sampled:
        """Return the responses to a query: from the journal, from a call in flight, or new ones."""
        if prompt in self.failed:
            return self.failed[prompt]
        if (task := self._tasks.get(prompt)) is None:
            if samples := self.recorded(prompt):
                self._progress(len(samples.responses))
                return samples
            task = self._tasks[prompt] = asyncio.create_task(self._sample(prompt))
        return await task

    async def sample_all(self, prompts: Iterable[Prompt]) -> dict[Prompt, str]:
        """Sample responses to every query, stop the policy, and return the failed queries.

        Queries in the journal are not sampled again, and the policy is loaded only if one is
        missing.
        """
        try:
            await run_in_order(prompts, self.sample, lambda _: None, QUERIES_AT_ONCE)
        finally:
            await self.close()
        return self.failed

    async def read(self, prompt: Prompt) -> Sampled:
        """Return the responses to a query that the journal has, without asking the policy."""
        return self.recorded(prompt) or self.failed.get(prompt, MISSED)

    def recorded(self, prompt: Prompt) -> SampledResponses | None:
        """Return the responses to a query that the journal has."""
        return self._journal.get_samples(self._name, encode_prompt(prompt))

    async def close(self) -> None:
        """Stop the policy's replicas and free their memory."""
        if self._cluster and self._policy:
            await asyncio.to_thread(self._cluster.remove, "policy")
        self._policy = None

    async def _sample(self, prompt: Prompt) -> Sampled:
        try:
            samples: Sampled = explain_media(media_of(prompt.turns), "policies")
            if not samples:
                async with self._turns:
                    samples = await self._ask(await self._get_policy(), prompt)
            if isinstance(samples, str):
                self.failed[prompt] = samples
            else:
                samples = self._journal.put_samples(self._name, encode_prompt(prompt), samples)
            return samples
        finally:
            del self._tasks[prompt]

    async def _get_policy(self) -> Policy:
        async with self._starting:
            if self._policy is None:
                self.needed.set()
                self._policy = await open_policy(self._config, self._cluster)
        return self._policy

    async def _ask(self, policy: Policy, prompt: Prompt) -> Sampled:
        deadline_s = self._config.serve.deadline_s
        deadline = time.monotonic() + deadline_s
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            generations: dict[int, Generation] = {}
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self._draw(policy, prompt, generations)
                return _join_generations([generations[index] for index in sorted(generations)])
            except InputRejected as error:
                return str(error)
            except TimeoutError:
                self._progress(-len(generations))
                return f"the policy gave no answer within {deadline_s:g} s"
            except EngineUnavailable as error:
                self._progress(-len(generations))
                pause_s = backoff.next_s()
                if time.monotonic() + pause_s > deadline:
                    return str(error)
                await asyncio.sleep(pause_s)

    async def _draw(
        self, policy: Policy, prompt: Prompt, generations: dict[int, Generation]
    ) -> None:
        async with aclosing(policy.batches(prompt)) as batches:
            async for batch in batches:
                generations.update(batch)
                self._progress(len(batch))
        if len(generations) != self._config.n:
            raise EngineUnavailable(
                f"the policy gave {len(generations)} responses in place of {self._config.n}"
            )


async def open_policy(config: PolicyConfig, cluster: Cluster | None) -> Policy:
    """Open a policy: on the cluster if its kind is `vllm`, else in this process."""
    if config.kind != "vllm":
        replica = PolicyReplica(config)
        await replica.start()
        return replica
    assert cluster is not None  # it is made for such a policy
    cluster.start()
    return await asyncio.to_thread(cluster.deploy_policy, config)


def encode_prompt(prompt: Prompt) -> str:
    """Return the prompt as the journal of samples stores it: text, or the messages as JSON."""
    return json.dumps(messages_of(prompt.turns)) if prompt.turns else prompt.text


def _join_generations(generations: list[Generation]) -> SampledResponses:
    return SampledResponses(
        tuple(generation.text for generation in generations),
        tuple(generation.logprob for generation in generations),
        tuple(generation.finished for generation in generations),
        sum(generation.usage.tokens_out for generation in generations),
    )
