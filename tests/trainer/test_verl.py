"""verl's own reward managers, loaded as its workers load them, with a scripted judge."""

from __future__ import annotations

import asyncio
import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig
from autoj_reward.errors import BudgetExceeded, ConfigError, InputError
from autoj_reward.service.api import make_app
from autoj_reward.trainer import verl as ours
from autoj_reward.types import Candidate
from tests.service.test_api import metric, serving
from tests.trainer.conftest import BY_ITEMS, ITEMS, RATING_BY_SHOWS, TURNS

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of their code
    pytest.mark.usefixtures("frameworks"),
]
MANAGERS = {
    "naive": "compute_score",
    "dapo": "compute_score",
    "remote": "compute_score_sync",
    "rate_limited": "compute_score_limited",
    "JudgeRewardManager": None,
}


class Worker:
    """Thread in place of the Ray actor of verl's remote manager."""

    def __init__(self, function: Any) -> None:
        async def call(**kwargs: Any) -> Any:
            return await asyncio.to_thread(function, **kwargs)

        self.compute_score = SimpleNamespace(remote=call)

    @staticmethod
    def options(**_: Any) -> Any:
        return SimpleNamespace(remote=Worker)


def load_manager(
    name: str,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    function: str | None = None,
    **more: Any,
) -> Any:
    OmegaConf = importlib.import_module("omegaconf").OmegaConf
    from verl.experimental.reward_loop.reward_manager import remote
    from verl.trainer.ppo.reward import load_reward_manager

    monkeypatch.setattr(remote, "RewardComputeWorker", Worker)
    node = SimpleNamespace(get_node_id=lambda: "0" * 56)
    monkeypatch.setattr(remote.ray, "get_runtime_context", lambda: node)
    custom = name == "JudgeRewardManager"
    source = {"source": "importlib", "module": {"path": ours.__file__}} if custom else {}
    chosen = {"source": "register", "name": name} | source
    path = None if custom else ours.__file__
    scorer: dict[str, Any] = {"path": path, "name": function or MANAGERS[name], "reward_kwargs": {}}
    reward = {"reward_manager": chosen, "custom_reward_function": scorer, "num_workers": 1}
    return load_reward_manager(OmegaConf.create({"reward": reward} | more), tokenizer)


def make_rollout(
    tokenizer: Any, *texts: str, extra: dict[str, Any] | None = None, **columns: Any
) -> Any:
    """Return a DataProto with the sequences of one rollout. columns: further non-tensors."""
    import numpy as np
    from verl import DataProto

    rows = [[*tokenizer(text).input_ids, tokenizer.eos_token_id] for text in texts]
    width = max(map(len, rows))
    responses = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1, 1] + [1] * len(r) + [0] * (width - len(r)) for r in rows])
    count = len(texts)

    def make_column(value: Any) -> Any:
        cells = np.empty(count, dtype=object)
        cells[:] = [dict(value) if isinstance(value, dict) else value for _ in range(count)]
        return cells

    return DataProto.from_dict(
        {"prompts": torch.ones(count, 2, dtype=torch.long), "responses": responses}
        | {"attention_mask": mask},
        non_tensors={
            "data_source": make_column("any"),
            "reward_model": make_column({"ground_truth": ""}),
            "extra_info": make_column({"query": "Why?"} if extra is None else extra),
            **{name: make_column(value) for name, value in columns.items()},
        },
    )


