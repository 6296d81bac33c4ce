"""The best-of-N job: sample responses or read them, judge each one, choose one for each query.

Responses and judgements are in the journal before they are used, so the same command resumes after
a crash. Results: selections.jsonl, judgements.jsonl, summary.json, report.html and curve.svg.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from tqdm import tqdm

from autoj_reward.client.judging import bar_position, progress_bar, value_name
from autoj_reward.client.panel import build_panel
from autoj_reward.config import BestOfNConfig
from autoj_reward.config.load import with_layout
from autoj_reward.conversation import Prompt
from autoj_reward.errors import ConfigError, InputError, from_extras
from autoj_reward.formats.schema import ScalarFormat
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart
from autoj_reward.io.rows import BadRows, QueryRow, Stream, look_through
from autoj_reward.io.track import tracking
from autoj_reward.journal import Journal
from autoj_reward.models.spec import JudgeSpec, join_context_columns, judge_spec
from autoj_reward.models.unused import load_run
from autoj_reward.models.views import resolve_view
from autoj_reward.processes import relaxed_gc
from autoj_reward.questions.choose import critique_view
from autoj_reward.replicas.replica import policy_name
from autoj_reward.types import Judgement
from rollouts.best_of_n.choices import ByRanking, ByRubric, ByView, Choice
from rollouts.best_of_n.report import FIGURES, Gathered, write_figures
from rollouts.best_of_n.results import RESULTS, GroupResult, open_result_files
from rollouts.best_of_n.sampling import JobSchedule, Sampled, Sampler
from rollouts.best_of_n.shards import run_in_shards
from rollouts.best_of_n.stages import Counts, Job, RowSource, unanswered_queries
from rollouts.best_of_n.summary import JUDGE_PHASE, JobStatistics, Summary

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster


def main(
    config: str | None,
    sets: Sequence[str] = (),
    strict: bool = False,
    layout: str | None = None,
    source: str | None = None,
    output: str | None = None,
) -> int:
    """Run the job of a config file, print where the report is, and return the exit code 0.

    source, output: in place of the config's `input` and `output`.
    """
    given = {"input": source, "output": output}
    named = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    checked = load_run(BestOfNConfig, config, [*with_layout(sets, layout), *named], strict)
    summary = run_job(checked, strict)
    print(_describe_summary(summary, checked.output))
    return 0


def build_job(config: BestOfNConfig) -> Job:
    """Build the stages of a job from its config.

    Raises ConfigError or FormatError if the judge cannot do the job.
    """
    judge, choice = _build_choice(config)
    shown_protocol = None if "pairwise" in config.tie_break else "single"
    if config.scoring:
        shown_protocol = config.scoring.protocol
    panel = build_panel(judge, config.panel, config.reduce, choice.view)
    shown = [(judge, shown_protocol)]
    if panel:
        shown += [(spec, "single") for spec in panel.specs.values()]
    columns = join_context_columns(shown, config.columns, config.rubric)
    answered = config.policy is None
    rows = RowSource(config.input, columns, answered, config.columns, config.layout)
    return Job(rows, config.policy, judge, choice, config.output, panel)


def _build_choice(config: BestOfNConfig) -> tuple[JudgeSpec, Choice]:
    """Return the judge with the readings that the choice needs, and the choice."""
    judge = judge_spec(config.judge).limited(config.max_usd, config.panel)
    rules = config.tie_break
    if config.shortlist is not None and isinstance(judge.format, ScalarFormat):
        raise ConfigError("shortlist saves critiques, and a scalar model writes none: leave it out")
    if config.relative:
        judge = judge.that_scores(config.relative)
        return judge, ByRanking(
            facts=judge.facts, asks=judge.asks, rules=rules, scoring=config.relative
        )
    if config.rubric:
        judge = judge.that_scores(config.rubric)
        return judge, ByRubric(
            facts=judge.facts, asks=judge.asks, rules=rules, scoring=config.rubric
        )
    view = resolve_view(config.view, "choose", judge.facts.preferred)
    judge = judge.that_reads(critique_view(view, config.shortlist), "choose", rules)
    return judge, ByView(
        facts=judge.facts, asks=judge.asks, rules=rules, view=view, shortlist=config.shortlist
    )


def run_job(config: BestOfNConfig, strict: bool = False) -> Summary:
    """Run a job and return its summary.

    Raises AutojError before any model starts if the input is bad, or if the output cannot be
    written, is in use by another run, or holds another judge's results.
    """
    require_apart([config.input], [config.journal], config.output)
    job = build_job(config)
    # Tracker, shards and report get the settings in use.
    config = config.model_copy(update={"view": job.choice.view, "judge": job.judge.config})
    rows = job.rows.open()
    counts = Counts()
    left_out = look_through(rows, strict, partial(counts.expect, job))
    scored_by = job.choice.scoring.by if job.choice.scoring else None
    claim = judged_by(
        job.judge_name,
        job.output,
        job.output / "summary.json",
        command="autoj best-of-n",
        total=counts.expected // job.judges,
        journal=config.journal,
        scored_by=scored_by,
        vote=job.judge.asks.vote,
        panel=job.panel is not None,
        files=[job.output / name for name in (*RESULTS, *FIGURES)],
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

        results = Gathered(job.choice.view, scored_by, follow)
        print(f"to watch: autoj watch {shlex.quote(str(job.output))}", file=sys.stderr)
        with relaxed_gc():  # the collector would scan all requests in flight again and again
            if config.ray_data:
                key = _identify_results(config, job, counts)
                run_in_shards(job, key, config.ray_data, left_out, counts, results)
            else:
                with closing(Journal(config.journal or job.output / "journal.sqlite")) as journal:
                    asyncio.run(_run_in_this_process(job, rows, journal, left_out, counts, results))
        summary = summarize(results.statistics)
        write_figures(
            job.output,
            summary,
            results,
            title=f"Best-of-N: {Path(config.input).name}",
            config_text=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False),
        )
        reports.send(results.queries, summary.metrics)
    return summary


def _identify_results(config: BestOfNConfig, job: Job, counts: Counts) -> str:
    """Return the SHA-256 of all that determines the results: input, settings, models, version."""
    places: Any = {"input": True, "output": True, "ray_data": True, "track": True}
    serving: Any = {"judge": {"serve", "trace"}, "policy": {"serve"}}
    settings = config.model_dump(mode="json", exclude=places | serving)
    policy = policy_name(job.policy) if job.policy else None
    key_parts = [version("autoj-reward"), settings, job.judge.name, policy, counts.rows.hexdigest()]
    return hashlib.sha256(json.dumps(key_parts, sort_keys=True).encode()).hexdigest()


async def _run_in_this_process(
    job: Job,
    rows: Stream[QueryRow],
    journal: Journal,
    left_out: BadRows,
    counts: Counts,
    results: Gathered,
) -> None:
    cluster = _create_cluster(job)
    try:
        with _show_sampling_bar(job, counts) as advance_sampling:
            schedule = await _schedule_sampling(
                job, rows, journal, cluster, counts, advance_sampling
            )
            with counts.phase(JUDGE_PHASE), open_result_files(job.output) as record:

                def add(group: GroupResult) -> None:
                    record(group)
                    results.add(group)

                with progress_bar(counts.expected) as advance:

                    def progress(judgement: Judgement, reused: bool) -> None:
                        counts.add(judgement, reused)
                        advance(judgement, reused)

                    opening = job.open_judge(journal, cluster, progress, schedule.early)
                    async with opening as ask:
                        await job.judge_rows(rows, schedule, ask, add, left_out)
                if not results.queries:
                    raise InputError(f"{rows.name}: no query has a response to judge")
    finally:
        if cluster:
            cluster.close()


def _create_cluster(job: Job) -> Cluster | None:
    """Return the Ray cluster for replicas; None if no model runs on replicas.

    Ray is imported only if it is needed, since the import takes a second.
    """
    if not (job.judge.config.on_replicas or (job.policy and job.policy.on_replicas)):
        return None
    with from_extras():
        from autoj_reward.replicas.cluster import Cluster
    return Cluster()


@contextmanager
def _show_sampling_bar(job: Job, counts: Counts) -> Iterator[Callable[[int], object]]:
    """Yield a callback that advances a progress bar by a number of sampled responses."""
    total = counts.unanswered * job.policy.n if job.policy else 0
    place = bar_position()
    with tqdm(
        total=total, desc="sampling", unit="response", disable=not total, position=place
    ) as bar:
        yield bar.update


async def _schedule_sampling(
    job: Job,
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
    if job.policy is None:
        return JobSchedule()
    sampler = Sampler(job.policy, journal, cluster, progress)
    with counts.phase("sample"):
        if not counts.unanswered:
            return JobSchedule(sampler.read)
        missing = any(sampler.recorded(query) is None for query in unanswered_queries(rows))
        # What a whole panel needs is not known beforehand, so it starts after the policy.
        if (
            missing
            and cluster
            and (job.panel or not cluster.has_room(job.judge.config, job.policy))
        ):
            await sampler.sample_all(unanswered_queries(rows))
            return JobSchedule(sampler.read)
        if missing and cluster and cluster.shares_cores(job.judge.config, job.policy):
            return _schedule_sampling_first(sampler, rows, counts)
        return _schedule_side_by_side(sampler, counts)


def _schedule_sampling_first(
    sampler: Sampler, rows: Stream[QueryRow], counts: Counts
) -> JobSchedule:
    """Return the schedule of a policy that has all cores while the judge starts."""
    early = asyncio.Event()

    async def run() -> None:
        with counts.phase("sample"):
            await sampler.sample_all(unanswered_queries(rows))

    async def free() -> None:
        await asyncio.shield(running)

    async def sample(query: Prompt) -> Sampled:
        await asyncio.shield(running)
        return await sampler.read(query)

    running = asyncio.create_task(run())
    early.set()
    return JobSchedule(sample, early, free)


def _schedule_side_by_side(sampler: Sampler, counts: Counts) -> JobSchedule:
    """Return the schedule of a policy that runs beside the judge.

    The policy is stopped after the last query.
    """
    started = time.monotonic()
    remaining = counts.unanswered
    stopping = list[asyncio.Task[None]]()

    async def sample(query: Prompt) -> Sampled:
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
