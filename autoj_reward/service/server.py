"""The HTTP server of a service: its config, its socket, and uvicorn with the app on it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from pydantic import Field

from autoj_reward.client.client import RewardClient
from autoj_reward.config import Block, RewardConfig
from autoj_reward.errors import ConfigError
from autoj_reward.service import trainers
from autoj_reward.service.api import Service, make_app
from autoj_reward.service.connections import IDLE_S, Connections, EdgeServer, places
from autoj_reward.service.guard import Guard
from autoj_reward.service.intake import Limits
from autoj_reward.trainer.reward import RewardModel

REFUSE_S = 5
"""Seconds that callers have to read that they are refused, once a drain has run out of time."""


class EdgeConfig(Block):
    """A reward service.

    reward: the judge and its replicas; shaping, failures and view are those of `/get_reward`.
    host, port: where it listens; nowhere without a token, whatever the host. token_env,
    token_file: the environment variable, or the file, with the token that every request must carry.
    max_requests: requests under way; more are refused with 429. deadline_s: seconds until an answer
    must begin. drain_s: seconds that SIGTERM leaves to requests in flight; what is not answered by
    then gets 503.
    """

    reward: RewardConfig = RewardConfig()
    host: str = "127.0.0.1"
    port: int = Field(8300, ge=1, le=65535)
    token_env: str = "AUTOJ_TOKEN"
    token_file: Path | None = None
    max_requests: int = Field(4096, ge=1)
    deadline_s: float = Field(1800.0, gt=0)
    drain_s: int = Field(60, ge=0)


def listen(host: str, port: int) -> socket.socket:
    """A socket for a service, port 0 for any that is free. Raises ConfigError if it is taken."""
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


@dataclass(frozen=True, slots=True)
class Edge:
    """The app of a service and the server that it is on."""

    app: Service
    server: EdgeServer

    def drain(self) -> None:
        """Take no new connection, answer what is under way, then end. From any thread."""
        self.app.guard.intake.draining = self.server.should_exit = True

    def stop(self) -> None:
        """Drain; called again, wait for nothing in flight. A signal's handler may call it."""
        self.server.force_exit = self.server.should_exit
        self.drain()


async def make_edge(
    config: EdgeConfig,
    client: RewardClient,
    model: RewardModel,
    token: str,
    listening: socket.socket,
) -> Edge:
    """Make the app over a client, with the trainers' routes, and its server on a socket."""
    room = places(config.max_requests)
    limits = Limits(requests=room.requests, deadline_s=config.deadline_s)
    app = make_app(client, token, limits)
    trainers.add_routes(app, model, app.metrics.judged)
    return Edge(app, server_of(app.guard, listening, room.most, config.drain_s))


def server_of(guard: Guard, listening: socket.socket, most: int, drain_s: int) -> EdgeServer:
    """The server of an app on a socket, at most so many connections at a time."""
    options = uvicorn.Config(
        guard,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=drain_s + REFUSE_S,
    )
    stopping = partial(guard.intake.drain, drain_s)
    return EdgeServer(options, Connections(listening, most), stopping)
