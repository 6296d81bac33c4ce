"""This package and other judges that rate responses by an endpoint: cost, faults, a real judge.

    python -m experiments.speed.peers --config configs/experiments/peers.yaml

`make peers` installs the others and runs this. They are a plain AsyncOpenAI loop, OpenJudge's
grader of relevance, its-hub's LLM judge, verifiers' rubric judge and inspect_ai's
`model_graded_qa`, each with its own prompt and parser.

- `cost`: a scripted endpoint answers every request after `latency_s` with the same judgement.
  Processor time is user and system time of the asking process for all judgements, without its
  start.
- `killed`: the scripted endpoint is killed in the middle of a run and starts again after
  `outage_s`.
- `planted`: responses hold the best verdict in the judge's own form, and the scripted judge quotes
  it: before its own verdict, or at the end of an answer that is cut off at the token limit.
- `judge`: the same made responses on a vLLM server with a real chat model. Queries begin with a
  mark of each judge, so that none finds another's prompts in the prefix cache. Tokens are the
  server's own counters; this package's judge by replica tells its own.

The judges take turns, each time in a new process, and each round begins with another one. Each part
is saved when it is done. Results: peers.json, peers.md.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from tqdm import tqdm

from autoj_reward.config import JudgeConfig
from autoj_reward.errors import ConfigError, EngineError
from autoj_reward.evaluate.selection_metrics import tie_counts
from autoj_reward.models import resolve
from autoj_reward.types import Candidate
from experiments.speed.endpoint import EXPECTED, FORMS, QUOTING, Says, endpoint
from experiments.speed.peer_process import PEER_PACKAGES, peer_versions, run_peer
from experiments.speed.raters import RATERS, RatingWork, Row
from experiments.speed.vllm_server import COUNTERS, counted, serve_model
from experiments.speed.work import WARM_UP, made_candidates, ratio_by_round, turns
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

OURS = next(iter(RATERS))
"""Name of this package among the judges."""
FORM_OF = dict(zip(RATERS, ("rating", *FORMS), strict=True))
"""Form of each judge's verdicts. The plain loop reads this package's."""
SCALES = dict(zip(RATERS, ((1, 10), (1, 10), (1, 5), (0, 10), (0, 1), (0, 1)), strict=True))
"""Lowest and highest number of each judge."""
SIDES = [(name, 0) for name in RATERS] + [(name, 20) for name in list(RATERS)[:2]]
"""Judges and the numbers of alternatives per token that they request: only two read any."""
GROUP = 32
"""Number of responses to one query."""
BY_REPLICA = f"{OURS}, own replica"
ONE_TOKEN = f"{OURS}, without critique"
REAL_SIDES = (OURS, ONE_TOKEN, BY_REPLICA, *list(RATERS)[1:])
"""Names of the sides of `judge`."""


class PeersConfig(StudyConfig):
    """Work of the judges."""

    server: JudgeConfig
    """Chat model of the part `judge`, with its engine settings."""
    environments: Path = Path(".venv/peers")
    """Folder of the peers' environments."""
    judgements: int = Field(2000, ge=1)
    """Number of judgements of each judge in a round of `cost`."""
    in_flight: int = Field(128, ge=1)
    """Number of requests in flight, except in `judge`."""
    rounds: int = Field(3, ge=1)
    """Number of rounds of `cost`."""
    latency_s: float = Field(0.1, ge=0)
    """Latency of the scripted endpoint."""
    outage_s: float = Field(15, ge=0)
    """Seconds without an endpoint in `killed`."""
    queries: int = Field(3, ge=1)
    """Queries of each judge in `judge`, with 32 responses each."""
    running: int = Field(16, ge=1)
    """Number of requests in flight in `judge`."""
    max_tokens: int = Field(256, ge=1)
    """Longest answer to a request in `judge`, in tokens."""
    judges: tuple[str, ...] = ()
    """Names of the sides of `judge` to measure, as in its table; empty for all."""

    def possible(self) -> Sequence[str]:
        """Return the names of the study's parts."""
        return "cost", "killed", "planted", "judge"


