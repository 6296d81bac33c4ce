"""vLLM's OpenAI-compatible server in a separate process, with its counters."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

from autoj_reward.config import JudgeConfig
from autoj_reward.engine.vllm import engine_arguments
from autoj_reward.errors import EngineError, EngineUnavailable
from autoj_reward.models import resolve
from experiments.faults.server import free_port

COUNTERS = {
    "requests": "request_success_total",
    "tokens_in": "prompt_tokens_total",
    "tokens_cached": "prefix_cache_hits_total",
    "tokens_out": "generation_tokens_total",
}
"""Counters of vLLM's /metrics, without their prefix."""
STRUCTURED = '{"backend": "xgrammar", "disable_any_whitespace": true}'
"""Setting for the peers that ask for JSON. A small model may else write spaces up to the token
limit, and the peer then gets no JSON."""
START_S = 600.0
"""Seconds in which the server must start."""


@contextmanager
def serve_model(server: JudgeConfig, log: Path) -> Iterator[str]:
    """Run vLLM's OpenAI-compatible server in a separate process, and yield its address.

    Raises EngineUnavailable naming the log if it does not start.
    """
    arguments = engine_arguments(server, resolve(server))
    arguments |= {"served_model_name": "judge", "disable_log_stats": None}  # else it counts nothing
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
    command += ["--structured-outputs-config", STRUCTURED]
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", *_make_flags(arguments)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            deadline = time.monotonic() + START_S
            while not _is_healthy(address):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise EngineUnavailable(f"vLLM's server did not start: see {log}")
                time.sleep(0.5)
            yield address
        finally:
            process.terminate()
            process.wait()


def _make_flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        elif value is not None:
            yield from (f"--{flag}", str(value))


def _is_healthy(address: str) -> bool:
    with suppress(URLError, ConnectionError), urllib.request.urlopen(f"{address}/health"):
        return True
    return False


def read_counters(address: str) -> dict[str, int]:
    """Return the server's counters by the names in COUNTERS."""
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        text = answer.read().decode()
    return {name: sum_counter(text, counter) for name, counter in COUNTERS.items()}


def sum_counter(text: str, counter: str) -> int:
    """Return the sum of a counter's series in a Prometheus text."""
    counts = re.findall(rf"^vllm:{counter}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    if not counts:
        raise EngineError(f"the server counts no vllm:{counter}")
    return round(sum(map(float, counts)))


@contextmanager
def counted(address: str, spent: dict[str, int]) -> Iterator[None]:
    """Add to `spent` what the server counts while the context is open."""
    before = read_counters(address)
    yield
    spent.update({name: count - before[name] for name, count in read_counters(address).items()})
