"""Stages of a best-of-N job: sample, judge and select, on all rows of the input or on a shard."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from autoj_reward.client.in_flight import Progress, run_in_order
from autoj_reward.client.judging import open_ask
from autoj_reward.config import (
    BestOfNConfig,
    RelativeConfig,
    RubricConfig,
    Scoring,
    View,
)
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import ScalarFormat
from autoj_reward.io.candidates import queries
from autoj_reward.io.rows import BadRows, QueryRow, Stream
from autoj_reward.journal import Journal, SampledResponses
from autoj_reward.logs import announce
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.choose import Choose, critique_view, require_direct
from autoj_reward.questions.listwise import Listwise
from autoj_reward.questions.relative import rank_question
from autoj_reward.questions.rubric import rubric_question
from autoj_reward.questions.tie_break import choose
from autoj_reward.questions.tournament import Tournament
from autoj_reward.types import (
    BadRow,
    Candidate,
    Judgement,
    Outcome,
    QueryOrTurns,
    Selection,
    Usage,
)
from rollouts.best_of_n.results import GroupResult
from rollouts.best_of_n.sampling import JobSchedule, Sampled

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Job:
    """A best-of-N job with its config resolved."""

    config: BestOfNConfig
    """Config in which `view: auto` is resolved."""
    judge: JudgeSpec
    """The judge, with the readings that this view needs."""

    @property
    def view(self) -> View:
        """Return the view that ranks the candidates."""
        assert self.config.view != "auto"
        return self.config.view


def resolve_job(config: BestOfNConfig) -> Job:
    """Resolve the config of a job.

    Raises ConfigError or FormatError if the judge cannot do the job.
    """
    judge = judge_spec(config.judge)
    if config.shortlist is not None and isinstance(judge.format, ScalarFormat):
        raise ConfigError("shortlist saves critiques, and a scalar model writes none: leave it out")
    if config.scoring:
        judge = judge.that_scores(config.scoring)
        return Job(config.model_copy(update={"view": "rating", "judge": judge.config}), judge)
    view = resolve_view(config.view, "choose", judge.preferred)
    judge = judge.that_reads(critique_view(view, config.shortlist), "choose", config.tie_break)
    return Job(config.model_copy(update={"view": view, "judge": judge.config}), judge)


def rows_of(job: Job, say: Callable[[str], object] = announce) -> Stream[QueryRow]:
    """Return the rows of the input, with the context fields that the judge's prompts show.

    say: gets one line that tells how the rows are read.
    """
    config = job.config
    kind = None if "pairwise" in config.tie_break else "single"
    if config.scoring:
        kind = config.scoring.protocol
    columns = job.judge.context_columns(config.columns, kind, config.rubric)
    answered = config.policy is None
    return queries(config.input, columns, answered, config.columns, config.layout, say)


def unanswered_queries(rows: Stream[QueryRow]) -> Iterator[QueryOrTurns]:
    """Yield the queries of the rows without responses."""
    return (row.asked for row in rows.usable() if row.responses is None)


async def judge_rows(
    job: Job,
    rows: Stream[QueryRow],
    schedule: JobSchedule,
    journal: Journal,
    cluster: Cluster | None,
    progress: Progress,
    add: Callable[[GroupResult], None],
    left_out: BadRows,
    say: Callable[[str], object] = announce,
) -> None:
    """Judge the candidates of every row and choose one of them.

    schedule: samples the responses to a query without any. The row is judged as soon as they are
        there. It is added to `left_out` if there are none.
    add: gets the results in input order. say: gets one line that describes the judge in use.
    """

    def require(views: frozenset[View]) -> None:
        if job.config.shortlist is not None:
            require_direct(views)
        if job.config.scoring is None:
            resolve_view(job.view, "choose", None, views)

    scoring = job.config.scoring
    async with open_ask(
        job.judge,
        journal,
        view=None if scoring else job.view,
        require=require,
        scoring=scoring,
        progress=progress,
        cluster=cluster,
        say=say,
        early=schedule.early,
    ) as ask:

        async def judge_row(row: QueryRow) -> GroupResult | BadRow:
            if row.responses is not None:
                if schedule.free:
                    await schedule.free()
                samples: Sampled = SampledResponses(row.responses, row.logprobs or (), (), 0)
            else:
                samples = await schedule.sample(row.asked)
            if isinstance(samples, str):
                return BadRow(rows.name, row.line, "query", samples)
            return await _select(job, ask, row, _make_candidates(row, samples))

        def record(result: GroupResult | BadRow) -> None:
            left_out.add(result) if isinstance(result, BadRow) else add(result)

        response_count = job.config.policy.n if job.config.policy else 1
        await run_in_order(
            rows.usable(),
            judge_row,
            record,
            size=lambda row: len(row.responses or ()) or response_count,
        )


def _make_candidates(row: QueryRow, samples: SampledResponses) -> tuple[Candidate, ...]:
    logprobs = samples.logprobs or (None,) * len(samples.responses)
    pairs = zip(samples.responses, logprobs, strict=True)
    return tuple(Candidate(row.query, r, lp, str(row.line), row.context) for r, lp in pairs)


async def _select(
    job: Job, ask: Ask, row: QueryRow, candidates: tuple[Candidate, ...]
) -> GroupResult:
    if job.config.relative:
        return await _rank(job, job.config.relative, ask, row, candidates)
    if job.config.rubric:
        return await _score(job, job.config.rubric, ask, row, candidates)
    question = Choose(
        tuple(candidate.for_judge(job.judge.shows) for candidate in candidates),
        view=job.view,
        rules=job.config.tie_break,
        critiques=job.judge.critiques,
        vote=job.judge.vote,
        compares=job.judge.compares,
        tie=job.judge.ratings_tie,
        shortlist=job.config.shortlist,
    )
    choice = await question.answer(ask)
    return GroupResult(
        row, candidates, choice.judgements, choice.selection, shortlist=choice.shortlist
    )


async def _rank(
    job: Job, relative: RelativeConfig, ask: Ask, row: QueryRow, candidates: tuple[Candidate, ...]
) -> GroupResult:
    """Judge the candidates relative to each other and choose the one with the highest score."""
    if len(candidates) == 1:
        reason = "a lone response: there is nothing to judge it beside"
        judgement = Judgement(Outcome.INPUT_REJECTED, reason=reason)
        return GroupResult(row, candidates, (judgement,), Selection(0, "only"))
    ranking = await _make_rank_question(job.judge, relative, candidates).answer(ask)
    judgements = tuple(ranking.as_judgements())
    chosen = await choose(candidates, judgements, view="rating", rules=job.config.tie_break)
    rule = "relative" if chosen.rule == "rating" else chosen.rule
    return GroupResult(row, candidates, judgements, replace(chosen, rule=rule), ranking=ranking)


async def _score(
    job: Job, rubric: RubricConfig, ask: Ask, row: QueryRow, candidates: tuple[Candidate, ...]
) -> GroupResult:
    """Score the candidates by the row's rubric and choose the one with the highest score."""
    questions = [rubric_question(candidate, rubric, job.judge) for candidate in candidates]
    scores = tuple(await asyncio.gather(*(question.answer(ask) for question in questions)))
    judgements = tuple(score.as_judgement() for score in scores)
    chosen = await choose(candidates, judgements, view="rating", rules=job.config.tie_break)
    rule = "rubric" if chosen.rule == "rating" else chosen.rule
    return GroupResult(row, candidates, judgements, replace(chosen, rule=rule), rubrics=scores)


