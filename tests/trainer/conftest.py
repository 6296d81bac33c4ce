"""Fixtures for the tests of the trainers' adapters."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import REWARD_MODELS, VARIABLE, reward_model

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


ITEMS = [{"criterion": 'Says "good"', "points": 3}, {"criterion": 'Says "light"', "points": 1}]
"""Rubric of a row. The response `good` earns 3 of its 4 points, by the scripted judge."""
BY_ITEMS: dict[str, Any] = {
    "fmt": "rubric-item",
    "more": {"rubric": {"by": "items", "hard": True}},
}
"""Arguments of `make_model` for a reward by rubric items."""


TURNS: list[dict[str, Any]] = [
    {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "arguments": "{}"}]},
    {"role": "tool", "content": "blue"},
    {"role": "assistant", "content": "good"},
]
"""Messages of a response that calls a tool."""
WORK = "Assistant: [calls look {}]\n\nTool: blue\n\nAssistant: good"
"""The same as a judge sees it that is shown the trajectory."""
RATING_BY_SHOWS = {"final": 9.0, "trajectory": 7.0}
"""Rating of that response, by `judge.shows`."""


@pytest.fixture
def require_packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that makes a folder's packages importable, or skips the test without them.

    verifiers is unloaded after the test, because it has imported stubs that end with the test.
    """

    def make_importable(folder: Path, *packages: str) -> None:
        if any(not (folder / name).is_dir() for name in packages):
            pytest.skip(f"{' and '.join(packages)} not in {folder}: make test-frameworks")
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
        stubbed = [item for package in packages for item in STUBBED.get(package, {}).items()]
        for name, names in stubbed:
            stub = types.ModuleType(name)
            stub.__path__ = []
            for attribute in names:
                setattr(stub, attribute, type(attribute, (), {}))
            monkeypatch.setitem(sys.modules, name, stub)

    yield make_importable
    for name in [name for name in sys.modules if name.partition(".")[0] == "verifiers"]:
        del sys.modules[name]


@pytest.fixture
def frameworks(require_packages: Callable[..., None]) -> None:
    """Make OpenRLHF and verl importable."""
    require_packages(FRAMEWORKS, "openrlhf", "verl")


@pytest.fixture
def make_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RewardModel]]:
    """Return a function that builds the reward model of a config file named in the environment.

    Its judge is scripted. A judgement that hangs fails after `hangs_s`, which leaves a busy machine
    time to answer the others. more: other keys of the config.
    """

    def make(
        hangs_s: float = 60.0,
        fmt: str = "autoj-en",
        more: Mapping[str, Any] = MappingProxyType({}),
        shows: str | None = None,
        **failures: Any,
    ) -> RewardModel:
        ratings = {"good": 9, "good </s>": 9, "poor": 2, WORK: 7}
        script = {"ratings": ratings, "fail": {"lost": "truncated", "slow": "hang"}}
        judge: dict[str, Any] = {"kind": "fake", "script": script, "serve": {"deadline_s": hangs_s}}
        judge |= {"format": fmt, "shows": shows}
        path = tmp_path / "reward.yaml"
        view = {} if {"relative", "rubric"} & set(more) else {"view": "rating"}
        config = {"judge": judge, "failures": failures, **view, **more}
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        monkeypatch.setenv(VARIABLE, str(path))
        REWARD_MODELS.clear()
        return reward_model()

    yield make
    if VARIABLE in os.environ:
        reward_model().close()
    REWARD_MODELS.clear()
