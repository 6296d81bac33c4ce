"""`make test` with stand-ins for its two runs of pytest, and CI's choice of a newer Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("first", "second", "failed"),
    [
        pytest.param(0, 0, False, id="both pass"),
        pytest.param(1, 0, True, id="the first fails"),
        pytest.param(0, 1, True, id="the second fails"),
        pytest.param(1, 5, True, id="the first fails, the second has no test"),
        pytest.param(5, 1, True, id="the first has no test, the second fails"),
        pytest.param(5, 5, False, id="neither has a test"),
    ],
)
def test_both_halves_run_and_the_exit_status_tells(first: int, second: int, failed: bool) -> None:
    halves = [
        f"{name}=sh -c 'echo {name}; exit {status}' --"
        for name, status in (("SPREAD", first), ("IN_TURN", second))
    ]
    outer = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")  # of the make that may have started the tests
    process = subprocess.run(
        ["make", "--no-print-directory", "--old-file=model", "test", *halves],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in outer},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout.split() == ["SPREAD", "IN_TURN"], process.stderr
    assert (process.returncode != 0) == failed


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("works", "of_pyenv", "chosen"),
    [
        pytest.param(["python3.12", "python3.13"], [], "python3.13", id="both are there"),
        pytest.param(["python3.12"], ["3.13.0"], "python3.12", id="one is on the PATH"),
        pytest.param([], ["3.12.1", "3.13.0"], "{root}/versions/3.13.0/bin/python", id="pyenv's"),
        pytest.param([], [], None, id="none is there"),
    ],
)
def test_ci_runs_on_the_newest_python_that_works_and_says_where_there_is_none(
    works: list[str], of_pyenv: list[str], chosen: str | None, tmp_path: Path
) -> None:
    root, programs = tmp_path / "pyenv", tmp_path / "programs"

    def write_program(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    write_program(programs / "make", 'echo "make $*"')
    write_program(programs / "apt-get", "")
    for name in "python3.12", "python3.13":  # a shim of pyenv's is on the PATH, and may fail
        write_program(programs / name, f"exit {0 if name in works else 127}")
    for version in of_pyenv:
        write_program(root / "versions" / version / "bin" / "python", "")
    path = f"{programs}:{os.environ['PATH']}"
    process = subprocess.run(
        ["bash", ".ci/run"],
        cwd=ROOT,
        env=os.environ | {"PATH": path, "PYENV_ROOT": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    second = process.stdout.splitlines()[1]
    if chosen is None:
        assert second == "No test ran on Python 3.12 or 3.13, since neither is here."
    else:
        assert second == f"make quick PYTHON={chosen.format(root=root)} VENV=.venv/newer"
