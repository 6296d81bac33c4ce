"""What the tests of trainers' adapters share."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.trainer.environment import VARIABLE, reward_model
from autoj_reward.trainer.reward import RewardModel

ROOT = Path(__file__).parents[2]
FRAMEWORKS = Path(os.environ.get("AUTOJ_FRAMEWORKS", ROOT / ".venv/frameworks"))
STUBBED = {
    "openrlhf.trainer.ray": (),
    "openrlhf.trainer.ray.launcher": ("RayActorGroup",),
    "openrlhf.trainer.ray.vllm_engine": ("batch_vllm_engine_call",),
    "openrlhf.models.utils": ("compute_approx_kl", "compute_reward", "masked_mean"),
    "openrlhf.models": (),
    "vllm": ("SamplingParams",),
}
"""Modules that only a GPU's software can import, with the names that others take from them."""


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frameworks' own packages, to be imported in the test; skips without them."""
    if not (FRAMEWORKS / "openrlhf").is_dir() or not (FRAMEWORKS / "verl").is_dir():
        pytest.skip(f"OpenRLHF and verl are not in {FRAMEWORKS}: make test-frameworks")
    monkeypatch.setattr(sys, "path", [*sys.path, str(FRAMEWORKS)])
    for name, names in STUBBED.items():
        stub = types.ModuleType(name)
        stub.__path__ = []
        for attribute in names:
            setattr(stub, attribute, type(attribute, (), {}))
        monkeypatch.setitem(sys.modules, name, stub)


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RewardModel]]:
    """The reward model of a config file that the environment names, with a scripted judge."""

    def make(**failures: Any) -> RewardModel:
        ratings = {"good": 9, "good </s>": 9, "poor": 2}
        script = {"ratings": ratings, "fail": {"lost": "truncated", "slow": "hang"}}
        judge = {"kind": "fake", "script": script, "serve": {"deadline_s": 0.5}}
        path = tmp_path / "reward.yaml"
        made = {"judge": judge, "view": "rating", "failures": failures}
        path.write_text(yaml.safe_dump(made), encoding="utf-8")
        monkeypatch.setenv(VARIABLE, str(path))
        reward_model.cache_clear()
        return reward_model()

    yield make
    if VARIABLE in os.environ:
        reward_model().close()
    reward_model.cache_clear()
