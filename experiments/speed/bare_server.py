"""Bare FastAPI server on the engine, for comparison with the service.

    python -m experiments.speed.bare_server CONFIG PORT

It has no token, limits, deadline, retries, coalescing or metrics. Request and response bodies are
the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import uvicorn
import yaml
from fastapi import FastAPI, Response

from autoj_reward.config import JudgeConfig, load_config
from autoj_reward.judge.make import make_judge
from autoj_reward.models.spec import judge_spec
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.service.bodies import ScoreBody
from autoj_reward.types import JudgeInput
from experiments.faults.server import Server, free_port, run_server


def make_bare_app(judge: JudgeConfig) -> FastAPI:
    """Return an app with only POST /v1/score and GET /readyz."""
    app, replica = FastAPI(), JudgeReplica(make_judge(judge_spec(judge)))

    @app.post("/v1/score")
    async def score(body: ScoreBody) -> Response:
        items = [JudgeInput("single", c.query, (c.response,)) for c in body.candidates]
        judgements = dict([answer async for answer in replica.stream(items)])
        result = {"judgements": [asdict(judgements[n]) for n in range(len(items))]}
        return Response(json.dumps(result), media_type="application/json")

    @app.get("/readyz")
    async def ready() -> dict[str, int]:
        await replica.check()
        return {"replicas": 1}

    return app


@contextmanager
def run_bare_server(judge: JudgeConfig, folder: Path, start_s: float = 180) -> Iterator[Server]:
    """Run the server in a separate process, and yield it once it is ready."""
    port, config = free_port(), folder / "bare.yaml"
    config.write_text(yaml.safe_dump(judge.model_dump(mode="json")), encoding="utf-8")
    command = [sys.executable, "-m", "experiments.speed.bare_server", str(config), str(port)]
    with run_server(Server(command, port, folder / "bare.log"), start_s) as server:
        yield server


def main(config: str, port: str) -> None:
    """Serve until SIGTERM."""
    options = uvicorn.Config(
        make_bare_app(load_config(JudgeConfig, config)),
        port=int(port),
        log_level="warning",
        access_log=False,
        backlog=2048,
    )
    asyncio.run(uvicorn.Server(options).serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
