"""Policy, reference and value model of PPO on one base."""

from __future__ import annotations

import pytest
import torch

from autoj_reward.errors import ConfigError
from rollouts.train.ppo import refuse_shards


def test_policy_and_value_share_their_base(qwen: str) -> None:
    from rollouts.train.learner import LearnerConfig, load_policy, load_policy_tokenizer
    from rollouts.train.ppo import on_one_base

    learner = LearnerConfig(model=qwen, lora_rank=4)
    path, tokenizer = load_policy_tokenizer(learner)
    policy, reference, value = on_one_base(load_policy(learner, path, tokenizer), learner, None)
    both = torch.nn.ModuleList([policy, value])
    frozen = [p for p in both.parameters() if not p.requires_grad]
    bare = load_policy(learner, path, tokenizer)
    assert {id(p) for p in reference.parameters()} == {id(p) for p in frozen}
    assert sum(p.numel() for p in frozen) == sum(p.numel() for p in bare.parameters())
    assert not [p for p in both.parameters() if p.is_meta]
    ids = torch.tensor([[5, 6, 7, 8]])
    backbone = getattr(value, value.base_model_prefix)
    hidden = backbone(input_ids=ids, output_hidden_states=True).hidden_states[-1]
    plain = bare.model(input_ids=ids, output_hidden_states=True).hidden_states[-1]
    assert torch.allclose(hidden, plain)  # fresh adapters change nothing
    (policy(input_ids=ids).logits.sum() + value.score(hidden).sum()).backward()
    learned = {n: p.grad for n, p in both.named_parameters() if p.requires_grad}
    assert all(grad is not None for grad in learned.values())
    assert {"0", "1"} == {name.split(".")[0] for name in learned}


def test_ppo_under_fsdp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match=r"FSDP: set learner.lora_rank.*accelerate_ddp.yaml"):
        refuse_shards()
