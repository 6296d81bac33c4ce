"""Real servers of judges on this machine, in processes of their own."""

from __future__ import annotations

import json
import os
import secrets
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

STOP_S = 20.0
"""Seconds that a server has to stop."""


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
        yield from wait_and_yield(port, "/health", process, log)


LLAMA_CPP = """
import sys, threading, xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.port = int(sys.argv[2])
params.n_ctx = 4096
params.n_parallel = 2
# Its threads wait for each other by spinning, which takes minutes on a busy machine.
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
threading.Event().wait()
"""
"""Program that serves a GGUF file on a port."""


@contextmanager
def llama_cpp_server(model: Path, log: Path) -> Iterator[str]:
    """Serve a GGUF file by llama.cpp's server. Yield its address, once it is ready."""
    port = free_port()
    command = [sys.executable, "-c", LLAMA_CPP, str(model), str(port)]
    with server(command, log, {}) as process:
        yield from wait_and_yield(port, "/health", process, log)


@contextmanager
def litellm_proxy(
    program: Path, models: Mapping[str, Mapping[str, str]], folder: Path
) -> Iterator[tuple[str, Path]]:
    """Run LiteLLM's proxy. Yield its address and the file of its key, once it is ready.

    models: LiteLLM's parameters of each model. folder: for configuration, key and output.
    """
    port = free_port()
    key = f"sk-{secrets.token_hex(32)}"  # it does not start without a key, or with a short one
    key_file = folder / "key"
    key_file.write_text(key)
    entries = [{"model_name": name, "litellm_params": values} for name, values in models.items()]
    config = folder / "config.yaml"
    config.write_text(json.dumps({"model_list": entries}))
    log = folder / "log.txt"
    command = [str(program), "--config", str(config), "--telemetry", "False"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {
        "LITELLM_MASTER_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it looks prices up
        "HF_HUB_OFFLINE": "1",
    }
    with server(command, log, environment) as process:
        for address in wait_and_yield(port, "/health/liveliness", process, log):
            yield address, key_file


@contextmanager
def transformers_server(folder: Path, log: Path) -> Iterator[str]:
    """Run `transformers serve`. Yield its address, once it is ready.

    folder: the packages that come before those of this environment. A request names its model.
    """
    port = free_port()
    program = "from transformers.cli.transformers import main; main()"
    command = [sys.executable, "-c", program, "serve", "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {"PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with server(command, log, environment) as process:
        yield from wait_and_yield(port, "/health", process, log)


def wait_and_yield(
    port: int, path: str, process: subprocess.Popen[bytes], log: Path
) -> Iterator[str]:
    """Yield the address of a server on a port once `path` there answers."""
    address = f"http://127.0.0.1:{port}"
    wait_until_ready(f"{address}{path}", process, log)
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
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            # A server may finish its requests first, also those that nobody waits for.
            process.kill()
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
