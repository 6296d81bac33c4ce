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

from autoj_reward.client.judging import bar_position, progress_bar, value_name
from autoj_reward.config import BestOfNConfig, PolicyConfig
from autoj_reward.config.load import with_layout
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
from rollouts.best_of_n.report import FIGURES, Gathered, write_figures
from rollouts.best_of_n.results import RESULTS, GroupResult, open_result_files
from rollouts.best_of_n.sampling import (
    JobSchedule,
    Sampled,
    Sampler,
    make_journal_sampler,
    recorded_samples,
    sample_missing,
)
from rollouts.best_of_n.shards import run_in_shards
from rollouts.best_of_n.stages import Counts
from rollouts.best_of_n.summary import JUDGE_PHASE, JobStatistics, Summary

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster


def main(
    config: str, sets: Sequence[str] = (), strict: bool = False, layout: str | None = None
) -> int:
    """Run the job of a config file, print where the report is, and return the exit code 0."""
    checked = load_run(BestOfNConfig, config, with_layout(sets, layout), strict)
    summary = run_job(checked, strict)
    print(_describe_summary(summary, checked.output))
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
    summary_path, total = config.output / "summary.json", counts.expected(config)
    scored_by = config.scoring.by if config.scoring else None
    claim = judged_by(
        job.judge.name,
        config.output,
        summary_path,
        total,
        config.journal,
        scored_by,
        job.judge.vote,
        files=[config.output / name for name in (*RESULTS, *FIGURES)],
    )
    with claim, tracking(config.track, str(config.output), config) as reports:

        def summarize(statistics: JobStatistics) -> Summary:
            return statistics.summary(
                left_out,
                counts.seconds,
                reused=counts.reused,
                new=counts.new,
                new_usage=counts.usage,
            )

        def follow(statistics: JobStatistics) -> None:
            finished_queries = statistics.candidates.queries
            reports.offer(finished_queries, lambda: summarize(statistics).metrics)

        results = Gathered(config, follow)
        print(f"to watch: autoj watch {shlex.quote(str(config.output))}", file=sys.stderr)
        with relaxed_gc():  # the collector would scan all requests in flight again and again
            if config.ray_data:
                run_in_shards(job, left_out, counts, results)
            else:
                asyncio.run(_run_in_this_process(job, rows, left_out, counts, results))
        summary = summarize(results.statistics)
        write_figures(config, summary, results)
        reports.send(results.queries, summary.metrics)
    return summary


async def _run_in_this_process(
    job: stages.Job, rows: Stream[QueryRow], left_out: BadRows, counts: Counts, results: Gathered
) -> None:
    config = job.config
    cluster = _create_cluster(config)
    journal = Journal(config.journal or config.output / "journal.sqlite")
    try:
        with _show_sampling_bar(config, counts) as advance_sampling:
            schedule = await _schedule_sampling(
                config, rows, journal, cluster, counts, advance_sampling
            )
            with counts.phase(JUDGE_PHASE), open_result_files(config.output) as record:

                def add(group: GroupResult) -> None:
                    record(group)
                    results.add(group)

                with progress_bar(counts.expected(config)) as advance:

                    def progress(judgement: Judgement, reused: bool) -> None:
                        counts.add(judgement, reused)
                        advance(judgement, reused)

                    arguments = journal, cluster, progress, add, left_out
                    await stages.judge_rows(job, rows, schedule, *arguments)
                if not results.queries:
                    raise InputError(f"{rows.name}: no query has a response to judge")
    finally:
        if cluster:
            cluster.close()
        journal.close()


def _create_cluster(config: BestOfNConfig) -> Cluster | None:
    """Return the Ray cluster for replicas; None if no model runs on replicas.

    Ray is imported only if it is needed, since the import takes a second.
    """
    if not (config.judge.on_replicas or (config.policy and config.policy.on_replicas)):
        return None
    with from_extras():
        from autoj_reward.replicas.cluster import Cluster
    return Cluster()


