"""What a round of rejection sampling trains on: the choices of a best-of-N job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoj_reward.config import BestOfNConfig
from autoj_reward.journal import Journal
from autoj_reward.replicas.replica import policy_name

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """sft: prompt and completion. pairs: prompt, chosen and rejected. Each row says where it comes
    from. cut: queries without a row since their chosen response was cut off at max_tokens."""

    sft: tuple[Row, ...]
    pairs: tuple[Row, ...]
    cut: int


def training_rows(job: BestOfNConfig, better_by: float, policy: str, number: int) -> TrainingRows:
    """The rows of a finished job, in round `number`.

    Queries without a rated choice, or whose choice gains less than better_by over the mean of the
    rated responses, give none; a pair needs two different values. What was cut off is neither
    chosen nor rejected.
    """
    judged: dict[int, list[Row]] = {}
    for record in _lines(job.output / "judgements.jsonl"):
        judged.setdefault(record["line"], []).append(record)
    selections = list(_lines(job.output / "selections.jsonl"))
    finished = _finished(job, [chosen["query"] for chosen in selections])
    sft, pairs, cut = [], [], 0
    for chosen in selections:
        best = chosen[job.view]
        rated = [j for j in judged[chosen["line"]] if j[job.view] is not None]
        if best is None or best - sum(j[job.view] for j in rated) / len(rated) < better_by:
            continue
        if not chosen["response"].strip():
            continue
        ended = finished.get(chosen["query"]) or (True,) * len(judged[chosen["line"]])
        if not ended[chosen["index"]]:
            cut += 1
            continue
        source = _source(chosen, best, rated) | {"policy": policy, "round": number}
        prompt, answer = _prompt(job, chosen["query"]), _answer(chosen["response"])
        sft.append({"prompt": prompt, "completion": answer, "source": source})
        worst = min((j for j in rated if ended[j["index"]]), key=lambda j: float(j[job.view]))
        if worst[job.view] < best:
            beaten = {"rejected_index": worst["index"], "rejected_value": worst[job.view]}
            pair = {"prompt": prompt, "chosen": answer, "rejected": _answer(worst["response"])}
            pairs.append(pair | {"source": source | beaten})
    return TrainingRows(tuple(sft), tuple(pairs), cut)


def _finished(job: BestOfNConfig, queries: Iterable[str]) -> dict[str, tuple[bool, ...]]:
    """Whether the policy ended each response itself, by query; none of responses that the input
    brought."""
    if job.policy is None:
        return {}
    name = policy_name(job.policy)
    with closing(Journal(job.journal or job.output / "journal.sqlite")) as journal:
        kept = {query: journal.get_samples(name, query) for query in queries}
    return {query: sampled.finished for query, sampled in kept.items() if sampled}


def _source(chosen: Row, best: float, rated: list[Row]) -> Row:
    about = {name: chosen[name] for name in ("line", "index", "rule")}
    return about | {"value": best, "of": len(rated), "judge": rated[0]["judge"]}


def _prompt(job: BestOfNConfig, query: str) -> list[dict[str, str]]:
    """The conversation that the policy was sampled with."""
    system = job.policy.system if job.policy else None
    head = [] if system is None else [{"role": "system", "content": system}]
    return [*head, {"role": "user", "content": query}]


def _answer(response: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": response}]


def _lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)
