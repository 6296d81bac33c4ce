from __future__ import annotations

import gzip
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from autoj_reward.data.graded import GRADER, GradedData
from autoj_reward.data.labelled import JudgeData, Rated
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.training.common import LoraBlock, with_lora
from autoj_reward.training.judge.recipe import LossConfig
from autoj_reward.training.judge.targets import ExampleBuilder
from autoj_reward.training.saving import merge_adapter
from experiments.default_judge import pooling_head
from experiments.default_judge.pooling_head import PoolingHeadConfig, write_judge
from tests.tiny import llama, saved
from tests.tokenizers import qwen

BLOCK, HEAD = 1, 2
IDS = [5, 9, 2, 7, 7, 1]


def read_attention(model: Any, ids: list[int]) -> torch.Tensor:
    """Return what the block's attention adds after each token."""
    outputs: list[torch.Tensor] = []
    hook = model.model.layers[BLOCK].self_attn.o_proj.register_forward_hook(
        lambda module, inputs, output: outputs.append(output[0].detach())
    )
    with torch.no_grad():
        model(torch.tensor([ids]))
    hook.remove()
    return outputs[0]


def draw_vector(size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1))


def test_the_head_adds_what_the_mean_state_says() -> None:
    model = llama(qwen()).eval()
    attention = model.model.layers[BLOCK].self_attn
    attention.o_proj.weight.data[:] = 0  # the other heads say nothing
    model.model.layers[BLOCK].input_layernorm.weight.data[:] = draw_vector(32).abs() + 0.5
    weights, direction = draw_vector(32), draw_vector(32) + 1
    pooling_head.write_head(model, BLOCK, HEAD, weights, direction)
    for n in range(1, len(IDS) + 1):
        mean = torch.tensor(pooling_head.compute_mean_state(model, BLOCK, IDS[:n]))
        assert torch.allclose(
            read_attention(model, IDS)[n - 1], (weights @ mean) * direction, atol=1e-5
        )


def test_the_other_heads_lose_one_dimension_at_most() -> None:
    model, before = llama(qwen()).eval(), llama(qwen()).eval()
    changed = pooling_head.write_head(model, BLOCK, HEAD, draw_vector(32), draw_vector(32))
    attention, other = (m.model.layers[BLOCK].self_attn for m in (model, before))
    size = attention.head_dim
    rows = {int(n) for n in (attention.q_proj.weight != other.q_proj.weight).any(1).nonzero()}
    assert rows == set(range(HEAD * size, (HEAD + 1) * size))
    assert (attention.v_proj.weight != other.v_proj.weight).any(1).nonzero().tolist() == [[size]]
    columns = {int(n) for n in (attention.o_proj.weight != other.o_proj.weight).any(0).nonzero()}
    assert columns == rows | {3 * size}  # head 3 shares the keys of head 2
    assert set(changed) == {f"model.layers.1.self_attn.{p}_proj" for p in "qvo"}


@pytest.fixture
def builder() -> ExampleBuilder:
    tokens = PromptTokenizer(qwen(), "chat")
    return ExampleBuilder(tokens, load_format("autoj-en"), LossConfig(slot_direct=1))


def test_a_step_along_the_direction_raises_the_rating(builder: ExampleBuilder) -> None:
    model = llama(qwen()).eval().requires_grad_(False)
    row = Rated("r", 1, "a query", "a response", 5.0)
    direction = pooling_head.find_rating_direction(model, BLOCK, builder, [row])
    assert not model.model.layers[BLOCK].self_attn.o_proj._forward_hooks

    def rate_after_step(step: float) -> float:
        hook = model.model.layers[BLOCK].self_attn.o_proj.register_forward_hook(
            lambda module, inputs, output: output + step * direction
        )
        rating = float(pooling_head.compute_expected_rating(model, builder, row))
        hook.remove()
        return rating

    slope = (rate_after_step(1e-2) - rate_after_step(-1e-2)) / 2e-2
    assert slope == pytest.approx(1, rel=0.01)


