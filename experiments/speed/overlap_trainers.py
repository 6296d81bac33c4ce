"""Trainers' own scheduling of generation and judging, with a scripted policy.

Each function opens one trainer and yields a function that runs all steps. Only the model and the
transport between processes (Ray) are replaced. Training is left out.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.resources import files
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from aiohttp import web

from autoj_reward.config import JudgeConfig
from autoj_reward.models.built_in import BASE, build_model
from autoj_reward.reward import judge_reward
from autoj_reward.trainer import openrlhf as openrlhf_adapter
from autoj_reward.trainer import verl as verl_adapter
from experiments.faults.server import TOKEN, run_service
from experiments.speed.endpoint import serve_app
from experiments.speed.work import QUESTIONS

MOST_RUNS = 5
"""Largest number of runs of TRL's rollout worker."""
WAIT_S = 300.0
"""Seconds after which a missing rollout of TRL's rollout worker is an error."""
RESPONSE_TOKENS = 16
"""Longest response in tokens."""
ASSISTANT = "<|im_start|>assistant\n"
"""Text before a response in the policy's chat template."""
OPENRLHF_WAYS = {
    "file": "OpenRLHF, reward file",
    "agent": "OpenRLHF, agent",
    "service": "OpenRLHF, `/get_reward`",
}
"""Ways to reward in OpenRLHF, with their names."""


class ScriptedPolicy:
    """Policy whose rollouts take drawn times. Every rollout has a text of its own."""

    def __init__(self, rollouts: int, shortest_s: float, longest_s: float, seed: int) -> None:
        """Draw the seconds of each rollout of a measurement, in the order of their start."""
        draw = random.Random(seed).uniform
        self._seconds = [draw(shortest_s, longest_s) for _ in range(rollouts)]
        self._numbers = count()
        self.start(generates=False)

    def start(self, generates: bool) -> None:
        """Begin a measurement with the same times as every other one, or with no time at all."""
        self._remaining = iter(self._seconds if generates else ())

    def next_rollout(self) -> tuple[str, float]:
        """Return the text of the next rollout, and its seconds: 0 after those of a measurement."""
        return f"Answer {next(self._numbers)}.", next(self._remaining, 0.0)

    async def generate(self) -> str:
        """Return the text of the next rollout after its time."""
        text, seconds = self.next_rollout()
        await asyncio.sleep(seconds)
        return text


@dataclass(frozen=True)
class OverlapWork:
    """Work of each trainer in a measurement: its rollouts, and the judge that rewards them."""

    groups: int
    generations: int
    """Rollouts of a group."""
    steps: int
    policy: ScriptedPolicy
    judge: JudgeConfig
    folder: Path
    """Folder for files of the trainers."""

    @property
    def batch(self) -> int:
        """Return the number of rollouts of a step."""
        return self.groups * self.generations

    @property
    def rollouts(self) -> int:
        """Return the number of rollouts of a measurement."""
        return self.batch * self.steps

    @property
    def prompts(self) -> list[list[dict[str, str]]]:
        """Return the prompt of each group of a step, as messages."""
        return [make_numbered_prompt(n) for n in range(self.groups)]

    @property
    def model(self) -> str:
        """Return the folder of a small model, whose weights no trainer uses here."""
        return str(build_model(BASE))

    @cached_property
    def tokenizer(self) -> Any:
        """Return the tokenizer of the policy."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model)

    def token_ids(self, text: str) -> list[int]:
        """Return the tokens of a response, with the one that ends it."""
        return [*self.tokenizer(text).input_ids, self.tokenizer.eos_token_id]


def make_numbered_prompt(number: int) -> list[dict[str, str]]:
    """Return a prompt that begins with its number, as messages."""
    content = f"{number}: {QUESTIONS[number % len(QUESTIONS)]}"
    return [{"role": "user", "content": content}]


OpenedTrainer = AbstractContextManager[Callable[[], None]]
"""An open trainer: a function that runs all steps, up to the last reward."""


@contextmanager
def open_trl(work: OverlapWork) -> Iterator[Callable[[], None]]:
    """Open TRL's GRPOTrainer, with generation in its own hook."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def roll_out(prompts: list[Any], _: Any) -> dict[str, Any]:
        rollouts = [work.policy.next_rollout() for _ in prompts]
        time.sleep(max(seconds for _, seconds in rollouts))  # an engine returns the whole batch
        ids = [work.token_ids(text) for text, _ in rollouts]
        return {"prompt_ids": [[1]] * len(ids), "completion_ids": ids, "logprobs": None}

    args = GRPOConfig(
        output_dir=str(work.folder / "trl"),
        per_device_train_batch_size=work.batch,
        num_generations=work.generations,
        max_completion_length=RESPONSE_TOKENS,
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = GRPOTrainer(
        model=work.model,
        reward_funcs=judge_reward,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in work.prompts]),
        rollout_func=roll_out,
    )
    rows = [{"prompt": prompt} for prompt in work.prompts for _ in range(work.generations)]

    def run() -> None:
        for _ in range(work.steps):
            trainer._generate_and_score_completions(rows)

    yield run


