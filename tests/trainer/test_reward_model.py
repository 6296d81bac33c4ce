from __future__ import annotations

import asyncio
import math
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from torch.utils.data import DataLoader

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.call import CLOSED
from autoj_reward.client.client import JudgeClient
from autoj_reward.client.remote import HttpBackend
from autoj_reward.client.session import open_judge
from autoj_reward.config import (
    FailureConfig,
    JudgeConfig,
    PartConfig,
    ReplicaConfig,
    RewardConfig,
    ServiceConfig,
    ShapingConfig,
)
from autoj_reward.config.urls import parse_base_url
from autoj_reward.conversation import Response
from autoj_reward.errors import (
    AutojError,
    BudgetExceeded,
    ConfigError,
    EngineUnavailable,
    InputError,
)
from autoj_reward.journal import Journal
from autoj_reward.models.spec import judge_spec
from autoj_reward.service.api import make_app
from autoj_reward.trainer import verl
from autoj_reward.trainer.openrlhf import get_reward, split
from autoj_reward.trainer.prompts import query_text
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import row_rewards
from autoj_reward.trainer.stats import batch_metrics
from autoj_reward.trainer.trl import GRPOReward, OnlineDPOReward
from autoj_reward.trainer.verl import score
from autoj_reward.types import Candidate, JudgeInput, Outcome
from tests.judgements import reading
from tests.reference_format import write_reference_format

RATINGS = {"good": 9, "fair": 6, "poor": 2}


def make_config(fail: dict[str, str] | None = None, **more: Any) -> RewardConfig:
    script = {"ratings": RATINGS, "fail": fail or {}}
    judge = JudgeConfig(kind="fake", script=script, serve=ReplicaConfig(deadline_s=5.0))
    return RewardConfig(**({"judge": judge, "view": "rating"} | more))


@pytest.fixture
def reward() -> Iterator[RewardModel]:
    failures = FailureConfig(budget=0.5, window=20)
    with RewardModel(make_config({"lost": "truncated"}, failures=failures)) as model:
        yield model


def make_candidates(*responses: str) -> list[Candidate]:
    return [Candidate("Why?", response) for response in responses]


def test_failed_judgements_abstain(reward: RewardModel) -> None:
    rewards = reward.rewards_now(make_candidates("good", "lost", "poor"))
    assert [(r.raw, r.value) for r in rewards] == [(9.0, 9.0), (None, None), (2.0, 2.0)]
    assert rewards[1].judgement.outcome is Outcome.TRUNCATED
    assert reward.numbers(rewards, make_candidates("good", "lost", "poor")) == [9.0, 5.5, 2.0]
    assert reward.fallbacks == 1 and reward.parts.middle == 5.5


def test_any_loop_and_any_thread_may_ask(reward: RewardModel) -> None:
    async def reward_twice() -> list[float | None]:
        batches = await asyncio.gather(
            *(reward.rewards(make_candidates(r)) for r in ("good", "fair"))
        )
        return [r.value for rewards in batches for r in rewards]

    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(asyncio.run(reward_twice())))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[9.0, 6.0]] * 3
    assert reward.rewards_now(make_candidates("poor"))[0].value == 2.0


def test_a_spent_budget_stops_the_run() -> None:
    failures = FailureConfig(budget=0.1, window=10)
    with (
        RewardModel(make_config({"lost": "unparsable"}, failures=failures)) as model,
        pytest.raises(BudgetExceeded, match="2 of the last 3 judgements failed"),
    ):
        model.rewards_now([Candidate(q, r) for q, r in [("a", "lost"), ("b", "lost"), ("c", "x")]])


def test_a_judge_that_hangs_is_cut_off_at_the_deadline() -> None:
    failures = FailureConfig(budget=1, window=10)
    with RewardModel(make_config({"slow": "hang"}, failures=failures)) as model:
        rewards = model.rewards_now([Candidate("a", "slow"), Candidate("b", "good")])
    assert [r.judgement.outcome for r in rewards] == [Outcome.UNAVAILABLE, Outcome.OK]
    assert [r.value for r in rewards] == [None, 9.0]


