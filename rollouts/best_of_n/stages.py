"""Stages of a best-of-N job: sample, judge and select, on all rows of the input or on a shard."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from autoj_reward.client.in_flight import Progress, run_in_order
from autoj_reward.client.judging import open_ask
from autoj_reward.config import (
    BestOfNConfig,
    PolicyConfig,
    RelativeConfig,
    RubricConfig,
    Scoring,
    View,
)
from autoj_reward.conversation import messages_of
from autoj_reward.errors import ConfigError, EngineUnavailable, InputRejected
from autoj_reward.formats.schema import ScalarFormat
from autoj_reward.io.rows import BadRows, QueryRow, Stream, queries
from autoj_reward.journal import Journal, SampledResponses
from autoj_reward.logs import announce
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.budget import require_cheap_pass
from autoj_reward.questions.choose import Choose
from autoj_reward.questions.listwise import Listwise
from autoj_reward.questions.relative import rank_question
from autoj_reward.questions.rubric import rubric_question
from autoj_reward.questions.tie_break import choose
from autoj_reward.questions.tournament import Tournament
from autoj_reward.replicas.replica import PolicyReplica, policy_name
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


Group = tuple[QueryRow, tuple[Candidate, ...]]


def resolve_job(config: BestOfNConfig) -> Job:
    """Resolve the config of a job.

    On a budget `view: auto` ignores the judge's preferred view and is `rating`, since the budget is
    spent on critiques. Raises ConfigError or FormatError if the judge cannot do the job.
    """
    judge = judge_spec(config.judge)
    if config.budget is not None and isinstance(judge.format, ScalarFormat):
        raise ConfigError("budget saves critiques, and a scalar model writes none: leave it out")
    if config.scoring:
        judge = judge.that_scores(config.scoring)
        return Job(config.model_copy(update={"view": "rating", "judge": judge.config}), judge)
    preferred = None if config.budget is not None else judge.preferred
    view = resolve_view(config.view, "choose", preferred)
    judge = judge.that_reads(view, "choose", config.tie_break)
    return Job(config.model_copy(update={"view": view, "judge": judge.config}), judge)


def rows_of(job: Job) -> Stream[QueryRow]:
    """Return the rows of the input, with the context fields that the judge's prompts show."""
    config = job.config
    kind = None if "pairwise" in config.tie_break else "single"
    if config.scoring:
        kind = config.scoring.protocol
    asked = job.judge.context_columns(config.columns, kind, config.rubric)
    return queries(config.input, asked, answered=config.policy is None)


async def sample_rows(
    config: BestOfNConfig,
    rows: Stream[QueryRow],
    journal: Journal,
    cluster: Cluster | None,
    progress: Callable[[SampledResponses], None],
) -> dict[QueryOrTurns, str]:
    """Sample responses to the queries without any; return the unanswered ones with the reason."""
    if config.policy is None:
        return {}
    wanted = (row.asked for row in rows.usable() if row.responses is None)
    return await sample_missing(wanted, config.policy, journal, progress, cluster)


def grouped(
    config: BestOfNConfig,
    rows: Stream[QueryRow],
    journal: Journal,
    unanswered: Mapping[QueryOrTurns, str],
    left_out: BadRows,
) -> Iterator[Group]:
    """Yield every query with its candidates.

    A query that the policy did not answer is skipped and added to `left_out`.
    """
    policy = policy_name(config.policy) if config.policy else None
    for row in rows.usable():
        responses: Sequence[str] | None = row.responses
        logprobs: Sequence[float | None] | None = row.logprobs
        if responses is None and policy:
            if (sampled := journal.get_samples(policy, on_record(row.asked))) is None:
                why = unanswered.get(row.asked, "not there when the policy was asked")
                left_out.add(BadRow(rows.name, row.line, "query", why))
                continue
            responses, logprobs = sampled.responses, sampled.logprobs
        given = responses or ()
        pairs = zip(given, logprobs or (None,) * len(given), strict=True)
        name = str(row.line)
        yield row, tuple(Candidate(row.query, r, lp, name, row.context) for r, lp in pairs)


