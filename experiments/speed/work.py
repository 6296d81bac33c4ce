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

from autoj_reward.client.client import RewardClient
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
    found = []
    for number, question in zip(range(queries), cycle(QUESTIONS), strict=False):
        own = f"{mark}{number}: {question}".split()
        more = islice(cycle(BACKGROUND.split()), max(0, words - len(own)))
        query = " ".join([*own, *more])
        for n in range(count):
            response = "".join(SENTENCES[: 1 + n % 5]) * (1 + n % 4)
            found.append(Candidate(query, f"Answer {n}. {response}"))
    return found


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


def by_client(client: RewardClient) -> Side:
    """Return a side that sends all candidates to a client at once."""

    async def judge(given: list[Candidate]) -> SideRound:
        started = time.monotonic()
        found = await client.rate(given)
        seconds = time.monotonic() - started
        usage = sum((j.usage for j in found), Usage())
        return SideRound(seconds, len(found), sum(j.ok for j in found), usage)

    return judge


T = TypeVar("T")


def turns(names: Iterable[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield (round, name) pairs. Each round has all names and begins with another one."""
    known = list(names)
    for number in range(rounds):
        for k in range(len(known)):
            yield number, known[(number + k) % len(known)]


def ratio_by_round(ones: Iterable[float], others: Iterable[float]) -> float:
    """Return the median over rounds of one figure divided by the other."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


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
    found: dict[str, list[SideRound]] = {name: [] for name in sides}
    for number, name in tqdm(list(turns(sides, rounds)), desc="measuring", unit="piece"):
        found[name].append(await sides[name](piece(f"{number + 1}{letters[name]}")))
    return found
