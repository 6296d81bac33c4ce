"""Graded responses to queries: outputs of many systems, or candidates sampled from a policy."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import Field
from tqdm import tqdm

from autoj_reward.config import Block, PolicyConfig
from autoj_reward.conversation import Prompt
from autoj_reward.data.graded import Graded, GradedOutput, read_splits
from autoj_reward.data.labelled import JudgeData, Rated, data_path, trained_pairs
from autoj_reward.errors import InputError
from autoj_reward.evaluate.statistics import Draws
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.io.rows import require_usable
from autoj_reward.journal import Journal, SampledResponses
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.replicas.replica import policy_name
from autoj_reward.types import BadRow, JudgeInput
from experiments.compare.checkers import grade_response, read_checkable
from rollouts.best_of_n.sampling import Sampler

Values = Sequence[float | None]
"""Number that a rater gives to every response or row; None where it abstained."""


class OrderedConfig(Block):
    """Selection of graded outputs for the part `ordered`, from `data.graded`."""

    split: Literal["validation", "test"] = "test"
    """Instructions that measure. Make choices on `validation`, and report `test` once."""
    instructions: int = Field(40, ge=2)
    """Number of instructions drawn."""
    systems: int = Field(32, ge=2)
    """Number of systems drawn for each instruction, first those that no training used."""
    rival_rows: int = Field(3000, ge=10)
    """Number of outputs to training instructions drawn for fitting the rivals."""
    critique: bool = False
    """Whether the expected rating after a critique is measured too."""


class CandidatesConfig(Block):
    """Candidates of a policy for the part `candidates`."""

    queries: str
    """File of queries with the checks that grade a response."""
    policy: PolicyConfig
    """Policy that samples the candidates."""
    critique: bool = False
    """Whether the expected rating after a critique is measured too."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Graded responses that measure raters."""

    graded: tuple[Graded, ...]
    """Responses that measure, by query."""
    fitted: tuple[Rated, ...] = ()
    """Rows for fitting rivals. Their rating is the score less the instruction's mean score."""
    unseen: tuple[str, ...] = ()
    """Systems that no judge was trained on."""
    draws: Draws = field(default_factory=Draws)
    """Resamples of the intervals."""
    logprobs: Values = ()
    """Log-probability of each candidate under its policy, in nats. Empty for outputs of systems."""

    def make_inputs(self) -> list[JudgeInput]:
        """Return a judge input for each response that measures."""
        return [
            JudgeInput("single", row.query, (o.text,)) for row in self.graded for o in row.outputs
        ]


def read_graded_outputs(
    data: JudgeData,
    selection: OrderedConfig,
    fmt: JudgeFormat,
    draws: Draws,
    limit: int | None = None,
) -> Outputs:
    """Return the outputs that a config selects; none without `data.graded`.

    `limit` is a maximum number of instructions.
    """
    if data.graded.folder is None:
        return Outputs(())
    trained_queries = [pair.query for pair in trained_pairs(data, fmt)]
    rows_of = read_splits(data_path(data, data.graded.folder), data.graded, trained_queries)
    rng = random.Random(draws.seed)
    unseen = getattr(data.graded, f"{selection.split}_systems")
    measuring_rows = rows_of(selection.split)
    chosen_rows = rng.sample(
        measuring_rows, min(limit or selection.instructions, len(measuring_rows))
    )
    drawn_rows = []
    for row in chosen_rows:
        preferred = sorted(row.outputs, key=lambda o: (o.system not in unseen, rng.random()))
        drawn_rows.append(replace(row, outputs=tuple(preferred[: selection.systems])))
    training = make_rated_rows(rows_of("training"))
    fitted_rows = rng.sample(training, min(selection.rival_rows, len(training)))
    return Outputs(tuple(drawn_rows), tuple(fitted_rows), unseen, draws)


def make_rated_rows(rows: Sequence[Graded]) -> list[Rated]:
    """Return every output as a rated row.

    The rating is its score less the instruction's mean score.
    """
    rated_rows = []
    for row in rows:
        mean = sum(output.score for output in row.outputs) / len(row.outputs)
        rated_rows += [
            Rated(row.source, row.line, row.query, output.text, output.score - mean)
            for output in row.outputs
        ]
    return rated_rows


async def sample_candidates(
    config: CandidatesConfig, journal: Journal, draws: Draws, limit: int | None = None
) -> tuple[Outputs, list[BadRow]]:
    """Sample candidates for every query and grade them, 0..1.

    Also return the rows that were left out.

    `limit` is a maximum number of queries. Raises InputError if fewer than two queries have
    candidates.
    """
    checkable = read_checkable(config.queries)
    require_usable(checkable, config.queries)
    rows, bad = checkable.rows[:limit], list(checkable.bad)
    samples = await sample_queries(config.policy, [row.query for row in rows], journal)
    graded, logprobs = list[Graded](), list[float | None]()
    for row in rows:
        sample = samples[row.query]
        if isinstance(sample, str):
            bad.append(BadRow(config.queries, row.line, "query", sample))
            continue
        outputs = tuple(
            GradedOutput("policy", text, grade_response(text, row.checks))
            for text in sample.responses
        )
        graded.append(Graded(config.queries, row.line, row.query, outputs))
        logprobs += sample.logprobs
    if len(graded) < 2:
        raise InputError(
            f"{config.queries}: {len(graded)} queries with candidates, and an interval over "
            "queries needs two"
        )
    return Outputs(tuple(graded), draws=draws, logprobs=logprobs), bad


async def sample_queries(
    policy: PolicyConfig, queries: Sequence[str], journal: Journal
) -> Mapping[str, SampledResponses | str]:
    """Return policy.n responses to every query, or the reason why there are none."""
    cluster = Cluster()
    try:
        with tqdm(total=len(queries) * policy.n, desc="sampling", unit="response") as bar:
            sampler = Sampler(policy, journal, cluster, bar.update)
            failed = await sampler.sample_all(map(Prompt, queries))
    finally:
        cluster.close()
    name = policy_name(policy)
    samples = {query: journal.get_samples(name, query) for query in queries}
    return {query: responses or failed[Prompt(query)] for query, responses in samples.items()}
