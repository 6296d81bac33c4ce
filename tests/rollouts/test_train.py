"""`autoj train` with a tiny policy and a scripted judge: every algorithm, stopped and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM

from autoj_reward.errors import BudgetExceeded, ConfigError, InputError
from autoj_reward.journal import Journal
from autoj_reward.trainer.reward import RewardModel
from rollouts.train import main as training
from rollouts.train import placement
from rollouts.train.rejection_sampling import training_rows

ROOT = Path(__file__).parents[2]
QUERIES = ["Why is the sky blue?", "Name a river.", "Say hello.", "Count to three."]


@pytest.fixture
def written(tmp_path: Path, policy: str) -> Path:
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"query": q}) + "\n" for q in QUERIES), encoding="utf-8")
    config = {
        "input": str(queries),
        "output": str(tmp_path / "run"),
        "learner": {"model": policy, "max_prompt_tokens": 64, "max_response_tokens": 8},
        "reward": {"judge": {"kind": "fake"}, "view": "rating"},
        "steps": 4,
        "batch_size": 4,
        "device_batch_size": 4,
        "group": 2,
        "learning_rate": 1e-3,
        "save_steps": 2,
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def weights(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def scalars(folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for path in sorted(folder.glob("events*")):
        events = EventAccumulator(str(path))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend(e.value for e in events.Scalars(tag))
    return found


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "online-dpo", "ppo"])
def test_a_run_is_stopped_and_goes_on(algorithm: str, written: Path, policy: str) -> None:
    run = written.parent / "run"
    # The judge dies in the third step, after the checkpoint of the second.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "RewardModel", _dying(after=2))
        with pytest.raises(BudgetExceeded, match="goes on from the last checkpoint"):
            training.main(algorithm, str(written))
    assert not (run / "policy").exists()
    assert training.main(algorithm, str(written)) == 0
    assert not torch.equal(weights(run / "policy"), weights(Path(policy)))
    logged = scalars(run / "logs")
    assert set(logged["judge/ok"]) == {1.0} and "judge/tokens_out" in logged
    journal = Journal(run / "journal.sqlite")
    assert {row["input"]["query"] for row in journal.export()} <= set(QUERIES)
    journal.close()


def _dying(after: int) -> Any:
    """A reward model whose failure budget is spent after some batches."""

    class Dying(RewardModel):
        calls = 0

        async def _rewards(self, candidates: Any) -> Any:
            type(self).calls += 1
            if type(self).calls > after:
                raise BudgetExceeded("the judge has died")
            return await super()._rewards(candidates)

    return Dying


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_the_default_judge_rewards_the_135m_policy(tmp_path: Path) -> None:
    run = tmp_path / "run"
    sets = [f"output={run}", "steps=1", "batch_size=4", "learner.max_response_tokens=16"]
    command = [sys.executable, "-m", "autoj_reward.cli", "train", "grpo"]
    flags = [word for given in sets for word in ("--set", given)]
    told = subprocess.run(
        [*command, "--config", "configs/grpo.yaml", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-4000:]
    logged = scalars(run / "logs")
    assert logged["judge/ok"] == [1.0] and 1 <= logged["judge/raw"][0] <= 10
    assert logged["judge/wait_seconds"][0] > 0
    assert (run / "policy" / "model.safetensors").is_file()


def test_rejection_sampling(tmp_path: Path, written: Path, policy: str) -> None:
    given = json.loads(written.read_text(encoding="utf-8"))
    config = {
        "input": given["input"],
        "output": str(tmp_path / "rejection"),
        "policy": {"kind": "fake", "model": policy, "n": 4},
        "judge": {"kind": "fake"},
        "view": "rating",
        "rounds": 2,
        "sft": {"batch_size": 2, "learning_rate": 1e-3, "save_steps": 1},
    }
    path = tmp_path / "rejection.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert training.main("rejection-sampling", str(path)) == 0
    first, second = (tmp_path / "rejection" / f"round-{n}" for n in (1, 2))
    rows = [json.loads(line) for line in (first / "sft.jsonl").read_text().splitlines()]
    assert [row["prompt"][0]["content"] for row in rows] == QUERIES
    assert rows[0]["source"]["policy"] == policy and rows[0]["source"]["of"] == 4
    pairs = [json.loads(line) for line in (first / "pairs.jsonl").read_text().splitlines()]
    assert all(p["source"]["rejected_value"] < p["source"]["value"] for p in pairs)
    assert not torch.equal(weights(first / "policy"), weights(second / "policy"))
    written_at = (second / "policy" / "model.safetensors").stat().st_mtime_ns
    assert training.main("rejection-sampling", str(path)) == 0
    assert (second / "policy" / "model.safetensors").stat().st_mtime_ns == written_at
    none, _ = training_rows(first / "best_of_n", "rating", 100.0, "p", 1)
    assert none == []


def test_what_cannot_be_trained(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(kind: type[Exception], *sets: str) -> str:
        with pytest.raises(kind) as caught:
            training.main("grpo", str(written), sets)
        return str(caught.value)

    assert "every prompt is over" in said(InputError, "learner.max_prompt_tokens=2")
    run = f"output={written.parent / 'other'}"
    assert "no multiple of" in said(ConfigError, run, "device_batch_size=3")
    assert "another config" in said(ConfigError, run, "seed=5")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "start it with `autoj serve`" in said(ConfigError, f"output={written.parent / 'third'}")