async def judge_groups(
    job: Job,
    groups: Iterator[Group],
    journal: Journal,
    cluster: Cluster | None,
    progress: Progress,
    add: Callable[[GroupResult], None],
    say: Callable[[str], object] = announce,
) -> None:
    """Judge every query's candidates and choose one of them.

    add: gets the results in input order. say: gets one line that describes the judge in use. The
    judge is started only if the journal lacks a judgement.
    """
    first = next(groups, None)
    if first is None:  # nothing is started for none
        return

    def require(views: frozenset[View]) -> None:
        if job.config.budget is not None:
            require_cheap_pass(views)
        if job.config.scoring is None:
            resolve_view(job.view, "choose", None, views)

    how = job.config.scoring
    async with open_ask(
        job.judge,
        journal,
        view=None if how else job.view,
        require=require,
        scoring=how,
        progress=progress,
        cluster=cluster,
        say=say,
    ) as ask:

        async def one(group: Group) -> GroupResult:
            return await _select(job, ask, *group)

        await run_in_order(chain([first], groups), one, add, size=lambda group: len(group[1]))


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
        compares=job.judge.compares,
        tie=job.judge.ratings_tie,
        share=job.config.budget,
    )
    choice = await question.answer(ask)
    return GroupResult(
        row,
        candidates,
        choice.judgements,
        choice.selection,
        choice.standings,
        choice.spending,
    )


async def _rank(
    job: Job, how: RelativeConfig, ask: Ask, row: QueryRow, candidates: tuple[Candidate, ...]
) -> GroupResult:
    """Judge the candidates relative to each other and choose the one with the highest score."""
    if len(candidates) == 1:
        reason = "a lone response: there is nothing to judge it beside"
        judgement = Judgement(Outcome.INPUT_REJECTED, reason=reason)
        return GroupResult(row, candidates, (judgement,), Selection(0, "only"))
    ranking = await _question_of_rank(job.judge, how, candidates).answer(ask)
    judgements = tuple(ranking.as_judgements())
    chosen = await choose(candidates, judgements, view="rating", rules=job.config.tie_break)
    rule = "relative" if chosen.rule == "rating" else chosen.rule
    return GroupResult(row, candidates, judgements, replace(chosen, rule=rule), ranking=ranking)


async def _score(
    job: Job, how: RubricConfig, ask: Ask, row: QueryRow, candidates: tuple[Candidate, ...]
) -> GroupResult:
    """Score the candidates by the row's rubric and choose the one with the highest score."""
    questions = [rubric_question(own, how, job.judge) for own in candidates]
    scores = tuple(await asyncio.gather(*(question.answer(ask) for question in questions)))
    judgements = tuple(own.as_judgement() for own in scores)
    chosen = await choose(candidates, judgements, view="rating", rules=job.config.tie_break)
    rule = "rubric" if chosen.rule == "rating" else chosen.rule
    return GroupResult(row, candidates, judgements, replace(chosen, rule=rule), rubrics=scores)


def _question_of_rank(
    judge: JudgeSpec, how: RelativeConfig, candidates: Sequence[Candidate]
) -> Listwise | Tournament:
    shown = [candidate.for_judge(judge.shows) for candidate in candidates]
    return rank_question(
        shown, how, max_group=judge.max_group, scale=judge.scale, tie=judge.ratings_tie
    )


QUERIES_AT_ONCE = 16
A = TypeVar("A", bound=QueryOrTurns)


class Policy(Protocol):
    """Samples responses to one query."""

    async def sample(self, asked: QueryOrTurns) -> SampledResponses:
        """Sample the configured number of responses.

        Raises InputRejected if the query does not fit, and EngineUnavailable if a retry may help.
        """


@asynccontextmanager
async def open_policy(config: PolicyConfig, cluster: Cluster | None) -> AsyncIterator[Policy]:
    """Open a policy: on the cluster if its kind is `vllm`, else in this process."""
    if config.kind != "vllm":
        replica = PolicyReplica(config)
        await replica.start()
        yield replica
        return
    assert cluster is not None  # it is made for such a policy
    try:
        yield cluster.deploy_policy(config)
    finally:
        cluster.remove("policy")


