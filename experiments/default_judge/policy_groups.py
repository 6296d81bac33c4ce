"""Groups with a weak policy's own responses, to train a judge's order on.

Outputs of good systems do not show what a small policy does wrong. This samples the policy on two
kinds of queries and writes groups of responses with scores, as `groups.files` of a judge's training
reads them. On made questions, which a program checks, a group is the policy's responses ordered by
their checks; on training instructions of the graded outputs, one response of the policy below
outputs of the systems. The journal beside the output makes the same command go on after a kill.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import Block, PolicyConfig
from autoj_reward.data.graded import Graded, read_splits
from autoj_reward.data.labelled import JudgeData, data_path, pairs_of
from autoj_reward.formats.schema import load_format
from autoj_reward.io.files import write_jsonl
from autoj_reward.journal import Journal, Sampled
from autoj_reward.training.groups import WORSE
from experiments.compare.ablation.checkers import Checkable, grade, read_checkable
from experiments.compare.ablation.gather import sampled_responses

LOWEST = -4.0
"""The score of a response that fails every check; one that passes all has 0."""
LEAST = 0.2
"""The best grade of a group less its worst, at least."""


class PolicyGroupsConfig(Block):
    """questions: file of made questions with their checks. instructions: graded ones, drawn.
    size: responses of a group. output: the file of groups."""

    output: Path
    policy: PolicyConfig
    questions: str
    instructions: int = Field(120, ge=0)
    size: int = Field(4, ge=2)
    seed: int = 0


def spread(row: Checkable, sampled: Sampled, size: int) -> dict[str, Any] | None:
    """A group of the policy's responses to one question: of the different ones the worst, the best
    and between them evenly; None where they are graded alike."""
    graded = sorted((grade(text, row.checks), text) for text in set(sampled.responses))
    if len(graded) < size or graded[-1][0] - graded[0][0] < LEAST:
        return None
    chosen = [graded[round(k * (len(graded) - 1) / (size - 1))] for k in range(size)]
    return {
        "query": row.query,
        "responses": [text for _, text in chosen],
        "scores": [round(LOWEST * (1 - value), 3) for value, _ in chosen],
    }


def below(row: Graded, sampled: Sampled, size: int, rng: random.Random) -> dict[str, Any] | None:
    """Systems' outputs and a response of the policy that is below all of them; None without."""
    weak = next((text for text in sampled.responses if text.strip()), None)
    usable = [output for output in row.outputs if output.text.strip()]
    if weak is None or len(usable) < size - 1:
        return None
    drawn = rng.sample(usable, size - 1)
    scores = [output.score for output in drawn]
    return {
        "query": row.query,
        "responses": [*(output.text for output in drawn), weak],
        "scores": [*scores, min(scores) - WORSE],
    }


async def write_groups(config: PolicyGroupsConfig, data: JudgeData) -> str:
    """Sample the policy, make the groups of all queries, and write them. Return what was written in
    words."""
    rng = random.Random(config.seed)
    made = read_checkable(config.questions).rows
    graded = _training(data) if config.instructions else []
    drawn = rng.sample(graded, min(config.instructions, len(graded)))
    sampled = await _sampled(config, [*(row.query for row in made), *(row.query for row in drawn)])
    found = [spread(row, own, config.size) for row in made if (own := sampled.get(row.query))]
    found += [below(row, own, config.size, rng) for row in drawn if (own := sampled.get(row.query))]
    groups = [group for group in found if group]
    write_jsonl(config.output, groups)
    return f"{len(groups)} groups: {config.output}"


def _training(data: JudgeData) -> list[Graded]:
    """The graded instructions that may be trained on."""
    if data.graded.folder is None:
        return []
    pairs = pairs_of(data, data.compared, load_format("autoj-en"))
    folder, trained = data_path(data, data.graded.folder), (pair.query for pair in pairs)
    return read_splits(folder, data.graded, trained)("training")


async def _sampled(config: PolicyGroupsConfig, queries: Sequence[str]) -> Mapping[str, Sampled]:
    kept = Journal(config.output.with_name(config.output.name + ".journal.sqlite"))
    with closing(kept):
        answers = await sampled_responses(config.policy, queries, kept)
    for query, answer in answers.items():
        if not isinstance(answer, Sampled):
            print(f"left out: {query!r}: {answer}", file=sys.stderr)
    return {query: own for query, own in answers.items() if isinstance(own, Sampled)}
