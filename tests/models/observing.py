"""Observation of a config's effects: every call of a judge or policy to models, Ray and endpoints.

Stand-ins record the calls. The answers are recorded too.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from pydantic import ValidationError

from autoj_reward.client.session import client_of
from autoj_reward.config import JudgeConfig, PolicyConfig, RewardConfig, ServiceConfig
from autoj_reward.conversation import Prompt
from autoj_reward.engine import classifier, endpoint, vllm
from autoj_reward.engine.base import Score
from autoj_reward.engine.openai import BEGUN, OpenAIEngine
from autoj_reward.errors import AutojError
from autoj_reward.formats.schema import FORMATS
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.journal import Journal
from autoj_reward.judge.generative import GenerativeJudge
from autoj_reward.judge.make import make_judge
from autoj_reward.models import resolve
from autoj_reward.models.device import CPU, Device
from autoj_reward.models.settings import max_ongoing
from autoj_reward.models.spec import judge_spec
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.replicas.deployments import deployment_of
from autoj_reward.replicas.replica import PolicyReplica
from autoj_reward.trainer.parts import Parts, reward_judges
from autoj_reward.trainer.prompts import ContextFields
from autoj_reward.types import JudgeInput
from rollouts.best_of_n.sampling import Sampler
from tests.engine.test_openai_engine import Answer, Endpoint, completion
from tests.tokenizers import qwen

REFUSED = "refused"
DEVICES = (CPU, Device("cuda", 79.6, (9, 0)))
TEXT = "Fine.\nRating: [[7]]"
QUERY = "Write an email to my landlord."
ITEMS = [
    *(JudgeInput("single", QUERY, (("word " * words).strip(),)) for words in (9, 1500, 6000)),
    JudgeInput("pairwise", QUERY, ("Because.", "It is so.")),
]
QUERIES = ["Why?", ("word " * 3584).strip()]
"""The second one leaves a policy with the default lengths just enough for its answer, in words."""


class World:
    """Stand-ins for the model hub, model files, a vLLM engine and Ray's resources, and a real
    server.

    `met` lists what each was asked for, in order.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.met: list[Any] = []
        self.tokenizer = qwen()
        self.tokenizer.chat_template += "{{ greeting }}"
        self.endpoint = Endpoint()
        self.endpoint.answer = self._answer
        self.folder = folder
        real_post, real_ask = endpoint.Endpoint.post, Sampler._ask

        async def post(
            client: Any, path: str, body: Any, read: Any, *start_s: Any, **options: Any
        ) -> Any:
            self.met.append(("patience", start_s))
            return await real_post(client, path, body, read, *start_s, **options)

        async def ask(sampler: Any, policy: Any, query: Any) -> Any:
            self.met.append(("deadline", sampler._config.serve.deadline_s))
            return await real_ask(sampler, policy, query)

        async def run(engine: Any, ids: list[int], **sampling: Any) -> tuple[Any, float]:
            self.met.append(("vLLM", ids, sampling))
            return self._output(sampling), 0.0

        monkeypatch.setattr(endpoint.Endpoint, "post", post)
        monkeypatch.setattr(endpoint, "RateLimiter", self._pace)
        monkeypatch.setattr(Sampler, "_ask", ask)
        monkeypatch.setattr(vllm.VllmEngine, "_run", run)
        monkeypatch.setattr(classifier, "check_classifier", lambda *of: 0)
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 8.0, "CPU": 64.0})
        monkeypatch.setattr("autoj_reward.models.hub_commit", lambda *of: str(of))
        tracing_target = "autoj_reward.client.session.start_tracing"
        monkeypatch.setattr(tracing_target, lambda: self.met.append("tracing"))
        of_transformers = "transformers.AutoModelForSequenceClassification.from_pretrained"
        monkeypatch.setattr(of_transformers, self._load_weights)
        monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", self._load_tokenizer)

    def close(self) -> None:
        self.endpoint.close()

    def _load_tokenizer(self, name: str, **options: Any) -> Any:
        self.met.append(("tokenizer", name, options))
        return self.tokenizer

    def _make_tokens(self, engine: Any) -> PromptTokenizer:
        values = engine.config.chat_template_kwargs
        return PromptTokenizer(self.tokenizer, engine.wrapper, engine.marks, values)

    def _load_weights(self, name: str, **options: Any) -> Any:
        self.met.append(("weights", name, options))
        return SimpleNamespace(eval=lambda: SimpleNamespace(to=lambda device: None))

    def _pace(self, *limits: float | None) -> Any:
        self.met.append(("pace", limits))

        async def take(tokens: int) -> None:
            """Let everything through at once."""

        return SimpleNamespace(take=take, correct=lambda *tokens: None)

    def _output(self, sampling: dict[str, Any]) -> Any:
        if label_ids := sampling.get("logprob_token_ids"):
            logprobs = {i: SimpleNamespace(logprob=-4.0) for i in label_ids}
            return SimpleNamespace(
                outputs=[SimpleNamespace(logprobs=[logprobs])], num_cached_tokens=0
            )
        ids = tuple(self.tokenizer.encode(TEXT, add_special_tokens=False))
        fields = {
            "text": TEXT,
            "token_ids": ids,
            "finish_reason": "stop",
            "cumulative_logprob": -1.0,
        }
        return SimpleNamespace(outputs=[SimpleNamespace(**fields)], num_cached_tokens=0)

    def _answer(self, path: str, body: dict[str, Any]) -> Answer:
        """Answer like vLLM's server: continue an assistant's message, and return
        log-probabilities."""
        if "prompt" in body:
            status, answer, headers = completion(TEXT, {str(digit): -3.0 for digit in range(10)})
            return status, answer | {"usage": {"prompt_tokens": 20}}, headers
        top = [{"token": "7", "logprob": -0.1}]
        logprobs = {"content": [{"token": "7", "logprob": -0.1, "top_logprobs": top}]}
        message = {"content": "7" if body.get("max_tokens") == 1 else TEXT}
        if body["messages"][-1] == BEGUN:
            logprobs["content"][0]["token"] = " D"
        choice = {"message": message, "finish_reason": "stop", "logprobs": logprobs}
        size = 10 if body.get("continue_final_message") else 20
        return 200, {"choices": [choice], "usage": {"prompt_tokens": size}}, {}

    def _requests(self) -> list[Any]:
        """Return what the server was sent, and with which key. The list is sorted, as requests run
        at once."""
        requests = [
            (
                path,
                sorted(body.items(), key=repr),
                headers.get("Authorization"),
                headers.get("X-Of"),
            )
            for path, body, headers in self.endpoint.requests
        ]
        self.endpoint.requests.clear()
        return sorted(requests, key=repr)

    def observe(self, config: JudgeConfig | PolicyConfig, by_service: bool = False) -> list[Any]:
        """Return the effects of a config, or the error if it is refused."""
        self.met.clear()
        try:
            if isinstance(config, PolicyConfig):
                answers = asyncio.run(self._observe_policy(config))
            else:
                answers = [] if by_service else asyncio.run(self._observe_judge(config))
                answers += _at_client(config, by_service)
            if config.on_replicas and not by_service:
                answers += _on_ray(config)
        except AutojError as error:
            return [REFUSED, str(error)]
        return [*answers, *sorted(self.met, key=repr), *self._requests()]

    async def _observe_judge(self, config: JudgeConfig) -> list[Any]:
        judge = make_judge(judge_spec(config))
        engine: Any = judge.engine
        if isinstance(engine, vllm._VllmModel):
            engine.tokens = self._make_tokens(engine)
        else:
            await engine.start()
        if config.kind != "fake" and not isinstance(judge, GenerativeJudge):
            engine.score = self._score
        try:
            await judge.contact({})
            inputs = [item for item in ITEMS if getattr(judge.format, item.protocol, True)]
            judgements = [await judge.judge(item) for item in inputs]
        finally:
            if isinstance(engine, OpenAIEngine):
                await engine.close()
        # Name and cost aside: the former stands for the whole config.
        texts = [
            (judgement.outcome, judgement.reason, judgement.critique, judgement.thinking)
            for judgement in judgements
        ]
        numbers = [
            (judgement.readings, judgement.flags, judgement.usage.usd) for judgement in judgements
        ]
        model = resolve(config)
        return [type(engine), model.path, model.revision, texts, numbers]

    async def _score(self, prepared: Any) -> Score:
        self.met.append(("score", prepared.ids, prepared.truncated))
        return Score(1.0)

    async def _observe_policy(self, config: PolicyConfig) -> list[Any]:
        replica = PolicyReplica(config)
        engine: Any = replica._engine
        if isinstance(engine, vllm._VllmModel):
            engine.tokens = self._make_tokens(engine)
        journal, counts = Journal(self.folder / f"{uuid.uuid4().hex}.sqlite"), list[int]()
        cluster: Any = SimpleNamespace(
            start=lambda: None, deploy_policy=lambda policy: replica, remove=lambda name: None
        )
        sampler = Sampler(config, journal, cluster, counts.append)
        failed = await sampler.sample_all(map(Prompt, QUERIES))
        samples = [sampler.recorded(Prompt(query)) for query in QUERIES]
        journal.close()
        return [type(engine), resolve(config).path, samples, failed]


