"""The audit of a reward while a training runs: its metrics, its alarms, and that it changes
nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.client.client import JudgeClient
from autoj_reward.config import RewardConfig, check
from autoj_reward.errors import AuditAlarm, BudgetExceeded, ConfigError
from autoj_reward.journal.reading import Reader
from autoj_reward.judge.health import MASTER_KEYS
from autoj_reward.trainer.audit import AUDIT_BOUNDS, is_audited
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.stats import batch_metrics
from autoj_reward.trainer.trl import GRPOReward
from autoj_reward.types import Candidate, Pair
from tests.processes import run_two_ranks

Rater = Callable[[int, int], int]
"""Rating of a response by its quality, 1 to 10, and its padding in characters."""
HONEST_KEYS = {":": 1, "Thought process:": 1, "": 1, "Why?": 1}
ROOT = Path(__file__).parents[2]
FIGURES = ("gap", "gap_trend", "correlation", "opposition", "failures", "canary")
NAMES = {f"audit/{name}" for name in FIGURES} | {f"audit/alarm_{name}" for name in AUDIT_BOUNDS}


def write_answer(number: int, quality: int, padding: int) -> str:
    return f"Answer {number} of quality {quality}. {'x' * padding}"


def honest(quality: int, padding: int) -> int:
    return quality


def strict(quality: int, padding: int) -> int:
    return quality - 1


def pays_for_length(quality: int, padding: int) -> int:
    return min(10, quality + padding // 20)


def opposed(quality: int, padding: int) -> int:
    return 11 - quality


def make_steps(seed: int, steps: int = 20, rows: int = 16) -> list[list[tuple[int, int, int]]]:
    """Return the responses of a policy that learns to write longer, and no better."""
    rng = random.Random(seed)
    return [
        [(step * rows + n, rng.randint(2, 6), rng.randint(0, 12 * step)) for n in range(rows)]
        for step in range(steps)
    ]


def make_judge(rate: Rater, steps: Sequence[Sequence[tuple[int, int, int]]], **more: Any) -> Any:
    ratings = {write_answer(*row): rate(*row[1:]) for step in steps for row in step}
    return {"kind": "fake", "script": {"ratings": ratings | HONEST_KEYS} | more}


def make_config(judge: Any, audit: Any = None, **more: Any) -> RewardConfig:
    data = {"judge": judge, "view": "rating"} | more
    if audit is not None:
        whole = {"share": 1.0, "canaries_every": 16, "view": "rating"}
        data["audit"] = whole | audit
    return check(RewardConfig, data, "test")


def settle(model: RewardModel) -> None:
    """Wait until the audits in flight have ended."""

    async def wait_for_audits(client: JudgeClient) -> None:
        assert model.audit
        await asyncio.gather(*model.audit.in_flight)

    model.run(wait_for_audits).result()


def train(config: RewardConfig, steps: Sequence[Sequence[tuple[int, int, int]]]) -> list[Any]:
    """Return the audit's metrics after each step."""
    history = []
    with RewardModel(config) as model:
        for step in steps:
            model.rewards_now([Candidate("Why?", write_answer(*row)) for row in step])
            settle(model)
            assert model.audit
            history.append(model.audit.figures)
    return history


def list_alarms(figures: dict[str, float]) -> set[str]:
    return {name for name in AUDIT_BOUNDS if figures[f"audit/alarm_{name}"]}


def test_a_judge_that_pays_for_length_raises_the_alarm(caplog: pytest.LogCaptureFixture) -> None:
    steps = make_steps(1)
    config = make_config(make_judge(pays_for_length, steps), {"judge": make_judge(honest, steps)})
    with caplog.at_level(logging.WARNING, "autoj_reward"):
        history = train(config, steps)
    assert [list_alarms(figures) for figures in history[:4]] == [set()] * 4
    assert list_alarms(history[-1]) == {"gap_trend"} and history[-1]["audit/gap_trend"] > 0.25
    warnings = [record.message for record in caplog.records if "audit alarm" in record.message]
    assert len(warnings) == 1 and "gap_trend" in warnings[0] and "over 0.25" in warnings[0]


