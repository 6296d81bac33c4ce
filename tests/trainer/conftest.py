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

from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import VARIABLE, reward_model

ROOT = Path(__file__).parents[2]
FRAMEWORKS = Path(os.environ.get("AUTOJ_FRAMEWORKS", ROOT / ".venv/frameworks"))
STUBBED: dict[str, dict[str, tuple[str, ...]]] = {
    "openrlhf": {
        "openrlhf.trainer.ray": (),
        "openrlhf.trainer.ray.launcher": ("RayActorGroup",),
        "openrlhf.trainer.ray.vllm_engine": ("batch_vllm_engine_call",),
        "openrlhf.models.utils": ("compute_approx_kl", "compute_reward", "masked_mean"),
        "openrlhf.models": (),
        "vllm": ("SamplingParams",),
    },
    "verifiers": {
        "prime_sandboxes": (),
        "prime_sandboxes.models": ("validate_egress_lists",),
    },
    "nemo_gym": {
        "wandb": ("Histogram",),
        "pydot": ("graph_from_dot_file",),
        "yappi": (),
    },
}
"""By framework: modules that only a GPU's software can import, or that speak to somebody's
sandboxes, dashboards and profilers, with the names that others take from them."""


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes a folder's packages importable in the test; skips without them. What was imported of
    verifiers is forgotten after it, as the stubs are that it has imported."""

    def find(folder: Path, *packages: str) -> None:
        if any(not (folder / name).is_dir() for name in packages):
            pytest.skip(f"{' and '.join(packages)} not in {folder}: make test-frameworks")
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
        stubbed = [item for own in packages for item in STUBBED.get(own, {}).items()]
        for name, names in stubbed:
            stub = types.ModuleType(name)
            stub.__path__ = []
            for attribute in names:
                setattr(stub, attribute, type(attribute, (), {}))
            monkeypatch.setitem(sys.modules, name, stub)

    yield find
    for name in [name for name in sys.modules if name.partition(".")[0] == "verifiers"]:
        del sys.modules[name]


@pytest.fixture
def frameworks(theirs: Callable[..., None]) -> None:
    """OpenRLHF and verl."""
    theirs(FRAMEWORKS, "openrlhf", "verl")


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RewardModel]]:
    """The reward model of a config file that the environment names, with a scripted judge. What it
    hangs on has failed after `hangs_s`, long enough for a busy machine to answer the others."""

    def make(hangs_s: float = 60.0, fmt: str = "autoj-en", **failures: Any) -> RewardModel:
        ratings = {"good": 9, "good </s>": 9, "poor": 2}
        script = {"ratings": ratings, "fail": {"lost": "truncated", "slow": "hang"}}
        judge = {"kind": "fake", "script": script, "serve": {"deadline_s": hangs_s}}
        judge |= {"format": fmt}
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
