"""Best-of-N in shards on a cluster of two nodes, against the job in one process."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.config import JudgeConfig, PolicyConfig
from autoj_reward.errors import ConfigError
from autoj_reward.models.spec import judge_spec
from autoj_reward.processes import processes
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.types import Candidate
from tests.rollouts.test_job import (
    BAD,
    ROWS,
    SCRIPT,
    Job,
    list_judged_texts,
    read_journal_inputs,
    read_lines,
)

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
TIMES = ("seconds", "judgements_per_second", "output_tokens_per_second")
MANY = [
    {"query": f"q{q}", "responses": [f"q{q} r{r} " + "x" * ((q * 7 + r) % 10) for r in range(8)]}
    for q in range(60)
]


class Nodes:
    """A cluster of two nodes; jobs join it by RAY_ADDRESS."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Machines

        self._cluster = Machines(
            initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1}
        )
        self._second = self._cluster.add_node(num_cpus=1)
        self.address = self._cluster.address

    def lose_one(self) -> None:
        """Kill the second node, and have another in its place."""
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = self._cluster.add_node(num_cpus=1)

    def end(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    cluster = Nodes()
    yield cluster
    cluster.end()


@pytest.fixture
def joined_nodes(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    return nodes


def make_sharded_job(folder: Path, rows: list[Any], script: dict[str, Any], **config: Any) -> Job:
    return Job(folder, rows, script, ray_data={"shards": 3, "concurrency": 2}, **config)


def read_untimed(job: Job) -> list[Any]:
    """What a job found, without how long that took, and without its folder's name, which the script
    of the judge has too."""
    summary = {k: v for k, v in job.summary().items() if k not in TIMES}
    for row in (summary["usage"], *(rows := read_lines(job.output / "judgements.jsonl"))):
        del row["latency_s"], row["queued_s"]
        row.pop("judge", None)
    del summary["judge"]
    for bad in summary["bad_rows"]:
        del bad["file"]
    return [(job.output / "selections.jsonl").read_bytes(), rows, summary]


def test_shards_find_what_one_process_does(
    tmp_path: Path, joined_nodes: Nodes, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [*BAD, {"query": "sampled"}, *ROWS[1:], {"query": "sampled too"}]
    policy = {"kind": "fake", "n": 3}
    alone = Job(tmp_path / "alone", rows, SCRIPT, policy=policy)
    job = make_sharded_job(tmp_path / "shards", rows, SCRIPT, policy=policy)
    assert (alone.run(), job.run()) == (0, 0)
    assert read_untimed(job) == read_untimed(alone)
    output = "".join(capfd.readouterr())
    assert re.findall(r"\[[^]]* [EW] \d+ \d+\].*|.*Warning: .*", output) == []  # of Ray's
    pattern = r"judge default:\S+ \(fake\), view rating, distributions: scripted; (\d+) of \1 .* ok"
    assert len(re.findall(pattern, output)) == 2  # each job says it once, whatever its shards
    for line in (2, 3):
        assert f"left out {tmp_path / 'shards' / 'in.jsonl'}:{line}: " in output
    first, *_, last = json.loads((job.output / "manifest.json").read_text())["shards"]
    assert (first["rows"][0], last["rows"][1]) == (1, len(rows))
    lines = [read_lines(job.output / shard["files"][0]) for shard in (first, last)]
    assert [len(part) for part in lines] == [first["queries"], last["queries"]]
    count = len(list_judged_texts(job.log))
    assert count == len(list_judged_texts(alone.log))
    before = read_untimed(job)
    assert job.run() == 0
    assert read_untimed(job)[0] == before[0] and len(list_judged_texts(job.log)) == count
    assert job.summary()["reused"] == count


def test_an_error_of_a_worker_says_what_to_do(
    tmp_path: Path, joined_nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_sharded_job(tmp_path, ROWS, SCRIPT)
    journal = job.output / "shards" / "00001" / "journal.sqlite"
    journal.parent.mkdir(parents=True)
    journal.write_text("this is no journal")
    assert job.run() == 1
    errors = capsys.readouterr().err
    assert (
        f"autoj: error: journal {journal}: cannot be opened" in errors and "Traceback" not in errors
    )
    assert not (job.output / "selections.jsonl").exists()
    journal.unlink()
    recorded = []
    for path in (job.output / "shards").glob("*/journal.sqlite"):
        recorded += read_journal_inputs(path)
    asked = len(list_judged_texts(job.log))
    assert job.run() == 0
    # What the error cut off is asked again, and nothing that was recorded.
    asked_again = list_judged_texts(job.log)[asked:]
    assert len(recorded) + len(asked_again) == 10
    assert not any(responses in recorded for responses in asked_again)


class Rating:
    """A stage that asks the job's replicas, in an event loop for each item as a shard has."""

    def __init__(self, replicas: Cluster) -> None:
        self._replicas = replicas

    def __call__(self, response: str) -> float | None:
        return asyncio.run(self._rate(response))

    async def _rate(self, response: str) -> float | None:
        client = JudgeClient(
            self._replicas.deploy_judge(judge_spec(JudgeConfig())),
            limits=ClientLimits(deadline_s=120),
        )
        [judgement] = await client.rate([Candidate("q", response)])
        return judgement.view("rating")


def test_workers_ask_the_replicas_of_the_job(joined_nodes: Nodes) -> None:
    from autoj_reward.replicas.pipeline import Deployed, run_stages

    script = {"ratings": {"a": 3, "bb": 8, "ccc": 5, "dd": 6}}
    serve = {"replicas": 1, "num_cpus": 0.1, "max_ongoing": 3}
    judge = JudgeConfig.model_validate({"kind": "fake", "script": script, "serve": serve})
    cluster = Cluster()
    try:
        shared = cluster.deploy_judge(judge_spec(judge)).shared(2)
        assert shared.max_ongoing == 2
        made_of = (Deployed(shared, None),)
        assert list(run_stages([*script["ratings"]], [Rating], made_of, 2)) == [3, 8, 5, 6]
    finally:
        cluster.close()


class Counting:
    """Says how many processes share what the job may use."""

    def __call__(self, item: int) -> int:
        return processes()


@pytest.mark.parametrize(("workers", "count"), [(2, 2), (8, 3)])
def test_workers_know_how_many_they_are(joined_nodes: Nodes, workers: int, count: int) -> None:
    from autoj_reward.replicas.pipeline import run_stages

    cluster = Cluster()
    try:
        cluster.start()
        assert list(run_stages(range(3), [Counting], (), workers)) == [count] * 3
    finally:
        cluster.close()


class First:
    """Says that it has begun with an item."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, item: int) -> int:
        (self._folder / str(item)).touch()
        return item


class Second(First):
    """Has done with an item once the first stage has begun with the next, and the one before is
    where it is wanted."""

    def __call__(self, item: int) -> int:
        until = time.monotonic() + 600
        signs = [self._folder / str(item + 1), self._folder / f"{item - 1} arrived"]
        while not all(sign.exists() for sign in signs):
            assert time.monotonic() < until
            time.sleep(0.01)
        return item


def test_one_is_sampled_while_another_is_judged_and_a_third_is_joined(
    tmp_path: Path, joined_nodes: Nodes
) -> None:
    from autoj_reward.replicas.pipeline import run_stages

    for sign in ("4", "-1 arrived"):
        (tmp_path / sign).touch()
    cluster = Cluster()
    try:
        cluster.start()
        for number, item in enumerate(run_stages(range(4), [First, Second], (tmp_path,), 1)):
            assert item == number
            (tmp_path / f"{item} arrived").touch()
        assert item == 3
    finally:
        cluster.close()


def test_both_stages_have_gpus_of_their_own(joined_nodes: Nodes) -> None:
    cluster = Cluster()
    try:
        cluster.start()
        cluster.require_room(JudgeConfig(), None)
        with pytest.raises(ConfigError, match="for 2 GPUs at a time and the cluster has 1: set"):
            cluster.require_room(JudgeConfig(), PolicyConfig())
    finally:
        cluster.close()


def test_a_killed_driver_and_another_start(tmp_path: Path, joined_nodes: Nodes) -> None:
    alone, job = (
        Job(tmp_path / "alone", MANY, {}),
        make_sharded_job(tmp_path / "shards", MANY, SLOW),
    )
    assert alone.run() == 0
    driver = start_job(job, 0.6)
    driver.kill()
    driver.wait()
    assert not (job.output / "selections.jsonl").exists()
    assert job.run() == 0
    assert read_untimed(job)[0] == read_untimed(alone)[0]
    require_asked_once(job, alone)
    leftovers = [path.name for path in (job.output / "shards").rglob(".part-*")]
    assert leftovers == []


def test_a_killed_node(tmp_path: Path, joined_nodes: Nodes) -> None:
    alone, job = (
        Job(tmp_path / "alone", MANY, {}),
        make_sharded_job(tmp_path / "shards", MANY, SLOW),
    )
    assert alone.run() == 0
    driver = start_job(job, 0.3)
    joined_nodes.lose_one()
    assert driver.wait() == 0
    assert read_untimed(job)[0] == read_untimed(alone)[0]
    require_asked_once(job, alone)


SLOW = {"latency_s": 0.05, "concurrent": 4}


def start_job(job: Job, share: float) -> subprocess.Popen[bytes]:
    """A job over MANY that is under way and has judged so much of it."""
    command = [sys.executable, "-m", "autoj_reward.cli", *job.arguments]
    driver = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    while len(list_judged_texts(job.log)) < share * 8 * len(MANY):
        assert driver.poll() is None
        time.sleep(0.01)
    return driver


def require_asked_once(job: Job, alone: Job) -> None:
    """A killed worker asks again for what was in flight, and for at most as many answers that it
    had not recorded yet. There are two workers."""
    questions = [tuple(responses) for responses in list_judged_texts(job.log)]
    assert set(questions) == {tuple(responses) for responses in list_judged_texts(alone.log)}
    assert len(questions) - len(set(questions)) <= 2 * (2 * SLOW["concurrent"])