@contextmanager
def _show_sampling_bar(config: BestOfNConfig, counts: Counts) -> Iterator[Callable[[int], object]]:
    """Yield a callback that advances a progress bar by a number of sampled responses."""
    total = counts.unanswered * config.policy.n if config.policy else 0
    place = bar_position()
    with tqdm(
        total=total, desc="sampling", unit="response", disable=not total, position=place
    ) as bar:
        yield bar.update


async def _schedule_sampling(
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
            return JobSchedule(make_journal_sampler(policy, journal, {}))
        queries = partial(stages.unanswered_queries, rows)
        missing = any(recorded_samples(policy, journal, query) is None for query in queries())
        sample_all = partial(sample_missing, queries(), policy, journal, progress, cluster)
        if missing and cluster and not cluster.has_room(config.judge, policy):
            return JobSchedule(make_journal_sampler(policy, journal, await sample_all()))
        if missing and cluster and cluster.shares_cores(config.judge, policy):
            return _schedule_sampling_first(policy, journal, counts, sample_all)
        return _schedule_side_by_side(policy, journal, cluster, counts, progress)


def _schedule_sampling_first(
    policy: PolicyConfig,
    journal: Journal,
    counts: Counts,
    sample_all: Callable[[], Awaitable[Mapping[QueryOrTurns, str]]],
) -> JobSchedule:
    """Return the schedule of a policy that has all cores while the judge starts."""
    early = asyncio.Event()

    async def run() -> Mapping[QueryOrTurns, str]:
        with counts.phase("sample"):
            return await sample_all()

    async def free() -> None:
        await asyncio.shield(running)

    async def sample(query: QueryOrTurns) -> Sampled:
        return await make_journal_sampler(policy, journal, await asyncio.shield(running))(query)

    running = asyncio.create_task(run())
    early.set()
    return JobSchedule(sample, early, free)


def _schedule_side_by_side(
    policy: PolicyConfig,
    journal: Journal,
    cluster: Cluster | None,
    counts: Counts,
    progress: Callable[[int], object],
) -> JobSchedule:
    """Return the schedule of a policy that runs beside the judge.

    The policy is stopped after the last query.
    """
    sampler = Sampler(policy, journal, cluster, progress)
    started, remaining, stopping = time.monotonic(), counts.unanswered, list[asyncio.Task[None]]()

    async def sample(query: QueryOrTurns) -> Sampled:
        nonlocal remaining
        samples = await sampler.sample(query)
        counts.seconds["sample"] = time.monotonic() - started
        remaining -= 1
        if not remaining:
            stopping.append(asyncio.create_task(sampler.close()))
        return samples

    return JobSchedule(sample, sampler.needed)


def _describe_summary(summary: Summary, folder: Path) -> str:
    ok, abandoned = (summary.outcomes.get(name, 0) for name in ("ok", "abandoned"))
    failed = sum(summary.outcomes.values()) - ok - abandoned
    rate = summary.judgements_per_second
    lines = [
        f"{summary.queries} queries, {summary.candidates} candidates: {ok} judged, "
        f"{failed} failed, {summary.forced} {value_name(summary.scored_by)}s forced, "
        f"{summary.rows_left_out} input rows left out",
    ]
    # Without them a tie would seem to be decided by a later rule, and not for want of a verdict.
    if summary.comparisons or summary.failed_comparisons:
        lines[0] += f", {summary.failed_comparisons} comparisons failed"
    if summary.shortlisted is not None:
        lines.append(f"critiques of {summary.shortlisted} of {summary.candidates} candidates")
    if summary.curve:
        (_, mean_value), (size, best_value) = summary.curve[0], summary.curve[-1]
        lines.append(
            f"mean {summary.value_name} of a random response {mean_value:.2f}, "
            f"of the best of {size} {best_value:.2f}"
        )
    if rate:
        lines.append(f"{rate:.2f} judgements/s; {summary.reused} read from the journal")
    lines.append(f"report: {folder / 'report.html'}")
    return "\n".join(lines)
