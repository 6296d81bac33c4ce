"""Probabilities of labels at a verdict slot, exact also where a label is several tokens.

With a tokenizer that splits digits, P(10) = P("1") P("0" | "1") and
P(1) = P("1") (1 - P("0" | "1")).
The labels form a trie of token ids; one next-token read per inner node gives every probability.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

from autoj_reward.engine.base import Generation, LabelProbs, Prepared
from autoj_reward.prompts.tokens import PromptTokenizer
from autoj_reward.types import Usage

Read = Callable[[list[int], list[int]], Awaitable[tuple[dict[int, float], Usage]]]
"""(context ids, ids asked for) -> ({id: natural log-probability}, cost)."""


def slot_tokens(
    tokens: PromptTokenizer,
    prepared: Prepared,
    own: Generation,
    keep: int,
    slot: str,
    labels: Sequence[str],
) -> tuple[list[int], dict[str, tuple[int, ...]]]:
    """Context ids up to the slot, and each label's ids after it.

    What the labels' tokenizations share with the slot goes to the context, so that a merge such
    as " Response" after "is" is taken as the model would write it.
    """
    kept, covered = tokens.own_prefix(own.text, own.ids, keep)
    tail = own.text[covered:keep] + slot
    spelled = {label: tokens.continuation(tail + label) for label in labels}
    shared = _common(list(spelled.values()))
    context = [*prepared.ids, *kept, *next(iter(spelled.values()))[:shared]]
    return context, {label: tuple(ids[shared:]) for label, ids in spelled.items()}


async def trie_probs(
    context: list[int], labels: dict[str, tuple[int, ...]], read: Read
) -> LabelProbs:
    """Probability of each label after the context. Ids that end a label inside another label
    (the 1 of 10) keep what their longer siblings leave."""
    nodes = sorted({ids[:n] for ids in labels.values() for n in range(len(ids))})
    children = {
        node: sorted(
            {
                ids[len(node)]
                for ids in labels.values()
                if ids[: len(node)] == node and len(ids) > len(node)
            }
        )
        for node in nodes
    }
    answers = await asyncio.gather(*(read([*context, *node], children[node]) for node in nodes))
    logprobs = {node: answer for node, (answer, _) in zip(nodes, answers, strict=True)}
    usage = sum((cost for _, cost in answers), Usage())
    probs = []
    for label, ids in labels.items():
        p = math.exp(sum(logprobs[ids[:n]].get(ids[n], -math.inf) for n in range(len(ids))))
        if ids in logprobs:
            p *= max(
                0.0, 1.0 - sum(math.exp(logprobs[ids].get(c, -math.inf)) for c in children[ids])
            )
        probs.append((label, p))
    return LabelProbs(tuple(probs), usage)


def _common(sequences: list[list[int]]) -> int:
    n = 0
    shortest = min(len(s) for s in sequences)
    while n < shortest - 1 and len({s[n] for s in sequences}) == 1:
        n += 1
    return n
