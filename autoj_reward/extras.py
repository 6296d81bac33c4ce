"""What a client does without, and what to install where it is needed after all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autoj_reward.errors import ConfigError

EXTRAS = {
    "serve": ("fastapi", "prometheus_client", "starlette", "uvicorn"),
    "train": (
        "accelerate",
        "datasets",
        "datasketch",
        "gguf",
        "huggingface_hub",
        "numpy",
        "peft",
        "pyarrow",
        "safetensors",
        "scipy",
        "sklearn",
        "tensorboard",
        "tokenizers",
        "transformers",
        "trl",
    ),
    "gpu": ("psutil", "ray", "torch", "vllm"),
}
"""The modules that the client lacks, by the extra that brings them. `gpu` holds the others."""


@contextmanager
def from_extras() -> Iterator[None]:
    """Around imports that a client has not installed. ConfigError that names the module and the
    extra to install; a module that no extra brings is missing as ever."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = next((name for name, modules in EXTRAS.items() if module in modules), None)
        if extra is None:
            raise
        other = " ([cpu] without a GPU), or ask a running service" if extra == "gpu" else ""
        raise ConfigError(
            f"this needs {module}, which the client does without: pip install "
            f"'autoj-reward[{extra}]'{other}"
        ) from error