def test_a_judge_that_prefers_worse_responses_raises_the_alarm_before_the_gap_grows() -> None:
    """The policy stands still here. Its trainer would follow the judge."""
    steps = make_steps(6)
    history = train(
        make_config(make_judge(opposed, steps), {"judge": make_judge(honest, steps)}), steps
    )
    assert [list_alarms(figures) for figures in history[:11]] == [set()] * 11
    assert [list_alarms(figures) for figures in history[11:]] == [{"opposition"}] * 9
    assert history[-1]["audit/correlation"] == pytest.approx(-1)


@pytest.mark.parametrize("seed", range(5))
def test_a_judge_that_is_chance_raises_none(seed: int) -> None:
    steps = make_steps(seed, steps=60)
    rng = random.Random(seed)
    config = make_config(
        make_judge(lambda quality, padding: rng.randint(1, 10), steps),
        {"judge": make_judge(honest, steps)},
    )
    history = train(config, steps)
    assert not any(figures["audit/alarm_opposition"] for figures in history)
    assert abs(history[-1]["audit/correlation"]) < 0.2


@pytest.mark.parametrize("rate", [honest, strict])
@pytest.mark.parametrize("seed", range(5))
def test_an_honest_judge_raises_none(rate: Rater, seed: int) -> None:
    """Also none that is stricter than the audit judge throughout."""
    steps = make_steps(seed)
    history = train(
        make_config(make_judge(rate, steps), {"judge": make_judge(honest, steps)}), steps
    )
    assert [list_alarms(figures) for figures in history] == [set()] * len(steps)
    assert history[-1]["audit/canary"] == history[-1]["audit/failures"] == 0
    assert history[-1]["audit/correlation"] > 0.9


def test_figures_by_hand() -> None:
    ratings = {"a": 10, "b": 1, "c": 5.5, "lost": 4}
    audit = {"ratings": {"a": 5.5, "b": 1, "c": 10}, "fail": {"lost": "unparsable"}}
    config = make_config(
        {"kind": "fake", "script": {"ratings": ratings}},
        {"judge": {"kind": "fake", "script": audit}, "canaries_every": 0},
    )
    with RewardModel(config) as model:
        [first, *_] = model.rewards_now([Candidate("Why?", text) for text in ratings])
        settle(model)
        assert model.audit
        figures = dict(model.audit.figures)
    assert set(first.audit) == set(figures) == NAMES
    assert figures["audit/gap"] == 0  # (1/2 + 0 - 1/2) / 3
    assert figures["audit/correlation"] == pytest.approx(0.5)
    assert math.isnan(figures["audit/opposition"])
    assert figures["audit/failures"] == 1 / 4
    assert math.isnan(figures["audit/gap_trend"]) and math.isnan(figures["audit/canary"])


@pytest.mark.parametrize("keys", [{}, {":": 10}, {":": 10, "Why?": 9}])
def test_a_judge_that_pays_for_master_keys_raises_the_alarm(keys: dict[str, float]) -> None:
    steps = make_steps(2, steps=4)
    judge = make_judge(honest, steps)
    judge["script"]["ratings"] |= keys
    history = train(make_config(judge, {"judge": make_judge(honest, steps)}), steps)
    assert history[-1]["audit/canary"] == len(keys) / len(MASTER_KEYS)
    assert list_alarms(history[-1]) == ({"canary"} if keys else set())


def test_master_keys_leave_no_record(tmp_path: Path) -> None:
    steps = make_steps(3, steps=2)
    path = tmp_path / "journal.sqlite"
    judge = make_judge(honest, steps)
    history = train(make_config(judge, {"judge": make_judge(strict, steps)}, journal=path), steps)
    assert history[-1]["audit/canary"] == 0
    entries = Reader(path).newer(1000, lambda keys: {})
    texts = [entry.item.responses[0].text for entry in entries]
    assert sorted(texts) == sorted(write_answer(*row) for step in steps for row in [*step, *step])