def _make_rank_question(
    judge: JudgeSpec, relative: RelativeConfig, candidates: Sequence[Candidate]
) -> Listwise | Tournament:
    shown_candidates = [candidate.for_judge(judge.shows) for candidate in candidates]
    return rank_question(
        shown_candidates,
        relative,
        max_group=judge.max_group,
        scale=judge.scale,
        tie=judge.ratings_tie,
    )


def _count_most_inputs(job: Job, scoring: Scoring, row: QueryRow) -> int:
    """Return the largest number of judge inputs of a row that is scored in place of a view.

    Responses to be sampled are taken as distinct.
    """
    policy = job.config.policy
    texts = row.responses or map(str, range(policy.n if policy else 0))
    candidates = [Candidate(row.query, text, context=row.context) for text in texts]
    if isinstance(scoring, RubricConfig):
        return sum(
            rubric_question(candidate, scoring, job.judge).most_inputs for candidate in candidates
        )
    if len(candidates) < 2:
        return 0
    return _make_rank_question(job.judge, scoring, candidates).most_inputs


@dataclass(slots=True)
class Counts:
    """Counts of a running job."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each phase."""
    queries: int = 0
    """Usable rows of the input."""
    answered: int = 0
    """Candidates in the input; equal ones of a query count once."""
    unanswered: int = 0
    """Queries for which the policy samples responses."""
    reused: int = 0
    """Judge inputs whose judgement was read from the journal."""
    new: int = 0
    """Judge inputs that this run asked for."""
    usage: Usage = Usage()
    """Cost of the judge inputs that this run asked for."""
    unavailable: int = 0
    """Judge inputs with the outcome `unavailable`."""
    listed: int = 0
    """Candidates for which a shortlist has a place."""
    scored: int = 0
    """Largest number of judge inputs of groups and rubrics."""
    rows: Any = field(default_factory=hashlib.sha256)
    """SHA-256 over all usable rows."""
    inner_s: float = 0.0
    """Seconds of the phases that ended within the current one."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase, without the phases within it."""
        started, before = time.monotonic(), self.inner_s
        self.inner_s = 0.0
        try:
            yield
        finally:
            seconds = time.monotonic() - started
            self.seconds[name] = seconds - self.inner_s
            self.inner_s = before + seconds

    def expect(self, job: Job, row: QueryRow) -> None:
        """Add a usable row of the input to the counts."""
        self.rows.update(repr(row).encode())  # repr escapes lone surrogates
        self.queries += 1
        self.unanswered += row.responses is None
        self.answered += len(set(row.responses or ()))
        if job.config.shortlist is not None:
            policy = job.config.policy
            sampled = policy.n if policy and row.responses is None else 0
            self.listed += min(job.config.shortlist, sampled or len(set(row.responses or ())))
        if job.config.scoring:
            self.scored += _count_most_inputs(job, job.config.scoring, row)

    def expected(self, config: BestOfNConfig) -> int:
        """Return the expected number of judge inputs, without tie-breaks and copies.

        With `relative` or `rubric` it is an upper bound.
        """
        if config.scoring:
            return self.scored
        total = self.answered + (self.unanswered * config.policy.n if config.policy else 0)
        if config.shortlist is None:
            return total * config.judge.critiques
        # Every candidate is rated right after the prompt first.
        return total + self.listed * config.judge.critiques

    def add(self, judgement: Judgement, reused: bool) -> None:
        self.reused += reused
        if not reused:
            self.usage += judgement.usage
        self.new += not reused
        self.unavailable += judgement.outcome is Outcome.UNAVAILABLE
