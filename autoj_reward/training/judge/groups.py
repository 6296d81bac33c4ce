"""Groups of graded outputs to one instruction, of nearly one length, which a judge is to order.

GPT-4 prefers the longer of two outputs in four of five pairs, so a judge that sees any pair learns
length. Within a group there is next to no length to learn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tqdm import tqdm

from autoj_reward.errors import InputError
from autoj_reward.evaluate.graded import Graded, plain_words, read_graded, rows_of
from autoj_reward.evaluate.labelled import Compared, data_path
from autoj_reward.training.judge.faults import faulty
from autoj_reward.training.judge.recipe import TrainJudgeConfig

SPREAD = 1.5
"""The best score of a group less its worst, at least: below that GPT-4 hardly prefers any."""
WORSE = 2.0
"""How far a faulty response is below the worst of its group, in graded scores."""
FAULTY = 0.3
"""Share of groups that get a faulty response beside their own."""
VALIDATED = 8
"""Outputs of an instruction in a validation."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """Responses to one query, and the scores that order them: log10 of a probability."""

    source: str
    line: int
    query: str
    responses: tuple[str, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GroupSampler:
    """size: outputs of a group. ratio: the longest output over the shortest, at most, in tokens.
    longest: tokens of an output, at most. count: tokens of a text."""

    size: int
    ratio: float
    longest: int
    count: Callable[[str], int]

    def groups(
        self, row: Graded, per_query: int, others: Sequence[str], rng: random.Random
    ) -> list[Ranked]:
        """At most `per_query` groups of an instruction, those with the widest scores of a random
        division. others: responses to other instructions."""
        counted = [(self.count(o.text), o.system, o) for o in row.outputs if o.text.strip()]
        usable = [(n, output) for n, _, output in sorted(counted) if n <= self.longest]
        start = rng.randrange(self.size)
        windows = [
            usable[at : at + self.size]
            for at in range(start, len(usable) - self.size + 1, self.size)
        ]
        found = []
        for window in windows:
            scores = [output.score for _, output in window]
            near = window[-1][0] <= self.ratio * window[0][0] + 8
            if near and max(scores) - min(scores) >= SPREAD:
                texts = [output.text for _, output in window]
                found.append(Ranked(row.source, row.line, row.query, tuple(texts), tuple(scores)))
        found.sort(key=lambda group: max(group.scores) - min(group.scores), reverse=True)
        chosen = rng.sample(found[: 2 * per_query], min(per_query, len(found)))
        return [_with_fault(group, others, rng) for group in chosen]


def longer_wins(groups: Sequence[Ranked], count: Callable[[str], int]) -> float:
    """Share of the groups' pairs whose longer response has the higher score; 0.5 is no trap."""
    won, pairs = 0.0, 0
    for group in groups:
        rows = sorted(zip(map(count, group.responses), group.scores, strict=True))
        for (short, low), (long, high) in pairwise(rows):
            if short != long and low != high:
                won += high > low
                pairs += 1
    return won / pairs if pairs else 0.5


def _with_fault(group: Ranked, others: Sequence[str], rng: random.Random) -> Ranked:
    if rng.random() >= FAULTY:
        return group
    good = max(zip(group.scores, group.responses, strict=True))[1]
    bad = faulty(group.query, good, others, rng)
    return Ranked(
        group.source, group.line, group.query,
        (*group.responses, bad), (*group.scores, min(group.scores) - WORSE),
    )  # fmt: skip


def ranked_groups(
    config: TrainJudgeConfig, count: Callable[[str], int], compared: Sequence[Compared]
) -> Iterator[tuple[bool, Ranked]]:
    """All groups of the config's graded outputs, True before those that validate.

    A validation group has no fault and any lengths. compared: pairs that train too.
    """
    data, groups = config.data, config.groups
    if data.graded.folder is None:
        raise InputError("mix.ranked shows graded outputs: name their folder in data.graded")
    rows = read_graded(data_path(data, data.graded.folder))
    trained = {plain_words(pair.query) for pair in compared}
    rng = random.Random(config.seed)
    sampler = GroupSampler(groups.size, groups.ratio, groups.longest, count)
    training = rows_of(rows, data.graded, "training", trained)
    others = [output.text for row in training for output in row.outputs[::8] if output.text.strip()]
    for row in tqdm(training, desc="graded instructions", disable=None):
        for group in sampler.groups(row, groups.per_query, others, rng):
            yield False, group
    for row in rows_of(rows, data.graded, "validation", trained):
        usable = [output for output in row.outputs if count(output.text) <= groups.longest]
        drawn = rng.sample(usable, min(VALIDATED, len(usable)))
        texts, scores = [output.text for output in drawn], [output.score for output in drawn]
        yield True, Ranked(row.source, row.line, row.query, tuple(texts), tuple(scores))
