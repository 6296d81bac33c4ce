"""Metrics of a job or a service in an experiment tracker: MLflow, trackio or Weights & Biases."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from autoj_reward.config import Block, Tracker
from autoj_reward.errors import ConfigError, from_extras
from autoj_reward.io.http import error_text
from autoj_reward.logs import LOG

EVERY_S = 10.0
"""Seconds between two reports of a run in progress."""
PROJECT = "autoj-reward"
"""Project of the runs in trackio and Weights & Biases, unless the environment names one."""
PARAMETERS, CHARACTERS = 100, 500
"""Limits of MLflow servers: parameters of a request, and characters of one."""
Functions = tuple[Callable[[dict[str, float], int], object], Callable[[bool], object]]
"""Functions of a tracker's run: one logs metrics at a step, one ends the run, told its success."""


class MetricReports:
    """Reports of one run's metrics, sent to a tracker from a thread of their own.

    A report that cannot be sent is logged and lost; the run goes on.
    """

    def __init__(self, tracker: Tracker | None, name: str, config: Block) -> None:
        """tracker: None sends no report. name, config: of the run, as the tracker shows them.

        Raises ConfigError if the tracker is not installed, or refuses to start a run.
        """
        self._tracker = tracker
        self._sent = self._lost = 0
        self._last: Future[None] | None = None
        if tracker is None:
            return
        with from_extras():
            module = import_module(tracker)
        start = _start_mlflow if tracker == "mlflow" else _start_wandb
        settings = config.model_dump(mode="json", exclude_unset=True)
        self._thread = ThreadPoolExecutor(1, "autoj-track")
        try:
            self._log, self._end = self._thread.submit(start, module, name, settings).result()
        except Exception as error:
            self._thread.shutdown()
            raise ConfigError(f"track: {tracker} did not start: {error_text(error)}") from error
        self._due_s = time.monotonic() + EVERY_S

    def offer(self, step: int, metrics: Callable[[], Mapping[str, Any]]) -> None:
        """Send a report if one is due and none is being sent; else compute nothing."""
        if self._tracker is None or time.monotonic() < self._due_s:
            return
        if self._last is None or self._last.done():
            self._due_s = time.monotonic() + EVERY_S
            self.send(step, metrics())

    def send(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send a report without waiting for it. `flat_metrics` says what it holds."""
        if self._tracker is not None:
            self._last = self._thread.submit(self._send, step, dict(flat_metrics(metrics)))

    def _send(self, step: int, metrics: dict[str, float]) -> None:
        self._sent += 1
        try:
            self._log(metrics, step)
        except Exception as error:
            self._lost += 1
            if self._lost == 1:
                LOG.warning("metrics were not sent to %s: %s", self._tracker, error_text(error))

    def close(self, ok: bool) -> None:
        """Wait until the reports are sent, and end the run. ok: whether it succeeded."""
        if self._tracker is None:
            return
        try:
            self._thread.submit(self._end, ok).result()
        except Exception as error:
            LOG.warning("%s did not end the run: %s", self._tracker, error_text(error))
        finally:
            self._thread.shutdown()
        if self._lost:
            counts = self._lost, self._sent, self._tracker
            LOG.warning("%d of %d reports were not sent to %s", *counts)


@contextmanager
def tracking(tracker: Tracker | None, name: str, config: Block) -> Iterator[MetricReports]:
    """Yield the reports of a run; see `MetricReports`. The run in the tracker ends with the
    context, and has failed if that raises."""
    reports = MetricReports(tracker, name, config)
    try:
        yield reports
    except BaseException:
        reports.close(False)
        raise
    reports.close(True)


def flat_metrics(metrics: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of nested mappings, named by their keys with a slash between.

    Lists and texts are left out. Characters that a tracker refuses in a name become `_`.
    """
    for key, value in metrics.items():
        name = above + re.sub(r"[^\w.\- /]", "_", str(key))
        if isinstance(value, Mapping):
            yield from flat_metrics(value, f"{name}/")
        elif type(value) in (int, float) and math.isfinite(value):
            yield name, float(value)


def _start_mlflow(mlflow: Any, name: str, settings: Mapping[str, Any]) -> Functions:
    mlflow.start_run(run_name=name)
    parameters = [(key, str(value)[:CHARACTERS]) for key, value in _list_leaves(settings)]
    for n in range(0, len(parameters), PARAMETERS):
        mlflow.log_params(dict(parameters[n : n + PARAMETERS]))
    return mlflow.log_metrics, lambda ok: mlflow.end_run("FINISHED" if ok else "FAILED")


def _list_leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _list_leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _start_wandb(wandb: Any, name: str, settings: dict[str, Any]) -> Functions:
    """Start a run of Weights & Biases, or of trackio, which has its functions."""
    is_trackio = wandb.__name__ == "trackio"
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    run = wandb.init(project=PROJECT if is_trackio else project, name=name, config=settings)
    return run.log, lambda ok: run.finish(**({} if is_trackio else {"exit_code": int(not ok)}))
