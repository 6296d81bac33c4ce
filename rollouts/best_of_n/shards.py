"""A best-of-N job in shards: Ray Data takes them through the job's stages on the machines of a
cluster, and their parts are joined into the job's results.

The output is on a disk that all machines see. A shard whose part is there whole is not run again;
of others their journals keep what was judged.

A shard has a folder with a journal and, once all is done, with a part: `selections.jsonl` and
`judgements.jsonl` as of a job, `groups.pickle` for the job's figures and report, and what the part
is of and was counted in `part.json`. The part takes its place whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import pickle
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from autoj_reward.config import BestOfNConfig
from autoj_reward.errors import ConfigError, InputError, OutputError, from_extras
from autoj_reward.io.files import cannot_write, filling, write_json
from autoj_reward.io.rows import BadRows
from autoj_reward.journal import Journal
from autoj_reward.logs import announce
from autoj_reward.processes import relaxed_gc
from autoj_reward.replicas.replica import policy_name
from autoj_reward.types import BadRow, Judgement, QueryOrTurns, Usage
from rollouts.best_of_n import stages
from rollouts.best_of_n.report import Gathered
from rollouts.best_of_n.results import RESULTS, GroupResult, joining, writing_results
from rollouts.best_of_n.stages import Counts, Job
from rollouts.best_of_n.summary import JUDGE_PHASE

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster

SHARDS = "shards"
KNOWN = {
    *(f"autoj_reward.{name}" for name in ("types", "context", "conversation", "io.rows")),
    *("autoj_reward.questions.budget", "rollouts.best_of_n.results"),
}
"""The modules whose classes `groups.pickle` may hold."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part of an input: the rows `first` to `last` - 1.

    key: digest of everything that determines the results; see `planned`.
    """

    number: int
    first: int
    last: int
    key: str

    def folder(self, output: Path) -> Path:
        return output / SHARDS / f"{self.number:05}"

    def part(self, output: Path) -> Path:
        return self.folder(output) / "part"


@dataclass(frozen=True, slots=True)
class ShardPart:
    """Results of a shard.

    queries, judgements: rows of its result files. reused, new, usage, unavailable: as in Counts.
    left_out: queries that the policy gave no answer. used: the line on what judged it; empty where
        all was on record.
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
    """Return the finished part of just this shard, or None."""
    try:
        found = json.loads((shard.part(output) / "part.json").read_text(encoding="utf-8"))
        if found["shard"]["key"] != shard.key:
            return None
        bad = [BadRow(**row) for row in found["left_out"]["first"]]
        known = {
            "shard": Shard(**found["shard"]),
            "usage": Usage(**found["usage"]),
            "left_out": BadRows(found["left_out"]["count"], bad),
        }
        part = ShardPart(**found | known)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return part if part.shard == shard else None


def groups_of(shard: Shard, output: Path) -> Iterator[GroupResult]:
    """Yield the results of the shard's queries in their order."""
    with (shard.part(output) / "groups.pickle").open("rb") as file:
        while file.peek(1):
            yield Records(file).load()