def _at_client(config: JudgeConfig, by_service: bool) -> list[Any]:
    """Return how a client asks this judge.

    These are limits in flight, deadline, critiques now and at most and their vote, what it is
    shown, required columns, and the middle of the scale.
    """
    backend: Any = SimpleNamespace(judge="j", replicas=1)
    client = client_of(judge_spec(config), backend, max_ongoing(config, 0))
    service = ServiceConfig(address="http://127.0.0.1:1") if by_service else None
    reward = RewardConfig(judge=config, service=service)
    judges = reward_judges(reward)
    values = [ContextFields(reward, judges).asked, Parts(reward, judges).middle]
    values += [
        client.asks,
        None if by_service else judge_spec(config).facts,
        client.limits.deadline_s,
        max_ongoing(config, 0),
    ]
    try:
        more = JudgeConfig.model_validate(config.model_dump() | {"critiques": 4})
    except ValidationError:
        return [*values, 1]
    return [*values, judge_spec(more).asks.critiques]


def _on_ray(config: JudgeConfig | PolicyConfig) -> list[Any]:
    """Return the replicas that the config asks Ray for, and the arguments of vLLM in each."""
    cluster = Cluster()
    count = cluster.replicas(config, config.serve)
    gpus = cluster._count_gpus_each(config, config.serve)
    deployment = deployment_of(object, "judge", config, count, gpus)
    values: list[Any] = [
        deployment.num_replicas,
        deployment.max_ongoing_requests,
        deployment.ray_actor_options,
    ]
    values.append(deployment._deployment_config.autoscaling_config)
    if config.kind == "vllm":
        values += [vllm.engine_arguments(config, resolve(config), device) for device in DEVICES]
    return values


def write_thinking_format(folder: Path) -> Path:
    """Write Auto-J's format for a judge that thinks before it answers."""
    shutil.copytree(FORMATS / "autoj-en", folder / "thinks")
    with (folder / "thinks" / "format.yaml").open("a", encoding="utf-8") as file:
        file.write("thinking: {open: <think>, close: </think>}\n")
    return folder / "thinks"