async def sample_missing(
    queries: Iterable[A],
    config: PolicyConfig,
    journal: Journal,
    progress: Callable[[SampledResponses], None],
    cluster: Cluster | None,
) -> dict[A, str]:
    """Sample responses to every query into the journal; return the failed queries with the reason.

    Queries in the journal are not sampled again, and the policy is loaded only if one is missing.
    progress: called with the responses to each query.
    """
    name = policy_name(config)
    failed: dict[A, str] = {}
    under_way: set[A] = set()

    def missing() -> Iterator[A]:
        for query in queries:
            if query in under_way or query in failed:
                continue
            if kept := journal.get_samples(name, on_record(query)):
                progress(kept)
            else:
                under_way.add(query)
                yield query

    wanted = missing()
    first = next(wanted, None)
    if first is None:
        return failed
    async with open_policy(config, cluster) as policy:

        async def one(query: A) -> None:
            sampled = await _ask(policy, query, config.serve.deadline_s)
            if isinstance(sampled, SampledResponses):
                progress(journal.put_samples(name, on_record(query), sampled))
            else:
                failed[query] = sampled
            under_way.remove(query)

        await run_in_order(chain([first], wanted), one, lambda _: None, QUERIES_AT_ONCE)
    return failed


def on_record(asked: QueryOrTurns) -> str:
    """Return the query as the journal of samples stores it: text, or the messages as JSON."""
    return asked if isinstance(asked, str) else json.dumps(messages_of(asked))


async def _ask(policy: Policy, query: QueryOrTurns, deadline_s: float) -> SampledResponses | str:
    deadline = time.monotonic() + deadline_s
    pause = 0.5
    while True:
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await policy.sample(query)
        except InputRejected as error:
            return str(error)
        except TimeoutError:
            return f"the policy gave no answer within {deadline_s:g} s"
        except EngineUnavailable as error:
            if time.monotonic() + pause > deadline:
                return str(error)
        await asyncio.sleep(pause)
        pause = min(10.0, pause * 2)


def _most_inputs(job: Job, how: Scoring, row: QueryRow) -> int:
    """Return the largest number of judge inputs of a row that is scored in place of a view.

    Responses to be sampled are taken as distinct.
    """
    policy = job.config.policy
    texts = row.responses or map(str, range(policy.n if policy else 0))
    candidates = [Candidate(row.query, text, context=row.context) for text in texts]
    if isinstance(how, RubricConfig):
        return sum(rubric_question(own, how, job.judge).most_inputs for own in candidates)
    if len(candidates) < 2:
        return 0
    return _question_of_rank(job.judge, how, candidates).most_inputs


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
    """Judge inputs that this run asked for, without the cheap readings on a budget."""
    usage: Usage = Usage()
    """Cost of the judge inputs that this run asked for."""
    unavailable: int = 0
    """Judge inputs with the outcome `unavailable`."""
    scored: int = 0
    """Largest number of judge inputs of groups and rubrics."""
    rows: Any = field(default_factory=hashlib.sha256)
    """SHA-256 over all usable rows."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - started

    def expect(self, job: Job, row: QueryRow) -> None:
        """Add a usable row of the input to the counts."""
        self.rows.update(repr(row).encode())  # repr escapes lone surrogates
        self.queries += 1
        self.unanswered += row.responses is None
        self.answered += len(set(row.responses or ()))
        if job.config.scoring:
            self.scored += _most_inputs(job, job.config.scoring, row)

    def expected(self, config: BestOfNConfig) -> int:
        """Return the expected number of judge inputs, without tie-breaks and copies.

        With `relative` or `rubric` it is an upper bound.
        """
        if config.scoring:
            return self.scored
        total = self.answered + (self.unanswered * config.policy.n if config.policy else 0)
        if config.budget is None:
            return total * config.judge.critiques
        # One cheap reading for each candidate, then critiques within the budget.
        return total + int(total * config.judge.critiques * config.budget)

    def add(self, judgement: Judgement, reused: bool, on_budget: bool) -> None:
        self.reused += reused
        if not reused:
            self.usage += judgement.usage
        reading = on_budget and judgement.ok and not judgement.critique
        self.new += not (reused or reading)
        self.unavailable += judgement.outcome is Outcome.UNAVAILABLE
