"""Best-of-N jobs in shards, run by Ray Data on the machines of a cluster.

The output must be on a disk that all machines share. Each shard has a folder with a journal. A
finished shard also has a `part` folder there, which appears complete: `selections.jsonl` and
`judgements.jsonl` as of a job, `groups.pickle` for the metrics and the report, and `part.json` with
the shard and its counts. The parts are joined into the job's results. A finished shard is not run
again; an unfinished one resumes from its journal.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from autoj_reward.config import RayDataConfig
from autoj_reward.conversation import Prompt
from autoj_reward.errors import ConfigError, InputError, OutputError, from_extras
from autoj_reward.io.files import cannot_write, filling, write_json
from autoj_reward.io.rows import BadRows
from autoj_reward.journal import Journal
from autoj_reward.logs import announce
from autoj_reward.processes import relaxed_gc
from autoj_reward.types import BadRow, Usage
from rollouts.best_of_n.report import Gathered
from rollouts.best_of_n.results import RESULTS, GroupResult, open_joined_results, open_result_files
from rollouts.best_of_n.sampling import JobSchedule, Sampler
from rollouts.best_of_n.stages import Counts, Job, unanswered_queries
from rollouts.best_of_n.summary import JUDGE_PHASE

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster

SHARDS = "shards"
KNOWN = {
    *(f"autoj_reward.{name}" for name in ("types", "conversation", "io.rows")),
    *(f"autoj_reward.questions.{name}" for name in ("choose", "rank", "rubric")),
    "autoj_reward.rubric_items",
    "rollouts.best_of_n.results",
}
"""Modules whose classes `groups.pickle` may contain."""


def _say_nothing(line: str) -> None:
    """Leave out how rows are read, which the driver has said."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Range of input rows that one worker processes."""

    number: int
    first: int
    """Index of the first row, from 0."""
    last: int
    """Index after the last row."""
    key: str
    """SHA-256 of all that determines the results: input, settings, models and version."""

    def folder(self, output: Path) -> Path:
        return output / SHARDS / f"{self.number:05}"

    def part(self, output: Path) -> Path:
        return self.folder(output) / "part"


@dataclass(frozen=True, slots=True)
class ShardPart:
    """Results of a shard, or of a part of it.

    queries, judgements: rows of its result files. reused, new, usage, unavailable: as in Counts.
    left_out: queries that the policy did not answer. used: the log line that names the judge and
        its view; empty if every judgement was in the journal.
    """

    shard: Shard
    queries: int
    judgements: int
    reused: int
    new: int
    usage: Usage
    unavailable: int
    left_out: BadRows
    used: str = ""

    @property
    def final(self) -> bool:
        """Whether another run would ask for nothing again."""
        return not (self.unavailable or self.left_out.count)


