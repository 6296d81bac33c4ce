"""Groups judged by this package, by OpenJudge and by its-hub, on the same vLLM server.

    python -m experiments.speed.group_peers --config configs/experiments/group_peers.yaml

`make peers` installs the peers and runs this.

The judges take turns on one local OpenAI-compatible server, each in a new process and each round
beginning with another one. Each judges the same made responses; its queries begin with a mark of
its own, so that no judge finds another's prompts in the prefix cache. Requests and tokens are the
server's own counters. Results: group_peers.json, group_peers.md.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from tqdm import tqdm

from autoj_reward.config import JudgeConfig
from autoj_reward.evaluate.selection_metrics import tie_counts
from autoj_reward.models import resolve
from experiments.speed.group_judges import JUDGES, GroupWork
from experiments.speed.peer_process import peer_versions, run_peer
from experiments.speed.vllm_server import COUNTERS, counted, serve_model
from experiments.speed.work import made_candidates, turns
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled


class GroupPeersConfig(StudyConfig):
    """Server, and the work of the judges."""

    server: JudgeConfig
    """Chat model to serve, with its engine settings."""
    environments: Path = Path(".venv/peers")
    """Folder of the peers' environments."""
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


def measure_judges(config: GroupPeersConfig) -> list[dict[str, Any]]:
    """Let the judges work in turn. Return a row for each judge and round."""
    rows, letters = list[dict[str, Any]](), {name: chr(97 + n) for n, name in enumerate(JUDGES)}
    config.output.mkdir(parents=True, exist_ok=True)
    with serve_model(config.server, config.output / "server.log") as address:
        for number, name in tqdm(list(turns(JUDGES, config.rounds)), desc="judging", unit="run"):
            candidates = made_candidates(
                f"{number}{letters[name]}", config.groups, config.responses
            )
            groups = [
                (query, [candidate.response.text for candidate in members])
                for query, members in groupby(
                    candidates, key=lambda candidate: candidate.prompt.text
                )
            ]
            work = GroupWork(
                f"{address}/v1",
                resolve(config.server).path,
                groups,
                config.max_tokens,
                config.in_flight,
            )
            spent = dict[str, int]()
            with counted(address, spent):
                module = "experiments.speed.group_judges"
                outcome = run_peer(module, name, work, config.environments)
            rows.append({"round": number, "judge": name} | outcome | spent)
    return rows


def summarise_judges(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each judge's medians over the rounds, and its ties, failures and abstentions."""
    figures = []
    for name in JUDGES:
        judge_rows = [row for row in rows if row["judge"] == name]
        scores = [group for row in judge_rows for group in row["scores"]]
        tied_pairs, pairs = np.sum(tie_counts(scores), axis=0)
        figures.append(
            {
                "judge": name,
                "ties": tied_pairs / pairs if pairs else None,
                "missing": sum(score is None for group in scores for score in group),
                "failed": sum(row["failed"] for row in judge_rows),
                "invented": sum(row["invented"] for row in judge_rows),
            }
            | {
                key: statistics.median(row[key] for row in judge_rows)
                for key in (*COUNTERS, "seconds")
            }
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


def markdown(result: dict[str, Any]) -> str:
    """Return the report as one Markdown table."""
    config = result["config"]
    note = (
        f"{config['groups']} groups of {config['responses']} made responses, "
        f"{config['in_flight']} groups in flight, answers of at most {config['max_tokens']} "
        f"tokens by `{config['server']['model']}`. Medians of {config['rounds']} rounds in turn; "
        "failures are of all rounds."
    )
    table = ("Groups judged by peers", tabled(result["figures"], COLUMNS), note)
    peers = ", ".join(f"{name} {number}" for name, number in result["peers"].items())
    return report("Groups judged by peers", result, [table], f"Peers: {peers}.")


def study(run: Study[GroupPeersConfig]) -> str:
    """Measure the judges. Return the report."""
    peers = peer_versions(("OpenJudge", "its-hub"), run.config.environments)
    rows = measure_judges(run.config)
    result = {"rounds": rows, "figures": summarise_judges(rows), "peers": peers}
    return run.write("group_peers", result, markdown)


main = study_command(GroupPeersConfig, study)

if __name__ == "__main__":
    sys.exit(main())
