"""Stages of a best-of-N job: sample, judge and select, on all rows of the input or on a shard."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoj_reward.client.in_flight import Progress, run_in_order
from autoj_reward.client.judging import open_ask
from autoj_reward.client.panel import Panel
from autoj_reward.config import PolicyConfig
from autoj_reward.conversation import ContextColumn, Prompt, Response
from autoj_reward.io.candidates import queries
from autoj_reward.io.rows import BadRows, QueryRow, Stream
from autoj_reward.journal import Journal
from autoj_reward.logs import announce
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.questions.ask import Ask
from autoj_reward.types import BadRow, Judgement, Outcome, Usage
from rollouts.best_of_n.choices import Choice, make_candidates
from rollouts.best_of_n.results import GroupResult
from rollouts.best_of_n.sampling import JobSchedule

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster


@dataclass(frozen=True, slots=True)
class RowSource:
    """The input of a job, and how its rows are read."""

    place: str
    columns: tuple[ContextColumn, ...]
    """Context fields that the judge's prompts show."""
    answered: bool
    """Whether a row without responses is bad, since no policy can sample them."""
    paths: Mapping[str, str]
    """Paths by field, for rows with names of their own."""
    layout: str | None
    """Layout of the rows; None finds that of each row."""

    def open(self, say: Callable[[str], object] = announce) -> Stream[QueryRow]:
        """Return the rows. say: gets one line that tells how they are read."""
        return queries(self.place, self.columns, self.answered, self.paths, self.layout, say)


@dataclass(frozen=True, slots=True)
class Job:
    """The stages of a job, built once from its config. Workers of Ray Data get them pickled."""

    rows: RowSource
    policy: PolicyConfig | None
    """The policy to sample; None if every row brings its responses."""
    judge: JudgeSpec
    """The judge, with the readings that the choice needs."""
    choice: Choice
    output: Path
    """Folder of the results."""
    panel: Panel | None = None
    """The judges that rate; None if `judge` rates alone."""

    @property
    def judge_name(self) -> str:
        """Name of the judge or the panel whose results these are."""
        return self.panel.name if self.panel else self.judge.name

    @property
    def judges(self) -> int:
        """Number of judges that rate each response."""
        return len(self.panel.specs) if self.panel else 1

    def absolute(self) -> Job:
        """Return the job with absolute paths, for processes in another working directory."""
        source = Path(self.rows.place)
        rows = replace(self.rows, place=str(source.absolute())) if source.exists() else self.rows
        return replace(self, rows=rows, output=self.output.absolute())

    def open_judge(
        self,
        journal: Journal,
        cluster: Cluster | None,
        progress: Progress,
        early: asyncio.Event | None = None,
        say: Callable[[str], object] = announce,
    ) -> AbstractAsyncContextManager[Ask]:
        """Open the judge, with the checks that the choice needs; see `open_ask`."""
        scoring = self.choice.scoring
        view = None if scoring else self.choice.view
        opening = open_ask(
            self.judge,
            journal,
            view=view,
            require=self.choice.require,
            scoring=scoring,
            progress=progress,
            cluster=cluster,
            say=say,
            early=early,
        )
        if self.panel:
            return self.panel.open(opening, journal, view, progress)
        return opening

    async def judge_rows(
        self,
        rows: Stream[QueryRow],
        schedule: JobSchedule,
        ask: Ask,
        add: Callable[[GroupResult], None],
        left_out: BadRows,
    ) -> None:
        """Judge the candidates of every row and choose one of them.

        schedule: samples the responses to a query without any. The row is judged as soon as they
            are there. It is added to `left_out` if there are none.
        add: gets the results in input order.
        """

        async def judge_row(row: QueryRow) -> GroupResult | BadRow:
            if row.responses is not None:
                if schedule.free:
                    await schedule.free()
                candidates = make_candidates(row, row.responses, row.logprobs)
            else:
                samples = await schedule.sample(row.prompt)
                if isinstance(samples, str):
                    return BadRow(rows.name, row.line, "query", samples)
                responses = [Response(text) for text in samples.responses]
                candidates = make_candidates(row, responses, samples.logprobs)
            return await self.choice.choose(ask, row, candidates)

        def record(result: GroupResult | BadRow) -> None:
            left_out.add(result) if isinstance(result, BadRow) else add(result)

        sampled = self.policy.n if self.policy else 1
        await run_in_order(
            rows.usable(), judge_row, record, size=lambda row: len(row.responses or ()) or sampled
        )


def unanswered_queries(rows: Stream[QueryRow]) -> Iterator[Prompt]:
    """Yield the queries of the rows without responses."""
    return (row.prompt for row in rows.usable() if row.responses is None)


@dataclass(slots=True)
class Counts:
    """Counts of a running job."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each phase."""
    queries: int = 0
    """Usable rows of the input."""
    unanswered: int = 0
    """Queries for which the policy samples responses."""
    expected: int = 0
    """Expected number of judge inputs, without tie-breaks and copies. With `relative` or `rubric`
    it is an upper bound."""
    reused: int = 0
    """Judge inputs whose judgement was read from the journal."""
    new: int = 0
    """Judge inputs that this run asked for."""
    usage: Usage = Usage()
    """Cost of the judge inputs that this run asked for."""
    unavailable: int = 0
    """Judge inputs with the outcome `unavailable`."""
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
        responses = row.responses
        if responses is None:
            self.unanswered += 1
            # Responses to be sampled are taken as distinct.
            count = job.policy.n if job.policy else 0
            responses = tuple(Response(str(n)) for n in range(count))
        self.expected += job.judges * job.choice.count_inputs(row, responses)

    def add(self, judgement: Judgement, reused: bool) -> None:
        self.reused += reused
        if not reused:
            self.usage += judgement.usage
        self.new += not reused
        self.unavailable += judgement.outcome is Outcome.UNAVAILABLE
