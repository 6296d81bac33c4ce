"""The best-of-N job: queries in, responses sampled or brought, every response judged, one chosen.

Everything is in the journal before it is used, so the same command after a crash goes on where it
stopped. Results: selections.jsonl, judgements.jsonl, summary.json, report.html and curve.svg.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from tqdm import tqdm

from autoj_reward.client.client import RewardClient
from autoj_reward.client.session import open_judge
from autoj_reward.config import BestOfNConfig, load_config
from autoj_reward.context import Asked
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import to_json, write_json, write_jsonl, write_text
from autoj_reward.io.rows import Rows, read_queries, require_usable
from autoj_reward.journal import Journal, Sampled
from autoj_reward.judge.make import judge_name
from autoj_reward.models import best_view, context_asked, format_of
from autoj_reward.prompts.format import ScalarFormat
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.select.budget import select_within
from autoj_reward.select.choose import choose
from autoj_reward.types import Asking, BadRow, Candidate, Judgement, QueryRow, Usage
from rollouts.best_of_n.group import GroupResult
from rollouts.best_of_n.plots import line_plot
from rollouts.best_of_n.records import judgement_records, selection_record
from rollouts.best_of_n.report import render_report
from rollouts.best_of_n.sampler import sample_missing
from rollouts.best_of_n.spending import budget_text
from rollouts.best_of_n.summary import JUDGE_PHASE, Summary, summarise

GROUPS_AT_ONCE = 256


@dataclass(slots=True)
class _Run:
    """What a job counts while it runs."""

    seconds: dict[str, float] = field(default_factory=dict)
    reused: int = 0
    new: int = 0
    usage: Usage = Usage()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - started


def main(config: str, sets: Sequence[str] = (), strict: bool = False) -> int:
    """Run the job of a config file; prints where the results are."""
    checked = load_config(BestOfNConfig, config, sets)
    read = read_queries(checked.input, asked(checked))
    answered = [row for row in read.rows if row.responses or checked.policy]
    unanswered = [
        BadRow(checked.input, row.line, "responses", "none given, and the config has no policy")
        for row in read.rows
        if not (row.responses or checked.policy)
    ]
    rows = Rows(tuple(answered), (*read.bad, *unanswered))
    require_usable(rows, checked.input, strict)
    summary = asyncio.run(run(checked, rows.rows, list(rows.bad)))
    print(_closing_words(summary, checked.output))
    return 0


async def run(config: BestOfNConfig, rows: Sequence[QueryRow], bad: list[BadRow]) -> Summary:
    """Sample, judge, select and write. Raises AutojError with what to do: at once where the output
    cannot be written, is another run's or holds another judge's results."""
    config = ranked(config)
    _check_readings(config)
    with judged_by(judge_name(config.judge), config.output, config.output / "summary.json"):
        return await _run(config, rows, bad)


async def _run(config: BestOfNConfig, rows: Sequence[QueryRow], bad: list[BadRow]) -> Summary:
    counts, cluster = _Run(), Cluster()
    journal = Journal(config.journal or config.output / "journal.sqlite")
    try:
        with counts.phase("sample"):
            groups = await _candidates(config, rows, journal, cluster, bad)
        if not groups:
            raise InputError(f"{config.input}: no query has a response to judge")
        with counts.phase(JUDGE_PHASE):
            results = await _judge(config, groups, journal, cluster, counts)
    finally:
        cluster.close()
        journal.close()
    judge = next((j.judge for g in results for j in g.judgements if j.judge), "")
    summary = summarise(
        results,
        bad,
        view=config.view,
        judge=judge,
        seconds=counts.seconds,
        reused=counts.reused,
        new=counts.new,
        new_usage=counts.usage,
        budget=config.budget,
    )
    _write(config, summary, results)
    return summary


async def _candidates(
    config: BestOfNConfig,
    rows: Sequence[QueryRow],
    journal: Journal,
    cluster: Cluster,
    bad: list[BadRow],
) -> list[tuple[QueryRow, tuple[Candidate, ...]]]:
    sampled: dict[Asking, Sampled | str] = {}
    wanted = [row.asked for row in rows if row.responses is None]
    if wanted and config.policy:
        with tqdm(
            total=len(set(wanted)) * config.policy.n, desc="sampling", unit="response"
        ) as bar:

            def progress(done: Sampled) -> None:
                bar.update(len(done.responses))

            sampled = await sample_missing(wanted, config.policy, journal, progress, cluster)
    groups = []
    for row in rows:
        if row.responses is not None:
            responses = row.responses
            logprobs: Sequence[float | None] = row.logprobs or (None,) * len(responses)
        else:
            answer = sampled[row.asked]
            if isinstance(answer, str):
                bad.append(BadRow(config.input, row.line, "query", answer))
                continue
            responses, logprobs = answer.responses, answer.logprobs
        name = str(row.line)
        pairs = zip(responses, logprobs, strict=True)
        groups.append(
            (row, tuple(Candidate(row.query, r, lp, name, row.context) for r, lp in pairs))
        )
    return groups


async def _judge(
    config: BestOfNConfig,
    groups: Sequence[tuple[QueryRow, tuple[Candidate, ...]]],
    journal: Journal,
    cluster: Cluster,
    counts: _Run,
) -> list[GroupResult]:
    total = len({(c.query, c.response, c.context) for _, group in groups for c in group})
    if config.budget is None:
        total *= config.judge.critiques
    else:  # the cheap pass, and at most so many critiques
        total += int(total * config.judge.critiques * config.budget)
    turn = asyncio.Semaphore(GROUPS_AT_ONCE)
    with tqdm(total=total, desc="judging", unit="judgement") as bar:

        def progress(judgement: Judgement, reused: bool) -> None:
            counts.reused += reused
            counts.usage += Usage() if reused else judgement.usage
            reading = config.budget is not None and judgement.ok and not judgement.critique
            counts.new += not (reused or reading)
            if judgement.verdict is not None:
                bar.total = max(bar.total or 0, bar.n + 1)  # tie-breaks come on top
            bar.update()

        async with open_judge(
            config.judge, journal=journal, progress=progress, cluster=cluster
        ) as reward:

            async def one(row: QueryRow, candidates: tuple[Candidate, ...]) -> GroupResult:
                async with turn:
                    return await _select(config, reward, row, candidates)

            async with asyncio.TaskGroup() as tasks:
                started = [tasks.create_task(one(row, group)) for row, group in groups]
    return [task.result() for task in started]


async def _select(
    config: BestOfNConfig, reward: RewardClient, row: QueryRow, candidates: tuple[Candidate, ...]
) -> GroupResult:
    if config.budget is not None:
        found = await select_within(
            candidates,
            reward.judge,
            share=config.budget,
            critiques=config.judge.critiques,
            view=config.view,
            rules=config.tie_break,
            pairwise=reward.compares,
        )
        return GroupResult(
            row, candidates, found.judgements, found.selection, found.standings, found.spending
        )
    judgements = await reward.rate(candidates)
    choice = await choose(
        candidates,
        judgements,
        view=config.view,
        rules=config.tie_break,
        compare=reward.compare if reward.compares else None,
    )
    return GroupResult(row, candidates, tuple(judgements), choice)


def asked(config: BestOfNConfig) -> tuple[Asked, ...]:
    """The context of rating, and of the comparisons that break ties."""
    compares = "pairwise" in config.tie_break
    return context_asked(config.judge, config.columns, None if compares else "single")


def ranked(config: BestOfNConfig) -> BestOfNConfig:
    """The config with the view that ranks, and with a judge that reads it. A budget is spent on
    critiques, so there the rating after them ranks."""
    view, judge = config.view, config.judge
    if view == "auto":
        view = "rating" if config.budget is not None else best_view(judge)
    if view == "direct" and judge.critique:
        judge = judge.model_copy(update={"direct": True})
    return config.model_copy(update={"view": view, "judge": judge})


def _check_readings(config: BestOfNConfig) -> None:
    judge = config.judge
    if config.budget is not None and isinstance(format_of(judge), ScalarFormat):
        raise ConfigError("budget saves critiques, and a scalar model writes none: leave it out")
    if config.budget is not None and judge.kind == "openai" and judge.tokenizer is None:
        raise ConfigError(
            "budget needs the rating distribution right after the prompt, and an endpoint gives it "
            "only with judge.tokenizer set to the served model's tokenizer"
        )
    if config.view != "rating" and judge.kind == "openai" and judge.tokenizer is None:
        raise ConfigError(
            f"view {config.view} needs rating distributions, and an endpoint gives them only with "
            "judge.tokenizer set to the served model's tokenizer"
        )


def _write(config: BestOfNConfig, summary: Summary, results: Sequence[GroupResult]) -> None:
    folder = config.output
    write_jsonl(folder / "selections.jsonl", (selection_record(g) for g in results))
    write_jsonl(folder / "judgements.jsonl", (r for g in results for r in judgement_records(g)))
    write_json(folder / "summary.json", to_json(summary))
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    page = render_report(
        summary, results, title=f"Best-of-N: {Path(config.input).name}", config_text=text
    )
    write_text(folder / "report.html", page)
    if summary.curve:
        name = f"mean {config.view} of the best of N"
        write_text(folder / "curve.svg", line_plot(summary.curve, name, (640, 320), alone=True))


def _closing_words(summary: Summary, folder: Path) -> str:
    ok, abandoned = (summary.outcomes.get(name, 0) for name in ("ok", "abandoned"))
    failed = sum(summary.outcomes.values()) - ok - abandoned
    rate = summary.judgements_per_second
    lines = [
        f"{summary.queries} queries, {summary.candidates} candidates: {ok} judged, "
        f"{failed} failed, {summary.forced} ratings forced, "
        f"{len(summary.bad_rows)} input rows left out",
    ]
    if summary.budget:
        lines.append(budget_text(summary.budget))
    if summary.curve:
        (_, one), (size, best) = summary.curve[0], summary.curve[-1]
        lines.append(
            f"mean {summary.view} of a random response {one:.2f}, of the best of {size} {best:.2f}"
        )
    if rate:
        lines.append(f"{rate:.2f} judgements/s; {summary.reused} read from the journal")
    lines.append(f"report: {folder / 'report.html'}")
    return "\n".join(lines)