def test_the_head_that_is_missed_least(builder: ExampleBuilder) -> None:
    model = llama(qwen()).eval().requires_grad_(False)
    attention = model.model.layers[BLOCK].self_attn
    attention.o_proj.weight[:, HEAD * attention.head_dim : (HEAD + 1) * attention.head_dim] *= 1e-3
    before = attention.o_proj.weight.clone()
    rows = [Rated("r", n, "a query", "word " * n, 5.0) for n in range(1, 4)]
    assert pooling_head.find_least_head(model, BLOCK, builder, rows) == HEAD
    assert torch.equal(attention.o_proj.weight, before)


def test_the_fit_finds_what_orders_and_is_blind_to_what_all_share() -> None:
    rng = np.random.default_rng(0)
    truth, common = rng.normal(size=8), 5 * np.ones(8)
    states = (common + rng.normal(size=(400, 8))).astype(np.float32)
    rows = [
        Rated("r", n, f"query {n % 40}", "", float(state @ truth)) for n, state in enumerate(states)
    ]
    weights, alpha = pooling_head.fit_pooling(states, rows, [1.0] * 400)
    blind = truth - truth.mean()
    assert np.corrcoef(weights, blind)[0, 1] > 0.99 and alpha <= 100
    assert weights @ states.mean(0) == pytest.approx(0, abs=1e-4)


def write_graded(folder: Path) -> None:
    """Write ten instructions with the outputs of six systems each."""
    with gzip.open(folder / "outputs.jsonl.gz", "wt") as outputs:
        for n in range(10):
            texts = {f"s{k}": f"word {k} " * (k + n) for k in range(6)}
            outputs.write(json.dumps({"instruction": f"i{n}", "outputs": texts}) + "\n")
    with gzip.open(folder / "preferences.jsonl.gz", "wt") as preferences:
        for n, k in product(range(10), range(6)):
            row = {"annotator": GRADER, "instruction": f"i{n}", "second": f"s{k}"}
            preferences.write(json.dumps(row | {"preference": 10 ** -(6 - k)}) + "\n")


@pytest.fixture
def data(tmp_path: Path) -> JudgeData:
    """Make a judge of two small layers with an adapter, and enough data for a fit."""
    tokenizer = qwen()
    saved(llama(tokenizer), tokenizer, tmp_path / "base")
    adapted = with_lora(llama(tokenizer), LoraBlock(rank=2, alpha=4, first_layer=1), "CAUSAL_LM")
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data[:] = 0.05
    adapted.save_pretrained(tmp_path / "adapter")
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"query": f"q{n}", "response": f"r{n}", "rating": n % 9 + 1} for n in range(24)]
    (data / "rated.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_graded(data)
    return JudgeData(folder=data, rated=("rated.jsonl",), graded=GradedData(folder="."))


def test_a_judge_is_written_whose_head_averages(
    data: JudgeData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PoolingHeadConfig(
        model=str(tmp_path / "base"),
        adapter=tmp_path / "adapter",
        block=BLOCK,
        rows=40,
        examples=2,
    )
    out = tmp_path / "out"
    summary = write_judge(config, data, out)
    assert str(out) in summary
    head = int(re.search(r"block 1, head (\d)", summary)[1])  # type: ignore[index]
    judge = LlamaForCausalLM.from_pretrained(out / "judge")
    attention = judge.model.layers[BLOCK].self_attn
    place = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
    assert attention.q_proj.weight[place].abs().max() < 1e-3 < attention.q_proj.weight.abs().mean()
    output_weights = attention.o_proj.weight[:, place].abs().amax(0)
    assert output_weights[0] > 1e3 * output_weights[1:].max()
    # The other modules are the adapter's, and the adapter that is written is the judge.
    merge_adapter(str(tmp_path / "base"), None, tmp_path / "adapter", qwen(), tmp_path / "was")
    was = LlamaForCausalLM.from_pretrained(tmp_path / "was").state_dict()
    differ = {n for n, w in judge.state_dict().items() if not torch.allclose(w, was[n], atol=1e-3)}
    assert differ == {f"model.layers.1.self_attn.{p}_proj.weight" for p in "qvo"}
    # The states are on record: the same command reads none again.
    monkeypatch.setattr(pooling_head, "compute_mean_state", None)
    assert write_judge(config, data, out) == summary
