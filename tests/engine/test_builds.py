"""A torchvision that was built for another torch is named before an engine starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.config import JudgeConfig
from autoj_reward.engine.classifier import TransformersScorer
from autoj_reward.engine.vllm import VllmEngine
from autoj_reward.errors import ModelError
from requirements import install

REMEDY = "pip uninstall torchvision torchaudio torchcodec"


@pytest.mark.parametrize("engine", [VllmEngine, TransformersScorer])
async def test_it_is_named_with_the_remedy(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, about = tmp_path / "torchvision", tmp_path / "torchvision-0.28.0.dist-info"
    package.mkdir()
    about.mkdir()
    error = 'raise RuntimeError("operator torchvision::nms does not exist")\n'
    (package / "__init__.py").write_text(error)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    message = rf"torchvision 0\.28\.0 does not fit torch .*nms does not exist\): .*{REMEDY}"
    with pytest.raises(ModelError, match=message):
        await engine(JudgeConfig(), None, "chat").start()


@pytest.mark.index
def test_pypis_build_beside_torchs_cpu_build(tmp_path: Path) -> None:
    """`pip install '.[cpu]'` got this pair where a folder of wheels had the CPU build of torch."""
    import torch

    if torch.version.cuda:
        pytest.skip("PyPI's torchvision fits this torch")
    environment = install.uv_environment(install.pip_configuration(), os.environ)
    wheel = f"torchvision=={install.pins('gpu')['torchvision']}"
    assert install.uv(environment, "--target", str(tmp_path), wheel)
    lines = "from autoj_reward import Judge\nwith Judge() as judge: pass"
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    process = subprocess.run(
        [sys.executable, "-c", lines],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert REMEDY in process.stderr.splitlines()[-1], process.stderr
