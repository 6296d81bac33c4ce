"""Groups of graded outputs to one instruction, which a judge is to order.

GPT-4 prefers the longer of two outputs in four of five pairs, so a judge that sees any pair learns
length. Within a group of nearly one length there is next to none to learn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field
from tqdm import tqdm

from autoj_reward.config import Block
from autoj_reward.data.graded import Graded, read_splits
from autoj_reward.data.labelled import Compared, JudgeData, data_path
from autoj_reward.errors import InputError
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField
from autoj_reward.io.rows import read_rows, require_clean
from autoj_reward.training.faults import faulty

SPREAD = 1.5
"""The best score of a group less its worst, at least: below that GPT-4 hardly prefers any."""
WORSE = 2.0
"""How far a faulty response is below the worst of its group, in graded scores."""
FAULTY = 0.3
"""Share of groups that get a faulty response beside their own."""
VALIDATED = 8
"""Outputs of an instruction in a validation."""


class GroupsConfig(Block):
    """Groups of graded outputs to one instruction.

    per_query: groups of an instruction. size: outputs of a group. ratio: tokens of its longest over
    its shortest, at most. any_length: share of the instructions whose groups have outputs of any
    lengths. longest: tokens of an output, at most. files: more groups, JSONL of `query`,
    `responses` and `scores` (log10 of a probability of being preferred; higher is better), which
    train only.
    """

    per_query: int = Field(3, ge=1)
    size: int = Field(4, ge=2)
    ratio: float = Field(1.3, ge=1)
    any_length: float = Field(0.0, ge=0, le=1)
    longest: int = Field(600, ge=1)
    files: tuple[str, ...] = ()


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
    """config: of the groups. count: tokens of a text."""

    config: GroupsConfig
    count: Callable[[str], int]

    def groups(self, row: Graded, others: Sequence[str], rng: random.Random) -> list[Ranked]:
        """At most config.per_query groups of an instruction, those with the widest scores of a
        random division. others: responses to other instructions."""
        own = self.config
        counted = [(self.count(o.text), o.system, o) for o in row.outputs if o.text.strip()]
        usable = [(n, output) for n, _, output in sorted(counted) if n <= own.longest]
        if any_length := own.any_length > 0 and rng.random() < own.any_length:
            rng.shuffle(usable)
        start = rng.randrange(own.size)
        windows = [
            usable[at : at + own.size] for at in range(start, len(usable) - own.size + 1, own.size)
        ]
        found = []
        for window in windows:
            scores = [output.score for _, output in window]
            near = any_length or window[-1][0] <= own.ratio * window[0][0] + 8
            if near and max(scores) - min(scores) >= SPREAD:
                texts = [output.text for _, output in window]
                found.append(Ranked(row.source, row.line, row.query, tuple(texts), tuple(scores)))
        found.sort(key=lambda group: max(group.scores) - min(group.scores), reverse=True)
        chosen = rng.sample(found[: 2 * own.per_query], min(own.per_query, len(found)))
        return [_with_fault(group, others, rng) for group in chosen]


def _group(line: int, value: Any) -> Ranked:
    """A row of a file of groups."""
    row = check.own_fields(value)
    responses = check.responses(row) or ()
    scores = check.numbers(row, "scores", len(responses)) or ()
    if len(scores) < 2:
        raise BadField("responses", "a group needs two or more, and their scores")
    return Ranked("", line, check.text(row, "query", blank=False), responses, scores)


def read_groups(source: str) -> list[Ranked]:
    """The groups of a file. Raises InputError for a file that is not of groups."""
    own = read_rows(source, _group, ("query", "responses", "scores"))
    require_clean(own)
    return [replace(group, source=source) for group in own.rows]


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
    data: JudgeData,
    groups: GroupsConfig,
    seed: int,
    count: Callable[[str], int],
    compared: Sequence[Compared],
) -> Iterator[tuple[bool, Ranked]]:
    """All groups of the files and of the graded outputs, True before those that validate.

    A validation group has no fault and any lengths. compared: pairs that train too. Raises
    InputError for a file that is not of groups.
    """
    if data.graded.folder is None:
        raise InputError("groups are of graded outputs: name their folder in data.graded")
    folder = data_path(data, data.graded.folder)
    rows_of = read_splits(folder, data.graded, (pair.query for pair in compared))
    for name in groups.files:
        for group in read_groups(data_path(data, name)):
            yield False, group
    rng = random.Random(seed)
    sampler = GroupSampler(groups, count)
    training = rows_of("training")
    others = [output.text for row in training for output in row.outputs[::8] if output.text.strip()]
    for row in tqdm(training, desc="graded instructions", disable=None):
        for group in sampler.groups(row, others, rng):
            yield False, group
    for row in rows_of("validation"):
        usable = [output for output in row.outputs if count(output.text) <= groups.longest]
        drawn = rng.sample(usable, min(VALIDATED, len(usable)))
        texts, scores = [output.text for output in drawn], [output.score for output in drawn]
        yield True, Ranked(row.source, row.line, row.query, tuple(texts), tuple(scores))
