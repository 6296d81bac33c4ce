"""Installing the client next to a trainer: what its environment needs to call a running service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.errors import EXTRAS
from requirements import install
from tests.service.test_service_life import run_service, write_config
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
ASK = Path(__file__).with_name("reward_a_batch.py")
BOUNDS = yaml.safe_load(ASK.with_name("trainer_bounds.yaml").read_text(encoding="utf-8"))
SCRIPT = {"ratings": {"good": 9, "poor": 2}, "fail": {"lost": "truncated"}}
TRAINING = str(ROOT / "configs" / "judges/default_judge.yaml")
LACKING = (
    (("-m", "autoj_reward.cli", "serve", "--config", "serve.yaml"), "serve"),
    (("-m", "autoj_reward.cli", "train", "judge", "--config", TRAINING), "train"),
    (("-c", "import autoj_reward as a; a.RewardModel(a.RewardConfig()).open()"), "gpu"),
)
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def caller_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start a service, and yield the environment of a process that calls it."""
    folder, port = tmp_path_factory.mktemp("service"), free_port()
    with run_service(write_config(folder, port, SCRIPT), port) as (_, address, _):
        reward = {"service": {"address": address}, "view": "rating", "failures": {"budget": 0.5}}
        (folder / "reward.yaml").write_text(yaml.safe_dump(reward), encoding="utf-8")
        variables = {"AUTOJ_TOKEN": "secret", "AUTOJ_REWARD": str(folder / "reward.yaml")}
        yield os.environ | variables


def run_command(command: list[Any], **options: Any) -> str:
    """Return the output of a command, which must succeed."""
    process = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def index() -> dict[str, str]:
    """Return the environment with which uv installs from pip's index."""
    return install.uv_environment(install.pip_configuration(), os.environ)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build this package's wheel, and return its path."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in "autoj_reward", "rollouts":
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in "pyproject.toml", "README.md", "LICENSE", "NOTICE":
        shutil.copy(ROOT / name, folder)
    command = [
        UV,
        "build",
        "--quiet",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
    ]
    run_command([*command, folder, "--out-dir", folder / "dist"])
    [wheel_path] = (folder / "dist").glob("*.whl")
    return wheel_path


def test_a_trainer_without_our_heavy_packages_asks_a_service(
    caller_environment: dict[str, str],
) -> None:
    blocked = sorted({module for modules in EXTRAS.values() for module in modules})
    out = run_command(
        [sys.executable, ASK, *blocked], env=caller_environment | {"PYTHONPATH": str(ROOT)}
    )
    assert json.loads(out) == [9.0, 2.0, None, 9.0]


@pytest.mark.index
def test_the_installed_client_asks_a_service_and_names_what_it_lacks(
    caller_environment: dict[str, str], index: dict[str, str], wheel: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "venv"
    run_command([UV, "venv", "--quiet", "--python", sys.executable, environment], env=index)
    python = environment / "bin" / "python"
    run_command([UV, "pip", "install", "--quiet", "--python", python, wheel], env=index)
    clean = {k: v for k, v in caller_environment.items() if k != "PYTHONPATH"}
    assert json.loads(run_command([python, ASK], env=clean, cwd=tmp_path)) == [9.0, 2.0, None, 9.0]

    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"query": "Why?", "response": "It scatters."}\n', encoding="utf-8")
    flags = ["--input", rows, "--output", tmp_path / "judged.jsonl", "--set", "judge.kind=fake"]
    run_command([environment / "bin" / "autoj", "score", *flags], env=clean, cwd=tmp_path)

    for arguments, extra in LACKING:
        process = subprocess.run([python, *arguments], capture_output=True, text=True, env=clean)
        assert process.returncode == 1
        assert f"pip install 'autoj-reward[{extra}]'" in process.stderr.splitlines()[-1]


def resolves(requirements: list[str], python: str, environment: dict[str, str]) -> bool:
    """Return whether an index has versions that fit these requirements. Nothing is installed."""
    command = [UV, "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"]
    command += ["--python-version", python, "--python-platform", "x86_64-manylinux_2_35"]
    process = subprocess.run(
        list(map(str, [*command, "--only-binary", ":all:"])),
        input="\n".join(requirements),
        capture_output=True,
        text=True,
        env=environment,
    )
    assert process.returncode == 0 or "requirements are unsatisfiable" in process.stderr, (
        process.stderr
    )
    return process.returncode == 0


@pytest.mark.index
@pytest.mark.parametrize("name", BOUNDS)
def test_the_client_fits_beside_a_trainers_own_bounds(
    name: str, index: dict[str, str], wheel: Path
) -> None:
    facts = BOUNDS[name]
    client = f"autoj-reward @ {wheel.as_uri()}"
    assert resolves([client, *facts["bounds"]], facts["python"], index)


@pytest.mark.index
def test_training_with_ours_does_not(index: dict[str, str], wheel: Path) -> None:
    ours = f"autoj-reward[train] @ {wheel.as_uri()}"
    assert not resolves([ours, *BOUNDS["OpenRLHF"]["bounds"]], "3.11", index)
