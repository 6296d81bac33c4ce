"""OpenRLHF's own rollouts and handling of rewards, with a scripted engine and judge."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from autoj_reward.errors import BudgetExceeded
from autoj_reward.service.trainers import add_routes
from autoj_reward.trainer import openrlhf as ours
from autoj_reward.types import Outcome
from tests.trainer.conftest import BY_ITEMS, ITEMS

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of their code
    pytest.mark.usefixtures("frameworks"),
]
PROMPT = (
    "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
WAYS = ("agent", "file", "http")


def execute(executor: Any, tokenizer: Any, completion: str, label: Any = "any") -> dict[str, Any]:
    """Run one rollout of an OpenRLHF executor, whose engine generates `completion`."""
    ids = tokenizer(completion + "<|im_end|>", add_special_tokens=False).input_ids
    output = SimpleNamespace(token_ids=ids, text=completion, finish_reason="stop", logprobs=None)

    async def generate(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(outputs=[output])

    answer: dict[str, Any] = asyncio.run(
        executor.execute(
            prompt=PROMPT,
            label=label,
            sampling_params=SimpleNamespace(max_tokens=64, logprobs=None),
            max_length=512,
            hf_tokenizer=tokenizer,
            llm_engine=SimpleNamespace(generate=generate),
            images=None,
        )
    )
    return answer


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """Return a function that serves a reward model on the loopback, and returns its URL."""
    import uvicorn

    started: list[tuple[Any, threading.Thread]] = []

    def start(model: Any) -> str:
        app = FastAPI()
        add_routes(app, model)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        thread = threading.Thread(target=server.run)
        thread.start()
        started.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        return f"http://run:secret@127.0.0.1:{port}/get_reward"

    yield start
    for server, thread in started:
        server.should_exit = True
        thread.join()


def make_executor(way: str, model: Any, serve: Callable[[Any], str]) -> Any:
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    if way == "agent":
        return ours.AgentExecutor()
    return SingleTurnAgentExecutor([str(ours.__file__) if way == "file" else serve(model)])


def to_experience(output: dict[str, Any]) -> Any:
    """Return OpenRLHF's experience of a rollout."""
    generator = importlib.import_module("openrlhf.trainer.ppo_utils.samples_generator")
    return generator.SamplesGenerator._process_response_into_experience(None, output, max_len=512)


def train(samples: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run OpenRLHF's next steps, up to the call of its models."""
    module = importlib.import_module("openrlhf.trainer.ppo_utils.experience_maker")
    monkeypatch.setattr(module, "ray", SimpleNamespace(put=lambda value: value))
    maker = object.__new__(module.RemoteExperienceMaker)
    parallel = SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1)
    maker.strategy = SimpleNamespace(args=SimpleNamespace(ds=parallel))
    maker.reward_model_group = None
    maker.make_experience(samples)


@pytest.mark.parametrize("way", WAYS)
def test_rows_good_and_failed(way: str, make_model: Any, serve: Any, smollm2: Any) -> None:
    model = make_model(5.0, budget=1.0, fallback=4.5)
    executor = make_executor(way, model, serve)
    rows = [to_experience(execute(executor, smollm2, s)) for s in ("good </s>", "lost", "slow")]
    assert [row.rewards.item() for row in rows] == [9.0, 4.5, 4.5]
    assert [row.scores.item() for row in rows] == [pytest.approx(8 / 9), 0.5, 0.5]
    assert rows[0].info.keys() == rows[1].info.keys() == rows[2].info.keys()
    judged = [(candidate.prompt.text, candidate.response.text) for candidate, _ in model.recent()]
    assert way == "http" or judged[0] == ("Why?", "good </s>")


@pytest.mark.parametrize("way", WAYS)
def test_items_in_a_label_are_the_rubric(
    way: str, make_model: Any, serve: Any, smollm2: Any
) -> None:
    executor = make_executor(way, make_model(**BY_ITEMS, budget=1.0, fallback=0.5), serve)
    labels = [json.dumps(ITEMS), json.dumps({"rubric": ITEMS, "reference": "So."}), "So."]
    rows = [to_experience(execute(executor, smollm2, "good", label)) for label in labels]
    assert [row.rewards.item() for row in rows] == [0.75, 0.75, 0.5]
    assert [row.info["judge_ok"] for row in rows] == [1.0, 1.0, 0.0]


LABELS: dict[str, tuple[Any, str | None, bool]] = {
    "a list of items": (json.dumps(ITEMS), None, True),
    "an object with a rubric": (json.dumps({"rubrics": ITEMS, "reference": "So."}), "So.", True),
    "its label is the reference": (json.dumps({"rubric": ITEMS, "label": "So."}), "So.", True),
    "no JSON": ("So [", "So [", False),
    "a number": ("42", "42", False),
    "an object without a rubric": ('{"answer": 4}', '{"answer": 4}', False),
    "brackets too deep to read": ("[" * 100_000, "[" * 100_000, False),
    "no label": (None, None, False),
}


@pytest.mark.parametrize("case", LABELS)
async def test_a_label_is_a_rubric_or_a_reference(case: str, make_model: Any) -> None:
    label, reference, items = LABELS[case]
    model = make_model(**BY_ITEMS, budget=1.0, fallback="neutral")
    await ours.get_reward(model, [PROMPT + "good"], [PROMPT], [label])
    [(candidate, _)] = model.recent()
    assert candidate.context.get("reference") == reference
    assert bool(candidate.rubric) == items


async def test_malformed_items_in_a_label_are_named(make_model: Any) -> None:
    label = json.dumps([{"criterion": "a", "points": "x"}])
    good = json.dumps([{"criterion": "a"}])
    model = make_model(**BY_ITEMS, budget=1.0, fallback="neutral")
    await ours.get_reward(model, [PROMPT + "good"] * 2, [PROMPT] * 2, [label, good])
    [broken, whole] = [reward.judgement for _, reward in model.recent()]
    assert broken.outcome is Outcome.INPUT_REJECTED and whole.ok
    assert "rubric[0].points: a number, not 'x'" in broken.reason


@pytest.mark.parametrize("way", WAYS)
def test_what_ends_a_run_whose_budget_is_spent(
    way: str, make_model: Any, serve: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(way, make_model(budget=0.0), serve)
    if way == "agent":
        with pytest.raises(BudgetExceeded, match="training stops rather than learn from noise"):
            execute(executor, smollm2, "lost")
        return
    row = to_experience(execute(executor, smollm2, "lost"))
    assert row.rewards is None
    with pytest.raises(ValueError, match="required when rewards are not precomputed"):
        train([row], monkeypatch)


FILES = {
    "exception": ("raise RuntimeError('broken')", None),
    "None": ("return None", None),
    "no number": ("return {'rewards': None}", None),
    "NaN": ("return {'rewards': float('nan')}", "nan"),
}


@pytest.mark.parametrize("case", FILES)
def test_what_openrlhf_makes_of_a_reward_file(case: str, tmp_path: Path, smollm2: Any) -> None:
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    body, reward = FILES[case]
    path = tmp_path / "file.py"
    path.write_text(f"def reward_func(queries, prompts, labels):\n    {body}\n", encoding="utf-8")
    row = to_experience(execute(SingleTurnAgentExecutor([str(path)]), smollm2, "x"))
    assert (row.rewards if reward is None else str(row.rewards.item())) == reward