def part_of(shard: Shard, output: Path) -> ShardPart | None:
    """Return the finished part of this shard; None if there is none, or one with another key."""
    try:
        record = json.loads((shard.part(output) / "part.json").read_text(encoding="utf-8"))
        if record["shard"]["key"] != shard.key:
            return None
        bad = [BadRow(**row) for row in record["left_out"]["first"]]
        parsed_fields = {
            "shard": Shard(**record["shard"]),
            "usage": Usage(**record["usage"]),
            "left_out": BadRows(record["left_out"]["count"], bad),
        }
        part = ShardPart(**record | parsed_fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return part if part.shard == shard else None


def groups_of(shard: Shard, output: Path) -> Iterator[GroupResult]:
    """Yield the results of the shard's queries in input order."""
    with (shard.part(output) / "groups.pickle").open("rb") as file:
        while file.peek(1):
            yield Records(file).load()


class Records(pickle.Unpickler):
    """Unpickler that builds records of a job and nothing else: a file cannot make it run code."""

    def find_class(self, module: str, name: str) -> Any:
        record_class = super().find_class(module, name) if module in KNOWN else None
        if not isinstance(record_class, type) or record_class.__module__ != module:
            raise pickle.UnpicklingError(f"{module}.{name} is no record of a job")
        return record_class


async def sample_shard(job: Job, shard: Shard, cluster: Cluster) -> dict[Prompt, str]:
    """Sample responses to the shard's queries without any; return the failed queries."""
    assert job.policy is not None
    with _open_journal(shard, job.output) as journal:
        sampler = Sampler(job.policy, journal, cluster, lambda _: None)
        rows = job.rows.open(_say_nothing).part(shard.first, shard.last)
        return await sampler.sample_all(unanswered_queries(rows))


async def judge_shard(
    job: Job, shard: Shard, unanswered: Mapping[Prompt, str], cluster: Cluster | None
) -> None:
    """Judge the shard's candidates, select, and write the part."""
    counts = Counts()
    left_out = BadRows()
    lines = list[str]()

    with _place_part(shard, job.output) as folder, _open_journal(shard, job.output) as journal:
        rows = job.rows.open(_say_nothing).part(shard.first, shard.last)
        schedule = JobSchedule()
        if job.policy:
            # The stage before has asked the policy.
            sampler = Sampler(job.policy, journal, cluster, lambda _: None, unanswered)
            schedule = JobSchedule(sampler.read)
        queries = judgements = 0
        with open_result_files(folder) as record, filling(folder / "groups.pickle") as group_file:

            def add(group: GroupResult) -> None:
                nonlocal queries, judgements
                record(group)
                group_file.add(pickle.dumps(group))
                queries, judgements = queries + 1, judgements + len(group.candidates)

            opening = job.open_judge(journal, cluster, counts.add, say=lines.append)
            async with opening as ask:
                await job.judge_rows(rows, schedule, ask, add, left_out)
        rest = counts.reused, counts.new, counts.usage, counts.unavailable, left_out, "".join(lines)
        write_json(folder / "part.json", ShardPart(shard, queries, judgements, *rest))


def _open_journal(shard: Shard, output: Path) -> closing[Journal]:
    return closing(Journal(shard.folder(output) / "journal.sqlite"))


@contextmanager
def _place_part(shard: Shard, output: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes the shard's part at the end of the block.

    Ray may take a slow worker for dead and start another; the first finished part stays.
    """
    target = shard.part(output)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
    except OSError as error:
        raise cannot_write(target, error) from error
    try:
        yield temporary
        try:
            temporary.rename(target)
        except OSError as error:
            if part_of(shard, output) is None:
                raise cannot_write(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


ShardTask = tuple[Shard, dict[Prompt, str]]
"""A shard, and its queries that the policy did not answer, with the reason."""


def run_in_shards(
    job: Job,
    key: str,
    settings: RayDataConfig,
    left_out: BadRows,
    counts: Counts,
    results: Gathered,
) -> None:
    """Run every shard that has no part yet, and join the parts in `results`, in the input's order.

    key: as in `Shard`.
    Raises InputError if no query has a response, ConfigError for an output in other shards.
    """
    shards = split_into_shards(counts.queries + left_out.count, settings.shards, key)
    _require_same(settings.shards, job.output)
    missing = [shard for shard in shards if not _is_final(shard, job.output)]
    of_this_run = {shard.number for shard in missing}
    sampling = counts.unanswered > 0
    parts = []
    announced_line = ""
    with (
        counts.phase(JUDGE_PHASE),
        open_joined_results(job.output) as join,
        closing(_run_stages(job, missing, sampling, settings.concurrency)) as finished_shards,
    ):
        for shard in tqdm(shards, desc="judging", unit="shard"):
            if shard.number in of_this_run:
                next(finished_shards)
            if (part := part_of(shard, job.output)) is None:
                where = shard.part(job.output)
                raise OutputError(f"{where} is gone or another's: start the same command again")
            join(shard.part(job.output))
            for group in groups_of(shard, job.output):
                results.add(group)
            _add_counts(part, counts, left_out, job.rows.place, shard.number in of_this_run)
            if shard.number in of_this_run and part.used and not announced_line:
                announced_line = part.used
                announce(announced_line)
            parts.append(part)
        if not results.queries:
            raise InputError(f"{job.rows.place}: no query has a response to judge")
    write_json(job.output / "manifest.json", _make_manifest(parts))


def split_into_shards(rows: int, shard_count: int, key: str) -> list[Shard]:
    """Split `rows` input rows into shards of nearly equal size, none of them empty."""
    bounds = [rows * n // shard_count for n in range(shard_count + 1)]
    pairs = [(first, last) for first, last in pairwise(bounds) if first < last]
    return [Shard(number, *pair, key) for number, pair in enumerate(pairs)]


def _require_same(shard_count: int, output: Path) -> None:
    """Raise ConfigError if the output has another number of shards: journals go by shard."""
    plan = output / SHARDS / "plan.json"
    recorded_count = (
        json.loads(plan.read_text(encoding="utf-8"))["shards"] if plan.is_file() else shard_count
    )
    if recorded_count != shard_count:
        raise ConfigError(
            f"{output} is in {recorded_count} shards, and ray_data.shards is {shard_count}: "
            f"set it to {recorded_count}, or name another output"
        )
    write_json(plan, {"shards": shard_count})


def _is_final(shard: Shard, output: Path) -> bool:
    """Return whether a shard is done; if not, remove what is left of its part."""
    part = part_of(shard, output)
    if part is not None and part.final:
        return True
    for old in shard.folder(output).glob("*part*"):
        shutil.rmtree(old)
    return False


def _run_stages(job: Job, shards: Sequence[Shard], sampling: bool, workers: int) -> Generator[None]:
    """Run the stages of the shards; yield as each shard is done, in order."""
    if not shards:
        return
    with from_extras():
        from autoj_reward.replicas.cluster import Cluster
        from autoj_reward.replicas.pipeline import Deployed, run_stages

    cluster = Cluster()
    policy = job.policy if sampling else None
    try:
        cluster.start()
        cluster.require_room(job.judge.config, policy)
        judge = job.judge.config.on_replicas and cluster.deploy_judge(job.judge).shared(workers)
        policy_replicas = policy and policy.on_replicas and cluster.deploy_policy(policy)
        stage_arguments = job.absolute(), Deployed(judge or None, policy_replicas or None)
        stage_classes: list[Any] = [SamplingStage, JudgingStage] if policy else [JudgingStage]
        items: list[ShardTask] = [(shard, {}) for shard in shards]
        for _ in run_stages(items, stage_classes, stage_arguments, workers):
            yield
    finally:
        cluster.close()


class _Stage:
    """Base class of the stages. A Ray Data worker creates each stage once."""

    def __init__(self, job: Job, replicas: Cluster) -> None:
        self._job, self._replicas = job, replicas


class SamplingStage(_Stage):
    """Stage that samples responses to queries without any."""

    def __call__(self, task: ShardTask) -> ShardTask:
        shard, _ = task
        return shard, asyncio.run(sample_shard(self._job, shard, self._replicas))


class JudgingStage(_Stage):
    """Stage that judges and selects, and writes the shard's part."""

    def __call__(self, task: ShardTask) -> Shard:
        shard, unanswered = task
        if part_of(shard, self._job.output) is None:  # else a worker was lost just after it
            with relaxed_gc():
                asyncio.run(judge_shard(self._job, shard, unanswered, self._replicas))
        return shard


def _add_counts(
    part: ShardPart, counts: Counts, left_out: BadRows, name: str, of_this_run: bool
) -> None:
    first = [replace(bad, file=name) for bad in part.left_out.first]
    left_out.extend(BadRows(part.left_out.count, first))
    if not of_this_run:
        counts.reused += part.reused + part.new
        return
    counts.reused += part.reused
    counts.new += part.new
    counts.usage += part.usage


def _make_manifest(parts: Sequence[ShardPart]) -> dict[str, Any]:
    """Return the content of manifest.json: input rows, result rows and files of each part."""
    return {
        "shards": [
            {
                "rows": [part.shard.first + 1, part.shard.last],
                "queries": part.queries,
                "judgements": part.judgements,
                "files": [str(part.shard.part(Path()) / name) for name in RESULTS],
            }
            for part in parts
        ]
    }
