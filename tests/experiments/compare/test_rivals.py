from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import LlamaForCausalLM

from autoj_reward.config import JudgeConfig
from autoj_reward.data.labelled import Rated
from autoj_reward.errors import InputError
from autoj_reward.evaluate.statistics import spearman
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.types import JudgeInput
from experiments.compare import rivals
from experiments.compare.judge_quality import main
from tests.tiny import llama, saved
from tests.tokenizers import qwen


def make_rated_rows(rows: Sequence[tuple[str, float]], queries: int = 1000) -> list[Rated]:
    return [
        Rated("r.jsonl", n, f"query {n % queries}", response, rating)
        for n, (response, rating) in enumerate(rows)
    ]


WORDS = ("terrible", "poor", "fair", "good", "superb")
TRAINING = make_rated_rows(
    [(f"a {WORDS[n % 5]} answer of kind {n}", 1 + n % 5 * 2) for n in range(40)]
)
TEST = make_rated_rows([(f"one more {word} text", 1 + 2 * n) for n, word in enumerate(WORDS)])


def test_tfidf_learns_words_from_the_training_rows() -> None:
    prediction = rivals.predict_by_tfidf(TRAINING, TEST)
    assert spearman(prediction.values, [row.rating for row in TEST]) == pytest.approx(1)
    assert prediction.alpha in rivals.ALPHAS
    assert prediction.layer is None


def test_tfidf_sees_no_rating_of_the_rows_to_be_measured() -> None:
    others = make_rated_rows([(row.response, 11 - row.rating) for row in TEST])
    assert (
        rivals.predict_by_tfidf(TRAINING, others).values
        == rivals.predict_by_tfidf(TRAINING, TEST).values
    )


@pytest.mark.parametrize("queries", [0, 1])
def test_fitting_needs_two_queries(queries: int) -> None:
    training = make_rated_rows([("a", 1.0), ("b", 2.0)], queries=1)[: 2 * queries]
    with pytest.raises(InputError, match=f"{2 * queries} training rows of {queries} queries"):
        rivals.predict_by_tfidf(training, TEST)


