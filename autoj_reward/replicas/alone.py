"""A Ray of our own is nobody else's: it listens on this machine alone, and its token is private."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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


def _keep_token() -> None:
    """Ray writes the token that lets anybody run code on it for all users to read."""
    token = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):  # no home, or not ours: then it is not Ray's either
        token.parent.mkdir(mode=0o700, exist_ok=True)
        if token.is_file():
            token.chmod(0o600)
