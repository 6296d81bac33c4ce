"""Servers under test, each in a separate process that is restarted when it dies."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import yaml

from autoj_reward.config import JudgeConfig
from autoj_reward.errors import EngineUnavailable

TOKEN = "chaos"
"""Token of the callers."""
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


class Server:
    """Supervised server process."""

    def __init__(self, command: Sequence[str], port: int, log: Path) -> None:
        """Start the command, which listens on `port`, with its output appended to `log`."""
        self.address, self.port = f"http://127.0.0.1:{port}", port
        self._command, self._log = list(command), log
        self._stopping = threading.Event()
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def process(self) -> psutil.Process:
        """Current server process."""
        return psutil.Process(self._process.pid)

    @property
    def cpu_s(self) -> float:
        """CPU seconds that this process has used, without its child processes."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    @property
    def peak_mib(self) -> float:
        """Peak resident memory of this process in MiB, by the kernel's count."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                self._command, env=os.environ | {"AUTOJ_TOKEN": TOKEN}, stdout=log, stderr=log
            )

    def _watch(self) -> None:
        """Restart the process when it dies, and first kill its remaining children."""
        children: list[psutil.Process] = []
        while not self._stopping.wait(0.2):
            if self._process.poll() is None:
                try:
                    children = self.process.children(recursive=True)
                except psutil.NoSuchProcess:
                    continue
                continue
            for orphan in children:
                with suppress(psutil.NoSuchProcess):  # it may have ended by itself
                    orphan.kill()
            self._process = self._start()

    def count_replicas(self) -> int:
        """Return the number of replicas that `/readyz` reports; 0 if it does not answer."""
        try:
            answer = httpx.get(f"{self.address}/readyz", timeout=10, trust_env=False)
        except httpx.TransportError:
            return 0
        return int(answer.json()["replicas"]) if answer.status_code == 200 else 0

    def wait_ready(self, seconds: float) -> None:
        """Wait until a replica can judge.

        Raises EngineUnavailable after `seconds`, naming the log.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.count_replicas():
                return
            time.sleep(0.1)
        raise EngineUnavailable(f"no server at {self.address} after {seconds:g} s: see {self._log}")

    def close(self) -> None:
        """Send SIGTERM, and SIGKILL if the process still runs after a minute."""
        self._stopping.set()
        self._watcher.join()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def run_service(
    judge: JudgeConfig,
    folder: Path,
    start_s: float = 180,
) -> Iterator[Server]:
    """Run `autoj serve` with this judge, and yield it once it is ready.

    Its log goes to the folder.
    """
    port = free_port()
    config = folder / "serve.yaml"
    run_config = {"reward": {"judge": judge.model_dump(mode="json")}, "port": port, "drain_s": 30}
    config.write_text(yaml.safe_dump(run_config), encoding="utf-8")
    command = [sys.executable, "-m", "autoj_reward.cli", "serve", "--config", str(config)]
    with run_server(Server(command, port, folder / "service.log"), start_s) as server:
        yield server


@contextmanager
def run_server(server: Server, start_s: float) -> Iterator[Server]:
    """Yield the server once it is ready, and close it afterwards."""
    try:
        server.wait_ready(start_s)
        yield server
    finally:
        server.close()


def free_port() -> int:
    """Return a free port of the loopback interface.

    It is below those that the system hands out, so that none of its own takes it before its use.
    """
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
