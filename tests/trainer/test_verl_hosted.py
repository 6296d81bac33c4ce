"""The judge that verl hosts: verl's own reward worker and router before an OpenAI server."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.errors import BudgetExceeded, ConfigError, EngineUnavailable
from autoj_reward.models import resolve
from autoj_reward.trainer import hosted
from autoj_reward.trainer import verl as ours
from autoj_reward.trainer.hosted import hosted_reward_model
from autoj_reward.trainer.reward import MODELS, RewardModel
from autoj_reward.trainer.rows import VARIABLE
from autoj_reward.types import Candidate
from tests.engine.server import openai_server, server, wait_until_ready
from tests.engine.test_openai_engine import Answer, Endpoint, completion
from tests.support.ports import free_port
from tests.trainer.conftest import FRAMEWORKS
from tests.trainer.test_verl import MANAGERS, Worker, make_rollout

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of their code
    pytest.mark.usefixtures("frameworks"),
]
CONTEXT_TOKENS = 1536
"""Context length that the scripted server states."""
TEST_PROMPT = "Say OK."


class Judge(Endpoint):
    """Server of token ids that rates a prompt with the word `good` 9, and others 2."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer, self.answer = tokenizer, self.answered
        model_cards = [
            {"id": "hosted-judge", "max_model_len": CONTEXT_TOKENS},
            {"id": "an adapter"},
        ]
        self.models = lambda: (200, {"data": model_cards}, {})

    @property
    def router(self) -> str:
        return self.url.removeprefix("http://").removesuffix("/v1")

    def answered(self, path: str, body: dict[str, Any]) -> Answer:
        assert path == "/v1/completions" and body["model"] == "hosted-judge"
        return completion(f"Well.\nRating: [[{9 if 'good' in self.decode_prompt(body) else 2}]]")

    def decode_prompt(self, body: dict[str, Any]) -> str:
        return str(self.tokenizer.decode(body["prompt"]))

    def count_first_requests(self) -> int:
        return sum(TEST_PROMPT in self.decode_prompt(body) for _, body, _ in self.requests)


@pytest.fixture
def judge(smollm2: Any) -> Iterator[Judge]:
    endpoint = Judge(smollm2)
    yield endpoint
    endpoint.close()


@pytest.fixture
def write_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that writes the reward config. Reward models are closed after the test."""

    def write(**config: Any) -> None:
        path = tmp_path / "reward.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        monkeypatch.setenv(VARIABLE, str(path))
        hosted_reward_model.cache_clear()

    before = set(MODELS)
    yield write
    for model in set(MODELS) - before:
        model.close()
    hosted_reward_model.cache_clear()


def make_verl_config(folder: str, name: str = "JudgeRewardManager") -> Any:
    """Return verl's config with one of its managers, or ours, and our functions."""
    OmegaConf = importlib.import_module("omegaconf").OmegaConf
    custom = name == "JudgeRewardManager"
    source = {"source": "importlib", "module": {"path": ours.__file__}} if custom else {}
    function = MANAGERS.get(name) or "compute_score"
    reward = {
        "reward_manager": {"source": "register", "name": name} | source,
        "custom_reward_function": {"path": ours.__file__, "name": function, "reward_kwargs": {}},
        "reward_model": {
            "enable": True,
            "enable_resource_pool": False,
            "model_path": folder,
            "rollout": {"full_determinism": False},
        },
        "num_workers": 1,
    }
    policy = {"model": {"tokenizer_path": None, "path": folder}}
    trainer = {"experiment_name": "hosted"}
    return OmegaConf.create({"reward": reward, "actor_rollout_ref": policy, "trainer": trainer})


