"""The policy's share of a best-of-N job: n responses to every query that brought none."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Protocol, TypeVar

from autoj_reward.client.in_flight import in_order
from autoj_reward.config import PolicyConfig
from autoj_reward.conversation import messages_of
from autoj_reward.errors import EngineUnavailable, InputRejected
from autoj_reward.journal import Journal, Sampled
from autoj_reward.replicas.replica import PolicyReplica, policy_name
from autoj_reward.types import Asking

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster

QUERIES_AT_ONCE = 16
A = TypeVar("A", bound=Asking)


class Policy(Protocol):
    """Samples responses to one query."""

    async def sample(self, asked: Asking) -> Sampled:
        """Raises InputRejected for a query that does not fit, EngineUnavailable to ask again."""


@asynccontextmanager
async def open_policy(config: PolicyConfig, cluster: Cluster | None) -> AsyncIterator[Policy]:
    """The policy of a config: on the cluster for vLLM, in this process for a script."""
    if config.kind != "vllm":
        replica = PolicyReplica(config)
        await replica.start()
        yield replica
        return
    assert cluster is not None  # it is made for such a policy
    try:
        yield cluster.deploy_policy(config)
    finally:
        cluster.remove("policy")


async def sample_missing(
    queries: Iterable[A],
    config: PolicyConfig,
    journal: Journal,
    progress: Callable[[Sampled], None],
    cluster: Cluster | None,
) -> dict[A, str]:
    """Have responses to every query in the journal; the queries that have none, and why.

    What the journal holds is not sampled again, and the policy is loaded only if something is
    missing. progress is told of every query as it is done.
    """
    name = policy_name(config)
    failed: dict[A, str] = {}
    under_way: set[A] = set()

    def missing() -> Iterator[A]:
        for query in queries:
            if query in under_way or query in failed:
                continue
            if kept := journal.get_samples(name, on_record(query)):
                progress(kept)
            else:
                under_way.add(query)
                yield query

    wanted = missing()
    first = next(wanted, None)
    if first is None:
        return failed
    async with open_policy(config, cluster) as policy:

        async def one(query: A) -> None:
            sampled = await _ask(policy, query, config.serve.deadline_s)
            if isinstance(sampled, Sampled):
                progress(journal.put_samples(name, on_record(query), sampled))
            else:
                failed[query] = sampled
            under_way.remove(query)

        await in_order(chain([first], wanted), one, lambda _: None, QUERIES_AT_ONCE)
    return failed


def on_record(asked: Asking) -> str:
    """What a journal has samples under: the query, or the messages as JSON."""
    return asked if isinstance(asked, str) else json.dumps(messages_of(asked))


async def _ask(policy: Policy, query: Asking, deadline_s: float) -> Sampled | str:
    deadline = time.monotonic() + deadline_s
    pause = 0.5
    while True:
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await policy.sample(query)
        except InputRejected as error:
            return str(error)
        except TimeoutError:
            return f"the policy gave no answer within {deadline_s:g} s"
        except EngineUnavailable as error:
            if time.monotonic() + pause > deadline:
                return str(error)
        await asyncio.sleep(pause)
        pause = min(10.0, pause * 2)
