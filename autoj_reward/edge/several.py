"""Several edges on one socket: started, told what to do, and started again when one dies.

uvicorn's own supervisor knows neither a second signal that ends a drain nor judges that change
without a refused request, and its workers go on when it is killed.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

from autoj_reward.config import JUDGE
from autoj_reward.edge.metrics import FOLDER
from autoj_reward.edge.server import EdgeConfig
from autoj_reward.edge.sharing import READY, Order, Plan, Replaced, serve
from autoj_reward.errors import EngineError
from autoj_reward.logs import LOG

LOOK_S = 0.2
"""Seconds between two looks for signals."""
PAUSE_S = 1.0
"""Seconds before one that died while it started is started again."""
GRACE_S = 30.0
"""Seconds that an edge has to end after its drain."""


@dataclass(slots=True, eq=False)
class _Edge:
    """heard: whether it has said that it serves, or why it does not."""

    process: BaseProcess
    orders: Connection
    heard: bool = False
    serves: bool = False


class Several:
    """As many edges as the plan says. All is done to them in `run`; others leave it word."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._edges: list[_Edge] = []
        self._orders: deque[Order | Replaced] = deque()
        self._began = self._stopping = False
        self._failed = ""
        self._end_by = math.inf

    def stop(self) -> None:
        """Drain; called again, wait for nothing under way. A signal's handler may call it."""
        self._orders.append(Order.END if self._stopping else Order.DRAIN)
        self._stopping = True

    def replaced(self, config: EdgeConfig, name: str) -> None:
        """Another judge is in the place of the reward's own, by this config. name: its
        fingerprint."""
        started = dict(self._plan.started)
        if JUDGE in started:
            started[JUDGE] = replace(started[JUDGE], judge=name)
        self._plan = replace(self._plan, config=config, started=started)
        self._orders.append(Replaced(config.reward.judge, name))

    def run(self) -> None:
        """Until all have ended. EngineError, once all have, if one does not start at first."""
        with _counting_together() as self._folder:
            try:
                for _ in range(self._plan.config.edges):
                    self._start()
                while self._edges:
                    self._look()
                    self._tell()
                    if time.monotonic() > self._end_by:
                        LOG.error("edges that did not end in time are killed")
                        break
            finally:
                for edge in self._edges:
                    edge.process.kill()
                    edge.process.join()
        if self._failed:
            raise EngineError(self._failed)

    def _start(self) -> None:
        context = get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(self._plan, there), name="autoj-edge")
        process.start()
        there.close()  # so that each side hears of the other's end
        self._edges.append(_Edge(process, here))

    def _look(self) -> None:
        said: dict[Any, _Edge] = {edge.orders: edge for edge in self._edges if not edge.heard}
        ends: dict[Any, _Edge] = {edge.process.sentinel: edge for edge in self._edges}
        found = wait([*said, *ends], LOOK_S)
        for edge in [said[key] for key in found if key in said]:
            self._hear(edge)
        for edge in [ends[key] for key in found if key in ends]:
            self._ended(edge)

    def _hear(self, edge: _Edge) -> None:
        edge.heard = True
        with suppress(EOFError, ConnectionError):  # it has died, which is seen to by `_ended`
            why = edge.orders.recv()
            edge.serves = why == READY
            if edge.serves:
                self._began = self._began or all(one.serves for one in self._edges)
            elif self._began:
                LOG.error("an edge cannot start: %s", why)
            else:
                self._fail(why)

    def _ended(self, edge: _Edge) -> None:
        edge.process.join()
        edge.orders.close()
        self._edges.remove(edge)
        mark_process_dead(edge.process.pid, self._folder)  # type: ignore[no-untyped-call]
        if self._stopping:
            return
        if not self._began:
            self._fail(f"an edge ended with {edge.process.exitcode} while it started")
            return
        facts = {"edge": edge.process.pid, "status": edge.process.exitcode}
        LOG.error("an edge has died and is started again", extra={"facts": facts})
        if not edge.serves:
            time.sleep(PAUSE_S)
        self._start()

    def _fail(self, why: str) -> None:
        self._failed = self._failed or why
        self.stop()

    def _tell(self) -> None:
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, Order):
                self._plan.listening.close()
                drain = self._plan.config.drain_s if order is Order.DRAIN else 0
                self._end_by = time.monotonic() + drain + GRACE_S
            for edge in self._edges:
                with suppress(OSError):  # it has died
                    edge.orders.send(order)


@contextmanager
def _counting_together() -> Iterator[str]:
    """A folder in which those processes count together that are started meanwhile."""
    with tempfile.TemporaryDirectory(prefix="autoj-edges-") as folder:
        before = os.environ.get(FOLDER)
        os.environ[FOLDER] = folder
        try:
            yield folder
        finally:
            del os.environ[FOLDER]
            if before is not None:
                os.environ[FOLDER] = before
