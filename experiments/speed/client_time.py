"""What the client adds to a judgement: one row over HTTP, and rows of as many threads.

    python -m experiments.speed.client_time --config configs/experiments/client_time.yaml

A service runs in a process of its own on the loopback, with an engine that answers at once. Every
round asks, one after the other and each time with new responses to one query: one row through a
RewardModel; the same row posted by the standard library alone, which is what service and loopback
take; `rows` in one call; and the same number of rows, one a call, from as many threads. Results:
client_time.json, client_time.md.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field
from tqdm import tqdm

from autoj_reward.config import JudgeConfig, RewardConfig, ServiceConfig
from autoj_reward.errors import EngineError
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from experiments.faults.chaos.server import HEADERS, TOKEN, service
from experiments.study import Study, StudyConfig, command
from experiments.tables import lined, report

TOKEN_ENV = "AUTOJ_CLIENT_TIME_TOKEN"
WORDS = " because the air scatters blue light more than red" * 8


class ClientTimeConfig(StudyConfig):
    """rounds: how often each way is timed. rows: of a call, and threads."""

    rounds: int = Field(50, ge=2)
    rows: int = Field(32, ge=2)


def fresh(numbers: Iterator[int], rows: int) -> list[Candidate]:
    """Rows that nobody has asked for yet, all of one query."""
    return [
        Candidate("Why is the sky blue?", f"Answer {next(numbers)}{WORDS}") for _ in range(rows)
    ]


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def post(connection: HTTPConnection, row: Candidate) -> None:
    """Ask for a row without the client. EngineError for an answer that is none."""
    body = json.dumps({"items": [{"query": row.query, "responses": [row.response]}]})
    connection.request("POST", "/v1/judge", body, HEADERS)
    answer = connection.getresponse()
    told = answer.read()
    if answer.status != 200:
        raise EngineError(f"HTTP {answer.status}: {told[:200]!r}")


def each_alone(pool: ThreadPoolExecutor, model: RewardModel, rows: Sequence[Candidate]) -> None:
    """A row a call, a thread each."""
    list(pool.map(model.rewards_now, [[row] for row in rows]))


def measure(config: ClientTimeConfig, address: str) -> dict[str, list[float]]:
    """Seconds of each way in every round, and the processor's seconds of this process in one."""
    os.environ[TOKEN_ENV] = TOKEN
    there = ServiceConfig(address=address, token_env=TOKEN_ENV)
    reward = RewardConfig(service=there, judge=JudgeConfig(kind="fake"))
    numbers, where = count(), urlsplit(address)
    found: dict[str, list[float]] = {k: [] for k in ("one", "cpu", "bare", "call", "threads")}
    with (
        RewardModel(reward) as model,
        ThreadPoolExecutor(config.rows) as pool,
        closing(HTTPConnection(str(where.hostname), where.port)) as connection,
    ):
        for number in tqdm(range(config.rounds + 1), desc="rounds"):
            one, bare = fresh(numbers, 1), fresh(numbers, 1)[0]
            several, apart = fresh(numbers, config.rows), fresh(numbers, config.rows)
            cpu = time.process_time()
            taken = {"one": seconds(partial(model.rewards_now, one))}
            taken["cpu"] = time.process_time() - cpu
            taken["bare"] = seconds(partial(post, connection, bare))
            taken["call"] = seconds(partial(model.rewards_now, several))
            taken["threads"] = seconds(partial(each_alone, pool, model, apart))
            if number:  # the first opens connections and threads
                for name, value in taken.items():
                    found[name].append(value)
    return found


def figures(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Milliseconds: medians, the fastest tenth of one row, and what the client adds to the bare
    request, by the medians. ratio: of threads to one call, the median over the rounds."""
    ms = {f"{name}_ms": 1000 * statistics.median(values) for name, values in found.items()}
    pairs = zip(found["threads"], found["call"], strict=True)
    return ms | {
        "one_p10_ms": 1000 * statistics.quantiles(found["one"], n=10)[0],
        "bare_p10_ms": 1000 * statistics.quantiles(found["bare"], n=10)[0],
        "added_ms": ms["one_ms"] - ms["bare_ms"],
        "ratio": statistics.median(threads / call for threads, call in pairs),
    }


COLUMNS = {
    "one row, ms": "{one_ms:.2f} (fastest tenth {one_p10_ms:.2f})",
    "the same request without the client, ms": "{bare_ms:.2f} (fastest tenth {bare_p10_ms:.2f})",
    "added by the client, ms": "{added_ms:.2f}",
    "processor time of the client's process, ms": "{cpu_ms:.2f}",
    "all rows in one call, ms": "{call_ms:.1f}",
    "a row a call, a thread each, ms": "{threads_ms:.1f}",
    "ratio": "{ratio:.2f}",
}


def render(found: dict[str, Any]) -> str:
    """The figures as a table in Markdown, a line each."""
    note = f"Medians of {found['config']['rounds']} rounds of {found['config']['rows']} rows."
    rows = lined(found["figures"], COLUMNS)
    return report("The client's time", found, [("A free engine on the loopback", rows, note)])


def study(run: Study[ClientTimeConfig]) -> str:
    """Measure and write."""
    with (
        TemporaryDirectory() as folder,
        service(JudgeConfig(kind="fake"), Path(folder)) as server,
    ):
        found = measure(run.config, server.address)
    return run.write("client_time", {"figures": figures(found)}, render)


main = command(ClientTimeConfig, study)

if __name__ == "__main__":
    sys.exit(main())
