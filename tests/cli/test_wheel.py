"""The built wheel alone, next to a foreign folder that is also named `experiments`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.evaluate_rows import pair, write

ROOT = Path(__file__).parents[2]
PACKAGES = ("autoj_reward", "rollouts")
FAKE = ["--set", "judge.kind=fake"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel into a folder. Its dependencies are those of the test environment."""
    pytest.importorskip("setuptools", reason="builds the wheel")
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    command = [sys.executable, "-W", "ignore", "-c", build, str(source / "dist")]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [wheel] = (source / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(target)
    return target


def run(installed: Path, folder: Path, code: str, *words: str) -> str:
    """Return the output of a new interpreter that has the foreign folder first on its path."""
    foreign = folder / "foreign" / "experiments"
    foreign.mkdir(parents=True, exist_ok=True)
    (foreign / "__init__.py").write_text('raise RuntimeError("a foreign module was imported")\n')
    result = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"PYTHONPATH": f"{foreign.parent}{os.pathsep}{installed}"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


AUTOJ = "import sys; from autoj_reward.cli.main import main; sys.exit(main())"


def test_every_file_of_the_packages_is_in_it(installed: Path) -> None:
    def list_files(folder: Path) -> set[str]:
        paths = (path for name in PACKAGES for path in (folder / name).rglob("*"))
        return {
            str(path.relative_to(folder))
            for path in paths
            if path.is_file() and "__pycache__" not in path.parts
        }

    assert list_files(installed) == list_files(ROOT)
    assert not (installed / "experiments").exists()


def test_every_command_answers_help(installed: Path, tmp_path: Path) -> None:
    code = """
import autoj_reward
from autoj_reward.cli import main as cli

print(autoj_reward.__file__)
for name in (name for own in cli.MODULES.values() for name in own):
    try:
        cli.main([*name.split(), "--help"])
    except SystemExit as end:
        assert end.code == 0, name
"""
    help_text = run(installed, tmp_path, code)
    assert help_text.startswith(str(installed))
    assert "usage: autoj train judge" in help_text and "usage: autoj evaluate kappa" in help_text


def test_a_judge_scores(installed: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"query": "q", "response": "an answer"}])
    output = tmp_path / "out.jsonl"
    run(installed, tmp_path, AUTOJ, "score", "--input", source, "--output", str(output), *FAKE)
    assert json.loads(output.read_text())["outcome"] == "ok"


def test_a_judge_chooses(installed: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"query": "q", "responses": ["a", "bb"]}])
    (tmp_path / "job.yaml").write_text(f"input: {source}\noutput: out\njudge: {{kind: fake}}\n")
    run(installed, tmp_path, AUTOJ, "best-of-n", "--config", "job.yaml")
    assert json.loads((tmp_path / "out" / "selections.jsonl").read_text())["response"] == "bb"
    assert "<html" in (tmp_path / "out" / "report.html").read_text()


def test_a_judge_is_measured(installed: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "p.jsonl", [pair("planning", n) for n in range(2)])
    flags = ["--data", data, "--json", "o.json", *FAKE]
    run(installed, tmp_path, AUTOJ, "evaluate", "eval-p", *flags)
    assert json.loads((tmp_path / "o.json").read_text())["overall"]["agreement"] == 100.0
