"""Judging work for speed tests: made texts, cost of a piece of work, and sides that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from string import ascii_lowercase
from typing import TypeVar

from tqdm import tqdm

from autoj_reward.client.client import JudgeClient
from autoj_reward.types import Candidate, Usage

QUESTIONS = (
    "How do I keep basil alive on a kitchen window sill in winter?",
    "Explain to a ten-year-old why the moon changes its shape.",
    "What should I check before I buy a used bicycle?",
    "How can a small office halve the paper that it prints?",
)
"""Questions of the queries."""
BACKGROUND = (
    "I have asked two friends, and each of them told me something else. "
    "There is no hurry, and it need not be perfect, but I would like to understand the reason. "
    "Last year I tried what a neighbour had advised, and after three weeks nothing was left of it. "
    "We live on the second floor, the rooms are dry, and the heating runs from October to April. "
    "Money matters a little, time matters more, and nobody here has done this before. "
    "Please keep to what can be done at home with ordinary tools. "
)
"""Text that fills a query up to its length."""
SENTENCES = (
    "Put the pot where it gets the most light. ",
    "Water it only when the top of the soil feels dry. ",
    "The sun lights one half, and we see a different part of that half each night. ",
    "It is a matter of light and of patience. ",
    "Turn it a little every day. ",
)
"""Sentences of the responses."""
WARM_UP = 4
"""Number of candidates that each side judges before it is measured."""


def made_candidates(mark: str, queries: int, count: int, words: int = 0) -> list[Candidate]:
    """Return `count` responses of different lengths to each of `queries` queries.

    Every query begins with `mark`, so pieces of work with different marks share only the template
    as a prefix. A query has `words` words, filled up with background text, but at least its
    question.
    """
    candidates = []
    for number, question in zip(range(queries), cycle(QUESTIONS), strict=False):
        question_words = f"{mark}{number}: {question}".split()
        filler = islice(cycle(BACKGROUND.split()), max(0, words - len(question_words)))
        query = " ".join([*question_words, *filler])
        for n in range(count):
            response = "".join(SENTENCES[: 1 + n % 5]) * (1 + n % 4)
            candidates.append(Candidate(query, f"Answer {n}. {response}"))
    return candidates


@dataclass(frozen=True, slots=True)
class SideRound:
    """Cost of a piece of work for one side."""

    seconds: float
    """Wall time."""
    judgements: int
    rated: int
    """Number of judgements with a rating."""
    usage: Usage
    critiques_s: float | None = None
    """Seconds until all critiques were written. None if they are not timed apart from the rating
    slots."""


Side = Callable[[list[Candidate]], Awaitable[SideRound]]
"""Function that judges candidates and returns the cost."""


def make_client_side(client: JudgeClient) -> Side:
    """Return a side that sends all candidates to a client at once."""

    async def judge(candidates: list[Candidate]) -> SideRound:
        started = time.monotonic()
        judgements = await client.rate(candidates)
        seconds = time.monotonic() - started
        usage = sum((j.usage for j in judgements), Usage())
        return SideRound(seconds, len(judgements), sum(j.ok for j in judgements), usage)

    return judge


T = TypeVar("T")


def turns(names: Iterable[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield (round, name) pairs. Each round has all names and begins with another one."""
    name_list = list(names)
    for number in range(rounds):
        for k in range(len(name_list)):
            yield number, name_list[(number + k) % len(name_list)]


def ratio_by_round(ones: Iterable[float], others: Iterable[float]) -> float:
    """Return the median over rounds of one figure divided by the other."""
    return statistics.median(
        value / other_value for value, other_value in zip(ones, others, strict=True)
    )


async def alternate(
    sides: Mapping[str, Side], rounds: int, piece: Callable[[str], list[Candidate]]
) -> dict[str, list[SideRound]]:
    """Return the cost of each side in each round, with the sides in turn.

    `piece` makes the work for a mark. Every side gets its own mark in every round, so that no work
    is found in a shared prefix cache.
    """
    letters = dict(zip(sides, ascii_lowercase, strict=False))
    for name, side in sides.items():
        await side(piece(f"0{letters[name]}")[:WARM_UP])
    side_rounds: dict[str, list[SideRound]] = {name: [] for name in sides}
    for number, name in tqdm(list(turns(sides, rounds)), desc="measuring", unit="piece"):
        side_rounds[name].append(await sides[name](piece(f"{number + 1}{letters[name]}")))
    return side_rounds
