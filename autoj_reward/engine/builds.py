"""Check that the builds of packages beside torch fit the installed torch."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

from autoj_reward.errors import ModelError


def require_fitting_builds() -> None:
    """Raise ModelError if torchvision is installed and cannot be imported beside torch.

    vLLM and transformers import it where it is there, and would fail with its error.
    """
    if find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(
            f"torchvision {version('torchvision')} does not fit torch {version('torch')} "
            f"({error}): judges of texts need none, so pip uninstall torchvision torchaudio "
            "torchcodec, or install all of them from the index that torch came from"
        ) from error
