"""Speed of judging, as ratios of wall time within one run.

    python -m experiments.speed.throughput --config configs/experiments/throughput.yaml

`--parts paths,prefix` runs only these parts.

Parts:

- `paths`: the same judging by `vllm.LLM.generate` with all prompts at once, by the service's handle
  and by HTTP.
- `prefix`: the bare engine with and without prefix cache.

The results throughput.json and throughput.md are rewritten after each part. Sides take turns within
a round, and every round judges new texts.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from pydantic import Field, model_validator

from autoj_reward.client.client import JudgeClient
from autoj_reward.client.remote import HttpBackend
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.models.spec import judge_spec
from autoj_reward.service.api import make_app
from autoj_reward.service.serve import listen
from autoj_reward.types import Usage
from experiments.speed.work import (
    Side,
    SideRound,
    alternate,
    made_candidates,
    make_client_side,
    ratio_by_round,
)
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

if TYPE_CHECKING:
    from experiments.speed.bare import BareEngine

PARTS = ("paths", "prefix")
"""All parts."""
CEILING = "vllm.LLM.generate, all at once"
"""Name of the first side: the limit of the engine."""


class ThroughputConfig(StudyConfig):
    """Judge and work of both parts."""

    judge: JudgeConfig = JudgeConfig()
    """Judge on vLLM, greedy, with critiques of at most `max_tokens` tokens."""
    queries: int = Field(2, ge=1)
    """Number of queries in a piece of work. The part `prefix` uses one."""
    candidates: int = Field(32, ge=2)
    """Number of candidates for each query."""
    rounds: int = Field(3, ge=1)
    """Number of measured rounds, after a warm-up."""
    short_words: int = Field(30, ge=1)
    """Length in words of the short queries of the part `prefix`."""
    long_words: int = Field(450, ge=1)
    """Length in words of its long queries."""

    @model_validator(mode="after")
    def _check_comparable(self) -> ThroughputConfig:
        judge = self.judge
        if judge.kind != "vllm" or not isinstance(judge_spec(judge).format, JudgeFormat):
            raise ValueError("judge: only a generative judge of kind vllm has a bare engine")
        if not judge.critique or judge.direct or judge.critiques > 1 or judge.temperature > 0:
            raise ValueError(
                "judge: the sides do the same work for one greedy critique a candidate: leave "
                "critique, direct, critiques and temperature as they are"
            )
        if judge.serve.replicas not in ("auto", 1):
            raise ValueError("judge.serve.replicas: one engine is compared with one replica")
        return self

    def possible(self) -> Sequence[str]:
        """Return all parts."""
        return PARTS


async def study(run: Study[ThroughputConfig]) -> str:
    """Measure the parts, and write the report after each. Return the last report."""
    _set_environment()
    from experiments.speed.bare import BareEngine

    results, text = dict[str, Any](), ""
    with closing(BareEngine.start(run.config.judge)) as bare:
        for part in run.parts:
            measure = measure_paths if part == "paths" else measure_prefix
            results[part] = await measure(run.config, bare)
            text = run.write("throughput", results, markdown)
    return text


async def measure_paths(config: ThroughputConfig, bare: BareEngine) -> list[dict[str, Any]]:
    """Return a row for the engine's limit, and for the service by handle and by HTTP."""
    serving = config.judge.serve.model_copy(update={"replicas": 1})
    judge = config.judge.model_copy(update={"serve": serving})
    async with open_judge(judge) as handle, serve_over_http(handle) as http:
        sides: dict[str, Side] = {
            CEILING: bare.judge,
            "service, by handle": make_client_side(handle),
            "service, by HTTP": make_client_side(http),
        }
        piece = partial(made_candidates, queries=config.queries, count=config.candidates)
        rounds_by_side = await alternate(sides, config.rounds, piece)
    return [
        {"path": name} | sum_rounds(rounds, rounds_by_side[CEILING])
        for name, rounds in rounds_by_side.items()
    ]


