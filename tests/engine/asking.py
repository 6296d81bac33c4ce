"""A judge on vLLM itself, asked in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoj_reward.types import JudgeInput

ASK = """
import asyncio, json, sys
from dataclasses import asdict
from autoj_reward.config import JudgeConfig
from autoj_reward.judge.make import make_judge
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.types import JudgeInput

async def ask():
    global replica
    config, records = json.load(sys.stdin)
    asked = [JudgeInput(r.pop("query"), tuple(r.pop("responses")), **r) for r in records]
    replica = JudgeReplica(make_judge(JudgeConfig(**config)))
    await replica.start()
    found = {k: asdict(judgement) async for k, judgement in replica.stream(asked)}
    print("\\n" + json.dumps([found[k] for k in range(len(asked))]))

if __name__ == "__main__":
    asyncio.run(ask())
"""


def judged(folder: Path, config: dict[str, Any], asked: Sequence[JudgeInput]) -> list[Any]:
    """The judgements as JSON has them, in order. folder: an empty place for the program."""
    script = folder / "ask.py"
    script.write_text(ASK, encoding="utf-8")
    environment = {
        **os.environ,
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    told = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps([config, [item.record() for item in asked]]),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-3000:]
    [answer] = [line for line in told.stdout.splitlines() if line.startswith("[{")]
    found: list[Any] = json.loads(answer)
    return found
