"""`autoj serve` as its own process, with a scripted judge."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from autoj_reward.config import RewardConfig, ServiceConfig
from autoj_reward.errors import ConfigError
from autoj_reward.journal import Journal
from autoj_reward.service import serve
from autoj_reward.service.serve import listen
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
PROMPT = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def write_config(folder: Path, port: int) -> Path:
    script = {"ratings": {"good": 9, "poor": 2}, "fail": {"lost": "truncated"}}
    reward = {
        "judge": {"kind": "fake", "script": script},
        "view": "rating",
        "failures": {"budget": 0.5, "window": 10},
    }
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump({"reward": reward, "port": port}), encoding="utf-8")
    return path


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "autoj_reward.cli", "serve"]
    process = subprocess.Popen(
        [*command, "--config", str(write_config(tmp_path, port))],
        env=os.environ | {"AUTOJ_TOKEN": "secret"},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 600
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/v1/judge")
            break
        except httpx.TransportError:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=600)
    assert process.returncode == 0
    assert "secret" not in log and "Traceback" not in log
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    [start_line] = [
        line for line in messages if line.startswith(f"http://127.0.0.1:{port}: judge default:")
    ]
    status = "(fake), view rating, distributions: scripted; no judgement so far"
    assert start_line.endswith(status)


def ask(address: str, query: list[str], prompts: list[str]) -> httpx.Response:
    """Send a request as OpenRLHF does, with the token in the URL."""
    url = address.replace("http://", "http://any:secret@") + "/get_reward"
    body = {"query": query, "prompts": prompts, "labels": ["x"] * len(query)}
    return httpx.post(url, json=body)


def test_a_service_from_start_to_end(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(address, [], []).json() == {"rewards": [], "scores": [], "extra_logs": {}}
    reply = ask(address, [PROMPT + "good<|im_end|>"], [PROMPT]).json()
    assert reply["rewards"] == [9.0] and reply["scores"] == [pytest.approx(8 / 9)]
    assert reply["extra_logs"]["judge_ok"] == [1.0]
    batch = ask(address, [PROMPT + "good", PROMPT + "lost", PROMPT + "poor"], [PROMPT] * 3).json()
    assert batch["rewards"] == [9.0, 5.5, 2.0]
    assert ask(address, ["a", "b"], ["a"]).status_code == 422
    assert httpx.post(f"{address}/get_reward", json={"query": []}).status_code == 401

    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    with RewardModel(RewardConfig(service=ServiceConfig(address=address), view="rating")) as model:
        [reward] = model.rewards_now([Candidate("Why?", "good")])
    assert reward.value == 9.0 and reward.judgement.judge

    for _ in range(2):
        answer = ask(address, [PROMPT + "lost"] * 4, [PROMPT] * 4)
    assert answer.status_code == 503 and "failure budget" in answer.json()["detail"]


TRAIN = """
import sys
from pathlib import Path
from autoj_reward.cli.main import main

for path in sys.argv[1:]:
    assert main(["train", Path(path).stem, "--config", path]) == 0
"""


@pytest.mark.training
@pytest.mark.timeout(600)
def test_two_training_processes_share_it(address: str, policy: str, tmp_path: Path) -> None:
    queries, script = tmp_path / "queries.jsonl", tmp_path / "train.py"
    rows = [{"query": f"Name {n} rivers."} for n in range(4)]
    queries.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    script.write_text(TRAIN, encoding="utf-8")
    run = {
        "input": str(queries),
        "learner": {"model": policy, "max_prompt_tokens": 64, "max_response_tokens": 8},
        "reward": {"service": {"address": address}, "judge": {"kind": "fake"}, "view": "rating"},
        "steps": 2,
        "batch_size": 4,
        # Each group of four is split between the two processes.
        "device_batch_size": 2,
        "group": 4,
        "save_steps": 2,
    }
    paths = [tmp_path / f"{name}.yaml" for name in ("grpo", "rloo", "ppo", "online-dpo")]
    for path in paths:
        config = run | {"output": str(path.with_suffix(""))}
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.run(
        [sys.executable, *launch, str(script), *map(str, paths)],
        env=os.environ | {"AUTOJ_TOKEN": "secret", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    for path in paths:
        output = path.with_suffix("")
        assert (output / "policy" / "model.safetensors").is_file()
        journal = Journal(output / "journal.sqlite")
        judged_queries = {row["input"]["query"] for row in journal.export()}
        journal.close()
        assert judged_queries <= {row["query"] for row in rows} and judged_queries


async def test_no_answer_waits_for_the_acknowledgement_of_its_head() -> None:
    accepted: asyncio.Queue[int] = asyncio.Queue()

    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        option = (socket.IPPROTO_TCP, socket.TCP_NODELAY)
        accepted.put_nowait(writer.get_extra_info("socket").getsockopt(*option))
        writer.close()

    with listen("127.0.0.1", free_port()) as listening:
        async with await asyncio.start_server(greet, sock=listening) as server:
            with socket.create_connection(server.sockets[0].getsockname()):
                assert await accepted.get()


OPEN_FILES = """
import resource
from autoj_reward.service.serve import allow_open_files

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000))
for count in (100, 800, 4000):
    allow_open_files(count)
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_as_many_files_may_be_open_as_requests_need() -> None:
    process = subprocess.run(
        [sys.executable, "-c", OPEN_FILES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.stdout.splitlines() == ["256 1000", "800 1000", "1000 1000"], process.stderr
    assert process.stderr.strip() == "only 1000 files may be open, 4000 are needed: ulimit -n"


def test_what_keeps_a_service_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = str(write_config(tmp_path, free_port()))
    monkeypatch.delenv("AUTOJ_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="set the environment variable AUTOJ_TOKEN"):
        serve.main(config)
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            serve.main(config, [f"port={port}"])
    with pytest.raises(ConfigError, match="a service judges itself"):
        serve.main(config, ["reward.service.address=http://127.0.0.1:1"])
