"""Probabilities of labels at a verdict slot, exact even if a label has several tokens.

If the tokenizer splits digits, P(10) = P("1") P("0" | "1") and P(1) = P("1") (1 - P("0" | "1")).
The labels form a trie of token ids. One next-token read at each inner node gives every probability.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

from autoj_reward.engine.base import Generation, LabelProbs, Prepared
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.types import Usage, concurrent_usage

Ids = tuple[int, ...]
Read = Callable[[list[int], list[int]], Awaitable[tuple[dict[int, float], Usage]]]
"""(context ids, candidate next ids) -> ({id: natural log-probability}, usage)."""


def slot_tokens(
    tokens: PromptTokenizer,
    prepared: Prepared,
    generation: Generation,
    keep: int,
    slot: str,
    labels: Sequence[str],
) -> tuple[list[int], dict[str, tuple[int, ...]]]:
    """Return (context ids up to the slot, {label: its ids after the context}).

    Leading ids that all labels share move to the context. A merge such as " Response" after "is" is
    thus tokenized as the model would write it.
    """
    kept_ids, covered = tokens.own_prefix(generation.text, generation.ids, keep)
    tail = generation.text[covered:keep] + slot
    ids_by_label = {label: tokens.written(tail + label) for label in labels}
    shared_count = _count_common(list(ids_by_label.values()))
    context = [*prepared.ids, *kept_ids, *next(iter(ids_by_label.values()))[:shared_count]]
    return context, {label: tuple(ids[shared_count:]) for label, ids in ids_by_label.items()}


async def trie_probs(
    context: list[int], labels: dict[str, tuple[int, ...]], read_logprobs: Read
) -> LabelProbs:
    """Return the probability of each label after the context.

    A label that another one extends (the 1 of 10) gets what its extensions leave. If one read
    fails, the others are cancelled.
    """
    children = inner_nodes(labels)
    tasks = [asyncio.ensure_future(read_logprobs([*context, *n], c)) for n, c in children.items()]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    logprobs = {
        node: next_logprobs for node, (next_logprobs, _) in zip(children, answers, strict=True)
    }
    usage = concurrent_usage([cost for _, cost in answers])
    return LabelProbs(probabilities(labels, logprobs), usage)


def inner_nodes(labels: Mapping[str, Ids]) -> dict[Ids, list[int]]:
    """Return the inner nodes of the labels' trie, each with the ids that continue it."""
    nodes = sorted({ids[:n] for ids in labels.values() for n in range(len(ids))})
    return {
        node: sorted(
            {
                ids[len(node)]
                for ids in labels.values()
                if ids[: len(node)] == node and len(ids) > len(node)
            }
        )
        for node in nodes
    }


def probabilities(
    labels: Mapping[str, Ids], logprobs: Mapping[Ids, Mapping[int, float]]
) -> tuple[tuple[str, float], ...]:
    """Return (label, probability) pairs.

    logprobs: for every inner node, {next id: natural log-probability}.
    """
    children, probs = inner_nodes(labels), []
    for label, ids in labels.items():
        p = math.exp(sum(logprobs[ids[:n]].get(ids[n], -math.inf) for n in range(len(ids))))
        if ids in children:
            longer = (logprobs[ids].get(c, -math.inf) for c in children[ids])
            p *= max(0.0, 1.0 - sum(map(math.exp, longer)))
        probs.append((label, p))
    return tuple(probs)


def _count_common(sequences: list[list[int]]) -> int:
    n = 0
    shortest = min(len(s) for s in sequences)
    while n < shortest - 1 and len({s[n] for s in sequences}) == 1:
        n += 1
    return n