def test_shaped_beside_raw_and_everything_in_the_journal(tmp_path: Path) -> None:
    config = make_config(shaping=ShapingConfig(whiten="group"), journal=tmp_path / "j.sqlite")
    with RewardModel(config) as model:
        rewards = model.rewards_now(make_candidates("good", "poor"))
    assert [r.raw for r in rewards] == [9.0, 2.0]
    assert rewards[0].value == pytest.approx(-rewards[1].value) and rewards[0].value > 0.5  # type: ignore
    journal = Journal(tmp_path / "j.sqlite")
    assert {row["input"]["responses"][0] for row in journal.export()} == {"good", "poor"}
    journal.close()


def test_closed_and_opened_again(reward: RewardModel) -> None:
    assert reward.rewards_now(make_candidates("good"))[0].value == 9.0
    reward.close()
    reward.close()
    for call in (
        lambda: reward.rewards_now(make_candidates("fair")),
        lambda: reward.compare_now([("q", "good", "poor")]),
        lambda: asyncio.run(reward.rewards(make_candidates("fair"))),
    ):
        with pytest.raises(EngineUnavailable, match="the judge was closed: open it again"):
            call()
    assert not reward.clients  # a late call has not started the judge again
    reward.open()
    assert reward.rewards_now(make_candidates("fair"))[0].value == 6.0


class InWorkers(torch.utils.data.Dataset[Any]):
    """Dataset of rewards or errors, for DataLoader workers that are forked from this process."""

    def __init__(self, model: RewardModel) -> None:
        self.model = model

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        try:
            return self.model.rewards_now(make_candidates("good"))[0].value
        except AutojError as error:
            return error


def reward_in_workers(model: RewardModel) -> list[Any]:
    loader = DataLoader(
        InWorkers(model), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    return list(loader)


def test_a_forked_process_opens_its_own_judge(reward: RewardModel) -> None:
    assert reward_in_workers(reward) == [9.0, 9.0]
    assert reward.rewards_now(make_candidates("poor"))[0].value == 2.0  # the parent's is untouched
    reward.close()
    assert {str(error) for error in reward_in_workers(reward)} == {CLOSED}


def test_a_forked_process_starts_no_replicas_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # The judge is scripted, and its config says that replicas run.
    scripted = make_config().judge
    target = "autoj_reward.trainer.judges.open_reward"
    monkeypatch.setattr(target, lambda *_, **__: open_judge(scripted))
    with RewardModel(make_config(judge=JudgeConfig(kind="vllm"))) as model:
        for error in reward_in_workers(model):
            assert isinstance(error, ConfigError)
            assert "forked" in str(error) and "reward.service" in str(error)
        assert model.rewards_now(make_candidates("good"))[0].value == 9.0
    # Nothing was open when this one was forked: the child may be the process that opens it.
    assert reward_in_workers(RewardModel(model.config)) == [9.0, 9.0]


def test_a_pickled_one_works_where_it_is_loaded(reward: RewardModel) -> None:
    reward.open()
    function = pickle.loads(pickle.dumps(GRPOReward(reward).judge))
    assert asyncio.run(function(prompts=["Why?"], completions=["good"])) == [9.0]
    function.__self__.model.close()


def test_what_cannot_start_says_so() -> None:
    model = RewardModel(
        make_config(service=ServiceConfig(address="http://127.0.0.1:9", start_s=0.6))
    )
    with pytest.raises(ConfigError, match="environment variable AUTOJ_TOKEN"):
        model.rewards_now(make_candidates("good"))


# Texts


CHAT = [{"role": "user", "content": "Why?"}]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("Why?", "Why?"),
        ("", ""),
        (CHAT, "Why?"),
        ([], ""),
        ([{"role": "system", "content": "Be brief."}, *CHAT], "System: Be brief.\n\nUser: Why?"),
        (
            [*CHAT, {"role": "assistant", "content": "So."}, {"role": "user", "content": "And?"}],
            "User: Why?\n\nAssistant: So.\n\nUser: And?",
        ),
        ([{"role": "tool", "content": None}, *CHAT], "Tool: \n\nUser: Why?"),
        (
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "This?"}]}],
            "This?",
        ),
    ],
)
def test_the_query_of_a_prompt(prompt: Any, text: str) -> None:
    assert query_text(prompt) == text


def test_the_response_of_a_completion() -> None:
    assert Response.of("plain", "final").text == "plain"
    messages = [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "x"}]
    assert (
        Response.of([*messages, {"role": "assistant", "content": "b"}], "assistant").text
        == "a\n\nb"
    )
    assert Response.of([], "assistant").text == ""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    result = {"role": "tool", "content": "x"}
    assert Response.of([call, result, call], "assistant").text == "[calls f {}]\n\n[calls f {}]"
    assert Response.of([call], "final").text == "[calls f {}]"