def make_worker(router: str, folder: str, monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """Return verl's reward worker."""
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
    from verl.experimental.reward_loop.reward_manager import remote

    monkeypatch.setattr(remote, "RewardComputeWorker", Worker)
    node = SimpleNamespace(get_node_id=lambda: "0" * 56)
    monkeypatch.setattr(remote.ray, "get_runtime_context", lambda: node)
    return RewardLoopWorker(make_verl_config(folder, name), router)


def score_batch(
    router: str,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    *responses: str,
    name: str = "JudgeRewardManager",
) -> list[dict[str, Any]]:
    """Return what a reward worker returns for a batch of rollouts."""

    async def run() -> list[dict[str, Any]]:
        loop = make_worker(router, tokenizer.name_or_path, monkeypatch, name)
        rows: list[dict[str, Any]] = await loop.compute_score_batch(
            make_rollout(tokenizer, *responses)
        )
        return rows

    return asyncio.run(run())


def make_manager(router: str, tokenizer: Any, path: str | None = ours.__file__) -> Any:
    """Return our manager as verl's reward worker makes it. path: of the reward function."""
    config = make_verl_config(tokenizer.name_or_path)
    config.reward.custom_reward_function.path = path
    return ours.JudgeRewardManager(config, tokenizer, None, router, tokenizer)


def score_response(router: str, tokenizer: Any, response: str) -> dict[str, Any]:
    """Return what our manager returns for a rollout."""

    async def run() -> dict[str, Any]:
        row: dict[str, Any] = await make_manager(router, tokenizer).run_single(
            make_rollout(tokenizer, response)
        )
        return row

    return asyncio.run(run())


@pytest.mark.parametrize("name", [*MANAGERS, "gdpo"])
def test_each_manager_asks_the_hosted_judge(
    name: str,
    judge: Judge,
    write_config: Callable[..., None],
    smollm2: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_config(view="rating", judge={"max_tokens": 64})
    rows = score_batch(judge.router, smollm2, monkeypatch, "good", "poor", name=name)
    assert [row["reward_score"] for row in rows] == [9.0, 2.0]
    assert all(row["reward_extra_info"]["judge_ok"] == 1.0 for row in rows)


def test_a_process_has_one_reward_model_of_a_router(
    judge: Judge, write_config: Callable[..., None], smollm2: Any
) -> None:
    write_config(view="rating", judge={"max_tokens": 64}, failures={"budget": 0.0})
    for _ in range(2):
        score_response(judge.router, smollm2, "good")
    assert judge.count_first_requests() == 1


class Colocated:
    """Model of verl on the trainer's GPUs, which sleeps while the policy generates."""

    judge: Judge
    """Server that answers while the model is awake."""

    def __init__(self, *_: Any) -> None:
        self.slept: list[int] = []
        """Requests received so far, each time that the model fell asleep."""
        self.sleep()

    def get_router_address(self) -> str:
        return self.judge.router

    def wake_up(self) -> None:
        self.judge.answer = self.judge.answered

    def sleep(self) -> None:
        self.judge.answer = lambda path, body: (500, "asleep", {})
        self.slept.append(len(self.judge.requests))


class Actor:
    """Worker of verl in this process, in place of its Ray actor."""

    def __init__(self, kind: Any, *args: Any) -> None:
        worker = kind(*args)

        def ask(chunk: Any) -> Any:
            return worker.loop.run_until_complete(worker.compute_score_batch(chunk))

        self.compute_score_batch = SimpleNamespace(remote=ask)

    @classmethod
    def of(cls, kind: Any) -> Any:
        handle = SimpleNamespace(remote=lambda *args: cls(kind, *args))
        return SimpleNamespace(options=lambda **_: handle)


def test_a_colocated_judge_is_asked_only_while_it_is_awake(
    judge: Judge, write_config: Callable[..., None], smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl 0.9 then passes prompts and responses alone, without `extra_info`."""
    from verl.experimental.reward_loop import reward_loop

    write_config(view="rating", judge={"max_tokens": 64, "serve": {"deadline_s": 60}})
    monkeypatch.setattr(Colocated, "judge", judge, raising=False)
    monkeypatch.setattr(reward_loop, "RewardModelManager", Colocated)
    node = {"NodeID": "0" * 56, "Alive": True, "Resources": {"CPU": 1}}
    ray = {"remote": Actor.of, "get": list, "nodes": lambda: [node], "util": reward_loop.ray.util}
    monkeypatch.setattr(reward_loop, "ray", SimpleNamespace(**ray))
    batch = make_rollout(smollm2, "good", "poor", raw_prompt=[{"role": "user", "content": "Why?"}])
    batch = batch.select(non_tensor_batch_keys=["raw_prompt"])
    loop = reward_loop.RewardLoopManager(make_verl_config(smollm2.name_or_path))
    assert loop.reward_loop_worker_handles is None
    for _ in range(2):
        result = loop.compute_rm_score(batch)
        assert result.batch["rm_scores"].sum(dim=1).tolist() == [9.0, 2.0]
        assert result.non_tensor_batch["judge_ok"].tolist() == [1.0, 1.0]
    assert loop.reward_model_manager.slept == [0, 3, 5]  # the first contact is one request


def test_prompts_are_cut_to_the_served_context(
    judge: Judge, write_config: Callable[..., None], smollm2: Any
) -> None:
    write_config(view="rating", judge={"max_tokens": 64})
    row = score_response(judge.router, smollm2, "good " * 3000)
    assert row["reward_extra_info"]["judge_flagged"] == 1.0
    sizes = [len(body["prompt"]) for _, body, _ in judge.requests]
    assert CONTEXT_TOKENS - 128 < max(sizes) <= CONTEXT_TOKENS - 64


def test_requests_wait_until_the_router_and_the_judge_answer(
    judge: Judge,
    write_config: Callable[..., None],
    smollm2: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(hosted, "PAUSE_S", 0.01)
    write_config(view="rating", judge={"max_tokens": 64, "serve": {"deadline_s": 60}})
    models, answer, missed = judge.models, judge.answer, [0, 0]

    def list_models() -> Answer:
        missed[0] += 1
        return models() if missed[0] > 3 else (500, "Internal Server Error", {})

    def answer_late(path: str, body: dict[str, Any]) -> Answer:
        missed[1] += 1
        return answer(path, body) if missed[1] > 2 else (500, "Internal Server Error", {})

    judge.models, judge.answer = list_models, answer_late
    row = score_response(judge.router, smollm2, "good")
    assert row["reward_score"] == 9.0 and missed[0] == 4
    assert "no answer" in caplog.text


def test_a_router_that_never_answers_ends_the_run(
    write_config: Callable[..., None], smollm2: Any
) -> None:
    write_config(judge={"serve": {"deadline_s": 0.1}})
    with pytest.raises(EngineUnavailable, match=r"/v1/models: no answer within 0\.1 s"):
        score_response(f"127.0.0.1:{free_port()}", smollm2, "good")


def test_failed_judgements_spend_the_budget(
    judge: Judge, write_config: Callable[..., None], smollm2: Any
) -> None:
    write_config(view="rating", judge={"max_tokens": 64}, failures={"budget": 0.0})
    judge.answer = lambda path, body: completion("I cannot tell.")
    with pytest.raises(BudgetExceeded, match="training stops"):
        score_response(judge.router, smollm2, "good")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another engine": ({"judge": {"kind": "vllm"}}, r"names another engine by judge\.kind"),
    "another endpoint": (
        {"judge": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "api_key_env": "KEY"}},
        r"judge\.kind and judge\.base_url and judge\.api_key_env",
    ),
    "a service": ({"service": {"address": "http://127.0.0.1:1"}}, "another engine by service"),
    "another model": (
        {"judge": {"model": "GAIR/autoj-13b"}},
        r"judge\.model is GAIR/autoj-13b, and the trainer hosts hosted-judge",
    ),
    "a longer context": (
        {"judge": {"max_model_len": 4096}},
        f"max_model_len is 4096, and the hosted judge takes {CONTEXT_TOKENS} tokens",
    ),
    "a group": (
        {"relative": {"by": "listwise"}, "judge": {"format": "listwise"}},
        r"reward\.relative .* leave it out",
    ),
    "a group's mean": ({"failures": {"fallback": "group"}}, r"reward\.failures\.fallback is group"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_refused_at_the_start(
    case: str, judge: Judge, write_config: Callable[..., None], smollm2: Any
) -> None:
    reward, words = REFUSED[case]
    write_config(**reward)
    with pytest.raises(ConfigError, match=words):
        make_manager(judge.router, smollm2)


async def test_a_manager_that_verl_would_not_ask_is_refused(
    judge: Judge, write_config: Callable[..., None], smollm2: Any
) -> None:
    write_config()
    with pytest.raises(ConfigError, match=r"reward\.custom_reward_function\.path is not set"):
        make_manager(judge.router, smollm2, path=None)


SERVED = JudgeConfig(max_model_len=2048, kv_cache_gib=0.5, max_sequences=8)
RESPONSES = ("Read a book or bake bread.", "banana banana banana apple")
READINGS: dict[str, dict[str, Any]] = {
    "written": {},
    "forced": {"judge": {"max_tokens": 3}},
    "direct": {"view": "direct"},
}


@contextmanager
def start_router(address: str, log: Path) -> Iterator[str]:
    """Run verl's router before a server, in a process of its own, and yield its host and port."""
    port = free_port()
    code = (
        "from verl.experimental.reward_loop.router.naive_router import run_router\n"
        f"run_router('127.0.0.1', {port}, ['{address}'])"
    )
    path = ":".join([*sys.path, str(FRAMEWORKS)])
    with server([sys.executable, "-c", code], log, {"PYTHONPATH": path}) as process:
        wait_until_ready(f"http://127.0.0.1:{port}/health", process, log)
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield the router's host and port, and the server's own address."""
    if not (FRAMEWORKS / "verl").is_dir():
        pytest.skip(f"verl not in {FRAMEWORKS}: make test-frameworks")
    logs = tmp_path_factory.mktemp("servers")
    with (
        openai_server(SERVED, resolve(JudgeConfig()).path, logs / "vllm.txt") as address,
        start_router(address, logs / "router.txt") as router,
    ):
        yield router, f"{address}/v1"


@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.parametrize("reading", READINGS)
def test_vllm_behind_verls_router_rewards_as_if_asked_alone(
    reading: str,
    servers: tuple[str, str],
    write_config: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import AutoTokenizer

    router, url = servers
    folder, reward = resolve(JudgeConfig()).path, READINGS[reading]
    write_config(**reward)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = score_batch(router, tokenizer, monkeypatch, *RESPONSES)
    infos = [row["reward_extra_info"] for row in rows]
    assert [info["judge_ok"] for info in infos] == [1.0, 1.0]
    assert [info["judge_forced"] for info in infos] == [float(reading == "forced")] * 2
    endpoint = {
        "kind": "openai",
        "model": folder,
        "base_url": url,
        "tokenizer": folder,
        "max_model_len": SERVED.max_model_len,
    }
    alone = RewardConfig.model_validate({**reward, "judge": reward.get("judge", {}) | endpoint})
    with RewardModel(alone) as model:
        alone_rewards = model.rewards_now([Candidate("Why?", response) for response in RESPONSES])
    assert [row["reward_score"] for row in rows] == pytest.approx(
        [alone_reward.value for alone_reward in alone_rewards], abs=1e-2
    )
    assert rows[0]["reward_score"] != rows[1]["reward_score"]