def run_calls(config: RewardConfig, calls: Sequence[Sequence[str]]) -> list[Any]:
    """Return the numbers of each call, or its error."""
    ends: list[Any] = []
    with RewardModel(config) as model:
        for call in calls:
            try:
                rewards = model.rewards_now([Candidate("Why?", text) for text in call])
                ends.append([(r.raw, r.value, r.judgement.outcome) for r in rewards])
            except BudgetExceeded as error:
                ends.append(str(error))
        metrics = batch_metrics(rewards, [Candidate("Why?", text) for text in call], config)
    slow = ("judge/seconds", "judge/queued_seconds")
    figures = {n: v for n, v in metrics.items() if n not in slow and not n.startswith("audit/")}
    return [*ends, str(figures), model.health.figures()]


BROKEN = [{}, {"fail_share": {"unparsable": 1.0}}, {"fail_share": {"hang": 1.0}}]


@pytest.mark.parametrize("script", BROKEN)
def test_an_audit_changes_neither_rewards_nor_the_failure_budget(script: dict[str, Any]) -> None:
    """Whether the audit judge works, fails or hangs, and whether the judge fails on master keys."""
    lost = {f"lost {n}": "unparsable" for n in range(8)}
    judge = {"kind": "fake", "script": {"fail": lost | {"": "unavailable", ":": "unparsable"}}}
    calls = [[f"answer {n}", "x" * n, f"lost {n}"] for n in range(1, 8)]
    settings = {"failures": {"budget": 0.1, "window": 10}}
    plain = run_calls(make_config(judge, **settings), calls)
    audit = {"judge": {"kind": "fake", "script": script}, "canaries_every": 1}
    assert run_calls(make_config(judge, audit, **settings), calls) == plain
    assert any("failure budget" in str(end) for end in plain)


def test_a_broken_audit_judge_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    steps = make_steps(4, steps=5)
    broken = {"kind": "fake", "script": {"fail_share": {"unparsable": 1.0}}}
    audit = {"judge": broken, "stop": True, "canaries_every": 0}
    with caplog.at_level(logging.WARNING, "autoj_reward"):
        history = train(make_config(make_judge(honest, steps), audit), steps)
    assert history[-1]["audit/failures"] == 1 and list_alarms(history[-1]) == set()
    assert math.isnan(history[-1]["audit/gap"])
    assert sum("audit of the reward abstains" in record.message for record in caplog.records) == 1


def test_an_alarm_stops_a_trainer_that_should_stop() -> None:
    steps = make_steps(5)
    audit = {"judge": make_judge(honest, steps), "stop": True}
    config = make_config(make_judge(pays_for_length, steps), audit)
    logged: list[dict[str, float]] = []

    async def run(model: RewardModel) -> None:
        for step in steps:
            metrics: dict[str, float] = {}
            logged.append(metrics)
            texts = [write_answer(*row) for row in step]
            await GRPOReward(model).judge(["Why?"] * len(texts), texts, metrics.__setitem__)
            await asyncio.to_thread(settle, model)

    with RewardModel(config) as model:
        with pytest.raises(AuditAlarm, match=r"gap_trend is 0\.\d+, over 0\.25.*audit\.stop"):
            asyncio.run(run(model))
        assert 4 < len(logged) < len(steps)
        assert all(set(metrics) >= NAMES for metrics in logged[:-1]) and not logged[-1]
        with pytest.raises(AuditAlarm):  # a retry does not get past it
            model.rewards_now([Candidate("Why?", "again")])