@pytest.mark.parametrize("bad", [[{"content": "x"}], ["x"], [{"role": "user", "content": 5}]])
def test_what_is_no_message(bad: Any) -> None:
    with pytest.raises(InputError):
        query_text(bad)


# TRL


def test_grpo_logs_the_same_names_every_time(reward: RewardModel) -> None:
    metrics: list[dict[str, float]] = []
    extras: dict[str, list[Any]] = {}

    def ask(*completions: str) -> list[float | None]:
        metrics.append({})
        return asyncio.run(
            GRPOReward(reward).judge(
                prompts=["Why?"] * len(completions),
                completions=list(completions),
                completion_ids=[[1]] * len(completions),
                reference=["r"] * len(completions),
                trainer_state=None,
                log_metric=metrics[-1].__setitem__,
                log_extra=extras.__setitem__,
            )
        )

    assert ask("good", "lost", "fair", "fair") == [9.0, None, 6.0, 6.0]
    assert extras["judge_outcome"] == ["ok", "truncated", "ok", "ok"]
    assert extras["judge_critique"][0].startswith("Scripted critique")
    first = dict(metrics[-1])
    assert (first["judge/ok"], first["judge/truncated"], first["judge/forced"]) == (0.75, 0.25, 0)
    assert first["judge/tie_rate"] == pytest.approx(1 / 3)
    assert first["judge/group_std"] == pytest.approx(3**0.5)
    assert first["judge/raw"] == 7.0
    assert ask("good") == [9.0]
    assert metrics[-1].keys() == first.keys()


def test_a_completion_of_tool_calls_alone_is_flagged(reward: RewardModel) -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    text = Response.of([call, call], "assistant").text
    rewards = reward.rewards_now(make_candidates(text, f"{text}\nDone."))
    assert ["empty_response" in r.judgement.flags for r in rewards] == [True, False]


def test_an_empty_batch_has_no_rewards_and_the_same_metrics(reward: RewardModel) -> None:
    logs: list[dict[str, Any]] = [{}, {}, {}]
    empty, empty_sync, full = [
        {"log_metric": log.__setitem__, "log_extra": log.__setitem__} for log in logs
    ]
    function = GRPOReward(reward)
    assert asyncio.run(function.judge([], [], **empty)) == []
    assert function.judge_sync([], [], **empty_sync) == []
    function.judge_sync(["Why?"], ["good"], **full)
    assert set(logs[0]) == set(logs[1]) == set(logs[2])
    assert all(math.isnan(value) for value in logs[0].values() if value != [])
    assert OnlineDPOReward(reward).judge([], [], ties_left_out=True) == []
    assert OnlineDPOReward(reward).compare([], [], ties_left_out=True) == []
    assert asyncio.run(row_rewards(reward, [])) == []


def test_the_sync_function_gives_the_same_and_the_fallback_for_a_failure(
    reward: RewardModel,
) -> None:
    completions = [[{"role": "assistant", "content": text}] for text in ("good", "lost")]
    batch: dict[str, Any] = {"prompts": [CHAT] * 3, "completions": [*completions, []]}
    good, lost, empty = asyncio.run(GRPOReward(reward).judge(**batch))
    assert (good, lost) == (9.0, None)
    assert GRPOReward(reward).judge_sync(**batch) == [good, 5.5, empty]


def test_online_dpo_by_two_ratings(reward: RewardModel) -> None:
    prompts = ["a", "b", "c"] * 2
    completions = ["good", "good", "fair", "poor", "lost", "fair"]
    rewards = OnlineDPOReward(reward).judge(prompts, completions, ties_left_out=True)
    assert rewards == [9.0, None, 6.0, 2.0, None, 6.0]


def test_online_dpo_by_comparison(reward: RewardModel) -> None:
    prompts = ["a", "b", "c", "d"] * 2
    completions = ["long answer", "x", "same", "lost", "short", "longer", "size", "y"]
    rewards = OnlineDPOReward(reward).compare(prompts, completions, ties_left_out=True)
    assert rewards == [1.0, 0.0, 0.5, None, 0.0, 1.0, 0.5, None]
    with pytest.raises(ValueError, match="two completions of each prompt"):
        OnlineDPOReward(reward).compare(["a", "b"], ["x", "y"], ties_left_out=True)


