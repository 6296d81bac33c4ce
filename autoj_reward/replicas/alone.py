"""A Ray of our own is nobody else's: it listens on this machine alone, and its token is private."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants


@contextmanager
def alone() -> Iterator[None]:
    """Start a Ray within. Left to itself its dozen ports, `/metrics` among them, are open to the
    network; the loopback is what it takes on systems where it has no clusters."""
    name, before = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    told = os.environ.get(name)
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    _keep_token()
    try:
        yield
    finally:
        _keep_token()
        ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[name]
        if told is not None:
            os.environ[name] = told


def listen_alone() -> None:
    """Called where a replica is made, on whatever cluster: the port on which Serve's replicas talk
    to each other, open to the network in any case, is the loopback's where Ray is."""
    if not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:
        return
    from ray._common.tls_utils import add_port_to_grpc_server
    from ray.serve._private import replica

    def add(server: Any, address: str) -> int:
        found: int = add_port_to_grpc_server(server, address.replace("[::]", "127.0.0.1"))
        return found

    replica.add_port_to_grpc_server = add


def _keep_token() -> None:
    """Ray writes the token that lets anybody run code on it for all users to read."""
    token = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):  # no home, or not ours: then it is not Ray's either
        token.parent.mkdir(mode=0o700, exist_ok=True)
        if token.is_file():
            token.chmod(0o600)