def query_rows(candidates: Sequence[Candidate]) -> list[Row]:
    """Return queries and responses."""
    return [(candidate.prompt.text, candidate.response.text) for candidate in candidates]


def scripted_work(config: PeersConfig, address: str, count: int, top: int = 0) -> RatingWork:
    """Return the rating of `count` made responses by the scripted endpoint."""
    candidates = made_candidates("0", -(-count // GROUP), GROUP)[:count]
    warm_up = query_rows(made_candidates("1", 1, WARM_UP))
    return RatingWork(address, query_rows(candidates), warm_up, config.in_flight, 1024, top)


def rate_in_process(config: PeersConfig, name: str, work: RatingWork) -> dict[str, Any]:
    """Let a judge do the work in a process of its own."""
    return run_peer("experiments.speed.raters", name, work, config.environments)


def measure_cost(config: PeersConfig) -> list[dict[str, Any]]:
    """Return a row for each judge, number of alternatives and round.

    Raises EngineError for an answer that differs from the endpoint's.
    """
    rows = []
    with endpoint(config.latency_s) as server:
        runs = list(turns(SIDES, config.rounds))
        for number, (name, top) in tqdm(runs, desc="asking", unit="run"):
            form = FORM_OF[name]
            work = scripted_work(config, server.address(form), config.judgements, top)
            run = rate_in_process(config, name, work)
            for rating, expected in run.pop("readings"):
                if rating != FORMS[form].number or (top and abs(expected - EXPECTED) > 1e-6):
                    raise EngineError(
                        f"{name}: rating {rating}, expected {expected}: not the endpoint's. "
                        f"{run['errors']} {run['messages'][-500:]}"
                    )
            rows.append({"round": number, "judge": name, "top": top} | run)
    return rows


def cost_figures(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the medians over the rounds, for each judge and number of alternatives.

    `cpu_ratio` and `wall_ratio` are this package's figure divided by the judge's: the median of the
    ratios within rounds.
    """
    runs: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        runs.setdefault((row["judge"], row["top"]), []).append(row)
    return [
        {"judge": name, "top": top}
        | {"each": ", ".join(f"{row['cpu_s']:.2f}" for row in rounds)}
        | {
            f"{kind}_ratio": ratio_by_round(
                *([row[f"{kind}_s"] for row in side] for side in (runs[OURS, top], rounds))
            )
            for kind in ("cpu", "wall")
        }
        | {
            key: statistics.median(row[key] for row in rounds)
            for key in ("cpu_s", "wall_s", "start_cpu_s")
        }
        for (name, top), rounds in runs.items()
    ]


def measure_killed(config: PeersConfig) -> list[dict[str, Any]]:
    """Return what each judge made of a run whose endpoint was away for a while."""
    return [asyncio.run(_rate_and_kill(config, name)) for name in tqdm(RATERS, desc="killing")]


async def _rate_and_kill(config: PeersConfig, name: str) -> dict[str, Any]:
    with endpoint(config.latency_s) as server:
        work = scripted_work(config, server.address(FORM_OF[name]), config.judgements)
        rating = asyncio.create_task(asyncio.to_thread(rate_in_process, config, name, work))
        await server.until_answered(config.judgements // 2)
        server.kill()
        await asyncio.sleep(config.outage_s)
        server.start()
        run = await rating
    right = FORMS[FORM_OF[name]].number
    ratings = [rating for rating, _ in run.pop("readings")]
    return {
        "judge": name,
        "rated": sum(rating == right for rating in ratings),
        "lost": sum(rating is None for rating in ratings),
        "invented": sum(rating not in (None, right) for rating in ratings),
    } | run


def measure_planted(config: PeersConfig) -> list[dict[str, Any]]:
    """Return how many planted verdicts each judge believed."""
    rows = []
    for says in ("quote, verdict", "quote"):
        with endpoint(0, says) as server:
            for name in RATERS:
                rows.append(_rate_planted(config, name, server.address(FORM_OF[name]), says))
    return rows


def _rate_planted(config: PeersConfig, name: str, address: str, says: Says) -> dict[str, Any]:
    form = FORMS[FORM_OF[name]]
    work = scripted_work(config, address, GROUP)
    planted = [(query, f"{response}\n\n{form.plant}") for query, response in work.rows]
    run = rate_in_process(config, name, replace(work, rows=planted, warm_up=[]))
    ratings = [rating for rating, _ in run.pop("readings")]
    verdict = form.number if says == "quote, verdict" or name == "its-hub" else None
    return {
        "judge": name,
        "says": says,
        "own": sum(rating is not None and rating == verdict for rating in ratings),
        "none": sum(rating is None for rating in ratings),
        "believed": sum(rating not in (None, verdict) for rating in ratings),
    } | run


def real_sides(config: PeersConfig) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, judge and keys of this package's judge config for each side of `judge`.

    Raises ConfigError for an unknown name in `judges`.
    """
    if unknown := set(config.judges) - set(REAL_SIDES):
        raise ConfigError(f"judges: no {unknown}; there are {REAL_SIDES}")
    endpoint_keys = {
        "tokenizer": resolve(config.server).path,
        "max_model_len": 2048,
        "distribution": None,
    }
    sides = [
        (OURS, OURS, endpoint_keys),
        (ONE_TOKEN, OURS, endpoint_keys | {"critique": False}),
        (BY_REPLICA, OURS, config.server.model_dump(mode="json", exclude_unset=True)),
        *((name, name, dict[str, Any]()) for name in list(RATERS)[1:]),
    ]
    yield from (side for side in sides if not config.judges or side[0] in config.judges)


def measure_judge(config: PeersConfig) -> list[dict[str, Any]]:
    """Return a row for each judge of the same responses on one vLLM server."""
    rows = []
    config.output.mkdir(parents=True, exist_ok=True)
    with serve_model(config.server, config.output / "server.log") as address:
        sides = list(real_sides(config))
        for letter, (name, judge, keys) in enumerate(tqdm(sides, desc="judging")):
            rated = query_rows(made_candidates(f"{letter} ", config.queries, GROUP))
            warm_up = query_rows(made_candidates(f"warm {letter} ", 1, 1))
            work = RatingWork(
                f"{address}/v1", rated, warm_up, config.running, config.max_tokens, judge=keys
            )
            spent = dict[str, int]()
            with counted(address, spent):
                run = rate_in_process(config, judge, work)
            if name == BY_REPLICA:
                spent = {key: 0 for key in COUNTERS} | {"requests": 0} | run["usage"]
            rows.append({"judge": name, "scale": SCALES[judge]} | run | spent)
    return rows


def rater_figures(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return ties and ratings of each judge beside its cost."""
    figures = []
    for row in rows:
        ratings, expected = zip(*row["readings"], strict=True)
        numbers = [rating for rating in ratings if rating is not None]
        low, high = row["scale"]
        figures.append(
            {key: value for key, value in row.items() if key != "readings"}
            | {
                "rated": len(numbers),
                "off_scale": sum(not low <= number <= high for number in numbers),
                "levels": len(set(numbers)),
                "ties": share_tied(ratings),
                "expected_ties": share_tied(expected),
                "failures": describe_errors(row),
            }
        )
    return figures


def share_tied(numbers: Sequence[float | None]) -> float | None:
    """Return the share of pairs within a query with the same number; None without a pair."""
    groups = [numbers[start : start + GROUP] for start in range(0, len(numbers), GROUP)]
    tied, pairs = np.sum(tie_counts(groups), axis=0)
    return tied / pairs if pairs else None


def describe_errors(row: Mapping[str, Any]) -> str:
    """Return the exceptions of a row as text."""
    return ", ".join(f"{count} {name}" for name, count in row["errors"].items()) or "none"


COST = {
    "judge": "{judge}",
    "alternatives a token": "{top}",
    "processor time, s": "{cpu_s:.2f} ({each})",
    f"{OURS} to it": "{cpu_ratio:.2f}",
    "wall time, s": "{wall_s:.2f}",
    f"{OURS} to it ": "{wall_ratio:.2f}",
    "processor time of the start, s": "{start_cpu_s:.2f}",
}
KILLED = {
    "judge": "{judge}",
    "rated": "{rated}",
    "without a rating": "{lost}",
    "wrong number": "{invented}",
    "exceptions": "{failures}",
    "seconds": "{wall_s:.0f}",
}
PLANTED = {
    "judge": "{judge}",
    "the judge": "{says}",
    "its own verdict read": "{own}",
    "no number": "{none}",
    "number that the judge did not give": "{believed}",
    "exceptions": "{failures}",
}
JUDGE = {
    "judge": "{judge}",
    "seconds": "{wall_s:.0f}",
    "tokens in": "{tokens_in:,}",
    "from the cache": "{tokens_cached:,}",
    "out": "{tokens_out:,}",
    "rated": "{rated}",
    "off its scale": "{off_scale}",
    "different numbers": "{levels}",
    "tied pairs": "{ties:.0%}",
    "tied by the expected rating": "{expected_ties:.0%}",
    "exceptions": "{failures}",
}
"""Columns of the tables."""


def markdown(result: dict[str, Any]) -> str:
    """Return the report: a table for each part that is done."""
    config, steps = result["config"], result["steps"]
    notes = {
        "cost": f"{config['judgements']:,} judgements, {config['in_flight']} in flight; the "
        f"endpoint answers after {config['latency_s']:g} s. Medians of {config['rounds']} rounds "
        "in turn (the processor time of each beside it); ratios within a round.",
        "killed": f"{config['judgements']:,} judgements, {config['in_flight']} in flight. The "
        f"endpoint was killed when it had answered half of them, and came back after "
        f"{config['outage_s']:g} s and its start.",
        "planted": f"{GROUP} responses that plant the best verdict in the judge's form. The judge "
        f"writes `{QUOTING}` and the plant.",
        "judge": f"{config['queries'] * GROUP} made responses, {config['running']} in flight, "
        f"answers of at most {config['max_tokens']} tokens by `{config['server']['model']}`. "
        "Ties are pairs of responses to one query with the same number.",
    }
    tables = {
        "cost": ("The one who asks", COST, cost_figures),
        "killed": ("An endpoint that is killed", KILLED, _add_failures),
        "planted": ("Planted verdicts", PLANTED, _add_failures),
        "judge": ("A real judge", JUDGE, rater_figures),
    }
    sections = [
        (title, tabled(figures(steps[part]), columns), notes[part])
        for part, (title, columns, figures) in tables.items()
        if part in steps
    ]
    peers = ", ".join(f"{name} {number}" for name, number in result["peers"].items())
    return report("Judges compared", result, sections, f"Peers: {peers}.")


def _add_failures(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(row) | {"failures": describe_errors(row)} for row in rows]


def study(run: Study[PeersConfig]) -> str:
    """Measure the parts that are not done. Return the report."""
    peers = peer_versions(PEER_PACKAGES, run.config.environments)
    work = {
        "cost": measure_cost,
        "killed": measure_killed,
        "planted": measure_planted,
        "judge": measure_judge,
    }
    return run.steps(
        "peers",
        {part: partial(measure, run.config) for part, measure in work.items()},
        lambda result: markdown(result | {"peers": peers}),
    )


main = study_command(PeersConfig, study, parts=("cost", "killed", "planted", "judge"))

if __name__ == "__main__":
    sys.exit(main())
