"""nginx in front of a service, with the shipped configuration."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from autoj_reward.errors import ConfigError, EngineUnavailable
from experiments.faults.server import free_port

SHIPPED = Path(__file__).parents[2] / "configs" / "serve" / "nginx.conf"
"""Configuration that users copy."""
START_S = 60.0
"""Seconds in which nginx must listen."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running nginx."""

    http: str
    """Address without TLS, which the shipped configuration does not have."""
    https: str
    certificate: Path
    """Certificate to trust at that address."""


def find_nginx() -> str | None:
    """Return the path of nginx, which may be outside an ordinary user's PATH; None without one."""
    return shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")


@contextmanager
def nginx_before(
    port: int, folder: Path, changes: Mapping[str, str] | None = None
) -> Iterator[Proxy]:
    """Run nginx in front of the service at a port of the loopback interface.

    folder: for its configuration, certificate and temporary files. changes: texts of the shipped
    configuration, each with its replacement. Raises ConfigError without nginx.
    """
    if (program := find_nginx()) is None:
        raise ConfigError("there is no nginx here: apt-get install nginx-light")
    http, https = free_port(), free_port()
    certificate, key = folder / "tls.crt", folder / "tls.key"
    _make_certificate(certificate, key)
    text = _apply_changes(
        SHIPPED.read_text(encoding="utf-8"),
        {
            "server 127.0.0.1:8300;": f"server 127.0.0.1:{port};",
            "listen 443 ssl;": f"listen 127.0.0.1:{https} ssl; listen 127.0.0.1:{http};",
            "/etc/autoj/tls.crt": str(certificate),
            "/etc/autoj/tls.key": str(key),
            "http {": f"http {{ {_render_temporary_folders(folder)}",
            **(changes or {}),
        },
    )
    config = folder / "nginx.conf"
    config.write_text(text, encoding="utf-8")
    # As root, the workers would be another user, who cannot enter the folder.
    directives = f"daemon off; user root; pid {folder}/nginx.pid;"
    command = [program, "-e", str(folder / "nginx.log"), "-c", str(config), "-g", directives]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            _wait_for_port(http, process)
            yield Proxy(f"http://127.0.0.1:{http}", f"https://127.0.0.1:{https}", certificate)
        finally:
            process.terminate()


def _make_certificate(certificate: Path, key: Path) -> None:
    """Write a certificate for 127.0.0.1 that is its own authority, and its key."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)


def _render_temporary_folders(folder: Path) -> str:
    kinds = "client_body", "proxy", "fastcgi", "uwsgi", "scgi"
    return " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)


def _apply_changes(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ValueError(f"{SHIPPED.name} has {old!r} {text.count(old)} times")
        text = text.replace(old, new)
    return text


def _wait_for_port(port: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            assert process.stderr is not None
            raise EngineUnavailable(f"nginx has ended: {process.stderr.read()}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise EngineUnavailable(f"nginx does not listen on port {port} after {START_S:g} s")
