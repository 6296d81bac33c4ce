from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

from autoj_reward.config import PolicyConfig
from autoj_reward.errors import ModelError
from autoj_reward.journal import Journal
from experiments.compare.ablation.__main__ import main
from experiments.compare.ablation.policies import PolicySample, sample_policy

QUERIES = ("What is 2 + 2?", "Name a colour.")


@pytest.fixture(scope="module")
def trained(small: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The random policy, its last layer moved."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("trained")
    model = AutoModelForCausalLM.from_pretrained(small)
    with torch.no_grad():
        model.lm_head.weight += 0.05 * torch.randn_like(model.lm_head.weight)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(small).save_pretrained(folder)
    return str(folder)


def config(model: str, n: int = 3) -> PolicyConfig:
    return PolicyConfig(model=model, n=n, max_tokens=6)


def sampled(path: Path, model: str, base: str, n: int = 3) -> list[PolicySample]:
    journal = Journal(path)
    try:
        return sample_policy("p", config(model, n), config(base), QUERIES, journal)
    finally:
        journal.close()


def test_a_policy_has_not_moved_from_itself(small: str, tmp_path: Path) -> None:
    found = sampled(tmp_path / "j.sqlite", small, small)
    assert [own.query for own in found] == list(QUERIES)
    for own in found:
        assert len(own.responses) == 3
        assert own.divergences == (0, 0, 0)


def test_the_divergence_is_the_difference_of_log_probabilities(
    small: str, trained: str, tmp_path: Path
) -> None:
    path = tmp_path / "j.sqlite"
    found = sampled(path, trained, small, n=64)
    gaps = [gap for own in found for gap in own.divergences]
    # Its mean estimates a divergence, which is not negative; that of exp(-gap) is 1 in expectation.
    assert sum(gaps) / len(gaps) > 0
    ratios = [math.exp(-gap) for gap in gaps]
    mean = sum(ratios) / len(ratios)
    error = math.sqrt(sum((r - mean) ** 2 for r in ratios)) / len(ratios)
    assert abs(mean - 1) < 4 * error
    assert sampled(path, trained, small, n=64) == found


def test_what_is_in_the_journal_is_not_sampled_again(small: str, tmp_path: Path) -> None:
    import torch

    path = tmp_path / "j.sqlite"
    own = sampled(path, small, small)
    before = torch.get_rng_state()  # sampling would seed it
    assert sampled(path, small, small) == own
    assert torch.equal(torch.get_rng_state(), before)


def test_a_folder_that_is_no_model(small: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model '\./none'"):
        sampled(tmp_path / "j.sqlite", "./none", small)


def test_trained_policies_stand_beside_best_of_n(small: str, trained: str, tmp_path: Path) -> None:
    rows = [
        {"query": query, "kind": "format", "checks": [{"kind": "words", "high": 8}]}
        for query in QUERIES
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = {
        "queries": str(tmp_path / "q.jsonl"),
        "output": str(tmp_path / "out"),
        # Candidates by script; the trained policies are compared with the folder's weights.
        "policy": {"kind": "fake", "model": small, "n": 4, "max_tokens": 6},
        "judge": {"kind": "fake", "script": {"words": 8}},
        "scalar": {"kind": "fake", "model": "scalar", "script": {"words": 12}},
        "costly": {"candidates": 4},
        "policies": {"same": small, "moved": trained},
        "policy_samples": 2,
        "bootstrap": 20,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(made))
    command = ["--config", str(tmp_path / "run.yaml"), "--parts", "scalar,policies"]
    assert main(command) == 0
    found = json.loads((tmp_path / "out/ablation.json").read_text())
    same, moved = found["policies"]["same"], found["policies"]["moved"]
    assert (same["kl"]["value"], same["queries"], same["responses"]) == (0, 2, 4)
    assert moved["kl"]["value"] != 0
    assert moved["kl"]["n"] == 2
    assert set(moved["proxies"]) == {"scalar"}
    start = found["gold_figures"]["mean"]
    assert 0 <= start + moved["gold"]["value"] <= 1
    assert "| policy moved |" in (tmp_path / "out/ablation.md").read_text()
    page = (tmp_path / "out/ablation-over_optimization.svg").read_text()
    assert "scalar proxy of moved" in page
    assert main(command) == 0
    again = json.loads((tmp_path / "out/ablation.json").read_text())
    assert again["policies"] == found["policies"]