@pytest.mark.parametrize("name", MANAGERS)
def test_each_manager_rewards_the_last_sequence(
    name: str, make_model: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(5.0, budget=1.0, fallback=4.5)

    async def run() -> list[dict[str, Any]]:
        manager = load_manager(name, smollm2, monkeypatch)
        rollouts = (("good",), ("poor", "good"), ("lost",), ("slow",))
        return [await manager.run_single(make_rollout(smollm2, *texts)) for texts in rollouts]

    rows = asyncio.run(run())
    assert [row["reward_score"] for row in rows] == [9.0, 9.0, 4.5, 4.5]
    keys = [row["reward_extra_info"].keys() for row in rows]
    assert all(row_keys == keys[0] for row_keys in keys)


@pytest.mark.parametrize("shows", RATING_BY_SHOWS)
def test_the_messages_of_an_agent_loop_are_the_turns(
    shows: str, make_model: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(shows=shows)
    prompt = [{"role": "user", "content": "Why?"}]
    columns: dict[str, Any] = {
        "raw_prompt": prompt,
        "tool_extra_fields": {"messages": [*prompt, *TURNS]},
    }
    manager = load_manager("JudgeRewardManager", smollm2, monkeypatch)
    row = asyncio.run(manager.run_single(make_rollout(smollm2, "decoded", **columns)))
    assert row["reward_score"] == RATING_BY_SHOWS[shows]


@pytest.mark.parametrize("name", MANAGERS)
def test_items_in_extra_info_are_the_rubric(
    name: str, make_model: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    make_model(**BY_ITEMS)
    extra = {"query": "Why?", "rubric": np.array(ITEMS, dtype=object)}  # as parquet files have it

    async def run() -> list[dict[str, Any]]:
        manager = load_manager(name, smollm2, monkeypatch)
        texts = ("good", "light", "good light")
        return [
            await manager.run_single(make_rollout(smollm2, text, extra=extra)) for text in texts
        ]

    assert [row["reward_score"] for row in asyncio.run(run())] == [0.75, 0.25, 1.0]


ENDS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a spent budget": ({"query": "Why?"}, BudgetExceeded, "training stops"),
    "no query": ({"index": 1}, InputError, "extra_info has no 'query'"),
}


@pytest.mark.parametrize("case", ENDS)
@pytest.mark.parametrize("name", MANAGERS)
def test_what_ends_a_run(
    name: str,
    case: str,
    make_model: Any,
    smollm2: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_model(budget=0.0)
    extra, error, words = ENDS[case]

    async def run() -> dict[str, Any]:
        data = make_rollout(smollm2, "lost", extra=extra)
        row: dict[str, Any] = await load_manager(name, smollm2, monkeypatch).run_single(data)
        return row

    if name != "rate_limited":
        with pytest.raises(error, match=words):
            asyncio.run(run())
        return
    assert asyncio.run(run())["reward_score"] is None
    assert words in caplog.text
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

    with pytest.raises((TypeError, RuntimeError)):  # the rewards of the batch
        RewardManagerBase.assemble_rm_scores(make_rollout(smollm2, "lost"), [None])


def test_rate_limited_makes_a_reward_of_an_exception(
    make_model: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(budget=0.0)

    async def run() -> Any:
        manager = load_manager("rate_limited", smollm2, monkeypatch, "compute_score")
        return await manager.run_single(make_rollout(smollm2, "lost"))

    assert asyncio.run(run())["reward_score"] == 0.0


def test_remote_takes_no_coroutine(
    make_model: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model()

    async def run() -> None:
        load_manager("remote", smollm2, monkeypatch, "compute_score")

    with pytest.raises(AssertionError, match="Async reward score is not supported"):
        asyncio.run(run())


def test_verl_trains_on_nan() -> None:
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

    batch = {"prompts": torch.ones(1, 2), "responses": torch.ones(1, 2)}
    data = SimpleNamespace(batch=batch | {"attention_mask": torch.ones(1, 4, dtype=torch.long)})
    assert RewardManagerBase.assemble_rm_scores(data, [float("nan")]).isnan().any()


def brevity(candidate: Candidate) -> float:
    """Part of a reward, with a range a hundred times smaller than the judge's."""
    return 0.01 * ("brief" in candidate.response.text)


@pytest.mark.parametrize("name", ["gdpo", "naive", "JudgeRewardManager"])
def test_gdpo_normalises_each_part_alone(
    name: str, make_model: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np
    from verl.trainer.config.algorithm import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    ratings = {"good, long": 9, "poor, brief": 2, "good, brief": 9, "poor, long": 2}
    responses = [*ratings, "lost"]
    judge = {"kind": "fake", "script": {"ratings": ratings, "fail": {"lost": "truncated"}}}
    parts = {"brevity": {"function": f"{__name__}:brevity"}}
    make_model(more={"judge": judge, "parts": parts}, budget=1.0)
    data = make_rollout(smollm2, *responses)

    async def run() -> list[dict[str, Any]]:
        trainer = {"experiment_name": "gdpo"}
        manager = load_manager(name, smollm2, monkeypatch, "compute_score", trainer=trainer)
        return [await manager.run_single(data[n : n + 1]) for n in range(len(responses))]

    infos = [row["reward_extra_info"] for row in asyncio.run(run())]
    columns = {key: np.array([info[key] for info in infos]) for key in infos[0]}
    assert columns["part_judge"].tolist() == [9, 2, 9, 2, 5.5]  # a failure: the scale's middle
    assert columns["part_judge_abstains"].tolist() == [0, 0, 0, 0, 1]
    mask = data.batch["attention_mask"][:, data.batch["prompts"].shape[1] :]
    keys = ["part_judge", "part_brevity"]
    advantages, _ = get_adv_estimator_fn("gdpo")(
        token_level_rewards=torch.zeros_like(mask, dtype=torch.float32),
        response_mask=mask,
        index=np.array(["a"] * len(responses), dtype=object),
        config=AlgoConfig(adv_estimator="gdpo", gdpo_reward_keys=keys),
        non_tensor_batch=columns,
        batch=data.batch,
    )
    scaled = [(columns[key] - columns[key].mean()) / columns[key].std(ddof=1) for key in keys]
    expected = torch.tensor(sum(scaled), dtype=torch.float32)
    per_token = expected[:, None].expand(mask.shape)[mask.bool()]
    expected = (expected - per_token.mean()) / per_token.std()
    assert advantages[:, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-2)


RELATIVE = {"relative": {"by": "listwise"}, "service": None}


def make_verl_config(n: int = 3, val_n: int = 3, test_freq: int = 5) -> dict[str, Any]:
    """Return the parts of verl's config that state the sizes of groups."""
    rollout = {"n": n, "val_kwargs": {"n": val_n}}
    trainer = {"val_before_train": False, "test_freq": test_freq}
    return {"actor_rollout_ref": {"rollout": rollout}, "trainer": trainer}


def test_a_service_gathers_the_groups_of_several_workers(
    make_model: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    script = {"ratings": {"good": 9, "fair": 5, "poor": 2}}

    async def run(port: int) -> list[float]:
        more = RELATIVE | {"service": {"address": f"http://127.0.0.1:{port}"}}
        make_model(fmt="listwise", more=more)
        workers = [
            load_manager("JudgeRewardManager", smollm2, monkeypatch, **make_verl_config())
            for _ in range(2)
        ]
        samples = [("a", "good"), ("b", "fair"), ("a", "poor"), ("b", "poor"), ("a", "fair")]
        samples += [("b", "good")]
        tasks = [
            workers[n % 2].run_single(
                make_rollout(smollm2, text, uid=uid, raw_prompt=f"Query {uid}")
            )
            for n, (uid, text) in enumerate(samples)
        ]
        rows = await asyncio.gather(*tasks)
        assert all(row["reward_extra_info"]["judge_ok"] == 1.0 for row in rows)
        with pytest.raises(InputError, match="no uid"):
            await workers[0].run_single(make_rollout(smollm2, "good"))
        return [row["reward_score"] for row in rows]

    async def serve() -> list[float]:
        judge = JudgeConfig(kind="fake", format="listwise", script=script)
        async with open_judge(judge) as client:
            app = make_app(client, "secret")
            with serving(app) as port:
                rewards = await asyncio.to_thread(lambda: asyncio.run(run(port)))
                assert metric(app, "autoj_group_members_total", answer="complete") == 6
                return rewards

    good, fair, poor, again, middle, best = asyncio.run(serve())
    assert good == best > fair == middle > poor == again


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no service": (RELATIVE, make_verl_config(), r"name a running service in reward\.service"),
    "one rollout": ({}, make_verl_config(n=1), "rollout.n is 1"),
    "another validation": ({}, make_verl_config(val_n=1), "val_kwargs.n is 1"),
    "a setting that needs the call": (
        {"shaping": {"whiten": "group"}},
        make_verl_config(),
        "whiten",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_groups_that_cannot_be_gathered_are_refused_at_the_start(
    case: str, make_model: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, sizes, words = REFUSED[case]
    service = RELATIVE | {"service": {"address": "http://127.0.0.1:1"}}
    make_model(fmt="listwise", more=service | more)
    with pytest.raises(ConfigError, match=words):
        load_manager("JudgeRewardManager", smollm2, monkeypatch, **sizes)


async def test_a_validation_that_never_runs_may_have_any_size(
    make_model: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(fmt="listwise", more=RELATIVE | {"service": {"address": "http://127.0.0.1:1"}})
    load_manager(
        "JudgeRewardManager", smollm2, monkeypatch, **make_verl_config(val_n=1, test_freq=-1)
    )
