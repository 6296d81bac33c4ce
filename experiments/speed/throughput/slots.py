"""The rating slot's log-probabilities: a second pass of one token, against one pass that asks for
them at every token of the critique."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.speed.throughput.bare import NOTHING, BareEngine, Slot, slot_of
from experiments.speed.throughput.config import ThroughputConfig
from experiments.speed.throughput.work import WARM_UP, candidates

ROOT = ()
"""The trie's root: where a label's first token is read."""
ALONE, TWO_PASS = "critiques alone", "two passes: one more token at the slot"
TOP, NAMED = "one pass: logprobs=20", "one pass: logprob_token_ids"

Found = list[dict[int, float] | None]
"""The probabilities of the first label tokens at each slot; None where there is no slot."""


async def measure(
    config: ThroughputConfig, bare: BareEngine, done: Callable[[], object]
) -> dict[str, Any]:
    """A row for each way of reading, every way from an empty prefix cache on the same prompts."""
    ids = first_ids(bare)
    ways: dict[str, dict[str, Any]] = {
        ALONE: {},
        TWO_PASS: {},
        TOP: {"logprobs": 20},
        NAMED: {"logprob_token_ids": ids},
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, Found] = {name: [] for name in ways}
    for number in range(config.rounds + 1):
        given = candidates(f"{number}s", 1, config.candidates)
        prompts = bare.prompts(given[:WARM_UP] if number == 0 else given)
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            bare.forget()
            started = time.monotonic()
            outputs = bare.critiques(prompts, **ways[name])
            probs = read_by(name, bare, prompts, outputs)
            if number:
                seconds[name].append(time.monotonic() - started)
                found[name].extend(probs)
                done()
    return {"rows": rows(seconds, found)}


def read_by(
    name: str, bare: BareEngine, prompts: Sequence[list[int]], outputs: Sequence[Any]
) -> Found:
    """What one way knows of the slots of its critiques."""
    if name == ALONE:
        return [None] * len(outputs)
    slots = bare.slots(prompts, outputs)
    if name == TWO_PASS:
        reads, _ = bare.read(slots)
        return [{i: math.exp(p) for i, p in read[ROOT].items()} for read in reads]
    return [
        in_one_pass(slot, len(prompt), output.outputs[0])
        for slot, prompt, output in zip(slots, prompts, outputs, strict=True)
    ]


def first_ids(bare: BareEngine) -> list[int]:
    """The ids that begin a label at the slot of an empty answer."""
    labels = slot_of(bare.tokens, bare.format, [], NOTHING).labels
    return sorted({ids[0] for ids in labels.values()})


def in_one_pass(slot: Slot, prompt: int, own: Any) -> dict[int, float] | None:
    """The probabilities of the first label tokens among what came with the answer's own tokens.

    prompt: tokens of the prompt. own: a vLLM CompletionOutput. None without a slot of the judge's
    own, or where its tokens before the slot are not those that the second pass reads after.
    """
    before = slot.context[prompt:]
    at = len(before)
    if not slot.written or at >= len(own.token_ids) or list(own.token_ids[:at]) != before:
        return None
    told = own.logprobs[at]
    wanted = {ids[0] for ids in slot.labels.values()}
    return {i: math.exp(told[i].logprob) for i in wanted if i in told}


def rows(
    seconds: Mapping[str, Sequence[float]], found: Mapping[str, Found]
) -> list[dict[str, Any]]:
    """What each way took, how many slots it read, and how far it is from two passes.

    ratio: to critiques alone in the same round, the median over the rounds.
    """
    return [
        {
            "reading": name,
            "seconds": statistics.median(taken),
            "rounds_s": list(taken),
            "ratio": statistics.median(
                one / alone for one, alone in zip(taken, seconds[ALONE], strict=True)
            ),
            "judgements": len(found[name]),
            "slots": sum(probs is not None for probs in found[name]),
            "difference": largest_difference(found[name], found[TWO_PASS]),
        }
        for name, taken in seconds.items()
    ]


def largest_difference(one: Found, other: Found) -> float | None:
    """Over the tokens that both read at a slot; None if there is none."""
    apart = [
        abs(p - b[i])
        for a, b in zip(one, other, strict=True)
        if a is not None and b is not None
        for i, p in a.items()
        if i in b
    ]
    return max(apart, default=None)
