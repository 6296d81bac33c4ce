"""The HTTP edge of `autoj serve` over a client, on the loopback, and a client of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from autoj_reward.client.client import RewardClient
from autoj_reward.client.remote import HttpBackend
from autoj_reward.service.api import make_app
from autoj_reward.service.serve import listen


class _Server(uvicorn.Server):
    """Leaves Ctrl-C to the measurement."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def over_http(client: RewardClient) -> AsyncIterator[RewardClient]:
    """A client that asks over HTTP, with a token, what `client` answers. The edge shares this
    process and its event loop; `autoj serve` has a process for it."""
    token = secrets.token_urlsafe()
    with listen("127.0.0.1", 0) as listening:
        options = uvicorn.Config(
            make_app(client, token).guard, log_config=None, access_log=False, lifespan="off"
        )
        server = _Server(options)
        serving = asyncio.create_task(server.serve([listening]))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            backend = await HttpBackend.connect(address, token, start_s=30)
            try:
                yield RewardClient(backend)
            finally:
                await backend.close()
        finally:
            server.should_exit = True
            await serving
