"""Connection limits of the HTTP server: new connections replace the longest-idle ones.

uvicorn limits neither the number of connections nor the time that one takes to send a request
header or to read its answer. Here every new connection is accepted. At the limit, the one that has
waited longest without a request in flight is closed for it; those that never sent a request go
first.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from autoj_reward.errors import ConfigError
from autoj_reward.logs import LOG

HEAD_S = 10.0
"""Timeout of a request header in seconds. For the first request it starts when the connection
opens."""
IDLE_S = 120
"""Seconds that an idle connection is kept alive after an answer. Clients keep theirs for less
(httpx 5, aiohttp 15, Go 90), so none sends on a connection that is being closed."""
READ_S = 30.0
"""Seconds that a caller may leave an answer unread."""
HEAD = 2**16
"""Limit of a request header in bytes. Some of uvicorn's parsers have none."""
AHEAD = 8
"""Limit on pipelined requests that wait for an earlier answer. uvicorn has none."""
AT_ONCE = 64
"""Connections accepted in one turn of the event loop, so that open ones get their turn."""
WAITING = 1024
"""Connections without a request that are allowed in addition to those with one in flight."""
RESERVE = 128
"""File descriptors that this process needs for other purposes while it serves."""
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of `accept` when the process or the machine is out of resources."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Connection limits of a server."""

    most: int
    """Limit on connections."""
    requests: int
    """Limit on requests in flight."""


def set_connection_limits(requests: int) -> ConnectionLimits:
    """Return the connection limits for this many requests in flight.

    They are lower if too few files may be open. The soft limit of open files is increased as
    needed. Raises ConfigError if the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = len(os.listdir("/proc/self/fd")) + RESERVE
    needed = requests + WAITING + taken
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ConnectionLimits(requests + WAITING, requests)
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = soft - taken
    if most < 2 * AT_ONCE:
        raise ConfigError(f"the limit of {hard} open files is too low for a service: ulimit -n")
    waiting = min(WAITING, most // 2)
    if most - waiting < requests:
        LOG.warning("%d open files allow only %d requests in flight", soft, most - waiting)
    return ConnectionLimits(most, min(requests, most - waiting))


class Connections:
    """The connections of a listening socket, at most `most` at a time."""

    def __init__(self, listening: socket.socket, most: int) -> None:
        self._listening, self._most = listening, most
        # Connections without a request in flight, longest first: `_owing` must send a request
        # header and have done so since the given time; `_idle` are kept alive after an answer.
        self._owing: dict[MonitoredProtocol, float] = {}
        self._idle: dict[MonitoredProtocol, None] = {}
        self._all: set[MonitoredProtocol] = set()
        self._taking: set[asyncio.Task[Any]] = set()

    async def open(self, make: Callable[[], MonitoredProtocol]) -> None:
        """Start to accept connections. make: returns the protocol of a new connection."""
        self._loop, self._make = asyncio.get_running_loop(), make
        self._listening.setblocking(False)
        self._loop.add_reader(self._listening, self._accept)
        self._start(self._sweep())

    async def close(self) -> None:
        """Stop accepting. Open connections stay."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for task in self._taking:
            task.cancel()
        await asyncio.gather(*self._taking, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self._loop.create_task(work)
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                taken, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_FILES:
                    raise
                LOG.warning("cannot accept a connection: %s", error.strerror)
                self._drop_oldest()
                self._loop.remove_reader(self._listening)
                self._start(self._accept_again())
                return
            taken.setblocking(False)
            self._start(self._loop.connect_accepted_socket(self._make, taken))

    async def _accept_again(self) -> None:
        await asyncio.sleep(0.1)
        self._loop.add_reader(self._listening, self._accept)

    def _drop_oldest(self) -> None:
        for connection in self._owing or self._idle:
            connection.drop()
            return

    async def _sweep(self) -> None:
        """Close connections that take too long to send a request header."""
        while True:
            await asyncio.sleep(HEAD_S / 10)
            late = self._loop.time() - HEAD_S
            found = {c: since for c, since in self._owing.items() if since < late}
            for _ in range(2):  # first read what arrived while this process was busy
                await asyncio.sleep(0)
            for connection in found.items() & self._owing.items():
                connection[0].drop()

    def waits(self, connection: MonitoredProtocol) -> None:
        """Note that a connection has no request in flight.

        A new connection at the limit closes the one that has waited longest.
        """
        if connection.cycle is None:
            if len(self._all) >= self._most:
                self._drop_oldest()
            self.owes(connection)
        else:
            self._idle[connection] = None
        self._all.add(connection)

    def owes(self, connection: MonitoredProtocol) -> None:
        """Note that a connection must send a complete request header: it is new or has begun
        one."""
        self._idle.pop(connection, None)
        self._owing.setdefault(connection, self._loop.time())

    def works(self, connection: MonitoredProtocol) -> None:
        """Note that a connection has a request in flight."""
        self._owing.pop(connection, None)
        self._idle.pop(connection, None)

    def gone(self, connection: MonitoredProtocol) -> None:
        """Forget a connection that has ended."""
        self.works(connection)
        self._all.discard(connection)


class MonitoredProtocol(asyncio.Protocol):
    """Mixin of uvicorn's protocols: reports the connection's state, and closes it at its limits."""

    cycle: Any
    pipeline: Any
    transport: asyncio.Transport

    def __init__(self, among: Connections, *given: Any) -> None:
        super().__init__(*given)
        self._among, self._head = among, 0
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._among.waits(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._head = 0
            self._among.works(self)
        else:
            self._head += len(data)
            self._among.owes(self)
        if self._head > HEAD or self._ahead() > AHEAD:
            self.drop()

    def _ahead(self) -> int:
        """Return the number of pipelined requests that wait. With h11 it is estimated from
        bytes."""
        if (parser := getattr(self, "conn", None)) is None:
            return len(self.pipeline)
        return len(parser.trailing_data[0]) // 256

    def on_response_complete(self) -> None:
        super().on_response_complete()  # type: ignore[misc]
        if self.cycle.response_complete:  # else a pipelined request has begun
            self._among.waits(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = asyncio.get_running_loop().call_later(READ_S, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._among.gone(self)
        super().connection_lost(error)

    def drop(self) -> None:
        """Close the connection at once; unsent data is lost."""
        self._among.gone(self)
        self.transport.abort()


class _Connection(MonitoredProtocol, AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """The protocol with uvicorn's fastest installed parser."""


class EdgeServer(uvicorn.Server):
    """uvicorn server that takes its connections from `Connections`.

    stopping: called when a shutdown has begun and no new connections are accepted.
    """

    def __init__(
        self, config: uvicorn.Config, connections: Connections, stopping: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._among, self._stopping = connections, stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # uvicorn itself accepts none
        state = self.server_state, self.lifespan.state
        await self._among.open(lambda: _Connection(self._among, self.config, *state))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._among.close()
        self._stopping()
        await super().shutdown()
