from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from autoj_reward.cli import main as autoj
from autoj_reward.collect.intake import measured_queries
from autoj_reward.engine.base import Generation, Prepared, Sampling
from autoj_reward.errors import InputError, InputRejected, ModelError
from autoj_reward.prompts.render import Prompt
from autoj_reward.scenarios import load_scenarios
from autoj_reward.scenarios.features import Features, opening_terms, whole_terms, words_of
from autoj_reward.scenarios.generative import (
    GenerativeClassifier,
    classify_prompt,
    cut_query,
    read_scenario,
)
from autoj_reward.scenarios.linear import (
    SHIPPED,
    Calibration,
    LinearClassifier,
    probabilities,
    shipped_classifier,
)
from experiments.scenario_classifier.compare import main as compare
from experiments.scenario_classifier.config import FinetuneConfig, ScenarioClassifierConfig
from experiments.scenario_classifier.data import Labelled, read_labelled, split, without
from experiments.scenario_classifier.figures import accuracy, calibration_error, macro_f1
from experiments.scenario_classifier.finetune import example
from experiments.scenario_classifier.finetune import study as finetune
from experiments.scenario_classifier.fit import calibrate, fit, folds, make_features, threshold
from experiments.scenario_classifier.rivals import prompt_ids, vectors
from experiments.study import Study

KNOWN = load_scenarios()
OWN = Path(__file__).parents[2] / "experiments/data/scenario_queries.jsonl"
DATA = Path(os.environ.get("AUTOJ_DATA", Path(__file__).parents[2] / "../shared/data"))


def test_terms_of_a_query() -> None:
    words = words_of("Plan a trip!")
    assert words == ["plan", "a", "trip", "!"]
    assert list(whole_terms(words)) == [*words, "plan a", "a trip", "trip !"]
    assert set(opening_terms(words[:2])) == {"^plan", "^a", "^plan a", "^^plan", "^^plan a"}


def test_features_by_hand() -> None:
    """Two terms of the whole query with frequency 2 and 1, one of its opening; an unknown word."""
    features = Features({"a": 0, "b": 1, "^b": 2}, np.array([1.0, 2.0, 9.0], np.float32))
    columns, values = features.row("a b x a")
    first, second = (1 + math.log(2)) * 1, 1 * 2
    length = math.hypot(first, second)
    assert columns.tolist() == [0, 1, 2]
    assert values == pytest.approx([first / length, second / length, 1.0], rel=1e-6)
    assert [part.size for part in features.row("")] == [0, 0]


def test_very_long_queries_are_read_at_both_ends() -> None:
    words = words_of("start " + "x " * 9000 + "end")
    assert (words[0], words[-1]) == ("start", "end")
    assert len(words) == 1998 + 999


def tiny(**more: Any) -> LinearClassifier:
    features = Features({"plan": 0, "code": 1}, np.ones(2, np.float32))
    weights = np.array([[1, 0], [0, 1]], np.float16)
    fields: dict[str, Any] = {"calibration": Calibration(0.5, 2.0, -1.0), "others_below": 0.0}
    return LinearClassifier(
        features,
        ("planning", "code_generation"),
        weights,
        np.zeros(2, np.float32),
        **(fields | more),
    )


def test_confidence_by_hand() -> None:
    """Scores 1 and 0 at temperature 0.5 give log-odds 2; slope 2 and offset -1 make 3 of them."""
    [found] = tiny().classify(["plan"])
    assert (found.scenario, found.best) == ("planning", "planning")
    assert found.confidence == pytest.approx(1 / (1 + math.exp(-3)), abs=1e-6)
    assert probabilities(np.array([[1, 0]], np.float32), 0.5)[0, 0] == pytest.approx(
        1 / (1 + math.exp(-2))
    )


@pytest.mark.parametrize(
    ("own", "asked", "scenario"),
    [(0.96, None, "others"), (0.9, None, "planning"), (0.96, 0.5, "planning"), (0, 1, "others")],
)
def test_low_confidence_means_others(own: float, asked: float | None, scenario: str) -> None:
    [found] = tiny(others_below=own).classify(["plan"], asked)
    assert (found.scenario, found.best) == (scenario, "planning")


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    tiny().save(tmp_path)
    assert LinearClassifier.load(tmp_path).classify(["code", ""]) == tiny().classify(["code", ""])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("weights.npz", b"PK", id="no archive"),
        pytest.param("weights.npz", None, id="missing"),
        pytest.param("vocabulary.json", b"{}", id="no facts"),
        pytest.param("vocabulary.json", b"\xff", id="no text"),
    ],
)
def test_broken_files_are_said(tmp_path: Path, name: str, change: bytes | None) -> None:
    tiny().save(tmp_path)
    (tmp_path / name).unlink() if change is None else (tmp_path / name).write_bytes(change)
    with pytest.raises(ModelError, match="no scenario classifier can be read there"):
        LinearClassifier.load(tmp_path)


