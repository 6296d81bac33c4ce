"""`autoj serve`: the HTTP service of a judge, for trainers with several processes.

SIGTERM and SIGINT shut down gracefully: no new connections are accepted, requests in flight are
answered, then the process ends. A second signal ends it at once. SIGHUP reads the config and the
judge's format again and replaces the judge without refusing a request.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import Field
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from autoj_reward.client.loop_thread import LoopThread
from autoj_reward.config import JUDGE, Block, RewardConfig, Tracker
from autoj_reward.errors import AutojError, ConfigError
from autoj_reward.formats.schema import (
    JudgeFormat,
    ScalarFormat,
    load_any_format,
    read_format,
)
from autoj_reward.io.track import EVERY_S, MetricReports, tracking
from autoj_reward.logs import LOG, announce, log_to_stderr
from autoj_reward.models import format_and_wrapper
from autoj_reward.models.spec import judge_spec
from autoj_reward.models.unused import load_run
from autoj_reward.processes import relaxed_gc
from autoj_reward.service import trainers
from autoj_reward.service.api import Service, make_app
from autoj_reward.service.connections import connection_class
from autoj_reward.service.gateway import Limits
from autoj_reward.trainer.reward import AsyncRewardModel

IDLE_S = 120
"""Seconds that an idle connection is kept. Clients and proxies keep theirs for less (httpx 5,
aiohttp 15, nginx 60, Go 90), so none sends on a connection that is being closed."""
OTHER_FILES = 1024
"""Files that may be open beside one connection for each request in flight."""
REFUSE_S = 5
"""Seconds in which callers can receive their refusal after a drain has run out of time."""


class EdgeConfig(Block):
    """Settings of a reward service."""

    reward: RewardConfig = RewardConfig()
    """The judge and its replicas. Shaping, failures and view apply to the trainers' routes alone,
    such as `/get_reward`."""
    host: str = "127.0.0.1"
    """Address to listen on. A token is needed on every address."""
    port: int = Field(8300, ge=1, le=65535)
    """Port to listen on."""
    token_env: str = "AUTOJ_TOKEN"
    """Environment variable with the token that every request must carry."""
    token_file: Path | None = None
    """File with that token. null: use `token_env`."""
    max_requests: int = Field(4096, ge=1)
    """Limit on requests in flight. More are refused with 429."""
    deadline_s: float = Field(1800.0, gt=0)
    """Seconds until an answer must begin."""
    drain_s: int = Field(60, ge=0)
    """Seconds that a graceful shutdown leaves to requests in flight; those that are unanswered then
    get 503."""
    track: Tracker | None = None
    """Experiment tracker that gets the numbers of `/metrics` while the service runs. null: none."""


def main(config: str, sets: Sequence[str] = (), strict: bool = False) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    edge_config = load_run(EdgeConfig, config, sets, strict)
    token = read_token(edge_config.token_env, edge_config.token_file)
    if edge_config.reward.service is not None:
        raise ConfigError("reward.service: a service judges itself; configure reward.judge")
    log_to_stderr()
    allow_open_files(edge_config.max_requests + OTHER_FILES)
    address = f"{edge_config.host}:{edge_config.port}"
    with (
        listen(edge_config.host, edge_config.port) as listening,
        tracking(edge_config.track, address, edge_config) as reports,
        open_edge(edge_config, token) as edge,
    ):
        for line in edge.model.judges.describe():
            announce(f"http://{address}: {line}")
        reload = _Reload(edge_config, lambda: load_run(EdgeConfig, config, sets, strict), edge)
        before = {
            number: signal.signal(number, lambda number, frame: edge.stop())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, reload.begin)
        try:
            with relaxed_gc():
                edge.loop.wait(edge.serve(listening, reports))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return 0


def read_token(variable: str, file: Path | None) -> str:
    """Return the token from a file, else from an environment variable.

    Raises ConfigError if there is none, if other users can read the file, or if no HTTP header can
    carry the token.
    """
    source = f"token_file {file}" if file is not None else f"the token in {variable}"
    token = _read_token(file) if file is not None else os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(
            f"{source} is empty: write the token that callers must present into it"
            if file is not None
            else f"set the environment variable {variable} to the token that callers must "
            "present, for example: export "
            f"{variable}=$(python -c 'import secrets; print(secrets.token_urlsafe())')"
        )
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(f"{source} holds characters that no HTTP header can carry")
    return token


def _read_token(file: Path) -> str:
    try:
        if file.stat().st_mode & stat.S_IRWXO:
            raise ConfigError(
                f"token_file {file}: every user of this machine can read it: chmod 600 {file} (in "
                "Kubernetes defaultMode: 0440), and write a new token if others have been here"
            )
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token_file {file}: cannot be read: {error}") from error


def allow_open_files(count: int) -> None:
    """Let this process open this many files, or as many as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        file_limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if file_limit < count:
            LOG.warning("only %d files may be open, %d are needed: ulimit -n", file_limit, count)
        resource.setrlimit(resource.RLIMIT_NOFILE, (file_limit, hard))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free port.

    Raises ConfigError if the service cannot listen there.
    """
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
    """A service: its judges, its app and its server, and the event loop that they run on."""

    model: AsyncRewardModel
    app: Service
    server: uvicorn.Server
    drain_s: int
    loop: LoopThread

    async def serve(self, listening: socket.socket, reports: MetricReports) -> None:
        """Serve until the drain has ended, and report the metrics meanwhile."""
        metrics, started = self.app.metrics, time.monotonic()

        async def report() -> None:
            while True:
                await asyncio.sleep(EVERY_S)
                reports.offer(int(time.monotonic() - started), metrics.numbers)

        reporting = asyncio.create_task(report())
        try:
            await self.server.serve([listening])
        finally:
            reporting.cancel()
            reports.send(int(time.monotonic() - started), metrics.numbers())

    def stop(self) -> None:
        """Accept no new connection, answer requests in flight, then end. When called again, refuse
        those requests and end at once. Callable from any thread and from a signal handler."""
        self.server.force_exit = again = self.server.should_exit
        self.server.should_exit = True
        self.loop.call_soon(self.app.guard.admission.drain, 0 if again else self.drain_s)


@contextmanager
def open_edge(config: EdgeConfig, token: str) -> Iterator[Edge]:
    """Open the judges of a service, and yield it with its routes; `Edge.serve` serves them.

    Judges, app and server run on one event loop in a thread of its own, because the main thread
    handles signals. Raises what `Judges.open` raises.
    """
    loop = LoopThread("autoj-serve")
    model = AsyncRewardModel(config.reward)
    try:
        loop.wait(model.__aenter__())
        try:
            yield loop.wait(_make_edge(config, model, token, loop))
        finally:
            loop.wait(model.__aexit__())
    finally:
        loop.stop()


async def _make_edge(
    config: EdgeConfig, model: AsyncRewardModel, token: str, loop: LoopThread
) -> Edge:
    limits = Limits(requests=config.max_requests, deadline_s=config.deadline_s)
    app = make_app(model.judges.clients[JUDGE], token, limits)
    trainers.add_routes(app, model, app.metrics.count_judgements)
    return Edge(model, app, make_server(app.guard, config.drain_s), config.drain_s, loop)


def make_server(app: ASGIApp, drain_s: int) -> uvicorn.Server:
    """Return a server of an app; its `serve` takes the listening sockets.

    drain_s: seconds that a shutdown leaves to requests in flight.
    """
    options = uvicorn.Config(
        app,
        http=connection_class(AutoHTTPProtocol),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=drain_s + REFUSE_S,
    )
    return uvicorn.Server(options)


class _Reload:
    """Replaces the running judge by that of the config file, as file and format are now."""

    def __init__(
        self, running_config: EdgeConfig, load: Callable[[], EdgeConfig], edge: Edge
    ) -> None:
        self._running = running_config
        self._load = load
        self._edge = edge
        self._terms = _read_terms(judge_spec(running_config.reward.judge).format)
        self._turn = asyncio.Lock()

    def begin(self, number: int, frame: Any) -> None:
        """Handle the signal in a new thread: a signal handler must neither wait nor take a lock."""
        threading.Thread(target=self._run, name="autoj-reload", daemon=True).start()

    def _run(self) -> None:
        try:
            self._edge.loop.wait(self._update())
        except AutojError as error:
            LOG.error("the judge stays as it is: %s", error)
        except Exception:
            LOG.exception("the judge stays as it is")

    async def _update(self) -> None:
        async with self._turn:
            new = self._load()
            judge = new.reward.judge
            unchanged = self._running.reward.model_copy(update={"judge": judge})
            if new != self._running.model_copy(update={"reward": unchanged}):
                raise ConfigError("only reward.judge can be replaced: restart for the rest")
            old = self._running.reward.judge
            terms = _read_terms(read_format(format_and_wrapper(judge)[0]))
            if terms != self._terms or judge.critiques != old.critiques:
                raise ConfigError(
                    "another format, or one with another name, scale, protocols or context fields, "
                    "or another number of critiques needs a restart"
                )
            if judge.on_replicas != old.on_replicas:
                raise ConfigError(f"from kind {old.kind} to {judge.kind} needs a restart")
            load_any_format.cache_clear()  # the format may have been edited
            await self._edge.model.replace_judge(new.reward)
            self._running = new
            client = self._edge.model.judges.clients[JUDGE]
            LOG.info("judge replaced", extra={"facts": {"judge": client.backend.judge}})
            if judge.serve.max_ongoing != old.serve.max_ongoing:
                LOG.warning(
                    "reward.judge.serve.max_ongoing was not taken over: the limit stays %d inputs "
                    "in flight until a restart",
                    client.limits.max_in_flight,
                )


def _read_terms(fmt: JudgeFormat | ScalarFormat) -> tuple[object, ...]:
    """Return the parts of a format that a running service relies on. Texts and slots may change."""
    if isinstance(fmt, ScalarFormat):
        return (fmt.name,)
    return fmt.name, fmt.scale, {kind: fmt.context(kind) for kind in fmt.protocols}
