"""Several processes of one training: the views that they agree on, and what rank 0 logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoj_reward import Judge
from autoj_reward.config import AuditConfig, JudgeConfig, RewardConfig, ShapingConfig
from autoj_reward.engine.endpoint import TEST_MESSAGES
from autoj_reward.errors import ConfigError
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from tests.engine.test_distributions import Dialect
from tests.engine.test_openai_engine import Answer
from tests.processes import run_two_ranks
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
RANK = """
import sys
from torch import distributed

from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate

rank, port = sys.argv[1:]
store = distributed.TCPStore("127.0.0.1", int(port), 2, rank == "0")
distributed.init_process_group("gloo", store=store, rank=int(rank), world_size=2)
# The endpoint of rank 1, if that asked by itself, would tell nothing.
judge = JudgeConfig(kind="fake", script={"logprobs": rank == "0"})
with RewardModel(RewardConfig(judge=judge)) as reward:
    try:
        [found] = reward.rewards_now([Candidate("q", "a")])
    except Exception as error:
        print(type(error).__name__, error)
    else:
        print(found.raw)
distributed.barrier()
distributed.destroy_process_group()
"""
FINDING = """
import json, sys
import torch.distributed as distributed
from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.processes import of_first_rank
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate

rank, store, url = int(sys.argv[1]), sys.argv[2], sys.argv[3]

def rewards(name):
    judge = JudgeConfig(kind="openai", model=name, base_url=url)
    with RewardModel(RewardConfig(judge=judge)) as model:
        return [own.value for own in model.rewards_now([Candidate("Why?", "Because.")])]

alone = of_first_rank("alone", rank)
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
found = {"alone": alone, "first": of_first_rank("one", {"rank": [rank]})}
found["rewards"] = [rewards("told"), rewards("untold")]
distributed.barrier()
print(json.dumps(found))
"""


GATHERING = """
import asyncio, json, sys
import torch.distributed as distributed
from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.errors import AutojError
from autoj_reward.trainer.reward import RewardModel

rank, store, texts = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
script = {"ratings": {"good": 9, "fair": 5, "poor": 2}}
judge = JudgeConfig(kind="fake", format="listwise", script=script)
model = RewardModel(RewardConfig(judge=judge, relative={"by": "listwise"}))
function, logged, found = model.trl(), {}, []
for batch in texts:
    prompts, completions = batch[rank]
    try:
        found.append(asyncio.run(function(prompts, completions, logged.__setitem__)))
    except AutojError as error:
        found.append(f"{type(error).__name__}: {error}")
print(json.dumps([found, sorted(logged), bool(model.clients)]))
model.close()
distributed.barrier()
"""

METRICS = """
import asyncio, json, sys
import torch
import torch.distributed as distributed
from autoj_reward.config import RewardConfig, check
from autoj_reward.trainer.reward import RewardModel

rank, store, cases = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
found = {}
for case, (config, batches) in cases.items():
    model = RewardModel(check(RewardConfig, config, "test"))
    logged, columns = {}, {}
    batch, log = batches[rank], {"log_metric": logged.__setitem__, "log_extra": columns.__setitem__}
    apart = "parts" in config and "when" not in config
    functions = model.trl(parts=True) if apart else [model.trl()]
    for function in functions:
        asyncio.run(function(**batch, **log))
    model.close()
    own = [sorted(logged), sorted(columns)]
    names = [None, None]
    distributed.all_gather_object(names, own)
    means = {}
    if names[0] == names[1]:  # as TRL gathers them; it would wait here for ever if they differed
        for name in own[0]:
            values = [torch.zeros(1), torch.zeros(1)]
            distributed.all_gather(values, torch.tensor([float(logged[name])]))
            means[name] = [str(float(value)) for value in values]
    found[case] = [own, means]
