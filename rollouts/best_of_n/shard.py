"""A shard of a best-of-N job: the job's own stages on some of its rows, and what they leave.

A shard has a folder with a journal and, once all is done, with a part: `selections.jsonl` and
`judgements.jsonl` as of a job, `groups.pickle` for the job's figures and report, and what the part
is of and was counted in `part.json`. The part takes its place whole.
"""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoj_reward.config import BestOfNConfig
from autoj_reward.io.files import cannot_write, filling, write_json
from autoj_reward.io.rows import LeftOut
from autoj_reward.journal import Journal
from autoj_reward.types import Asking, BadRow, Judgement, Usage
from rollouts.best_of_n import stages
from rollouts.best_of_n.counts import Counts
from rollouts.best_of_n.group import GroupResult
from rollouts.best_of_n.results import recording

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster

SHARDS = "shards"
KNOWN = {
    *(f"autoj_reward.{name}" for name in ("types", "context", "conversation", "io.rows")),
    *("autoj_reward.questions.race", "rollouts.best_of_n.group"),
}
"""The modules whose classes `groups.pickle` may hold."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The rows of an input from place `first` up to `last`, which is left out.

    key: of all that decides what they come to, see `keyed`.
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
class Part:
    """What a shard came to.

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
    left_out: LeftOut
    used: str = ""

    @property
    def final(self) -> bool:
        """Whether nothing is left that another run would ask for again."""
        return not (self.unavailable or self.left_out.count)


def part_of(shard: Shard, output: Path) -> Part | None:
    """The part that is there for just this shard."""
    try:
        found = json.loads((shard.part(output) / "part.json").read_text(encoding="utf-8"))
        if found["shard"]["key"] != shard.key:
            return None
        bad = [BadRow(**row) for row in found["left_out"]["first"]]
        known = {
            "shard": Shard(**found["shard"]),
            "usage": Usage(**found["usage"]),
            "left_out": LeftOut(found["left_out"]["count"], bad),
        }
        part = Part(**found | known)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return part if part.shard == shard else None


def groups_of(shard: Shard, output: Path) -> Iterator[GroupResult]:
    """The shard's queries in their order."""
    with (shard.part(output) / "groups.pickle").open("rb") as file:
        while file.peek(1):
            yield Records(file).load()


class Records(pickle.Unpickler):
    """Builds records of ours and nothing else: a file cannot make it run anything."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module in KNOWN else None
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(f"{module}.{name} is no record of a job")
        return found


async def sample_shard(config: BestOfNConfig, shard: Shard, cluster: Cluster) -> dict[Asking, str]:
    """Have the policy answer what has no responses; see `stages.sample`."""
    with _journal(config, shard) as journal:
        rows = stages.rows_of(config).part(shard.first, shard.last)
        return await stages.sample(config, rows, journal, cluster, lambda _: None)


async def judge_shard(
    config: BestOfNConfig, shard: Shard, unanswered: Mapping[Asking, str], cluster: Cluster
) -> None:
    """Judge, select, and put the part in its place."""
    counts, left_out, used = Counts(), LeftOut(), list[str]()

    def progress(judgement: Judgement, reused: bool) -> None:
        counts.add(judgement, reused, config.budget is not None)

    with _placing(shard, config.output) as folder, _journal(config, shard) as journal:
        rows = stages.rows_of(config).part(shard.first, shard.last)
        groups = stages.grouped(config, rows, journal, unanswered, left_out)
        queries = judgements = 0
        with recording(folder) as record, filling(folder / "groups.pickle") as kept:

            def add(group: GroupResult) -> None:
                nonlocal queries, judgements
                record(group)
                kept.add(pickle.dumps(group))
                queries, judgements = queries + 1, judgements + len(group.candidates)

            await stages.judge(config, groups, journal, cluster, progress, add, used.append)
        of = counts.reused, counts.new, counts.usage, counts.unavailable, left_out, "".join(used)
        write_json(folder / "part.json", Part(shard, queries, judgements, *of))


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
