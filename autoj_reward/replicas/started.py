"""Judge replicas that another process of ours has started, asked from this one."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import ray
from ray import serve

from autoj_reward.config import View
from autoj_reward.replicas.alone import alone
from autoj_reward.replicas.backend import RayBackend


@dataclass(frozen=True, slots=True)
class Started:
    """Where replicas are. address: Ray's. application: Serve's name of them. The rest as RayBackend
    has it."""

    address: str
    application: str
    judge: str
    replicas: int
    max_ongoing: int
    views: frozenset[View]
    distributions: str


def started(backends: Mapping[str, object]) -> dict[str, Started]:
    """What another process needs to ask those of them that are replicas."""
    address = ray.get_runtime_context().gcs_address
    return {
        name: Started(
            address,
            own.application,
            own.judge,
            own.replicas,
            own.max_ongoing,
            own.views,
            own.distributions,
        )
        for name, own in backends.items()
        if isinstance(own, RayBackend)
    }


@contextmanager
def joined(found: Started) -> Iterator[RayBackend]:
    """The replicas, which stay when this process leaves their Ray."""
    first = not ray.is_initialized()
    if first:
        host = ipaddress.ip_address(found.address.rpartition(":")[0].strip("[]"))
        with alone() if host.is_loopback else nullcontext():
            ray.init(found.address, log_to_driver=False, logging_level=logging.WARNING)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        handle = serve.get_app_handle(found.application)
        yield RayBackend(
            handle,
            found.judge,
            found.replicas,
            max_ongoing=found.max_ongoing,
            views=found.views,
            distributions=found.distributions,
        )
    finally:
        if first:
            ray.shutdown()
