"""What a round of rejection sampling trains on: the choices of a best-of-N job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoj_reward.config import BestOfNConfig
from autoj_reward.conversation import turns_of
from autoj_reward.formats.render import user_prompt
from autoj_reward.journal import Journal
from autoj_reward.replicas.replica import policy_name
from autoj_reward.types import Asking
from rollouts.best_of_n.sampler import on_record

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
    finished = _finished(job, map(_asked, selections))
    sft, pairs, cut = [], [], 0
    for chosen in selections:
        best = chosen[job.view]
        rated = [j for j in judged[chosen["line"]] if j[job.view] is not None]
        if best is None or best - sum(j[job.view] for j in rated) / len(rated) < better_by:
            continue
        if not chosen["response"].strip():
            continue
        ended = finished.get(_asked(chosen)) or (True,) * len(judged[chosen["line"]])
        if not ended[chosen["index"]]:
            cut += 1
            continue
        source = _source(chosen, best, rated) | {"policy": policy, "round": number}
        prompt, answer = _prompt(job, _asked(chosen)), _answer(chosen["response"])
        sft.append({"prompt": prompt, "completion": answer, "source": source})
        worst = min((j for j in rated if ended[j["index"]]), key=lambda j: float(j[job.view]))
        if worst[job.view] < best:
            beaten = {"rejected_index": worst["index"], "rejected_value": worst[job.view]}
            pair = {"prompt": prompt, "chosen": answer, "rejected": _answer(worst["response"])}
            pairs.append(pair | {"source": source | beaten})
    return TrainingRows(tuple(sft), tuple(pairs), cut)


def _finished(job: BestOfNConfig, queries: Iterable[Asking]) -> dict[Asking, tuple[bool, ...]]:
    """Whether the policy ended each response itself, by query; none of responses that the input
    brought."""
    if job.policy is None:
        return {}
    name = policy_name(job.policy)
    with closing(Journal(job.journal or job.output / "journal.sqlite")) as journal:
        kept = {query: journal.get_samples(name, on_record(query)) for query in queries}
    return {query: sampled.finished for query, sampled in kept.items() if sampled}


def _source(chosen: Row, best: float, rated: list[Row]) -> Row:
    about = {name: chosen[name] for name in ("line", "index", "rule")}
    return about | {"value": best, "of": len(rated), "judge": rated[0]["judge"]}


def _asked(chosen: Row) -> Asking:
    """What a selection's responses answer."""
    return turns_of(chosen["messages"]) if "messages" in chosen else str(chosen["query"])


def _prompt(job: BestOfNConfig, asked: Asking) -> list[dict[str, str]]:
    """The conversation that the policy was sampled with."""
    prompt = user_prompt(asked, job.policy.system if job.policy else None)
    return [{"role": message.role, "content": message.text} for message in prompt]


def _answer(response: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": response}]


def _lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)
