"""Groups judged by this package, by OpenJudge and by its-hub, on the same vLLM server.

    python -m experiments.speed.group_peers --config configs/experiments/group_peers.yaml

`make peers` installs the peers and runs this.

The judges take turns on one local OpenAI-compatible server, each in a new process and each round
beginning with another one. Each judges the same made responses; its queries begin with a mark of
its own, so that no judge finds another's prompts in the prefix cache. Requests and tokens are the
server's own counters. Results: group_peers.json, group_peers.md.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
from pydantic import Field
from tqdm import tqdm

from autoj_reward.config import JudgeConfig
from autoj_reward.engine.vllm import engine_arguments
from autoj_reward.errors import EngineError, EngineUnavailable
from autoj_reward.evaluate.selection_metrics import tie_counts
from autoj_reward.models import resolve
from experiments.faults.server import free_port
from experiments.speed.group_judges import JUDGES, OURS, GroupWork
from experiments.speed.work import made_candidates, turns
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

ROOT = Path(__file__).parents[2]
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


class GroupPeersConfig(StudyConfig):
    """Server, and the work of the judges."""

    server: JudgeConfig
    """Chat model to serve, with its engine settings."""
    python: Path = Path(".venv/peers/bin/python")
    """Python of the environment that has OpenJudge and its-hub."""
    groups: int = Field(32, ge=1)
    """Groups of each judge in a round."""
    responses: int = Field(4, ge=2)
    """Responses of a group."""
    max_tokens: int = Field(256, ge=1)
    """Longest answer to a request, in tokens."""
    in_flight: int = Field(8, ge=1)
    """Groups in flight."""
    rounds: int = Field(1, ge=1)
    """Number of rounds."""


@contextmanager
def serve_model(server: JudgeConfig, log: Path) -> Iterator[str]:
    """Run vLLM's OpenAI-compatible server in a separate process, and yield its address.

    Raises EngineUnavailable naming the log if it does not start.
    """
    given = engine_arguments(server, resolve(server))
    given |= {"served_model_name": "judge", "disable_log_stats": None}  # else it counts nothing
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
    command += ["--structured-outputs-config", STRUCTURED]
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", *_flags(given)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            deadline = time.monotonic() + START_S
            while not _healthy(address):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise EngineUnavailable(f"vLLM's server did not start: see {log}")
                time.sleep(0.5)
            yield address
        finally:
            process.terminate()
            process.wait()


def _flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        elif value is not None:
            yield from (f"--{flag}", str(value))


def _healthy(address: str) -> bool:
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
    found = re.findall(rf"^vllm:{counter}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    if not found:
        raise EngineError(f"the server counts no vllm:{counter}")
    return round(sum(map(float, found)))


def judge_in_process(name: str, work: GroupWork, python: Path) -> dict[str, Any]:
    """Run a judge in a separate process. Raises EngineError with its last output if it fails."""
    interpreter = sys.executable if name.startswith(OURS) else str(python)
    told = subprocess.run(
        [interpreter, "-m", "experiments.speed.group_judges", name],
        input=json.dumps(asdict(work)),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    if told.returncode:
        raise EngineError(f"{name} failed: {told.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return found | {"messages": told.stderr[-4000:]}


def measure_judges(config: GroupPeersConfig) -> list[dict[str, Any]]:
    """Let the judges work in turn. Return a row for each judge and round."""
    rows, letters = list[dict[str, Any]](), {name: chr(97 + n) for n, name in enumerate(JUDGES)}
    config.output.mkdir(parents=True, exist_ok=True)
    with serve_model(config.server, config.output / "server.log") as address:
        for number, name in tqdm(list(turns(JUDGES, config.rounds)), desc="judging", unit="run"):
            made = made_candidates(f"{number}{letters[name]}", config.groups, config.responses)
            groups = [
                (query, [own.response for own in members])
                for query, members in groupby(made, key=lambda own: own.query)
            ]
            work = GroupWork(
                f"{address}/v1",
                resolve(config.server).path,
                groups,
                config.max_tokens,
                config.in_flight,
            )
            before = read_counters(address)
            found = judge_in_process(name, work, config.python.absolute())
            after = read_counters(address)
            spent = {name: after[name] - before[name] for name in COUNTERS}
            rows.append({"round": number, "judge": name} | found | spent)
    return rows


def peer_judge_figures(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each judge's medians over the rounds, and its ties, failures and abstentions."""
    figures = []
    for name in JUDGES:
        own = [row for row in rows if row["judge"] == name]
        scores = [group for row in own for group in row["scores"]]
        tied, pairs = np.sum(tie_counts(scores), axis=0)
        figures.append(
            {
                "judge": name,
                "ties": tied / pairs if pairs else None,
                "missing": sum(score is None for group in scores for score in group),
                "failed": sum(row["failed"] for row in own),
                "invented": sum(row["invented"] for row in own),
            }
            | {key: statistics.median(row[key] for row in own) for key in (*COUNTERS, "seconds")}
        )
    return figures


COLUMNS = {
    "judge": "{judge}",
    "requests": "{requests:,}",
    "tokens in": "{tokens_in:,}",
    "from the cache": "{tokens_cached:,}",
    "out": "{tokens_out:,}",
    "seconds": "{seconds:.0f}",
    "tied pairs": "{ties:.1%}",
    "failed calls": "{failed}",
    "responses without a score": "{missing}",
    "numbers without a judgement": "{invented}",
}
"""Columns of the report."""


def markdown(found: dict[str, Any]) -> str:
    """Return the report as one Markdown table."""
    config = found["config"]
    note = (
        f"{config['groups']} groups of {config['responses']} made responses, "
        f"{config['in_flight']} groups in flight, answers of at most {config['max_tokens']} "
        f"tokens by `{config['server']['model']}`. Medians of {config['rounds']} rounds in turn; "
        "failures are of all rounds."
    )
    table = ("Groups judged by peers", tabled(found["figures"], COLUMNS), note)
    peers = ", ".join(f"{name} {number}" for name, number in found["peers"].items())
    return report("Groups judged by peers", found, [table], f"Peers: {peers}.")


def peer_versions(python: Path) -> dict[str, str]:
    """Return the versions of the peers in that Python's environment."""
    code = "import importlib.metadata as m; print(*map(m.version, ('py-openjudge', 'its-hub')))"
    told = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if told.returncode:
        raise EngineError(f"{python} lacks the peers, which `make peers` installs: {told.stderr}")
    return dict(zip(("OpenJudge", "its-hub"), told.stdout.split(), strict=True))


def study(run: Study[GroupPeersConfig]) -> str:
    """Measure the judges. Return the report."""
    peers = peer_versions(run.config.python)
    rows = measure_judges(run.config)
    found = {"rounds": rows, "figures": peer_judge_figures(rows), "peers": peers}
    return run.write("group_peers", found, markdown)


main = study_command(GroupPeersConfig, study)

if __name__ == "__main__":
    sys.exit(main())
