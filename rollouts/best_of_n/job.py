"""The best-of-N job: sample responses or read them, judge each one, choose one for each query.

Responses and judgements are in the journal before they are used, so the same command resumes after
a crash. Results: selections.jsonl, judgements.jsonl, summary.json, report.html and curve.svg.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from autoj_reward.client.judging import progress_bar, value_name
from autoj_reward.config import BestOfNConfig, PolicyConfig
from autoj_reward.errors import InputError, from_extras
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart
from autoj_reward.io.rows import BadRows, QueryRow, Stream, look_through
from autoj_reward.io.track import tracking
from autoj_reward.journal import Journal
from autoj_reward.models.unused import load_run
from autoj_reward.processes import relaxed_gc
from autoj_reward.types import Judgement, QueryOrTurns
from rollouts.best_of_n import stages
from rollouts.best_of_n.report import Gathered, write_figures
from rollouts.best_of_n.results import GroupResult, writing_results
from rollouts.best_of_n.sampling import (
    JobSchedule,
    Sampled,
    Sampler,
    recorded,
    recorded_samples,
    sample_missing,
)
from rollouts.best_of_n.shards import in_shards
from rollouts.best_of_n.stages import Counts
from rollouts.best_of_n.summary import JUDGE_PHASE, JobStatistics, Summary, budget_text

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster


def main(config: str, sets: Sequence[str] = (), strict: bool = False) -> int:
    """Run the job of a config file, print where the report is, and return the exit code 0."""
    checked = load_run(BestOfNConfig, config, sets, strict)
    summary = run_job(checked, strict)
    print(_closing_words(summary, checked.output))
    return 0


def run_job(config: BestOfNConfig, strict: bool = False) -> Summary:
    """Run a job and return its summary.

    Raises AutojError before any model starts if the input is bad, or if the output cannot be
    written, is in use by another run, or holds another judge's results.
    """
    require_apart([config.input], [config.journal], config.output)
    job = stages.resolve_job(config)
    config = job.config
    rows, counts = stages.rows_of(job), Counts()
    left_out = look_through(rows, strict, partial(counts.expect, job))
    result, total = config.output / "summary.json", counts.expected(config)
    how = config.scoring.by if config.scoring else None
    claim = judged_by(job.judge.name, config.output, result, total, config.journal, how)
    with claim, tracking(config.track, str(config.output), config) as reports:

        def summary(statistics: JobStatistics) -> Summary:
            return statistics.summary(
                left_out,
                counts.seconds,
                reused=counts.reused,
                new=counts.new,
                new_usage=counts.usage,
            )

        def follow(statistics: JobStatistics) -> None:
            done = statistics.candidates.queries
            reports.offer(done, lambda: summary(statistics).metrics)

        found = Gathered(config, follow)
        print(f"to watch: autoj watch {shlex.quote(str(config.output))}", file=sys.stderr)
        with relaxed_gc():  # the collector would scan all requests in flight again and again
            if config.ray_data:
                in_shards(job, left_out, counts, found)
            else:
                asyncio.run(_in_this_process(job, rows, left_out, counts, found))
        result_of_all = summary(found.statistics)
        write_figures(config, result_of_all, found)
        reports.send(found.queries, result_of_all.metrics)
    return result_of_all


async def _in_this_process(
    job: stages.Job, rows: Stream[QueryRow], left_out: BadRows, counts: Counts, found: Gathered
) -> None:
    config = job.config
    cluster = _cluster(config)
    journal = Journal(config.journal or config.output / "journal.sqlite")
    try:
        with _bar(config, counts) as sampled:
            schedule = await _sampling(config, rows, journal, cluster, counts, sampled)
            with counts.phase(JUDGE_PHASE), writing_results(config.output) as record:

                def add(group: GroupResult) -> None:
                    record(group)
                    found.add(group)

                with progress_bar(counts.expected(config)) as advance:

                    def progress(judgement: Judgement, reused: bool) -> None:
                        counts.add(judgement, reused, config.budget is not None)
                        advance(judgement, reused)

                    to = journal, cluster, progress, add, left_out
                    await stages.judge_rows(job, rows, schedule, *to)
                if not found.queries:
                    raise InputError(f"{rows.name}: no query has a response to judge")
    finally:
        if cluster:
            cluster.close()
        journal.close()


def _cluster(config: BestOfNConfig) -> Cluster | None:
    """Return the Ray cluster for replicas; None if no model runs on replicas.

    Ray is imported only if it is needed, since the import takes a second.
    """
    if not (config.judge.on_replicas or (config.policy and config.policy.on_replicas)):
        return None
    with from_extras():
        from autoj_reward.replicas.cluster import Cluster
    return Cluster()


@contextmanager
def _bar(config: BestOfNConfig, counts: Counts) -> Iterator[Callable[[int], object]]:
    """Yield a callback that advances a progress bar by a number of sampled responses."""
    total = counts.unanswered * config.policy.n if config.policy else 0
    with tqdm(total=total, desc="sampling", unit="response", disable=not total) as bar:
        yield bar.update


async def _sampling(
    config: BestOfNConfig,
    rows: Stream[QueryRow],
    journal: Journal,
    cluster: Cluster | None,
    counts: Counts,
    progress: Callable[[int], object],
) -> JobSchedule:
    """Return how sampling and judging follow each other.

    Where judge and policy fit on the machines together, the judge starts with the policy, and each
    query is judged when it is sampled. Computing on the same cores, they would slow each other
    down: the judge then starts with the policy, and judges after it. Otherwise all queries are
    sampled here, and the policy is stopped before the judge needs its memory.
    """
    policy = config.policy
    with counts.phase("sample"):
        if policy is None or not counts.unanswered:
            return JobSchedule(recorded(policy, journal, {}))
        queries = partial(stages.unanswered_queries, rows)
        missing = any(recorded_samples(policy, journal, own) is None for own in queries())
        sample_all = partial(sample_missing, queries(), policy, journal, progress, cluster)
        if missing and cluster and not cluster.has_room(config.judge, policy):
            return JobSchedule(recorded(policy, journal, await sample_all()))
        if missing and cluster and cluster.shares_cores(config.judge, policy):
            return _before(policy, journal, counts, sample_all)
        return _beside(policy, journal, cluster, counts, progress)


def _before(
    policy: PolicyConfig,
    journal: Journal,
    counts: Counts,
    sample_all: Callable[[], Awaitable[Mapping[QueryOrTurns, str]]],
) -> JobSchedule:
    """Return what `_sampling` does, for a policy that has all cores while the judge starts."""
    early = asyncio.Event()

    async def run() -> Mapping[QueryOrTurns, str]:
        with counts.phase("sample"):
            return await sample_all()

    async def free() -> None:
        await asyncio.shield(running)

    async def sample(asked: QueryOrTurns) -> Sampled:
        return await recorded(policy, journal, await asyncio.shield(running))(asked)

    running = asyncio.create_task(run())
    early.set()
    return JobSchedule(sample, early, free)


def _beside(
    policy: PolicyConfig,
    journal: Journal,
    cluster: Cluster | None,
    counts: Counts,
    progress: Callable[[int], object],
) -> JobSchedule:
    """Return what `_sampling` does, for a policy that runs beside the judge.

    The policy is stopped after the last query.
    """
    sampler = Sampler(policy, journal, cluster, progress)
    started, left, stopping = time.monotonic(), counts.unanswered, list[asyncio.Task[None]]()

    async def sample(asked: QueryOrTurns) -> Sampled:
        nonlocal left
        found = await sampler.sample(asked)
        counts.seconds["sample"] = time.monotonic() - started
        left -= 1
        if not left:
            stopping.append(asyncio.create_task(sampler.close()))
        return found

    return JobSchedule(sample, sampler.needed)


def _closing_words(summary: Summary, folder: Path) -> str:
    ok, abandoned = (summary.outcomes.get(name, 0) for name in ("ok", "abandoned"))
    failed = sum(summary.outcomes.values()) - ok - abandoned
    rate = summary.judgements_per_second
    lines = [
        f"{summary.queries} queries, {summary.candidates} candidates: {ok} judged, "
        f"{failed} failed, {summary.forced} {value_name(summary.scored_by)}s forced, "
        f"{summary.rows_left_out} input rows left out",
    ]
    if summary.budget:
        lines.append(budget_text(summary.budget))
    if summary.curve:
        (_, one), (size, best) = summary.curve[0], summary.curve[-1]
        lines.append(
            f"mean {summary.value_name} of a random response {one:.2f}, "
            f"of the best of {size} {best:.2f}"
        )
    if rate:
        lines.append(f"{rate:.2f} judgements/s; {summary.reused} read from the journal")
    lines.append(f"report: {folder / 'report.html'}")
    return "\n".join(lines)
