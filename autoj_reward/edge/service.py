"""`autoj serve`: a judge over HTTP, for trainers of several processes and for OpenRLHF and verl.

SIGTERM and SIGINT drain: no new connection is taken, what is under way is answered, then the
process ends; a second signal ends it at once. SIGHUP reads the config again and puts its judge in
the place of the running one without refusing a request.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import Field

from autoj_reward.client.client import RewardClient
from autoj_reward.config import Block, RewardConfig, load_config
from autoj_reward.edge import trainers
from autoj_reward.edge.connections import Connections, EdgeServer, places
from autoj_reward.edge.garbage import seldom_collected
from autoj_reward.edge.http import Service, make_app
from autoj_reward.edge.intake import Limits
from autoj_reward.edge.token import kept_token
from autoj_reward.errors import AutojError, ConfigError
from autoj_reward.logs import LOG, log_to_stderr
from autoj_reward.models import format_of
from autoj_reward.trainer.reward import RewardModel


class EdgeConfig(Block):
    """A reward service.

    reward: the judge and its replicas; shaping, failures and view are those of `/get_reward`.
    host, port: where it listens; nowhere without a token, whatever the host. token_env,
    token_file: the environment variable, or the file, with the token that every request must carry.
    max_requests: requests under way; more are refused with 429. deadline_s: seconds until an answer
    must begin. drain_s: seconds that SIGTERM leaves to what is under way.
    """

    reward: RewardConfig = RewardConfig()
    host: str = "127.0.0.1"
    port: int = Field(8300, ge=1, le=65535)
    token_env: str = "AUTOJ_TOKEN"
    token_file: Path | None = None
    max_requests: int = Field(4096, ge=1)
    deadline_s: float = Field(1800.0, gt=0)
    drain_s: int = Field(60, ge=0)


def main(config: str, sets: Sequence[str] = ()) -> int:
    """Serve until SIGINT or SIGTERM."""
    checked = load_config(EdgeConfig, config, sets)
    token = kept_token(checked.token_env, checked.token_file)
    if checked.reward.service is not None:
        raise ConfigError("reward.service: a service judges itself; configure reward.judge")
    log_to_stderr()
    with listen(checked.host, checked.port) as listening, RewardModel(checked.reward) as model:
        app, server = model.run(
            lambda client: _server(checked, client, model, token, listening)
        ).result()

        def stop(number: int, frame: Any) -> None:
            server.force_exit = server.should_exit
            app.guard.intake.draining = server.should_exit = True

        reload = _Reload(checked, lambda: load_config(EdgeConfig, config, sets), model)
        before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, reload.begin)
        try:
            with seldom_collected():
                model.run(lambda client: server.serve()).result()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return 0


class _Reload:
    """Puts the judge of the config file, as it is now, in the place of the running one."""

    def __init__(
        self, running: EdgeConfig, load: Callable[[], EdgeConfig], model: RewardModel
    ) -> None:
        self._running, self._load, self._model = running, load, model
        self._turn = asyncio.Lock()

    def begin(self, number: int, frame: Any) -> None:
        """The signal's handler: it may not wait, nor take a lock that it interrupts."""
        threading.Thread(target=self._run, name="autoj-reload", daemon=True).start()

    def _run(self) -> None:
        try:
            self._model.run(self._update).result()
        except AutojError as error:
            LOG.error("the judge stays as it is: %s", error)
        except Exception:
            LOG.exception("the judge stays as it is")

    async def _update(self, client: RewardClient) -> None:
        async with self._turn:
            new = self._load()
            judge = new.reward.judge
            unchanged = self._running.reward.model_copy(update={"judge": judge})
            if new != self._running.model_copy(update={"reward": unchanged}):
                raise ConfigError("only reward.judge can be replaced: restart for the rest")
            old = self._running.reward.judge
            if format_of(judge) != format_of(old) or judge.critiques != old.critiques:
                raise ConfigError("another format or number of critiques needs a restart")
            if judge.on_replicas != old.on_replicas:
                raise ConfigError(f"from kind {old.kind} to {judge.kind} needs a restart")
            await client.backend.update(judge)
            self._running = new
            LOG.info("judge replaced", extra={"facts": {"judge": client.backend.judge}})


def listen(host: str, port: int) -> socket.socket:
    """A socket for an edge, port 0 for any that is free. Raises ConfigError if it is taken."""
    try:
        listening = socket.create_server((host, port), backlog=4096)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}: name another port"
        ) from error
    # asyncio sets TCP_NODELAY only where a socket names its protocol, and create_server names none.
    # An answer leaves in two writes; without it the second waits 40 ms for the caller's ACK.
    kind = listening.family, listening.type, socket.IPPROTO_TCP
    return socket.socket(*kind, listening.detach())


async def _server(
    config: EdgeConfig,
    client: RewardClient,
    model: RewardModel,
    token: str,
    listening: socket.socket,
) -> tuple[Service, uvicorn.Server]:
    room = places(config.max_requests)
    limits = Limits(requests=room.requests, deadline_s=config.deadline_s)
    app = make_app(client, token, limits)
    trainers.add_routes(app, model, app.metrics.judged)
    print(f"judge {client.backend.judge} at http://{config.host}:{config.port}", file=sys.stderr)
    options = uvicorn.Config(
        app.guard,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=config.drain_s,
    )
    return app, EdgeServer(options, Connections(listening, room.most), app.guard.intake.drain)