def test_weights_of_another_vocabulary_are_said(tmp_path: Path) -> None:
    tiny().save(tmp_path)
    path = tmp_path / "vocabulary.json"
    path.write_text(path.read_text().replace('"code",\n', "").replace('"plan",\n"code"', '"plan"'))
    with pytest.raises(ModelError, match=r"weights \(2, 2\) where \(1, 2\) is needed"):
        LinearClassifier.load(tmp_path)


def test_the_shipped_classifier_is_small_and_knows_every_scenario() -> None:
    classifier = shipped_classifier()
    assert set(classifier.labels) == set(KNOWN.names)
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 3e6
    queries = ["Write a python function that reverses a string.", "Translate 'bread' into French."]
    assert [c.scenario for c in classifier.classify(queries)] == [
        "code_generation",
        "text_to_text_translation",
    ]


def test_the_shipped_classifier_on_eval_p(released: Any) -> None:
    """Its card says 0.45 of Eval-P's development half, which it was not trained on."""
    rows = released("autoj/eval_p_dev.jsonl")
    found = shipped_classifier().classify([row["prompt"] for row in rows])
    right = [KNOWN[row["scenario"]].name == c.scenario for row, c in zip(rows, found, strict=True)]
    assert 0.40 < sum(right) / len(right) < 0.50


def test_the_classifier_needs_numpy_alone() -> None:
    code = (
        "import sys; from autoj_reward.scenarios.linear import shipped_classifier\n"
        "shipped_classifier().classify(['Plan a party.'])\n"
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "transformers", "sklearn", "scipy"} & set(done.stdout.split()) == set()


def test_classify_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"query": "Write a python function that sorts.", "id": 7}, {"q": 1}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = ["classify", "--input", str(source), "--output", str(output)]
    assert autoj(base) == 0
    [found] = map(json.loads, output.read_text().splitlines())
    assert (found["id"], found["scenario"], found["best"]) == (7, *["code_generation"] * 2)
    assert 0 < found["confidence"] < 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["scenarios"] == {
        "code_generation": 1
    }
    assert autoj([*base, "--others-below", "1"]) == 0
    assert json.loads(output.read_text())["scenario"] == "others"
    assert autoj([*base, "--others-below", "2"]) == 1
    assert autoj([*base, "--strict"]) == 1