def test_orders_that_disagree_have_no_margin() -> None:
    judge = JudgeConfig(kind="fake", script={"verdicts": "first"})
    with RewardModel(RewardConfig(judge=judge)) as model:
        rewards = OnlineDPOReward(model).compare(["a", "a"], ["x", "longer"], ties_left_out=True)
    assert rewards == [0.5, 0.5]


# OpenRLHF and verl


CHATML = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def test_openrlhf_batches_single_rows_and_nothing(reward: RewardModel) -> None:
    def ask(queries: list[str], prompts: list[str]) -> dict[str, Any]:
        return asyncio.run(get_reward(reward, queries, prompts))

    batch = ask([CHATML + "good<|im_end|>", CHATML + "lost"], [CHATML, CHATML])
    assert batch["rewards"] == [9.0, 5.5]
    assert batch["scores"] == [pytest.approx(8 / 9), 0.5]
    assert set(map(len, batch["extra_logs"].values())) == {2}
    assert batch["extra_logs"]["judge_ok"] == [1.0, 0.0]
    assert batch["extra_logs"]["judge_raw"] == [9.0, 5.5]
    rows = [ask([CHATML + response], [CHATML]) for response in ("good", "lost")]
    for row in rows:  # OpenRLHF joins rows by the names of one of them
        assert row["extra_logs"].keys() == batch["extra_logs"].keys()
        assert all(math.isfinite(value) for [value] in row["extra_logs"].values())
    assert [row["rewards"] for row in rows] == [[9.0], [5.5]]
    assert ask([], []) == {"rewards": [], "scores": [], "extra_logs": {}}
    assert split("Q: x\nA: y</s>", "Q: x\nA:") == Candidate("Q: x\nA:", "y")


def test_openrlhf_abstains_where_it_cannot_split(reward: RewardModel) -> None:
    rows = ([CHATML + "good", "another text, good"], [CHATML, CHATML])
    batch = asyncio.run(get_reward(reward, *rows))
    assert batch["rewards"] == [9.0, 5.5] and reward.fallbacks == 1
    assert batch["extra_logs"]["judge_input_rejected"] == [0.0, 1.0]
    with pytest.raises(BudgetExceeded, match="does not open with its prompt"):
        for _ in range(20):
            asyncio.run(get_reward(reward, ["another text"], [CHATML]))


def test_verl_gets_the_same_finite_keys(reward: RewardModel) -> None:
    async def ask(response: str) -> dict[str, float]:
        return await score(reward, response, {"query": CHAT}, "query")

    good, lost = asyncio.run(ask("good")), asyncio.run(ask("lost"))
    assert (good["score"], good["judge_ok"]) == (9.0, 1.0)
    assert (lost["score"], lost["judge_ok"]) == (5.5, 0.0)
    assert all(map(math.isfinite, lost.values()))
    assert good.keys() == lost.keys()
    with pytest.raises(InputError, match="extra_info has no 'query'"):
        asyncio.run(score(reward, "x", {"index": 1}, "query"))


def test_verls_reward_manager(
    reward: RewardModel, monkeypatch: pytest.MonkeyPatch, smollm2: Any
) -> None:
    monkeypatch.setattr(verl, "reward_model", lambda: reward)
    ids = [*smollm2("good").input_ids, smollm2.eos_token_id]
    batch = {
        "responses": torch.tensor([*ids, 0, 0]),
        "attention_mask": torch.tensor([0, 1, 1, *[1] * len(ids), 0, 0]),
    }
    manager = verl.JudgeRewardManager(None, smollm2, None, reward_router_address=None)

    def ask(**columns: Any) -> dict[str, Any]:
        row = SimpleNamespace(batch=batch, non_tensor_batch=columns)
        return asyncio.run(manager.run_single([row]))

    result = ask(raw_prompt=CHAT, extra_info={"index": 1})
    assert result["reward_score"] == 9.0 and result["reward_extra_info"]["judge_ok"] == 1.0
    assert ask(extra_info={"query": "Why?"}) == result
    with pytest.raises(InputError, match="extra_info has no 'query'"):
        ask()