@contextmanager
def open_trl_async(work: OverlapWork) -> Iterator[Callable[[], None]]:
    """Open the rollout worker of TRL's async GRPO, with as many rollouts in flight as a step has.

    The worker generates without end, so the policy lets the prompts of a run wait until it starts.
    """
    from accelerate import PartialState
    from trl.experimental.async_grpo import async_rollout_worker as trl_worker

    groups = work.groups * work.steps
    start_events = [asyncio.Event() for _ in range(MOST_RUNS + 1)]
    runs = iter(start_events)

    async def complete(request: web.Request) -> web.Response:
        prompt = work.tokenizer.decode((await request.json())["prompt"])
        number = re.search(r"user\n(\d+):", prompt)
        assert number, prompt
        await start_events[int(number[1]) // groups].wait()
        ids = work.token_ids(await work.policy.generate())
        logprobs = {"token_logprobs": [-1.0] * len(ids)}
        return web.json_response({"choices": [{"token_ids": ids, "logprobs": logprobs}]})

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    PartialState()
    trl_worker.is_vllm_available = lambda **_: True  # the policy is scripted
    # The worker reads responses of templates that it knows. The model's own is ChatML too.
    template = files("trl") / "chat_templates/qwen2_5.jinja"
    work.tokenizer.chat_template = template.read_text(encoding="utf-8")
    with serve_app(app) as (url, loop):
        worker = trl_worker.AsyncRolloutWorker(
            model_name="policy",
            dataset=[
                {"prompt": make_numbered_prompt(n)} for n in range(groups * len(start_events))
            ],
            reward_funcs=[judge_reward],
            processing_class=work.tokenizer,
            eos_token_ids=[work.tokenizer.eos_token_id],
            num_generations=work.generations,
            max_inflight_tasks=work.batch,
            vllm_server_url=url,
            max_tokens=RESPONSE_TOKENS,
        )

        def run() -> None:
            loop.call_soon_threadsafe(next(runs).set)
            for _ in range(work.rollouts):
                worker.rollout_buffer.get(timeout=WAIT_S)

        worker.start()
        try:
            yield run
        finally:
            worker.stop()  # kills the child after 15 s, since requests of a later run wait


@contextmanager
def open_verl(work: OverlapWork, colocated: bool = False) -> Iterator[Callable[[], None]]:
    """Open verl's agent loop worker and reward loop worker, in one event loop.

    colocated: whether the whole batch is judged after its generation.
    """
    import numpy as np
    import verl
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
    from verl.workers.rollout.replica import TokenOutput

    config_path = Path(verl.__file__).parent / "trainer/config/_generated_ppo_trainer.yaml"
    config = OmegaConf.load(config_path)
    settings = {
        "actor_rollout_ref.model.path": work.model,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.prompt_length": 128,
        "actor_rollout_ref.rollout.response_length": RESPONSE_TOKENS,
        "reward.reward_manager.source": "importlib",
        "reward.reward_manager.name": "JudgeRewardManager",
        "reward.reward_manager.module.path": verl_adapter.__file__,
    }
    for key, value in settings.items():
        OmegaConf.update(config, key, value)

    async def generate(**_: Any) -> Any:
        return TokenOutput(token_ids=work.token_ids(await work.policy.generate()))

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    rewards = RewardLoopWorker(config)
    handle = SimpleNamespace(compute_score=SimpleNamespace(remote=rewards.compute_score))
    engine, handles = SimpleNamespace(generate=generate), None if colocated else [handle]
    policy = AgentLoopWorker(config, engine, reward_loop_worker_handles=handles)
    rows = np.empty(work.batch, dtype=object)
    rows[:] = [prompt for prompt in work.prompts for _ in range(work.generations)]
    kinds = np.array(["any"] * work.batch, dtype=object)

    async def step() -> None:
        prompts = DataProto.from_dict({}, non_tensors={"raw_prompt": rows, "data_source": kinds})
        batch = await policy.generate_sequences(prompts)
        if colocated:
            await rewards.compute_score_batch(batch)

    def run() -> None:
        for _ in range(work.steps):
            loop.run_until_complete(step())

    try:
        yield run
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@contextmanager
def open_openrlhf(work: OverlapWork, way: str) -> Iterator[Callable[[], None]]:
    """Open OpenRLHF's rollout actor in this process, rewarded by `agent`, `file` or `service`."""
    from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    class Actor(RolloutRayActor.__ray_metadata__.modified_class):
        """OpenRLHF's actor with the scripted policy in place of vLLM."""

        def __init__(self, executor: Any) -> None:
            self.executor = executor

        async def generate(self, *_: Any, **__: Any) -> Any:
            text = await work.policy.generate()
            output = SimpleNamespace(
                token_ids=work.token_ids(text), text=text, finish_reason="stop", logprobs=None
            )
            return SimpleNamespace(outputs=[output])

    tokenizer, texts = work.tokenizer, []
    for prompt in work.prompts:
        texts.append(tokenizer.apply_chat_template(prompt, tokenize=False) + ASSISTANT)
    limits = SimpleNamespace(max_tokens=RESPONSE_TOKENS, logprobs=None)

    async def run(executor: Any) -> None:
        ask = Actor(executor).generate_responses
        for _ in range(work.steps):
            requests = (ask(text, "", limits, 512, tokenizer, work.generations) for text in texts)
            await asyncio.gather(*requests)

    if way == "service":
        with run_service(work.judge, work.folder) as server:
            url = server.address.replace("://", f"://run:{TOKEN}@") + "/get_reward"
            yield lambda: asyncio.run(run(SingleTurnAgentExecutor(url)))
        return
    executor = {
        "agent": openrlhf_adapter.AgentExecutor,
        "file": partial(SingleTurnAgentExecutor, openrlhf_adapter.__file__),
    }[way]()
    yield lambda: asyncio.run(run(executor))


class MeasuredTrainer(NamedTuple):
    """One way of judging in a trainer."""

    name: str
    package: str
    open: Callable[[OverlapWork], OpenedTrainer]


TRAINERS = {
    "trl": MeasuredTrainer("TRL GRPO", "trl", open_trl),
    "trl-async": MeasuredTrainer("TRL async GRPO", "trl", open_trl_async),
    "verl-colocated": MeasuredTrainer(
        "verl, colocated", "verl", partial(open_verl, colocated=True)
    ),
    "verl": MeasuredTrainer("verl, standalone", "verl", open_verl),
    **{
        f"openrlhf-{way}": MeasuredTrainer(name, "openrlhf", partial(open_openrlhf, way=way))
        for way, name in OPENRLHF_WAYS.items()
    },
}
"""Measured trainers, by part of the study."""
