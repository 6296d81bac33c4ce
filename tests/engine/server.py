"""vLLM's own OpenAI server with a judge, and waiting for servers in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from autoj_reward.config import JudgeConfig
from autoj_reward.engine.vllm import engine_arguments
from autoj_reward.models import resolve
from tests.support.ports import free_port


@contextmanager
def openai_server(judge: JudgeConfig, name: str, log: Path) -> Iterator[str]:
    """Serve a judge's model by vLLM's OpenAI server. Yield its address, once it is ready.

    name: of the served model. log: file for the server's output.
    """
    port = free_port()
    arguments = engine_arguments(judge, resolve(judge)) | {"served_model_name": name}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
    with server(
        [*command, "--host", "127.0.0.1", *format_flags(arguments)], log, environment
    ) as process:
        address = f"http://127.0.0.1:{port}"
        wait_until_ready(f"{address}/health", process, log)
        yield address


@contextmanager
def server(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a process of its own and yield it. environment: variables that it gets in
    addition."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | dict(environment)
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def format_flags(arguments: dict[str, Any]) -> list[str]:
    """Return vLLM's engine arguments as command-line flags."""
    words = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return words


def wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    while process.poll() is None:
        with suppress(URLError, ConnectionError), urllib.request.urlopen(address):
            return
        time.sleep(0.2)
    pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")
