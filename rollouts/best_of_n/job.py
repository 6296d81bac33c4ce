"""The best-of-N job: sample responses or read them, judge each one, choose one for each query.

Responses and judgements are in the journal before they are used, so the same command resumes after
a crash. Results: selections.jsonl, judgements.jsonl, summary.json, report.html and curve.svg.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from autoj_reward.client.judging import progress_bar, value_name
from autoj_reward.config import BestOfNConfig
from autoj_reward.errors import InputError, from_extras
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart
from autoj_reward.io.rows import BadRows, QueryRow, Stream, look_through
from autoj_reward.io.track import tracking
from autoj_reward.journal import Journal, SampledResponses
from autoj_reward.models.unused import load_run
from autoj_reward.processes import relaxed_gc
from autoj_reward.types import Judgement, QueryOrTurns
from rollouts.best_of_n import stages
from rollouts.best_of_n.report import Gathered, write_figures
from rollouts.best_of_n.results import GroupResult, writing_results
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
        with counts.phase("sample"):
            unanswered = await _sample(config, rows, journal, cluster, counts)
        groups = stages.grouped(config, rows, journal, unanswered, left_out)
        with counts.phase(JUDGE_PHASE), writing_results(config.output) as record:

            def add(group: GroupResult) -> None:
                record(group)
                found.add(group)

            await _judge(job, groups, journal, cluster, counts, add)
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


async def _sample(
    config: BestOfNConfig,
    rows: Stream[QueryRow],
    journal: Journal,
    cluster: Cluster | None,
    counts: Counts,
) -> dict[QueryOrTurns, str]:
    """Sample responses to the queries without any; return the unanswered ones with the reason."""
    if config.policy is None or not counts.unanswered:
        return {}
    total = counts.unanswered * config.policy.n
    with tqdm(total=total, desc="sampling", unit="response") as bar:

        def progress(done: SampledResponses) -> None:
            bar.update(len(done.responses))

        return await stages.sample_rows(config, rows, journal, cluster, progress)


async def _judge(
    job: stages.Job,
    groups: Iterator[stages.Group],
    journal: Journal,
    cluster: Cluster | None,
    counts: Counts,
    add: Callable[[GroupResult], None],
) -> None:
    total, on_budget = counts.expected(job.config), job.config.budget is not None
    with progress_bar(total) as advance:

        def progress(judgement: Judgement, reused: bool) -> None:
            counts.add(judgement, reused, on_budget)
            advance(judgement, reused)

        await stages.judge_groups(job, groups, journal, cluster, progress, add)


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
