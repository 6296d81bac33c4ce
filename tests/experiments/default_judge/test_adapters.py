from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from autoj_reward.errors import InputError
from experiments.default_judge.pooling_head import WEIGHTS, average, factorise


def adapter(folder: Path, **weights: list[float]) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 1}')
    tensors = {name: torch.tensor(own, dtype=torch.float16) for name, own in weights.items()}
    save_file(tensors, folder / WEIGHTS)
    return folder


def test_the_mean_is_weighted(tmp_path: Path) -> None:
    one = adapter(tmp_path / "one", a=[0.0, 4.0], b=[1.0])
    two = adapter(tmp_path / "two", a=[8.0, 0.0], b=[3.0])
    average({one: 0.25, two: 0.75}, tmp_path / "mean")
    found = load_file(tmp_path / "mean" / WEIGHTS)
    assert found["a"].tolist() == [6.0, 1.0] and found["b"].tolist() == [2.5]
    assert found["a"].dtype == torch.float16
    assert (tmp_path / "mean/adapter_config.json").read_text() == '{"r": 1}'


def test_other_shapes_are_refused(tmp_path: Path) -> None:
    one, two = adapter(tmp_path / "one", a=[0.0]), adapter(tmp_path / "two", a=[0.0, 1.0])
    with pytest.raises(InputError, match="two: not of the layers and rank"):
        average({one: 0.5, two: 0.5}, tmp_path / "mean")


def test_factors_give_the_matrix_back_in_its_rank() -> None:
    drawn = torch.Generator().manual_seed(1)
    change = torch.randn(6, 2, generator=drawn) @ torch.randn(2, 9, generator=drawn)
    a, b = factorise(change)
    assert a.shape == (2, 9) and b.shape == (6, 2)
    assert torch.allclose((b @ a).float(), change, atol=1e-5)
