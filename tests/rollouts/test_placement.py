"""Who gets which GPU: the trainer's process, and the judge's replicas on Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import ray
import torch

from autoj_reward.config import RewardConfig
from autoj_reward.errors import ConfigError
from autoj_reward.replicas.cluster import VISIBLE, Cluster
from rollouts.train.main import beside_judge

STATED = {"kv_cache_gib": 4, "serve": {"replicas": 1, "num_gpus": 0.4}}


class Started(Exception):
    """Ray was to be started."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A machine of so many GPUs, on which a start of Ray raises Started with what it was shown."""

    def make(gpus: int, visible: str | None) -> list[str]:
        visible_gpus: list[str] = []

        def init(*_: Any, **__: Any) -> None:
            visible_gpus.append(os.environ[VISIBLE])
            raise Started

        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(ray, "init", init)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        for touching in ("is_available", "_lazy_init", "init", "get_device_properties"):
            monkeypatch.setattr(torch.cuda, touching, lambda *_: pytest.fail("CUDA was touched"))
        monkeypatch.setenv(VISIBLE, visible or "")
        if visible is None:
            monkeypatch.delenv(VISIBLE)
        return visible_gpus

    yield make
    os.environ.pop(VISIBLE, None)


@pytest.mark.parametrize(
    ("gpus", "visible", "judge", "trainer_gpus", "ray_gpus"),
    [
        pytest.param(4, None, {}, "0", "1,2,3", id="four"),
        pytest.param(2, "5,3", {}, "5", "3", id="two of them"),
        pytest.param(2, "GPU-a,GPU-b", {}, "GPU-a", "GPU-b", id="by name"),
        pytest.param(1, None, STATED, "0", "0", id="one, in stated parts"),
    ],
)
def test_the_trainer_keeps_one_gpu_and_touches_none_before(
    gpus: int,
    visible: str | None,
    judge: dict[str, Any],
    trainer_gpus: str,
    ray_gpus: str,
    machine: Any,
) -> None:
    visible_gpus = machine(gpus, visible)
    config = RewardConfig.model_validate({"judge": {"model": "default"} | judge})
    with pytest.raises(Started), beside_judge(config, None):
        pass
    assert visible_gpus == [ray_gpus] and os.environ[VISIBLE] == trainer_gpus


@pytest.mark.parametrize(
    "judge",
    [
        pytest.param({}, id="nothing stated"),
        pytest.param({"serve": {"num_gpus": 0.4, "replicas": 1}}, id="no KV cache"),
        pytest.param({"kv_cache_gib": 4}, id="no share"),
        pytest.param({"kv_cache_gib": 4, "serve": {"num_gpus": 0.4}}, id="as many as fit"),
        pytest.param(
            {"kv_cache_gib": 4, "serve": {"num_gpus": 0.5, "replicas": 2}}, id="nothing left"
        ),
    ],
)
def test_one_gpu_is_shared_by_stated_parts_alone(judge: dict[str, Any], machine: Any) -> None:
    visible_gpus = machine(1, None)
    config = RewardConfig.model_validate({"judge": judge})
    with (
        pytest.raises(ConfigError, match=r"one GPU.*num_gpus=0.4.*kv_cache_gib=8.*reward.service"),
        beside_judge(config, None),
    ):
        pass
    assert visible_gpus == []


@pytest.mark.engine
def test_rays_workers_see_the_gpus_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", partial(ray.init, num_gpus=2, num_cpus=2))
    monkeypatch.setenv(VISIBLE, "0")

    @ray.remote(num_gpus=1, num_cpus=0)
    def read_visible() -> str:
        return os.environ[VISIBLE]

    with closing(Cluster("3,1")) as ours:
        ours.start()
        assert os.environ[VISIBLE] == "0"
        assert ray.get(read_visible.remote()) in ("3", "1")
