"""Groups of graded outputs to one instruction, from which a judge learns their order.

GPT-4 prefers the longer of two outputs in four of five pairs, so a judge trained on random pairs
learns length. In a group of nearly equal lengths there is almost no length to learn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import Field
from tqdm import tqdm

from autoj_reward.config import Block
from autoj_reward.data.graded import Graded, read_splits
from autoj_reward.data.labelled import Compared, JudgeData, data_path
from autoj_reward.errors import InputError
from autoj_reward.io import checks as check
from autoj_reward.io.candidates import naming_layout, prompt_of_row, refuse_media, response_of_row
from autoj_reward.io.checks import BadField
from autoj_reward.io.items import Item
from autoj_reward.io.layouts import GROUP
from autoj_reward.io.reader import read_items
from autoj_reward.io.rows import read_all, require_clean

SPREAD = 1.5
"""Minimum difference of a group's best and worst score; below it GPT-4 hardly prefers any."""
WORSE = 2.0
"""Difference of the worst score of a group and the score of its faulty response."""
FAULTY = 0.3
"""Share of groups that get a faulty response added."""
VALIDATED = 8
"""Maximum number of outputs in a validation group."""
UNIT = re.compile(r"[^.!?\n]+[.!?\n]*")


class GroupsConfig(Block):
    """Groups of graded outputs to one instruction."""

    per_query: int = Field(3, ge=1)
    """Maximum number of groups per instruction."""
    size: int = Field(4, ge=2)
    """Number of outputs in a group."""
    ratio: float = Field(1.3, ge=1)
    """Maximum ratio of a group's longest output to its shortest, in tokens."""
    any_length: float = Field(0.0, ge=0, le=1)
    """Share of instructions whose groups ignore `ratio`."""
    longest: int = Field(600, ge=1)
    """Maximum length of an output in tokens."""
    files: tuple[str, ...] = ()
    """More groups, which train only: JSONL of `query`, `responses` and `scores` (log10 of a
    probability of being preferred; higher is better)."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """Responses to one query with their scores (log10 of a probability of being preferred)."""

    source: str
    line: int
    query: str
    responses: tuple[str, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GroupSampler:
    """Sampler of groups from the graded outputs to an instruction."""

    config: GroupsConfig
    count: Callable[[str], int]
    """Returns the number of tokens of a text."""

    def groups(self, row: Graded, others: Sequence[str], rng: random.Random) -> list[Ranked]:
        """Return at most `per_query` groups of an instruction.

        The outputs, sorted by length, are divided at a random offset. Groups are drawn from those
        with the widest range of scores, and some get a faulty response. others: responses to other
        instructions, for the fault `off_topic`.
        """
        config = self.config
        counted_outputs = [(self.count(o.text), o.system, o) for o in row.outputs if o.text.strip()]
        usable = [(n, output) for n, _, output in sorted(counted_outputs) if n <= config.longest]
        if any_length := config.any_length > 0 and rng.random() < config.any_length:
            rng.shuffle(usable)
        start = rng.randrange(config.size)
        windows = [
            usable[at : at + config.size]
            for at in range(start, len(usable) - config.size + 1, config.size)
        ]
        groups = []
        for window in windows:
            scores = [output.score for _, output in window]
            near = any_length or window[-1][0] <= config.ratio * window[0][0] + 8
            if near and max(scores) - min(scores) >= SPREAD:
                texts = [output.text for _, output in window]
                groups.append(Ranked(row.source, row.line, row.query, tuple(texts), tuple(scores)))
        groups.sort(key=lambda group: max(group.scores) - min(group.scores), reverse=True)
        chosen_groups = rng.sample(
            groups[: 2 * config.per_query], min(config.per_query, len(groups))
        )
        return [_add_fault(group, others, rng) for group in chosen_groups]


def read_groups(source: str) -> list[Ranked]:
    """Read the groups of a file. Raises InputError if a row is not a group."""

    def build(item: Item) -> Ranked:
        refuse_media(item, "trainings")
        query = prompt_of_row(item).text
        responses = [response_of_row(item, n).text for n in range(len(item.responses))]
        scores = check.numbers(item.fields, item.found_at("scores"), len(responses))
        if scores is None:
            raise BadField("scores", "a group needs two or more, and their scores")
        return Ranked(source, item.line, query, tuple(responses), scores)

    rows = read_all(read_items(source, GROUP).mapped(naming_layout(build)))
    require_clean(rows)
    return list(rows.rows)


def _add_fault(group: Ranked, others: Sequence[str], rng: random.Random) -> Ranked:
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
    """Yield (is validation, group) for all groups of the files and of the graded outputs.

    A validation group has no faulty response and outputs of any length up to `longest`. compared:
    pairs that are trained on too. count: returns the number of tokens of a text. Raises InputError
    without a graded folder, or if a file holds a row that is not a group.
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
        sample = rng.sample(usable, min(VALIDATED, len(usable)))
        texts, scores = [output.text for output in sample], [output.score for output in sample]
        yield True, Ranked(row.source, row.line, row.query, tuple(texts), tuple(scores))


def loop(text: str, rng: random.Random) -> str:
    """Return the text's beginning with its last sentence repeated to about the original length."""
    units: list[str] = UNIT.findall(text) or [text]
    at = rng.randrange(max(1, len(units) // 2))
    start = "".join(units[:at])
    unit = units[at] if units[at].endswith(("\n", " ")) else units[at] + " "
    return (start + unit * (2 + (len(text) - len(start)) // len(unit))).rstrip()


def break_off(text: str, rng: random.Random) -> str:
    """Return the first part of the text, ending inside a word or sentence."""
    part = text[: max(1, round(len(text) * rng.uniform(0.25, 0.7)))]
    return part.rstrip(" .!?\n") or part


def shuffle_words(text: str, rng: random.Random) -> str:
    """Return the words of the text in random order."""
    words = text.split()
    rng.shuffle(words)
    return " ".join(words)


def scramble_words(text: str, rng: random.Random) -> str:
    """Return the text with the letters of each word in random order."""
    return " ".join("".join(rng.sample(word, len(word))) for word in text.split())


def echo(query: str, text: str) -> str:
    """Return the query repeated to about the length of the text."""
    return "\n".join([query.strip()] * (1 + len(text) // (len(query) + 1)))


FAULTS: dict[str, Callable[[str, random.Random], str]] = {
    "loop": loop,
    "broken_off": break_off,
    "shuffled": shuffle_words,
    "scrambled": scramble_words,
}


def faulty(query: str, text: str, others: Sequence[str], rng: random.Random) -> str:
    """Return a faulty response to the query, worse than the good response `text`.

    One fault of weak policies is drawn: one of FAULTS, the query repeated, or the response in
    `others` (to other queries) nearest in length. `text` must not be blank.
    """
    kind = rng.choice([*FAULTS, "echo", "off_topic"])
    if kind == "echo":
        return echo(query, text)
    if kind == "off_topic":
        return min(others, key=lambda other: abs(len(other) - len(text)))
    return FAULTS[kind](text, rng)