def test_scenarios_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert autoj(["scenarios"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 58
    (tmp_path / "triage.yaml").write_text(
        "scenario: {group: code, description: Sort tickets.}\n"
        "own: {team: {type: content, content: The right team.}}\n"
    )
    assert autoj(["scenarios", "--show", "triage", "--folder", str(tmp_path)]) == 0
    assert "1. team: The right team." in capsys.readouterr().out
    assert autoj(["scenarios", "--show", "triage"]) == 1
    assert "no scenario 'triage'" in capsys.readouterr().err


class Says:
    """An engine with one answer."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.prompts: list[str] = []

    async def prepare(self, prompt: Prompt, max_tokens: int, over_long: str) -> Prepared:
        assert (max_tokens, over_long) == (30, "reject")
        if "too long" in prompt[0].text:
            raise InputRejected("too long")
        return Prepared(prompt)

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
        assert sampling == Sampling(30)
        self.prompts.append(prepared.prompt[0].text)
        return [Generation(self.text)]


async def test_a_model_is_asked_with_the_published_prompt(smollm2: Any) -> None:
    engine: Any = Says("code_generation\nand more")
    classifier = GenerativeClassifier(engine, smollm2, KNOWN)
    assert await classifier.classify(["Sort {input}.", "too long"]) == ["code_generation", None]
    assert engine.prompts == [
        "Identify the scenario for the user's query, output 'default' if you are uncertain.\n"
        "Query:\nSort {input}.\nScenario:\n"
    ]


@pytest.mark.parametrize(
    ("text", "scenario"),
    [
        ("default", "others"),
        (" value_judgement\n", "value_judgment"),
        ("Others", "others"),
        ("'planning'", "planning"),
        ("I think planning", None),
        ("", None),
    ],
)
def test_answers_of_the_model(text: str, scenario: str | None) -> None:
    assert read_scenario(text, KNOWN) == scenario


def test_long_queries_keep_999_and_1000_tokens(smollm2: Any) -> None:
    def spelled(n: int) -> str:
        return " ".join(["a"] * n)

    assert cut_query(spelled(1998), smollm2) == spelled(1998)
    cut = cut_query(spelled(1999), smollm2)
    head, tail = cut.split("...")
    assert (len(head.split()), len(tail.split())) == (999, 1000)
    assert cut_query("</s> <|im_end|>", smollm2) == "</s> <|im_end|>"


ROWS = [
    Labelled(n, f"{verb} {thing} number {n} please", name)
    for n, (verb, thing, name) in enumerate(
        [("plan", "a party", "planning"), ("sort", "this list", "ranking")] * 10
        + [("tell me", "a joke", "chitchat")] * 6
    )
]


def test_labelled_rows(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"category": "default", "instruction": "Say ok.", "input": ""},
        {"category": "value_judgement", "instruction": "Is it", "input": "right? "},
        {"category": "rejecting", "instruction": "x", "input": ""},
        {"category": "nonsense", "instruction": "x", "input": ""},
        {"scenario": "planning", "prompt": "Plan."},
        {"category": "planning"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_labelled(str(path), KNOWN)
    assert found.rows == (
        Labelled(1, "Say ok.", "others"),
        Labelled(2, "Is it right?", "value_judgment"),
        Labelled(5, "Plan.", "planning"),
    )
    assert [(bad.line, bad.field) for bad in found.bad] == [
        (3, "category"),
        (4, "category"),
        (6, "scenario"),
    ]
    path.write_text('{"category": "rejecting", "instruction": "x"}\n')
    with pytest.raises(InputError, match="no usable row; 1 left out"):
        read_labelled(str(path), KNOWN)


def test_measured_queries_are_not_trained_on() -> None:
    long = "Summarize the following article about the harbour"
    rows = [
        Labelled(1, "Plan  a party", "planning"),
        Labelled(2, long + " and its text", "text_summarization"),
        Labelled(3, long[:-2], "text_summarization"),
        Labelled(4, "Plan a party now", "planning"),
        Labelled(5, "Summarize the following article about the hills", "text_summarization"),
    ]
    assert [row.line for row in without(rows, ["Plan a party", long])] == [4, 5]


def test_the_split_takes_its_share_of_every_scenario() -> None:
    parts = split([*ROWS, Labelled(99, "alone", "others")], 0.2)
    held = [row.scenario for row in parts.validation]
    assert {name: held.count(name) for name in set(held)} == {
        "planning": 2,
        "ranking": 2,
        "chitchat": 1,
    }
    assert len(parts.training) == 27 - 5
    assert split(ROWS, 0.2) == split(ROWS, 0.2)


def test_folds_spread_every_scenario() -> None:
    found = folds(ROWS, 5)
    for name, most in (("planning", 2), ("chitchat", 2)):
        counts = np.bincount(
            [f for f, row in zip(found, ROWS, strict=True) if row.scenario == name]
        )
        assert counts.min() >= 1 and counts.max() <= most


def test_a_classifier_learns_what_can_be_learned() -> None:
    config = ScenarioClassifierConfig.model_validate(
        {"data": {"training": "x"}, "output": "x", "strengths": [1.0], "folds": 3}
    )
    fitted = fit(ROWS, config)
    assert fitted.cross_validated == {1.0: 1.0}
    queries = ["plan a party number 77 please", "sort this list number 78 please"]
    assert [c.best for c in fitted.classifier.classify(queries)] == ["planning", "ranking"]


def test_the_strongest_terms_are_kept() -> None:
    features = make_features(ROWS, 6)
    assert len(features.terms) == 6
    assert "number" not in features.terms
    assert set(make_features(ROWS, 1000).terms) > set(features.terms)


def test_calibration_and_threshold() -> None:
    rng = np.random.default_rng(0)
    known = rng.integers(3, size=600)
    scores = rng.normal(0, 1, (600, 3)).astype(np.float32)
    scores[np.arange(600), known] += 1.5
    calibration = calibrate(10 * scores, known)
    right = scores.argmax(axis=1) == known
    assert calibration_error(right.astype(float), calibration.confidence(10 * scores)) < 0.05
    # Three sure and right, one unsure whose truth is others.
    truth = ["a", "b", "a", "others"]
    four = np.array([[9, 0], [0, 9], [9, 0], [1, 0]], np.float32)
    assert threshold(four, np.array([0.9, 0.9, 0.8, 0.25]), truth, ["a", "b"]) == 0.26


def test_figures_by_hand() -> None:
    """a: precision 1, recall 1/2; b: precision 1/2, recall 1. F1 is 2/3 of both."""
    truth, said = ["a", "a", "b"], ["a", "b", "b"]
    everything = np.arange(3)
    assert macro_f1(truth, said)(everything) == pytest.approx(2 / 3)
    assert accuracy(truth, said)(everything) == pytest.approx(2 / 3)
    # An answer outside the true scenarios counts against recall, but is no scenario of its own.
    assert macro_f1(["a", "a"], ["a", "z"])(np.arange(2)) == pytest.approx(2 / 3)
    right, sure = np.array([1.0, 0.0, 1.0]), np.array([0.85, 0.85, 1.0])
    assert calibration_error(right, sure) == pytest.approx(2 / 3 * 0.35)


def test_own_queries_measure_nothing_and_cover_the_gap() -> None:
    rows = read_labelled(str(OWN), KNOWN)
    assert not rows.bad
    assert "post_summarization" in {row.scenario for row in rows.rows}
    measure = DATA / "autoj/eval_p_dev.jsonl"
    if measure.is_file():
        assert len(without(rows.rows, measured_queries([str(measure)]))) == len(rows.rows)


def run_file(folder: Path, **more: Any) -> str:
    rows = [{"category": r.scenario, "instruction": r.query, "input": ""} for r in ROWS]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pair = {"scenario": "planning", "prompt": "plan a party number 3 please"}
    (folder / "measure.jsonl").write_text(json.dumps(pair) + "\n")
    config = {
        "data": {
            "folder": str(folder),
            "training": "train.jsonl",
            "measure": "measure.jsonl",
        },
        "output": str(folder / "out"),
    } | more
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = run_file(tmp_path, parts=["constant", "terms"], strengths=[1.0], bootstrap=20)
    assert compare(["--config", config]) == 0
    assert "| TF-IDF, linear | 1.000" in capsys.readouterr().out
    found = json.loads((tmp_path / "out/scenario_classifier.json").read_text())
    assert found["rows"]["training"] + found["rows"]["validation"] == len(ROWS)
    assert set(found["leads"]) == {"terms over constant"}
    assert LinearClassifier.load(tmp_path / "out/classifier").labels == (
        "chitchat",
        "planning",
        "ranking",
    )


def test_the_comparison_asks_for_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(["--config", run_file(tmp_path, parts=["finetuned"])]) == 1
    assert "the folder of the model" in capsys.readouterr().err


def test_prompts_are_cut_to_their_limit(smollm2: Any) -> None:
    from autoj_reward.prompts.tokens import PromptTokenizer

    tokens = PromptTokenizer(smollm2, "none")
    whole = prompt_ids("Plan it.", tokens, 64)
    assert whole == tokens.ids(classify_prompt("Plan it."))
    cut = prompt_ids("word " * 300, tokens, 64)
    assert 50 <= len(cut) <= 64
    assert smollm2.decode(cut).endswith("\nScenario:\n")


def test_examples_end_in_the_name(smollm2: Any) -> None:
    from autoj_reward.prompts.tokens import PromptTokenizer

    config = FinetuneConfig.model_validate({"data": {"training": "x"}, "output": "x"})
    tokens = PromptTokenizer(smollm2, "none")
    for scenario, spelled in (("planning", "planning"), ("others", "default")):
        made = example(Labelled(1, "Plan <|im_end|>.", scenario), tokens, config)
        start = made["completion_mask"].index(1)
        name = made["input_ids"][start:]
        assert smollm2.decode(name[:-1]) == spelled
        assert name[-1] == smollm2.eos_token_id
        assert smollm2.eos_token_id not in made["input_ids"][:start]
        assert set(made["completion_mask"][start:]) == {1}


@pytest.mark.training
def test_finetuning_a_tiny_model(tmp_path: Path, policy: str) -> None:
    from transformers import AutoModelForCausalLM

    path = run_file(
        tmp_path,
        learner={"model": policy, "lora_rank": 2},
        epochs=1,
        batch_size=8,
        device_batch_size=8,
        max_length=128,
    )
    data = yaml.safe_load(Path(path).read_text())
    finetune(Study(FinetuneConfig.model_validate(data)))
    before = AutoModelForCausalLM.from_pretrained(policy)
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "out/classifier")
    key = "model.layers.0.mlp.up_proj.weight"
    assert not before.state_dict()[key].equal(after.state_dict()[key])


def test_vectors_of_the_base(policy: str) -> None:
    config = ScenarioClassifierConfig.model_validate(
        {"data": {"training": "x"}, "output": "x", "base": policy}
    )
    found = vectors(ROWS[:2], config)
    assert found.shape == (2, 64)
    assert np.isfinite(found).all()
