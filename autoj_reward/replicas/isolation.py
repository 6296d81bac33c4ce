"""Isolation of a Ray that this process starts: it listens on the loopback only, with a private
token."""

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
def loopback_only() -> Iterator[None]:
    """Make a Ray that is started within this context listen on the loopback interface only.

    By default its dozen ports, `/metrics` among them, are open to the network. Ray uses the
    loopback on systems where it does not support clusters; this context makes it believe so.
    """
    name, before = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    previous_value = os.environ.get(name)
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    _keep_token()
    try:
        yield
    finally:
        _keep_token()
        ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[name]
        if previous_value is not None:
            os.environ[name] = previous_value


def serve_on_loopback() -> None:
    """Make Serve's port between replicas listen on the loopback if Ray itself does.

    By default that port is open to the network. Must be called in the replica's constructor, on any
    cluster.
    """
    if not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:
        return
    from ray._common.tls_utils import add_port_to_grpc_server
    from ray.serve._private import replica

    def add(server: Any, address: str) -> int:
        port: int = add_port_to_grpc_server(server, address.replace("[::]", "127.0.0.1"))
        return port

    replica.add_port_to_grpc_server = add


def _keep_token() -> None:
    """Restrict Ray's token file to its owner.

    Ray writes the token readable for all users, and the token lets anybody run code on the cluster.
    """
    token = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):  # without a writable home, Ray cannot write its token there either
        token.parent.mkdir(mode=0o700, exist_ok=True)
        if token.is_file():
            token.chmod(0o600)
