"""`make test` with stand-ins for its two runs of pytest."""

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
