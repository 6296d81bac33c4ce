"""Only whole checkpoints count: transformers' own Trainer, cut off where it saves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from autoj_reward.training.saving import last_checkpoint, train_on


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.weight * x - y) ** 2).mean()}


class Killed(Trainer):
    """Dies in the middle of its second checkpoint."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.state.global_step == 4:
            Path(output_dir, "optimizer.pt").write_bytes(b"half of it")
            raise KeyboardInterrupt
        super()._save_optimizer_and_scheduler(output_dir)


def train_line(output: Path, kind: Any = Trainer, **more: Any) -> float:
    torch.manual_seed(0)
    rows = [{"x": torch.tensor([float(n)]), "y": torch.tensor([2.0 * n])} for n in range(12)]
    model = Line()
    arguments = TrainingArguments(
        str(output),
        per_device_train_batch_size=2,
        num_train_epochs=1,
        learning_rate=0.1,
        save_steps=2,
        save_total_limit=2,
        report_to=[],
        use_cpu=True,
        dataloader_pin_memory=False,
        **more,
    )
    train_on(kind(model=model, args=arguments, train_dataset=rows), output)
    return model.weight.item()


@pytest.mark.training
def test_a_run_killed_while_it_saves_goes_on_from_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = train_line(whole)
    with pytest.raises(KeyboardInterrupt):
        train_line(killed, Killed)
    assert (killed / "checkpoint-4").is_dir()
    capsys.readouterr()
    assert train_line(killed) == expected
    errors = capsys.readouterr().err
    assert f"left out: {killed / 'checkpoint-4'}: " in errors
    assert f"goes on from {killed / 'checkpoint-2'}" in errors


@pytest.mark.training
def test_a_finished_run_takes_no_further_step(tmp_path: Path) -> None:
    weight = train_line(tmp_path, max_steps=4)
    assert train_line(tmp_path, max_steps=4) == weight
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
    assert train_line(tmp_path, max_steps=6) != weight


def make_cut(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = folder / name
        file.write_bytes(file.read_bytes()[:-2])

    return damage


@pytest.mark.training
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(make_cut("trainer_state.json"), id="state cut off"),
        pytest.param(make_cut("optimizer.pt"), id="moments cut off"),
        pytest.param(make_cut("whole.json"), id="list cut off"),
        pytest.param(lambda f: (f / "model.safetensors").unlink(), id="no weights"),
        pytest.param(lambda f: (f / "whole.json").unlink(), id="no list"),
        pytest.param(lambda f: (f / "whole.json").write_text("{}"), id="empty list"),
    ],
)
def test_what_is_not_whole_does_not_count(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    train_line(tmp_path)
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-6")
    damage(tmp_path / "checkpoint-6")
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
    # Nor does it when the Trainer has begun to write there again.
    assert not (tmp_path / "checkpoint-6/whole.json").exists()
    damage(tmp_path / "checkpoint-4")
    assert last_checkpoint(tmp_path) is None


def test_a_folder_without_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-best").mkdir()
    assert last_checkpoint(tmp_path) is None
    assert last_checkpoint(tmp_path / "none") is None
