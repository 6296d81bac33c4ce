"""`autoj serve`: a judge over HTTP, for trainers of several processes and for OpenRLHF and verl.

SIGTERM and SIGINT drain: no new connection is taken, what is under way is answered, then the
process ends; a second signal ends it at once. SIGHUP reads the config and the judge's format again
and puts the judge in the place of the running one without refusing a request.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from autoj_reward.client.client import RewardClient
from autoj_reward.errors import AutojError, ConfigError
from autoj_reward.formats.schema import (
    JudgeFormat,
    ScalarFormat,
    load_any_format,
    read_format,
)
from autoj_reward.garbage import seldom_collected
from autoj_reward.logs import LOG, announce, log_to_stderr
from autoj_reward.models import format_and_wrapper, format_of
from autoj_reward.models.unused import load_run
from autoj_reward.models.views import with_readings
from autoj_reward.service.server import EdgeConfig, listen, make_edge
from autoj_reward.service.token import kept_token
from autoj_reward.trainer.reward import RewardModel


def main(config: str, sets: Sequence[str] = (), strict: bool = False) -> int:
    """Serve until SIGINT or SIGTERM."""
    checked = load_run(EdgeConfig, config, sets, strict)
    token = kept_token(checked.token_env, checked.token_file)
    if checked.reward.service is not None:
        raise ConfigError("reward.service: a service judges itself; configure reward.judge")
    log_to_stderr()
    with listen(checked.host, checked.port) as listening, RewardModel(checked.reward) as model:
        edge = model.run(
            lambda client: make_edge(checked, client, model, token, listening)
        ).result()
        for line in model.used():
            announce(f"http://{checked.host}:{checked.port}: {line}")
        reload = _Reload(checked, lambda: load_run(EdgeConfig, config, sets, strict), model)
        before = {
            number: signal.signal(number, lambda number, frame: edge.stop())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, reload.begin)
        try:
            with seldom_collected():
                model.run(lambda client: edge.server.serve()).result()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return 0


class _Reload:
    """Puts the judge of the config file, with its format, as they are now, in the place of the
    running one."""

    def __init__(
        self, running: EdgeConfig, load: Callable[[], EdgeConfig], model: RewardModel
    ) -> None:
        self._running, self._load, self._model = running, load, model
        self._terms = _terms(format_of(running.reward.judge))
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
            terms = _terms(read_format(format_and_wrapper(judge)[0]))
            if terms != self._terms or judge.critiques != old.critiques:
                raise ConfigError(
                    "another format, or one with another name, scale, protocols or context fields, "
                    "or another number of critiques needs a restart"
                )
            if judge.on_replicas != old.on_replicas:
                raise ConfigError(f"from kind {old.kind} to {judge.kind} needs a restart")
            load_any_format.cache_clear()  # it may have been edited
            await client.backend.update(with_readings(judge, new.reward.view, "reward"))
            self._running = new
            LOG.info("judge replaced", extra={"facts": {"judge": client.backend.judge}})


def _terms(fmt: JudgeFormat | ScalarFormat) -> tuple[object, ...]:
    """Return all of a format that a running service relies on. Its texts and slots may change."""
    if isinstance(fmt, ScalarFormat):
        return (fmt.name,)
    kinds = [kind for kind in ("single", "pairwise") if getattr(fmt, kind)]
    return fmt.name, fmt.scale, {kind: fmt.context(kind) for kind in kinds}
