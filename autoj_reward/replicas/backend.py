"""Clients of judge and policy replicas: calls through Serve handles, with Ray's errors
translated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import ray
from ray import serve
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayTaskError
from ray.serve.exceptions import RayServeException

from autoj_reward.conversation import Prompt
from autoj_reward.engine.base import Generation
from autoj_reward.errors import AutojError, ConfigError, EngineUnavailable, ReplicaLost
from autoj_reward.models.facts import JudgeFacts
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.tracing import trace_headers
from autoj_reward.types import JudgeInput, Judgement

GONE = (RayActorError, NodeDiedError, ObjectLostError)
"""Ray's errors when a replica or its node dies while it holds a request."""
LOST = (*GONE, RayServeException)
"""The errors of `GONE`, and those of a replica that is not ready or is full; the request may be
retried."""


async def _stream_answers(handle: Any, name: str, *arguments: Any) -> AsyncGenerator[Any]:
    """Yield what a replica's `stream` yields for these arguments, with Ray's errors translated.

    name: `judge` or `policy`, for errors.
    """
    answers = handle.stream.remote(*arguments)
    try:
        async for batch in answers:
            yield batch
    except RayTaskError as error:
        is_ours = isinstance(error.cause, AutojError)
        raise (error.cause if is_ours else error.as_instanceof_cause()) from error
    except GONE as error:
        lost_error = ReplicaLost(f"a {name} replica was lost: {_find_first_line(error)}")
        lost_error.replica = getattr(error, "actor_id", None) or ""
        raise lost_error from error
    except RayServeException as error:
        raise EngineUnavailable(f"no {name} replica: {_find_first_line(error)}") from error
    finally:
        if ray.is_initialized():  # else the replicas have stopped with Ray
            answers.cancel()


class RayBackend:
    """Client of the judge replicas behind a Serve handle. Each takes up to `max_ongoing` candidates
    at once."""

    problem, place = "", "replicas on Ray Serve"

    def __init__(
        self,
        handle: Any,
        judge: str,
        facts: JudgeFacts,
        replicas: int,
        replace: Callable[[JudgeSpec], RayBackend] | None = None,
        max_ongoing: int = 256,
    ) -> None:
        self._handle = handle.options(stream=True)
        self._replace = replace
        self.judge = judge
        self.replicas = replicas
        self.facts = facts
        self.max_ongoing = max_ongoing

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        arguments = list(items), trace_headers()
        async with aclosing(_stream_answers(self._handle, "judge", *arguments)) as batches:
            async for batch in batches:
                for answer in batch:
                    yield answer

    def shared(self, workers: int) -> RayBackend:
        """Return a client for one of `workers` processes that use the same replicas.

        Its `max_ongoing` is that worker's share.
        """
        ongoing = -(-self.max_ongoing // workers)
        return RayBackend(self._handle, self.judge, self.facts, self.replicas, None, ongoing)

    async def contact(self, finding: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    async def check(self) -> int:
        try:
            async with asyncio.timeout(5):
                status = await asyncio.to_thread(serve.status)
        except (TimeoutError, *LOST) as error:
            raise EngineUnavailable("Ray Serve's controller does not answer") from error
        deployment_id = self._handle.deployment_id
        application = status.applications.get(deployment_id.app_name)
        deployment = application.deployments.get(deployment_id.name) if application else None
        running_replicas: int = deployment.replica_states.get("RUNNING", 0) if deployment else 0
        if not running_replicas:
            raise EngineUnavailable("no judge replica runs")
        return running_replicas

    async def update(self, spec: JudgeSpec) -> None:
        if self._replace is None:
            raise ConfigError("this judge is deployed elsewhere: update it there")
        new = await asyncio.to_thread(self._replace, spec)
        self._handle = new._handle
        self.judge = new.judge
        self.facts = new.facts

    async def close(self) -> None:
        """Do nothing: the cluster stops its replicas."""


class RayPolicy:
    """Client of the policy replicas behind a Serve handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle.options(stream=True)

    def batches(self, prompt: Prompt) -> AsyncGenerator[list[tuple[int, Generation]]]:
        """Sample responses as `PolicyReplica.batches` does."""
        return _stream_answers(self._handle, "policy", prompt)


def _find_first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