print(json.dumps(found))
distributed.barrier()
distributed.destroy_process_group()
"""


def score_length(candidate: Candidate) -> float | None:
    """Return the length of a response as the number of a part; None for `lost`."""
    return None if candidate.response.text == "lost" else float(len(candidate.response.text))


def make_cases(items_file: Path) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return the config of each kind of reward, and the batch of each rank.

    Rank 1 has nothing for what only this kind of reward measures: its judgements failed, its rows
    have other tags, or it has no rows.
    """
    judge: dict[str, Any] = {
        "kind": "fake",
        "script": {"fail": {"lost": "truncated", "gone": "truncated"}},
    }
    listwise = judge | {"format": "listwise"}
    items = judge | {"format": "rubric-item"}
    good: dict[str, Any] = {"prompts": ["q", "q"], "completions": ["good", "a longer one"]}
    lost: dict[str, Any] = {"prompts": ["r", "r"], "completions": ["lost", "gone"]}
    failures = {"budget": 1.0}
    rates = {"failures": failures, "view": "rating"}
    kinds: dict[str, dict[str, Any]] = {
        "rating": rates | {"judge": judge},
        "votes": rates | {"judge": judge | {"critiques": 2, "temperature": 1.0}},
        "audit": rates | {"judge": judge, "audit": {"judge": judge, "view": "rating", "share": 1}},
        "parts": rates
        | {"judge": judge, "parts": {"size": {"function": f"{__name__}:score_length"}}},
        "waiting": rates
        | {
            "judge": judge,
            "when": "size",
            "parts": {"size": {"function": f"{__name__}:score_length"}},
        },
        "listwise": {"failures": failures, "judge": listwise, "relative": {"by": "listwise"}},
        "comparisons": {"failures": failures, "judge": judge, "relative": {"by": "comparisons"}},
        "items": {"failures": failures, "judge": items, "rubric": {"by": "items"}},
        "items of a file": {
            "failures": failures,
            "judge": items,
            "rubric": {"by": "items", "items": str(items_file)},
        },
    }
    cases = {kind: (config, [good, lost]) for kind, config in kinds.items()}
    cases |= {f"{kind}, no rows": (kinds[kind], [good, EMPTY]) for kind in ("rating", "audit")}
    names, physics = [
        good | {"rubric": [[{"criterion": "good", "tags": [tag]}]] * 2}
        for tag in ("names", "physics")
    ]
    cases["items"] = kinds["items"], [names, lost]
    cases["tags"] = kinds["items"], [names, physics]
    return cases


EMPTY: dict[str, Any] = {"prompts": [], "completions": []}
"""Batch of a rank without rows."""


def test_two_ranks_log_the_same_names_whatever_their_rows(tmp_path: Path) -> None:
    items_file = tmp_path / "items.yaml"
    items_file.write_text("items: [{criterion: good, tags: [names]}]", encoding="utf-8")
    cases = make_cases(items_file)
    outputs = run_two_ranks(METRICS, tmp_path / "store", json.dumps(cases))
    first, second = map(json.loads, outputs)
    assert first == second and set(first) == set(cases)
    means = {case: values for case, (_, values) in first.items()}
    assert all(means.values())
    known = {
        "votes": "judge/vote_spread",
        "listwise": "judge/order_spread",
        "comparisons": "judge/standard_error",
        "items": "rubric/met",
        "items of a file": "rubric/tag/names",
        "rating, no rows": "judge/ok",
    }
    for case, name in known.items():
        rank_0, rank_1 = means[case][name]
        assert (rank_0 == "nan", rank_1) == (False, "nan"), case
    assert "part_size" in first["parts"][0][1] and "audit/gap" in means["audit, no rows"]
    # Tags of rows are known to their own rank alone.
    assert not [name for name in means["tags"] if "tag" in name]


