"""Free ports of the loopback interface."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a free port of the loopback interface.

    It is below those that the system hands out, so that none of its own takes it before its use.
    """
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
