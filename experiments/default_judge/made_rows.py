"""Training rows made with models: critiques by the judge itself, and groups with a weak policy.

Both keep a journal next to their output, so the same command resumes after a kill.

Critiques. A judge that learned to rate after other models' critiques relies on details that its own
critiques lack. `write_critiques` samples the judge on its training rows. Of each row it keeps the
critique that ended well and came nearest to the reference rating. It writes the critique with the
reference as its rating. The result is training rows in the published form. Held-out rows and
queries of `data.exclude` are never used.

Groups. Outputs of good systems do not show the faults of a small policy. `write_groups` samples the
policy on two kinds of queries and writes groups of responses with scores, as `groups.files` of a
judge's training reads them. On made questions, which a program checks, a group holds the policy's
responses, ordered by their checks. On training instructions of the graded outputs, a group holds
outputs of the systems, and below them one response of the policy.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import Block, JudgeConfig, PolicyConfig
from autoj_reward.data.graded import Graded, read_splits
from autoj_reward.data.labelled import (
    JudgeData,
    Rated,
    data_path,
    excluded_queries,
    is_held_out,
    rated_files,
    trained_pairs,
)
from autoj_reward.formats.read import WrittenVerdict
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import JudgeFormat, load_format, parse_rating
from autoj_reward.io.files import write_jsonl
from autoj_reward.journal import Journal, SampledResponses
from autoj_reward.models import format_and_wrapper
from autoj_reward.training.groups import WORSE
from autoj_reward.training.judge.sample import JOURNAL, sample_outputs
from autoj_reward.types import JudgeInput, Judgement
from experiments.compare.checkers import Checkable, grade_response, read_checkable
from experiments.compare.critique_health import examine
from experiments.compare.outputs import sample_queries


class OwnCritiquesConfig(Block):
    """Settings for sampling the judge's own critiques: the stage `critiques`."""

    output: Path
    """File of the training rows."""
    judge: JudgeConfig
    """Judge that writes the critiques."""
    samples: int = Field(2, ge=1, le=64)
    """Number of critiques for each row."""
    tolerance: float = Field(2.0, ge=0)
    """Largest difference between a critique's own rating and the reference, in rating points."""


async def write_critiques(config: OwnCritiquesConfig, data: JudgeData) -> str:
    """Sample critiques and write a training row for each rated row with a usable one.

    Returns the number of rows written, as text.
    """
    fmt = load_format(format_and_wrapper(config.judge)[0])
    rows = read_trainable_rows(data, fmt)
    items = [JudgeInput("single", row.query, (row.response,)) for row in rows]
    sampled = await sample_outputs(config.judge, items, config.samples, config.output, "critiques")
    choices = (
        choose_critique(*pair, fmt, config.tolerance) for pair in zip(rows, sampled, strict=True)
    )
    usable = [row for row in choices if row]
    write_jsonl(config.output, usable)
    return f"{len(usable)} of {len(rows)} rows with a usable critique: {config.output}"


def read_trainable_rows(data: JudgeData, fmt: JudgeFormat) -> list[Rated]:
    """Return the rated rows that may be trained on: not held out, and of no excluded query."""
    measured_queries = excluded_queries(data, fmt)
    return [
        row
        for _, rows in rated_files(data, fmt)
        for row in rows.rows
        if not is_held_out(row.query, data.held_out) and row.query not in measured_queries
    ]


def choose_critique(
    row: Rated, judgements: Iterable[Judgement], fmt: JudgeFormat, tolerance: float
) -> dict[str, Any] | None:
    """Return the training row with the critique nearest to the reference.

    None if none is usable.
    """
    prompt = render(JudgeInput("single", row.query, (row.response,)), fmt)[-1].text
    usable = []
    for judgement in judgements:
        parsed = parse_rating(judgement.critique, fmt)
        if not isinstance(parsed, WrittenVerdict) or judgement.rating is None or judgement.forced:
            continue
        health = examine(judgement.critique, prompt)
        if health.loops or health.copies or abs(parsed.rating - row.rating) > tolerance:
            continue
        expected = judgement.view("expected")
        near = abs((parsed.rating if expected is None else expected) - row.rating)
        usable.append((near, parsed.start, judgement.critique))
    if not usable:
        return None
    _, start, text = min(usable)
    target = text[:start] + f"{row.rating:g}" + text[start:].lstrip("0123456789.")
    return {"usrmsg": prompt, "target_output": target.rstrip(), "pred_score": f"{row.rating:g}"}


