"""One edge of several on one socket, which asks the replicas that another process has started."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from autoj_reward.client.client import RewardClient
from autoj_reward.client.session import client_of, open_reward
from autoj_reward.config import JUDGE, JudgeConfig, JudgedConfig
from autoj_reward.edge.metrics import FOLDER
from autoj_reward.edge.server import Edge, EdgeConfig, make_edge
from autoj_reward.errors import AutojError
from autoj_reward.extras import from_extras
from autoj_reward.garbage import seldom_collected
from autoj_reward.journal import Journal
from autoj_reward.logs import LOG, log_to_stderr
from autoj_reward.models.settings import limits_shared, max_ongoing
from autoj_reward.models.views import with_readings
from autoj_reward.prompts.format import load_any_format
from autoj_reward.trainer.reward import RewardModel

if TYPE_CHECKING:
    from autoj_reward.replicas.started import Started


@dataclass(frozen=True, slots=True)
class Plan:
    """What every edge is told at its start. started: the replicas, by the part that asks them."""

    config: EdgeConfig
    token: str
    listening: socket.socket
    started: Mapping[str, Started]


class Order(Enum):
    """What an edge is told later."""

    DRAIN = "drain"
    END = "end"


@dataclass(frozen=True, slots=True)
class Replaced:
    """Another judge is in the place of the reward's own. name: its fingerprint, where it is on
    replicas, which have it already."""

    judge: JudgeConfig
    name: str


READY = ""
"""What an edge says once it serves; anything else is why it does not."""


class SharedModel(RewardModel):
    """A reward model with the share of one edge in what replicas and endpoints take on."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.config.reward)
        self._plan = plan

    def _opened(
        self, name: str, own: JudgedConfig, journal: Journal | None
    ) -> AbstractAsyncContextManager[RewardClient]:
        if found := self._plan.started.get(name):
            return self._joined(found, own.judge, journal)
        most = max_ongoing(own.judge, 0)
        serve = own.judge.serve.model_copy(update={"max_ongoing": self._share(most)})
        judge = limits_shared(
            own.judge.model_copy(update={"serve": serve}), self._plan.config.edges
        )
        return open_reward(own.model_copy(update={"judge": judge}), journal=journal)

    @asynccontextmanager
    async def _joined(
        self, found: Started, judge: JudgeConfig, journal: Journal | None
    ) -> AsyncIterator[RewardClient]:
        with from_extras():
            from autoj_reward.replicas.started import joined

        most = self._share(found.max_ongoing * found.replicas)
        with joined(found) as backend:
            async with client_of(judge, backend, most, journal) as client:
                yield client

    def _share(self, most: int) -> int:
        return max(1, most // self._plan.config.edges)


def serve(plan: Plan, orders: Connection) -> None:
    """An edge until it is told to end, or until nobody is there any more to tell it."""
    log_to_stderr()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of all in a terminal; the first process acts
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        with SharedModel(plan) as model:
            edge = model.run(
                lambda client: make_edge(plan.config, client, model, plan.token, plan.listening)
            ).result()
            _say(orders, READY)
            told = orders, edge, model, plan.config.edges
            threading.Thread(target=_obey, args=told, daemon=True).start()
            with seldom_collected():
                model.run(lambda client: edge.server.serve()).result()
    except AutojError as error:
        _say(orders, str(error))
        raise SystemExit(1) from None


def _say(orders: Connection, what: str) -> None:
    with suppress(ConnectionError):  # nobody hears: `_obey` ends the edge
        orders.send(what)


def _obey(orders: Connection, edge: Edge, model: RewardModel, edges: int) -> None:
    while True:
        try:
            order = orders.recv()
        except (EOFError, ConnectionError):  # nobody is there to clean up after us
            shutil.rmtree(os.environ[FOLDER], ignore_errors=True)
            order = Order.END
        if order is Order.END:
            return edge.end()
        if order is Order.DRAIN:
            edge.drain()
        elif isinstance(order, Replaced):
            _replace(order, model, edges)


def _replace(order: Replaced, model: RewardModel, edges: int) -> None:
    """Name the judge that the replicas have by now, or change one of this process's own."""
    if order.judge.on_replicas:
        model.clients[JUDGE].backend.judge = order.name
        return
    load_any_format.cache_clear()  # it may have been edited
    try:
        judge = limits_shared(with_readings(order.judge, model.config.view, "reward"), edges)
        model.run(lambda client: client.backend.update(judge)).result()
    except AutojError as error:
        LOG.error("the judge stays as it is: %s", error)