@pytest.mark.parametrize("how", ["rewards", "compare"])
def test_close_during_a_call_does_not_leave_its_caller_waiting(how: str) -> None:
    judge = JudgeConfig(kind="fake", script={"fail": {"slow": "hang"}})
    model = RewardModel(make_config(judge=judge))
    model.open()

    def call() -> object:
        if how == "rewards":
            return model.rewards_now(make_candidates("slow"))
        return model.compare_now([("q", "slow", "good")])

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call)
        while not model.clients or not model.clients["judge"]._pending:
            time.sleep(0.01)
        model.close()
        with pytest.raises(EngineUnavailable, match="the judge was closed"):
            waiting.result(timeout=600)


GROUPS: dict[str, dict[str, Any]] = {
    "whiten": {"shaping": ShapingConfig(whiten="group")},
    "penalty_by": {"shaping": ShapingConfig(penalty_by="group")},
    "fallback": {"failures": FailureConfig(fallback="group")},
}


@pytest.mark.parametrize("key", GROUPS)
def test_a_trainer_that_asks_for_one_row_cannot_have_groups(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = f"{key} is group.*needs all responses of a query in one call"
    with RewardModel(make_config(**GROUPS[key])) as model:
        with pytest.raises(ConfigError, match=f"{message}.*verl asks for one response a call"):
            asyncio.run(score(model, "good", {"query": "Why?"}, "query"))
        monkeypatch.setattr(verl, "reward_model", lambda: model)
        with pytest.raises(ConfigError, match=message):
            verl.JudgeRewardManager(None, None)
        with pytest.raises(ConfigError, match=f"{message}.*one response of"):
            asyncio.run(get_reward(model, [CHATML + "good"], [CHATML]))
        whole = asyncio.run(get_reward(model, [CHATML + "good", CHATML + "poor"], [CHATML] * 2))
        assert whole["rewards"][0] > whole["rewards"][1]


def test_figures_by_hand(reward: RewardModel) -> None:
    candidates = [Candidate("a", "good"), Candidate("a", "poor"), Candidate("b", "fair")]
    figures = batch_metrics(reward.rewards_now(candidates), candidates, reward.config)
    assert figures["judge/tie_rate"] == 0
    assert figures["judge/group_std"] == pytest.approx(24.5**0.5)
    assert figures["judge/raw"] == pytest.approx(17 / 3)
    assert figures["judge/response_characters"] == 4
    assert figures["judge/seconds"] > figures["judge/queued_seconds"] >= 0


def test_one_query_with_two_references_is_two_groups(tmp_path: Path) -> None:
    ratings = {"a": 1, "b": 2, "c": 4, "d": 5, "lost": 9}
    script = {"ratings": ratings, "fail": {"lost": "truncated"}}
    format_folder = str(write_reference_format(tmp_path / "marks"))
    judge = JudgeConfig(kind="fake", format=format_folder, script=script)
    failures = FailureConfig(budget=1.0, fallback="group")
    config = make_config(judge=judge, shaping=ShapingConfig(whiten="group"), failures=failures)
    contexts = [{"reference": "r1"}] * 2 + [{"reference": "r2"}] * 2
    candidates = [Candidate("q", r, context=c) for r, c in zip("abcd", contexts, strict=True)]
    with RewardModel(config) as model:
        rewards = model.rewards_now(candidates)
        assert [r.value for r in rewards] == pytest.approx([-0.707, 0.707] * 2, abs=1e-3)
        figures = batch_metrics(rewards, candidates, config)
        assert figures["judge/group_std"] == pytest.approx(0.5**0.5)
        with_lost = [
            *candidates[:2],
            Candidate("q", "lost", context={"reference": "r2"}),
            candidates[3],
        ]
        assert model.numbers(model.rewards_now(with_lost), with_lost)[2] == 0.0  # d alone, whitened
        # A group id names the group, whatever the context.
        grouped = [Candidate(c.prompt.text, c.response, None, "g", c.context) for c in candidates]
        values = [r.value for r in model.rewards_now(grouped)]
        assert values == pytest.approx([-1.095, -0.548, 0.548, 1.095], abs=1e-3)
        with pytest.raises(ConfigError, match="one response of 'q'"):
            model.rewards_now(candidates[:3])


def test_online_dpo_pairs_share_their_reference(tmp_path: Path) -> None:
    judge = JudgeConfig(kind="fake", format=str(write_reference_format(tmp_path / "marks")))
    with (
        RewardModel(make_config(judge=judge)) as model,
        pytest.raises(ValueError, match="two completions of each prompt"),
    ):
        OnlineDPOReward(model).judge(
            ["q", "q"], ["good", "poor"], ties_left_out=True, reference=["r1", "r2"]
        )


# HTTP


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """Serve a scripted judge on the loopback with the token `secret`, and yield its URL."""
    import uvicorn

    config = make_config({"lost": "truncated", "gone": "unavailable", "slow": "hang"})
    app = make_app(JudgeClient(LocalBackend(judge_spec(config.judge))), "secret")
    server = uvicorn.Server(uvicorn.Config(app.guard, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def test_a_running_service_rewards(
    service: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    failures = FailureConfig(budget=1)
    config = make_config(service=ServiceConfig(address=service), failures=failures)
    with RewardModel(config) as model:
        rewards = model.rewards_now(make_candidates("good", "lost", "gone", "slow", "poor"))
        [compared] = model.compare_now([("q", "longer", "short")])
    assert [r.value for r in rewards] == [9.0, None, None, None, 2.0]
    assert rewards[3].judgement.outcome is Outcome.UNAVAILABLE
    assert rewards[0].judgement.rating is not None and reading(rewards[0].judgement).distribution
    assert compared.verdict == "first"
    line = f"(the service at {service}), view rating, distributions: scripted; 2 of 5 judgements ok"
    assert line in capfd.readouterr().err


def test_a_part_at_another_address(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    part = PartConfig(service=ServiceConfig(address=service), view="rating")
    judge = JudgeConfig(kind="fake", script={"ratings": {"good": 1, "poor": 10}})
    with RewardModel(make_config(judge=judge, parts={"there": part})) as model:
        rewards = model.rewards_now(make_candidates("good", "lost", "poor"))
    assert [r.parts["there"] for r in rewards] == [9.0, None, 2.0]
    assert [r.raw for r in rewards] == [
        pytest.approx(4 / 9),
        pytest.approx(4 / 9),
        pytest.approx(5 / 9),
    ]


def test_a_wrong_token_and_an_address_without_a_service(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOJ_TOKEN", "wrong")
    with pytest.raises(ConfigError, match="refuses the token"):
        RewardModel(make_config(service=ServiceConfig(address=service))).open()
    nowhere = ServiceConfig(address="http://127.0.0.1:9", start_s=0.6)
    with pytest.raises(EngineUnavailable, match=r"no reward service at http://127.0.0.1:9"):
        RewardModel(make_config(service=nowhere)).open()
    with pytest.raises(ConfigError, match=r"service\.address .* is not an http"):
        RewardModel(make_config(service=ServiceConfig(address="nowhere"))).open()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"items": []}, 422),
        ({"items": [{"protocol": 1, "query": "q", "responses": ["a"]}]}, 422),
        ({"items": [{"query": 5, "responses": ["a"]}]}, 422),
        ({"items": [{"query": "q", "responses": ["a"], "more": 1}]}, 422),
        ({}, 422),
        ([], 422),
    ],
)
def test_a_bad_body_names_its_field(service: str, body: Any, status: int) -> None:
    headers = {"Authorization": "Bearer secret"}
    answer = httpx.post(f"{service}/v1/judge", json=body, headers=headers)
    assert answer.status_code == status and "detail" in answer.json()
    assert httpx.post(f"{service}/v1/judge", json=body).status_code == 401


def test_a_direct_reading_over_http(service: str) -> None:
    async def run() -> None:
        backend = await HttpBackend.connect(service, "secret", 5)
        client = JudgeClient(backend)
        [full] = await client.rate([Candidate("q", "good")])
        [direct] = await client.rate([Candidate("q", "good")], direct=True)
        assert full.critique and not direct.critique
        assert full.view("direct") is None and direct.view("direct") is not None
        await backend.close()

    asyncio.run(run())


def test_the_service_dies_in_the_middle(service: str) -> None:
    """The backend raises EngineUnavailable, and the client's deadline decides."""

    async def run() -> None:
        backend = await HttpBackend.connect(service, "secret", 5)
        backend._base = parse_base_url("http://127.0.0.1:9", "address")
        with pytest.raises(EngineUnavailable, match="was lost"):
            async for _ in backend.stream([JudgeInput("single", "q", ("good",))]):
                pass
        await backend.close()

    asyncio.run(run())