def test_a_group_that_two_ranks_hold_is_judged_on_rank_0(tmp_path: Path) -> None:
    batches = [
        [[["q", "q", "r"], ["good", "poor", "fair"]], [["q", "r", "r"], ["fair", "poor", "poor"]]],
        [[["q"], ["good"]], [["q", "r"], ["poor", "fair"]]],  # r is alone
        [[["q"], ["poor"]], [["q"], ["good"]]],
    ]
    outputs = run_two_ranks(GATHERING, tmp_path / "store", json.dumps(batches))
    (first, logged, opened), (second, logged_too, opened_too) = map(json.loads, outputs)
    good, poor, fair_of_r = first[0]
    fair, *poor_of_r = second[0]
    assert poor < fair < good and poor_of_r[0] == poor_of_r[1] < fair_of_r
    assert first[1] == second[1] and first[1].startswith("ConfigError: reward.relative is set")
    assert first[2][0] < second[2][0]
    assert logged == logged_too and "judge/order_spread" in logged
    assert opened and not opened_too


class RayStarts(Exception):
    """A judge on replicas would start here."""


@pytest.mark.parametrize("kind", ["vllm", "transformers"])
def test_a_training_starts_one_judge_at_most(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise RayStarts

    monkeypatch.setattr("autoj_reward.replicas.cluster.Cluster", start)
    judge = JudgeConfig(kind=kind)
    alone = RewardConfig(judge=judge)
    grouped = RewardConfig(judge=judge, shaping=ShapingConfig(whiten="group"))
    audited = RewardConfig(
        judge=JudgeConfig(kind="fake"), audit=AuditConfig(judge=judge, view="rating")
    )

    def find_starts(world_size: str, rank: str) -> list[bool]:
        """Return for each way to open a judge whether it starts one or is refused."""
        monkeypatch.setenv("WORLD_SIZE", world_size)
        monkeypatch.setenv("RANK", rank)
        starts = []
        models = [RewardModel(config) for config in (alone, grouped, audited)]
        for open_one in (*(model.open for model in models), Judge(judge).__enter__):
            with pytest.raises((RayStarts, ConfigError)) as caught:
                open_one()
            starts.append(caught.type is RayStarts)
            assert starts[-1] or "`autoj serve`" in str(caught.value)
        return starts

    assert find_starts("1", "0") == [True, True, True, True]
    assert find_starts("2", "0") == [False, True, False, True]  # for all ranks, or for itself
    assert find_starts("2", "1") == [False, False, False, False]


def test_rank_0_decides_on_the_view_and_says_what_is_used() -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, rank, port],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    (first, log), (second, other_log) = [process.communicate() for process in ranks]
    assert float(first) != round(float(first))  # an expected rating
    assert "view is expected" in second  # which rank 1 would have to give, too
    assert log.count("view expected, distributions: scripted; 1 of 1 judgements ok") == 1
    assert "distributions:" not in other_log


class Ranked(Dialect):
    """Endpoint that gives log-probabilities for every model except `untold`.

    late: whether its very first answer lacks them.
    """

    def __init__(self, late: bool) -> None:
        super().__init__(goes_on=True)
        self.late = late
        self.answer = self.answer_rank

    def answer_rank(self, path: str, body: dict[str, Any]) -> Answer:
        self.silent = body["model"] == "untold" or self.late
        self.late = self.late and body["messages"] != TEST_MESSAGES
        return self.answered(path, body)


@pytest.fixture
def endpoints() -> Iterator[list[Ranked]]:
    ranked_endpoints = [Ranked(late=False), Ranked(late=True)]
    yield ranked_endpoints
    for endpoint in ranked_endpoints:
        endpoint.close()


def test_the_first_rank_says_what_an_endpoint_can(endpoints: list[Ranked], tmp_path: Path) -> None:
    """Without rank 0, the second rank would use ratings where the first uses expected ratings."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FINDING, str(rank), str(tmp_path / "store"), endpoint.url],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, endpoint in enumerate(endpoints)
    ]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    first, second = (json.loads(out) for out, _ in outputs)
    assert (first["alone"], second["alone"]) == (0, 1)
    assert first["first"] == second["first"] == {"rank": [0]}
    assert first["rewards"] == second["rewards"]
    [told_reward], [untold_reward] = first["rewards"]
    assert told_reward != 7 and untold_reward == 7
