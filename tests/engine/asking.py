"""Runs judges on one vLLM engine, in a separate process."""

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
from autoj_reward.config import JudgeConfig
from autoj_reward.conversation import Context
from autoj_reward.judge.make import make_judge
from autoj_reward.models.spec import judge_spec
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.rubric_items import read_items
from autoj_reward.types import JudgeInput

def read_input(protocol, query, responses, context=(), items=(), **more):
    items = read_items(items) if items else ()
    context = Context(context)
    return JudgeInput(protocol, query, tuple(responses), context=context, items=items, **more)

async def ask():
    global first
    given = json.load(sys.stdin)
    judges = [make_judge(judge_spec(JudgeConfig(**config))) for config, _ in given]
    first = JudgeReplica(judges[0])
    await first.start()
    for judge, (_, records) in zip(judges, given):
        judge.engine = judges[0].engine
        asked = [read_input(**record) for record in records]
        found = {k: said.record() async for k, said in JudgeReplica(judge).stream(asked)}
        print("\\n" + json.dumps([found[k] for k in range(len(asked))]))

if __name__ == "__main__":
    asyncio.run(ask())
"""


def judge_in_process(
    folder: Path, *judges: tuple[dict[str, Any], Sequence[JudgeInput]]
) -> list[list[Any]]:
    """Return each judge's judgements as JSON records, in order. All judges use the first one's
    engine.

    folder: an empty folder for the program, which ends without closing the engine.
    """
    script = folder / "ask.py"
    script.write_text(ASK, encoding="utf-8")
    environment = {
        **os.environ,
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    result = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps([[config, [item.record() for item in items]] for config, items in judges]),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    # vLLM's own destructor comes too late for an engine that nobody closed.
    assert "Exception ignored" not in result.stderr and "Traceback" not in result.stderr
    judgements = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[{")]
    assert len(judgements) == len(judges)
    return judgements
