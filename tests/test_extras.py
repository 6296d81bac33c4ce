from __future__ import annotations

import sys
import tomllib
from importlib import import_module

import pytest

from autoj_reward.errors import EXTRAS, ConfigError, from_extras
from tests.test_imports import ROOT, SOURCES, find_imports, name_of

CLIENT = {"aiohttp", "pydantic", "pydantic_core", "tqdm", "yaml"}
KNOWN = CLIENT.union(*EXTRAS.values())
OPTIONAL = {
    *("areal", "inspect_ai", "nemo_gym", "openrlhf", "pynvml", "skyrl_gym", "swift"),
    *("verifiers", "verl"),
}
"""Where it runs inside them, or beside a GPU stack that brings them."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_client_is_few_packages() -> None:
    names = {line.partition(">")[0] for line in PROJECT["dependencies"]}
    assert names == {"aiohttp", "pydantic", "pyyaml", "tqdm"}
    assert EXTRAS.keys() <= PROJECT["optional-dependencies"].keys()


def test_every_module_of_others_is_the_clients_or_an_extras() -> None:
    packages = {
        name.split(".")[0]
        for path in SOURCES
        if not name_of(path).startswith("experiments")
        for name in find_imports(path)
    }
    assert packages - sys.stdlib_module_names - KNOWN - OPTIONAL == {"autoj_reward", "rollouts"}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("fastapi.security", r"needs fastapi, .* pip install 'autoj-reward\[serve\]'$"),
        ("datasets", r"pip install 'autoj-reward\[train\]'$"),
        ("ray", r"pip install 'autoj-reward\[gpu\]' \(without a GPU as the README says\)"),
    ],
)
def test_what_a_client_lacks_is_named_with_its_extra(
    module: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {module, module.partition(".")[0]}:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=message), from_extras():
        import_module(module)


def test_another_missing_module_is_an_error_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), from_extras():
        import_module("no_such_module")