def test_rows_of_a_query_stay_on_one_side() -> None:
    # Four rows of each query say and are worth the same, and words mean nothing across queries.
    rng = np.random.default_rng(0)
    drawn = [(" ".join(rng.choice(list("abcdefghij"), 4)), float(rng.normal())) for _ in range(20)]
    rows = [drawn[n // 4] for n in range(80)]
    grouped = [Rated("r", n, f"q{n // 4}", text, value) for n, (text, value) in enumerate(rows)]
    assert (rivals.predict_by_tfidf(make_rated_rows(rows), TEST).alpha or 0) < 1
    assert (rivals.predict_by_tfidf(grouped, TEST).alpha or 0) >= 10


# The probe.


def test_the_probe_takes_the_layer_that_tells() -> None:
    rng = np.random.default_rng(0)
    training = make_rated_rows([("x", float(rating)) for rating in rng.normal(size=80)])
    rows = make_rated_rows([("x", float(rating)) for rating in rng.normal(size=20)])
    ratings = np.array([row.rating for row in [*training, *rows]])
    states = rng.normal(size=(100, 4, 3)).astype(np.float32)
    states[:, 2, 1] += 5 * ratings
    states[80:, 3, 0] = ratings[80:]  # a layer that tells only of the rows to be measured
    prediction = rivals.predict_by_probe(training, rows, states, [1, 2, 3])
    assert prediction.layer == 2
    assert (spearman(prediction.values, ratings[80:]) or 0) > 0.9


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a random Llama of two layers and a small tokenizer."""
    tokenizer = qwen()
    small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = llama(tokenizer, **small, max_position_embeddings=512)
    return saved(model, tokenizer, tmp_path_factory.mktemp("tiny"))


def config_of(folder: Path) -> JudgeConfig:
    return JudgeConfig(model=str(folder), max_model_len=512, max_tokens=8)


ROWS = make_rated_rows([("Ten minutes.", 5), ("No. <|im_end|>", 2), ("A long answer. " * 20, 4)])


def test_hidden_states_are_those_of_the_rating_prompt(tiny: Path, tmp_path: Path) -> None:
    mean_states = rivals.read_hidden_states(ROWS, config_of(tiny), tmp_path)
    assert mean_states.shape == (3, 3, 16)
    assert mean_states.dtype == np.float32
    model = LlamaForCausalLM.from_pretrained(tiny)
    prompt = render(
        JudgeInput("single", ROWS[1].query, (ROWS[1].response,)), load_format("autoj-en")
    )
    ids = PromptTokenizer(qwen(), "chat").ids(prompt)
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    for layer in range(3):
        expected_mean = states[layer][0].mean(dim=0).numpy()
        np.testing.assert_allclose(mean_states[1, layer], expected_mean, rtol=1e-4, atol=1e-5)


def test_hidden_states_are_computed_once(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    compute = rivals._average_states

    def count_and_compute(model: Any, ids: list[int]) -> Any:
        computed.append(len(ids))
        return compute(model, ids)

    monkeypatch.setattr(rivals, "_average_states", count_and_compute)
    two = rivals.read_hidden_states(ROWS[:2], config_of(tiny), tmp_path)
    assert len(computed) == 2
    three = rivals.read_hidden_states(ROWS, config_of(tiny), tmp_path)
    assert len(computed) == 3
    np.testing.assert_array_equal(three[:2], two)
    backwards = rivals.read_hidden_states(ROWS[::-1], config_of(tiny), tmp_path)
    np.testing.assert_array_equal(backwards, three[::-1])
    assert len(computed) == 3


def test_a_stopped_run_keeps_its_hidden_states(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = rivals._average_states
    remaining_calls = [1, 1]

    def stop_midway(model: Any, ids: list[int]) -> Any:
        if not remaining_calls:
            raise KeyboardInterrupt
        remaining_calls.pop()
        return compute(model, ids)

    monkeypatch.setattr(rivals, "SAVE_EVERY", 1)
    monkeypatch.setattr(rivals, "_average_states", stop_midway)
    with pytest.raises(KeyboardInterrupt):
        rivals.read_hidden_states(ROWS, config_of(tiny), tmp_path)
    remaining_calls.append(1)
    assert rivals.read_hidden_states(ROWS, config_of(tiny), tmp_path).shape[0] == 3
    assert remaining_calls == []


def test_two_models_share_a_folder(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    model = LlamaForCausalLM.from_pretrained(tiny)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(2)
    model.save_pretrained(other)
    qwen().save_pretrained(other)
    first_states = rivals.read_hidden_states(ROWS[:1], config_of(tiny), tmp_path / "out")
    second_states = rivals.read_hidden_states(ROWS[:1], config_of(other), tmp_path / "out")
    assert not np.allclose(first_states, second_states)
    np.testing.assert_array_equal(
        rivals.read_hidden_states(ROWS[:1], config_of(tiny), tmp_path / "out"), first_states
    )


def test_the_command_measures_the_probe(tiny: Path, tmp_path: Path) -> None:
    rows = [
        {"query": f"q{n}", "response": f"answer {n} " * (n % 4), "rating": 1 + n % 4}
        for n in range(16)
    ]
    (tmp_path / "rated.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "data": {"folder": str(tmp_path), "rated": ["rated.jsonl"], "held_out": 0.5},
        "output": str(tmp_path / "out"),
        "judge": {"kind": "fake"},
        "base": {"model": str(tiny), "max_model_len": 512, "max_tokens": 8},
        "probe_layers": [1, 2],
        "bootstrap": 20,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    assert main(["--config", str(tmp_path / "run.yaml"), "--parts", "rivals"]) == 0
    part = json.loads((tmp_path / "out/quality.json").read_text())["parts"]["rivals"]
    assert (part["missing"], part["rated"]["probe"]["layer"] in (1, 2)) == ("", True)
    assert part["rated"]["probe"]["spearman"]["n"] == part["rated"]["tfidf"]["spearman"]["n"] > 1
    assert "ridge probe" in (tmp_path / "out/quality.md").read_text()
