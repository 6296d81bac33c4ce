from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from autoj_reward.errors import InputError
from experiments.default_judge.pooling_head import WEIGHTS, average, factorise


def write_adapter(folder: Path, **weights: list[float]) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 1}')
    tensors = {name: torch.tensor(values, dtype=torch.float16) for name, values in weights.items()}
    save_file(tensors, folder / WEIGHTS)
    return folder


def test_the_mean_is_weighted(tmp_path: Path) -> None:
    first = write_adapter(tmp_path / "one", a=[0.0, 4.0], b=[1.0])
    second = write_adapter(tmp_path / "two", a=[8.0, 0.0], b=[3.0])
    average({first: 0.25, second: 0.75}, tmp_path / "mean")
    mean_weights = load_file(tmp_path / "mean" / WEIGHTS)
    assert mean_weights["a"].tolist() == [6.0, 1.0] and mean_weights["b"].tolist() == [2.5]
    assert mean_weights["a"].dtype == torch.float16
    assert (tmp_path / "mean/adapter_config.json").read_text() == '{"r": 1}'


def test_other_shapes_are_refused(tmp_path: Path) -> None:
    first, second = (
        write_adapter(tmp_path / "one", a=[0.0]),
        write_adapter(tmp_path / "two", a=[0.0, 1.0]),
    )
    with pytest.raises(InputError, match="two: not of the layers and rank"):
        average({first: 0.5, second: 0.5}, tmp_path / "mean")


def test_factors_give_the_matrix_back_in_its_rank() -> None:
    generator = torch.Generator().manual_seed(1)
    change = torch.randn(6, 2, generator=generator) @ torch.randn(2, 9, generator=generator)
    a, b = factorise(change)
    assert a.shape == (2, 9) and b.shape == (6, 2)
    assert torch.allclose((b @ a).float(), change, atol=1e-5)
