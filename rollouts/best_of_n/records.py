"""The rows of the result files: one a query, one a judgement."""

from __future__ import annotations

from typing import Any

from autoj_reward.conversation import messages_of
from autoj_reward.io.plain import plain
from autoj_reward.types import RATING, Candidate, Judgement
from rollouts.best_of_n.group import GroupResult


def selection_record(group: GroupResult) -> dict[str, Any]:
    """A query's row of `selections.jsonl`; ratings are null where the judgement failed."""
    chosen, index = group.chosen, group.selection.index
    return (
        {
            "line": group.row.line,
            "query": group.row.query,
            "index": index,
            "response": group.candidates[index].response,
            "critique": chosen.critique,
            "rating": chosen.view("rating"),
            "expected": chosen.view("expected"),
            "direct": chosen.view("direct"),
            "forced": chosen.forced,
            "outcome": chosen.outcome.value,
            "rule": group.selection.rule,
            "tied": list(group.selection.tied),
            "ratings": [judgement.view("rating") for judgement in group.judgements],
            "extra": plain(group.row.extra),
        }
        | _turns(group)
        | _budget(group)
    )


def _turns(group: GroupResult) -> dict[str, Any]:
    """The messages that were answered, where they are more than a query."""
    turns = group.row.context.turns
    return {"messages": messages_of(turns)} if turns else {}


def _budget(group: GroupResult) -> dict[str, Any]:
    spent = group.spending
    if spent is None:
        return {}
    return {
        "fates": [standing.fate.value for standing in group.standings],
        "cheap": [standing.cheap for standing in group.standings],
        "critiques": spent.asked,
        "critiques_skipped": spent.skipped,
        "tokens_written": spent.usage.tokens_out,
        "full_tokens": spent.full_tokens,
    }


def judgement_records(group: GroupResult) -> list[dict[str, Any]]:
    """The rows of `judgements.jsonl` for one query, one a candidate."""
    pairs = enumerate(zip(group.candidates, group.judgements, strict=True))
    rows = [_judgement_record(group.row.line, i, c, j) for i, (c, j) in pairs]
    for row, standing in zip(rows, group.standings, strict=False):
        row |= plain(standing)
    return rows


def _judgement_record(line: int, index: int, candidate: Candidate, j: Judgement) -> dict[str, Any]:
    read = j.reading(RATING)
    slot = read.distribution if read else None
    return {
        "line": line,
        "index": index,
        "response": candidate.response,
        "policy_logprob": candidate.policy_logprob,
        "outcome": j.outcome.value,
        "reason": j.reason,
        "rating": j.view("rating"),
        "expected": j.view("expected"),
        "direct": j.view("direct"),
        "outside": read.outside if read else None,
        "distribution": None if slot is None else dict(slot),
        "forced": j.forced,
        "critique": j.critique,
        "flags": list(j.flags),
        "tokens_in": j.usage.tokens_in,
        "tokens_cached": j.usage.tokens_cached,
        "tokens_out": j.usage.tokens_out,
        "latency_s": j.usage.latency_s,
        "queued_s": j.usage.queued_s,
        "judge": j.judge,
    } | ({"thinking": j.thinking} if j.thinking else {})