TWO_RANKS = """
import asyncio, json, sys
import torch.distributed as distributed
from autoj_reward.config import RewardConfig, check
from autoj_reward.errors import AuditAlarm
from autoj_reward.trainer.reward import RewardModel
from tests.trainer.test_audit import settle

rank, store, data = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
model = RewardModel(check(RewardConfig, data, "test"))
function, logged, steps, stopped = model.trl(), {}, 0, ""
while not stopped:
    texts = [f"{steps} {'x' * n}" for n in range(4 * rank, 4 * rank + 4)]
    try:
        asyncio.run(function(["Why?"] * 4, texts, logged.__setitem__))
        steps += 1
    except AuditAlarm as error:
        stopped = str(error)
    if rank == 0:
        settle(model)
    distributed.barrier()
shown = {name: str(value) for name, value in logged.items() if name.startswith("audit/")}
print(json.dumps([steps, stopped, shown, bool(model.clients)]))
model.close()
distributed.barrier()
"""


def test_rank_0_audits_and_stops_all_ranks_where_it_judges_for_them(tmp_path: Path) -> None:
    judge = {"kind": "fake", "script": {"ratings": {":": 10, "Thought process:": 10}}}
    audit = {"judge": {"kind": "fake"}, "view": "rating", "canaries_every": 8, "stop": True}
    data = {"judge": judge, "view": "rating", "audit": audit, "shaping": {"whiten": "group"}}
    outputs = run_two_ranks(TWO_RANKS, tmp_path / "store", json.dumps(data))
    (*first, opened), (*second, opened_too) = map(json.loads, outputs)
    assert first == second and first[0] >= 3 and "canary is" in first[1]
    assert set(first[2]) == NAMES
    assert opened and not opened_too


def test_the_audited_share_is_the_same_everywhere() -> None:
    groups = [
        [Candidate(f"q{n % 7}", f"answer {n} {k}") for k in range(1 + n % 3)] for n in range(10_000)
    ]
    chosen = [group for group in groups if is_audited(group, 0.05)]
    assert len(chosen) == pytest.approx(500, abs=80)
    assert all(is_audited(group, 0.3) for group in chosen)
    assert all(is_audited(group, 1.0) for group in groups)


def test_groups_are_audited_whole(tmp_path: Path) -> None:
    """Correlations are taken within groups: those of these two judges are 1, and 0 over all."""
    groups = [(f"q{n}", [(f"{n} {k}", 1 + k + 3 * (n % 3)) for k in range(3)]) for n in range(99)]
    ratings = {text: rating for _, rows in groups for text, rating in rows}
    audit_ratings = {text: (rating - 1) % 3 + 1 for text, rating in ratings.items()}
    judge: Any = {"kind": "fake", "script": {"ratings": ratings}}
    log = tmp_path / "log"
    script = {"ratings": audit_ratings, "log": str(log)}
    audit = {"judge": {"kind": "fake", "script": script}, "share": 0.3, "canaries_every": 0}
    with RewardModel(make_config(judge, audit)) as model:
        model.rewards_now([Candidate(query, text) for query, rows in groups for text, _ in rows])
        settle(model)
        assert model.audit and model.audit.figures["audit/correlation"] == pytest.approx(1)
    group_ids = [json.loads(line)[0].split()[0] for line in log.read_text().splitlines()]
    assert 15 < len(set(group_ids)) < 45 and all(group_ids.count(name) == 3 for name in group_ids)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"audit": {"share": 0.1}}, "name a judge or a service"),
        ({"audit": {"judge": {}, "relative": {"by": "comparisons"}}}, "single responses"),
        ({"audit": {"judge": {}}, "relative": {"by": "comparisons"}}, "leave one out"),
        ({"parts": {"audit": {"judge": {}}}}, "no part can be called 'audit'"),
        ({"audit": {"judge": {}, "share": 0}}, "greater than 0"),
    ],
)
def test_a_config_that_cannot_be_audited_is_refused(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(RewardConfig, data, "test")


def test_comparisons_are_not_audited() -> None:
    config = make_config({"kind": "fake"}, {"judge": {"kind": "fake"}})
    with RewardModel(config) as model, pytest.raises(ConfigError, match=r"reward\.audit"):
        model.compare_now([Pair("Why?", "a", "bb")])
