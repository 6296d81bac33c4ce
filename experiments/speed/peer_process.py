"""Judges of others, each in a process and with the packages of an environment of its own.

`make peers` installs one environment for each of them, because their dependencies conflict.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoj_reward.errors import EngineError

ROOT = Path(__file__).parents[2]
PEER_PACKAGES = {
    "OpenJudge": "py-openjudge",
    "its-hub": "its-hub",
    "verifiers": "verifiers",
    "inspect_ai": "inspect_ai",
}
"""Package of each peer, which is also the name of its environment."""


def peer_python(name: str, environments: Path) -> Path:
    """Return the Python that has a judge's packages. name: its name, or one that begins with it."""
    for peer, package in PEER_PACKAGES.items():
        if name.startswith(peer):
            return environments.absolute() / package / "bin/python"
    return Path(sys.executable)


def run_peer(module: str, name: str, work: Any, environments: Path) -> dict[str, Any]:
    """Run a module in a judge's process. Its argument is the judge's name, its input `work`.

    work: a dataclass, sent as JSON.

    Return what it prints last, and its messages. Raises EngineError with its last output if it
    fails.
    """
    process = subprocess.run(
        [str(peer_python(name, environments)), "-m", module, name],
        input=json.dumps(asdict(work)),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    if process.returncode:
        raise EngineError(f"{name} failed: {process.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result | {"messages": process.stderr[-4000:]}


def peer_versions(names: Iterable[str], environments: Path) -> dict[str, str]:
    """Return the versions of these peers in their environments."""
    versions = {}
    for name in names:
        code = f"import importlib.metadata as m; print(m.version({PEER_PACKAGES[name]!r}))"
        python = str(peer_python(name, environments))
        try:
            process = subprocess.run(
                [python, "-c", code], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            message = getattr(error, "stderr", None) or error
            raise EngineError(
                f"{python} lacks {name}, which `make peers` installs: {message}"
            ) from None
        versions[name] = process.stdout.strip()
    return versions