async def measure_prefix(config: ThroughputConfig, bare: BareEngine) -> list[dict[str, Any]]:
    """Measure the prefix cache: a row for each query length, with and without a critique."""
    rows = []
    for words in (config.short_words, config.long_words):
        for judging, critique in (("critique and rating", True), ("rating alone", False)):
            sides: dict[str, Side] = {
                name: partial(bare.judge, critique=critique, cached=name == "on")
                for name in ("on", "off")
            }
            piece = partial(made_candidates, queries=1, count=config.candidates, words=words)
            rounds_by_side = await alternate(sides, config.rounds, piece)
            query = {
                "query_tokens": len(bare.tokens.continuation(piece("1a")[0].prompt.text)),
                "judging": judging,
                "off_s": statistics.median(
                    side_round.seconds for side_round in rounds_by_side["off"]
                ),
            }
            rows.append(query | sum_rounds(rounds_by_side["on"], rounds_by_side["off"]))
    return rows


def sum_rounds(rounds: Sequence[SideRound], others: Sequence[SideRound]) -> dict[str, Any]:
    """Return the figures of a side: seconds of each round, tokens per judgement, and a ratio.

    The ratio is the median over rounds of its seconds divided by those of `others` in the same
    round.
    """
    usage = sum((side_round.usage for side_round in rounds), Usage())
    count = sum(side_round.judgements for side_round in rounds)
    seconds = [side_round.seconds for side_round in rounds]
    return {
        "seconds": statistics.median(seconds),
        "rounds_s": seconds,
        "ratio": ratio_by_round(seconds, (side_round.seconds for side_round in others)),
        "judgements": rounds[0].judgements,
        "rated": sum(side_round.rated for side_round in rounds) / count,
        "tokens_in": usage.tokens_in / count,
        "hit_rate": usage.tokens_cached / usage.tokens_in,
        "tokens_out": usage.tokens_out / count,
    }


class _Server(uvicorn.Server):
    """Uvicorn server that leaves Ctrl-C to the measurement."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_over_http(client: JudgeClient) -> AsyncIterator[JudgeClient]:
    """Serve `client` over HTTP with a token, and yield a client of that service.

    The HTTP server shares this process and its event loop. `autoj serve` has a process for it.
    """
    token = secrets.token_urlsafe()
    with listen("127.0.0.1", 0) as listening:
        options = uvicorn.Config(
            make_app(client, token).guard, log_config=None, access_log=False, lifespan="off"
        )
        server = _Server(options)
        serving = asyncio.create_task(server.serve([listening]))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            backend = await HttpBackend.connect(address, token, start_s=30)
            try:
                yield JudgeClient(backend)
            finally:
                await backend.close()
        finally:
            server.should_exit = True
            await serving


def _set_environment() -> None:
    """Set the environment variables that both engines read when they are imported."""
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        # By default Ray's workers run at a lower priority than the bare engine.
        "RAY_worker_niceness": "0",
    }


SECONDS = "{seconds:.2f} s ({rounds})"
TOKENS = {
    "ratio": "{ratio:.3f}",
    "tokens in": "{tokens_in:.0f}",
    "hit rate": "{hit_rate:.2f}",
    "tokens out": "{tokens_out:.0f}",
    "rated": "{rated:.2f}",
}
PATHS = {"path": "{path}", "judgements": "{judgements}", "seconds": SECONDS} | TOKENS
PREFIX = {
    "query": "{query_tokens} tokens",
    "judging": "{judging}",
    "cache on": SECONDS,
    "off": "{off_s:.2f} s",
} | TOKENS
PATHS_NOTE = (
    "Ratio: seconds over those of the first path in the same round, median over the rounds. Tokens "
    "are a judgement's."
)
PREFIX_NOTE = (
    "Candidates of one query. Ratio: seconds with the cache over seconds without. Hit rate: share "
    "of the tokens in that were read from it, at the rating slots too."
)


def markdown(result: dict[str, Any]) -> str:
    """Write the tables of the parts that were measured."""
    rows = {
        part: [
            row | {"rounds": ", ".join(f"{seconds:.2f}" for seconds in row["rounds_s"])}
            for row in result.get(part, [])
        ]
        for part in PARTS
    }
    paths = ("Paths to the same judgements", tabled(rows["paths"], PATHS), PATHS_NOTE)
    prefix = ("Prefix cache", tabled(rows["prefix"], PREFIX), PREFIX_NOTE)
    return report("Throughput", result, [paths, prefix])


main = study_command(ThroughputConfig, study, PARTS)

if __name__ == "__main__":
    sys.exit(main())