LOWEST = -4.0
"""Score of a response that fails every check. One that passes all scores 0."""
LEAST = 0.2
"""Minimum difference between a group's best and worst grade."""


class PolicyGroupsConfig(Block):
    """Settings for making groups with a policy's responses: the stage `groups`."""

    output: Path
    """File of the groups."""
    policy: PolicyConfig
    """Policy that is sampled."""
    questions: str
    """File of made questions with their checks."""
    instructions: int = Field(120, ge=0)
    """Number of graded instructions that are drawn."""
    size: int = Field(4, ge=2)
    """Number of responses in a group."""
    seed: int = 0
    """Seed of the draws."""


def make_spread_group(
    row: Checkable, samples: SampledResponses, size: int
) -> dict[str, Any] | None:
    """Return a group of the policy's responses to a question. None if their grades are too close.

    Duplicates are dropped. The group has the worst response, the best one and evenly spaced ones
    between.
    """
    graded_texts = sorted(
        (grade_response(text, row.checks), text) for text in set(samples.responses)
    )
    if len(graded_texts) < size or graded_texts[-1][0] - graded_texts[0][0] < LEAST:
        return None
    chosen_texts = [
        graded_texts[round(k * (len(graded_texts) - 1) / (size - 1))] for k in range(size)
    ]
    return {
        "query": row.query,
        "responses": [text for _, text in chosen_texts],
        "scores": [round(LOWEST * (1 - value), 3) for value, _ in chosen_texts],
    }


def make_group_below(
    row: Graded, samples: SampledResponses, size: int, rng: random.Random
) -> dict[str, Any] | None:
    """Return a group of systems' outputs with a lower-scored response of the policy.

    None if the policy gave no text or there are too few outputs.
    """
    weak = next((text for text in samples.responses if text.strip()), None)
    usable = [output for output in row.outputs if output.text.strip()]
    if weak is None or len(usable) < size - 1:
        return None
    outputs = rng.sample(usable, size - 1)
    scores = [output.score for output in outputs]
    return {
        "query": row.query,
        "responses": [*(output.text for output in outputs), weak],
        "scores": [*scores, min(scores) - WORSE],
    }


async def write_groups(config: PolicyGroupsConfig, data: JudgeData) -> str:
    """Sample the policy, and write the groups of all queries.

    Returns the number of groups, as text.
    """
    rng = random.Random(config.seed)
    questions = read_checkable(config.questions).rows
    graded = _read_training(data) if config.instructions else []
    instructions = rng.sample(graded, min(config.instructions, len(graded)))
    samples_by_query = await _sample_policy(
        config, [*(row.query for row in questions), *(row.query for row in instructions)]
    )
    possible_groups = [
        make_spread_group(row, samples, config.size)
        for row in questions
        if (samples := samples_by_query.get(row.query))
    ]
    possible_groups += [
        make_group_below(row, samples, config.size, rng)
        for row in instructions
        if (samples := samples_by_query.get(row.query))
    ]
    groups = [group for group in possible_groups if group]
    write_jsonl(config.output, groups)
    return f"{len(groups)} groups: {config.output}"


def _read_training(data: JudgeData) -> list[Graded]:
    """Return the graded instructions that may be trained on."""
    if data.graded.folder is None:
        return []
    pairs = trained_pairs(data, load_format("autoj-en"))
    folder, trained_queries = data_path(data, data.graded.folder), (pair.query for pair in pairs)
    return read_splits(folder, data.graded, trained_queries)("training")


async def _sample_policy(
    config: PolicyGroupsConfig, queries: Sequence[str]
) -> Mapping[str, SampledResponses]:
    journal = Journal(config.output.with_name(config.output.name + JOURNAL))
    with closing(journal):
        answers = await sample_queries(config.policy, queries, journal)
    for query, answer in answers.items():
        if not isinstance(answer, SampledResponses):
            print(f"left out: {query!r}: {answer}", file=sys.stderr)
    return {
        query: samples
        for query, samples in answers.items()
        if isinstance(samples, SampledResponses)
    }