class Records(pickle.Unpickler):
    """Unpickler that builds records of a job and nothing else: a file cannot make it run code."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module in KNOWN else None
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(f"{module}.{name} is no record of a job")
        return found


async def sample_shard(job: Job, shard: Shard, cluster: Cluster) -> dict[QueryOrTurns, str]:
    """Have the policy answer the queries without responses; see `stages.sample_rows`."""
    with _journal(job.config, shard) as journal:
        rows = stages.rows_of(job).part(shard.first, shard.last)
        return await stages.sample_rows(job.config, rows, journal, cluster, lambda _: None)


async def judge_shard(
    job: Job, shard: Shard, unanswered: Mapping[QueryOrTurns, str], cluster: Cluster
) -> None:
    """Judge, select, and put the part in its place."""
    config = job.config
    counts, left_out, used = Counts(), BadRows(), list[str]()

    def progress(judgement: Judgement, reused: bool) -> None:
        counts.add(judgement, reused, config.budget is not None)

    with _placing(shard, config.output) as folder, _journal(config, shard) as journal:
        rows = stages.rows_of(job).part(shard.first, shard.last)
        groups = stages.grouped(config, rows, journal, unanswered, left_out)
        queries = judgements = 0
        with writing_results(folder) as record, filling(folder / "groups.pickle") as kept:

            def add(group: GroupResult) -> None:
                nonlocal queries, judgements
                record(group)
                kept.add(pickle.dumps(group))
                queries, judgements = queries + 1, judgements + len(group.candidates)

            await stages.judge_groups(job, groups, journal, cluster, progress, add, used.append)
        of = counts.reused, counts.new, counts.usage, counts.unavailable, left_out, "".join(used)
        write_json(folder / "part.json", ShardPart(shard, queries, judgements, *of))


def _journal(config: BestOfNConfig, shard: Shard) -> closing[Journal]:
    return closing(Journal(shard.folder(config.output) / "journal.sqlite"))


@contextmanager
def _placing(shard: Shard, output: Path) -> Iterator[Path]:
    """A folder that becomes the shard's part. Of two workers on one shard, one of them taken for
    dead, the first part stays."""
    target = shard.part(output)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
    except OSError as error:
        raise cannot_write(target, error) from error
    try:
        yield own
        try:
            own.rename(target)
        except OSError as error:
            if part_of(shard, output) is None:
                raise cannot_write(target, error) from error
    finally:
        shutil.rmtree(own, ignore_errors=True)


Given = tuple[Shard, dict[QueryOrTurns, str]]
"""A shard, and its queries that the policy gave no answer, with why."""


def in_shards(
    job: Job,
    left_out: BadRows,
    counts: Counts,
) -> Gathered:
    """Run every shard that has no part yet, and join the parts in the order of the input.

    Raises InputError if no query has a response, ConfigError for an output in other shards.
    """
    config = job.config
    shards = planned(job, counts, counts.queries + left_out.count)
    _require_same(config)
    missing = [shard for shard in shards if not _is_final(shard, config.output)]
    of_this_run = {shard.number for shard in missing}
    found, parts = Gathered(config), []
    said = ""
    with (
        counts.phase(JUDGE_PHASE),
        joining(config.output) as join,
        closing(_run(job, missing, counts.unanswered > 0)) as arriving,
    ):
        for shard in tqdm(shards, desc="judging", unit="shard"):
            if shard.number in of_this_run:
                next(arriving)
            if (part := part_of(shard, config.output)) is None:
                where = shard.part(config.output)
                raise OutputError(f"{where} is gone or another's: start the same command again")
            join(shard.part(config.output))
            for group in groups_of(shard, config.output):
                found.add(group)
            _count(part, counts, left_out, config.input, shard.number in of_this_run)
            if shard.number in of_this_run and part.used and not said:
                said = part.used
                announce(said)
            parts.append(part)
        if not found.queries:
            raise InputError(f"{config.input}: no query has a response to judge")
    write_json(config.output / "manifest.json", _manifest(parts))
    return found


def planned(job: Job, counts: Counts, rows: int) -> list[Shard]:
    """Split `rows` rows into shards of nearly equal size. No shard is empty."""
    config = job.config
    assert config.ray_data is not None
    many = config.ray_data.shards
    policy = policy_name(config.policy) if config.policy else None
    places: Any = {"input": True, "output": True, "ray_data": True}
    serving: Any = {"judge": {"serve"}, "policy": {"serve"}}
    settings = config.model_dump(mode="json", exclude=places | serving)
    known = [version("autoj-reward"), settings, job.judge.name, policy, counts.rows.hexdigest()]
    text = json.dumps(known, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()
    bounds = [rows * n // many for n in range(many + 1)]
    pairs = [(first, last) for first, last in pairwise(bounds) if first < last]
    return [Shard(number, *pair, key) for number, pair in enumerate(pairs)]


def _require_same(config: BestOfNConfig) -> None:
    """ConfigError if the output is in another number of shards: journals go by their rows."""
    assert config.ray_data is not None
    plan = config.output / SHARDS / "plan.json"
    own = config.ray_data.shards
    known = json.loads(plan.read_text(encoding="utf-8"))["shards"] if plan.is_file() else own
    if known != own:
        raise ConfigError(
            f"{config.output} is in {known} shards, and ray_data.shards is {own}: set it to "
            f"{known}, or name another output"
        )
    write_json(plan, {"shards": own})


def _is_final(shard: Shard, output: Path) -> bool:
    """Whether nothing of a shard is to be done; else what is left of a part goes."""
    part = part_of(shard, output)
    if part is not None and part.final:
        return True
    for old in shard.folder(output).glob("*part*"):
        shutil.rmtree(old)
    return False


def _run(job: Job, shards: Sequence[Shard], sampling: bool) -> Generator[None]:
    """Take the shards through their stages; yields as each is done, in their order."""
    if not shards:
        return
    with from_extras():
        from autoj_reward.replicas.cluster import Cluster
        from autoj_reward.replicas.pipeline import Deployed, run_stages

    config = job.config
    assert config.ray_data is not None
    workers, cluster = config.ray_data.concurrency, Cluster()
    policy = config.policy if sampling else None
    try:
        cluster.start()
        cluster.require_room(config.judge, policy)
        judge = config.judge.on_replicas and cluster.deploy_judge(job.judge).shared(workers)
        asked = policy and policy.on_replicas and cluster.deploy_policy(policy)
        made_of = _elsewhere(job), Deployed(judge or None, asked or None)
        taken: list[Any] = [SamplingStage, JudgingStage] if policy else [JudgingStage]
        items: list[Given] = [(shard, {}) for shard in shards]
        for _ in run_stages(items, taken, made_of, workers):
            yield
    finally:
        cluster.close()


def _elsewhere(job: Job) -> Job:
    """The job as a process with another working directory reads it."""
    config = job.config
    source, output = Path(config.input), config.output.absolute()
    place = str(source.absolute()) if source.exists() else config.input
    return replace(job, config=config.model_copy(update={"input": place, "output": output}))


class _Stage:
    """What a worker of Ray Data makes once."""

    def __init__(self, job: Job, replicas: Cluster) -> None:
        self._job, self._replicas = job, replicas


class SamplingStage(_Stage):
    """Has the policy answer the queries without responses."""

    def __call__(self, given: Given) -> Given:
        shard, _ = given
        return shard, asyncio.run(sample_shard(self._job, shard, self._replicas))


class JudgingStage(_Stage):
    """Judges and selects, and leaves the part."""

    def __call__(self, given: Given) -> Shard:
        shard, unanswered = given
        if part_of(shard, self._job.config.output) is None:  # else a worker was lost just after it
            with relaxed_gc():
                asyncio.run(judge_shard(self._job, shard, unanswered, self._replicas))
        return shard


def _count(
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


def _manifest(parts: Sequence[ShardPart]) -> dict[str, Any]:
    """Where the parts are, of which rows of the input, and how many rows they have."""
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
