"""The connections of the HTTP edge: none is refused, and none holds up the others.

uvicorn bounds neither how many there are nor how long one takes over the head of a request or over
reading its answer. Here a newcomer is always let in: where there are too many, the one that has
waited longest without a request under way makes room for it, first of those that never had one.
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
"""Seconds that a connection may take over the head of a request, its first one from its start."""
IDLE_S = 120
"""Seconds from an answer to the next request's first byte: more than clients keep a connection for
(httpx 5, aiohttp 15, Go 90), so that none sends on one that is just being closed."""
READ_S = 30.0
"""Seconds that a caller may leave an answer unread."""
HEAD = 2**16
"""Bytes of a request's head, which a parser of uvicorn's may keep without end."""
AHEAD = 8
"""Requests that may come before the last one is answered; uvicorn would keep any number."""
AT_ONCE = 64
"""Connections taken at a time, so that those who are here have their turn."""
WAITING = 1024
"""Connections without a request, beside those with one under way."""
RESERVE = 128
"""Files that this process opens beside its connections, once it serves."""
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Places:
    """How many connections there may be, and how many of them with a request under way."""

    most: int
    requests: int


def places(requests: int) -> Places:
    """Room for so many requests under way, or what the limit of open files leaves of it.

    Its soft limit is raised for them. ConfigError if the hard one leaves too little.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = len(os.listdir("/proc/self/fd")) + RESERVE
    needed = requests + WAITING + taken
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return Places(requests + WAITING, requests)
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = soft - taken
    if most < 2 * AT_ONCE:
        raise ConfigError(f"the limit of {hard} open files is too low for a service: ulimit -n")
    waiting = min(WAITING, most // 2)
    if most - waiting < requests:
        LOG.warning("%d open files: %d requests under way at most", soft, most - waiting)
    return Places(most, min(requests, most - waiting))


class Connections:
    """At most so many connections at a time, taken from a socket between `open` and `close`."""

    def __init__(self, listening: socket.socket, most: int) -> None:
        self._listening, self._most = listening, most
        # Without a request under way, longest first: those that owe the head of one, and since
        # when, and those who may be silent.
        self._owing: dict[Watched, float] = {}
        self._idle: dict[Watched, None] = {}
        self._all: set[Watched] = set()
        self._taking: set[asyncio.Task[Any]] = set()

    async def open(self, make: Callable[[], Watched]) -> None:
        """Take connections, each with a protocol of its own."""
        self._loop, self._make = asyncio.get_running_loop(), make
        self._listening.setblocking(False)
        self._loop.add_reader(self._listening, self._accept)
        self._start(self._sweep())

    async def close(self) -> None:
        """Take no more. Those that are there stay."""
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
                LOG.warning("no connection can be taken: %s", error.strerror)
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
        """Drop those that take too long over a head."""
        while True:
            await asyncio.sleep(HEAD_S / 10)
            late = self._loop.time() - HEAD_S
            found = {c: since for c, since in self._owing.items() if since < late}
            for _ in range(2):  # what came while this process was busy is read first
                await asyncio.sleep(0)
            for connection in found.items() & self._owing.items():
                connection[0].drop()

    def waits(self, connection: Watched) -> None:
        """A connection is there without a request under way."""
        if connection.cycle is None:
            if len(self._all) >= self._most:
                self._drop_oldest()
            self.owes(connection)
        else:
            self._idle[connection] = None
        self._all.add(connection)

    def owes(self, connection: Watched) -> None:
        """It is to bring a whole head: it is new, or has begun one."""
        self._idle.pop(connection, None)
        self._owing.setdefault(connection, self._loop.time())

    def works(self, connection: Watched) -> None:
        """A request of it is under way."""
        self._owing.pop(connection, None)
        self._idle.pop(connection, None)

    def gone(self, connection: Watched) -> None:
        self.works(connection)
        self._all.discard(connection)


class Watched(asyncio.Protocol):
    """What is added to a protocol of uvicorn's: it tells when it waits for a request, and ends what
    goes on for too long."""

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
        """Requests that wait for their turn; with h11 it is their bytes that wait."""
        if (parser := getattr(self, "conn", None)) is None:
            return len(self.pipeline)
        return len(parser.trailing_data[0]) // 256

    def on_response_complete(self) -> None:
        super().on_response_complete()  # type: ignore[misc]
        if self.cycle.response_complete:  # else the next one was there already
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
        """End the connection, whatever is unsent."""
        self._among.gone(self)
        self.transport.abort()


class _Connection(Watched, AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """With the faster parser, where that is installed."""


class EdgeServer(uvicorn.Server):
    """uvicorn's server on such connections. stopping: called once no more are taken."""

    def __init__(
        self, config: uvicorn.Config, connections: Connections, stopping: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._among, self._stopping = connections, stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # it takes none by itself
        state = self.server_state, self.lifespan.state
        await self._among.open(lambda: _Connection(self._among, self.config, *state))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._among.close()
        self._stopping()
        await super().shutdown()
