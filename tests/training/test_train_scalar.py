from __future__ import annotations

import gzip
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from autoj_reward.cli.main import main
from autoj_reward.config import load_config
from autoj_reward.data.graded import GRADER
from autoj_reward.errors import ConfigError, InputError, ModelError
from autoj_reward.io.claims import CLAIM
from autoj_reward.models import built_in
from autoj_reward.training.scalar.data import (
    ChosenPair,
    TrainScalarConfig,
    load_tokenizer,
    read_chosen_pairs,
)
from autoj_reward.training.scalar.train import (
    reward_arguments,
    rewards_of,
    train_scalar,
    validate,
)

CHAT = "query {n}", "good answer {n}", "bad {n}"


def make_pair_rows(count: int = 20) -> list[dict[str, Any]]:
    """The winner is second in odd rows; every fifth row is a tie."""
    rows = []
    for n in range(count):
        query, good, bad = (text.format(n=n) for text in CHAT)
        first, second = (bad, good) if n % 2 else (good, bad)
        label = 2 if n % 5 == 0 else n % 2
        rows.append({"query": query, "response_1": first, "response_2": second, "label": label})
    return rows


def write_run(
    folder: Path, model: str, rows: list[dict[str, Any]] | None = None, **change: Any
) -> str:
    """Data and config of a small run; ends at the config file."""
    text = "".join(json.dumps(row) + "\n" for row in rows or make_pair_rows())
    (folder / "pairs.jsonl").write_text(text, encoding="utf-8")
    config = {
        "model": model,
        "output": str(folder / "out"),
        "data": {"folder": str(folder), "compared": ["pairs.jsonl"], "held_out": 0.3},
        "lora": {"rank": 2, "alpha": 4, "first_layer": 1},
        "max_length": 128,
        "epochs": 2,
        "batch_size": 4,
        "device_batch_size": 2,
        "learning_rate": 0.01,
        "save_steps": 2,
    } | change
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return str(path)


def load(path: str, *sets: str) -> TrainScalarConfig:
    return load_config(TrainScalarConfig, path, sets)


@pytest.fixture(scope="module")
def trained_run(
    policy: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trained")
    return folder, train_scalar(load(write_run(folder, policy)), "the command")


def test_pairs_are_split_by_query_and_ties_counted(small: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small)
    pairs = read_chosen_pairs(load(write_run(tmp_path, small)), tokenizer)
    assert pairs.ties == {"pairs.jsonl": 4}
    assert len(pairs.training) + len(pairs.validation) == 16
    assert pairs.training and pairs.validation and not pairs.bad
    queries = [{pair.query for pair in part} for part in (pairs.training, pairs.validation)]
    assert not queries[0] & queries[1]
    for pair in (*pairs.training, *pairs.validation):
        n = pair.query.split()[1]
        for ids, response in ((pair.chosen_ids, CHAT[1]), (pair.rejected_ids, CHAT[2])):
            turns = [
                {"role": "user", "content": pair.query},
                {"role": "assistant", "content": response.format(n=n)},
            ]
            assert ids == tokenizer.apply_chat_template(turns)["input_ids"]
        assert pair.extra_characters == len("good answer") - len("bad")
        assert pair.margin == 0
    counts = pairs.counts()
    assert counts["ties_left_out"] == {"pairs.jsonl": 4} and counts["bad_left_out"] == {}


def test_the_best_and_the_worst_of_a_group_are_a_pair_too(small: str, tmp_path: Path) -> None:
    outputs = {f"s{n}": f"{'word ' * 8}{n}" for n in range(8)}
    with gzip.open(tmp_path / "outputs.jsonl.gz", "wt") as texts:
        for query in ("Q 1", "Q 2"):
            texts.write(json.dumps({"instruction": query, "outputs": outputs}) + "\n")
    with gzip.open(tmp_path / "preferences.jsonl.gz", "wt") as preferences:
        for query in ("Q 1", "Q 2"):
            for n in range(8):
                row = {"annotator": GRADER, "instruction": query, "second": f"s{n}"}
                preferences.write(json.dumps(row | {"preference": 10 ** (n - 7)}) + "\n")
    group = {"query": "Q 3", "responses": ["so so", "bad", "good"], "scores": [-1, -3, 0]}
    (tmp_path / "groups.jsonl").write_text(json.dumps(group))
    data = {"folder": str(tmp_path), "graded": {"folder": ".", "test": 0, "validation": 0}}
    path = write_run(tmp_path, small, data=data, groups={"files": ["groups.jsonl"]})
    tokenizer = load_tokenizer(small)
    pairs = read_chosen_pairs(load(path), tokenizer)
    assert [pair.query for pair in pairs.training] == ["Q 3", "Q 1", "Q 2"]
    third, first, _ = (
        [tokenizer.decode(ids) for ids in (pair.chosen_ids, pair.rejected_ids)]
        for pair in pairs.training
    )
    assert "good" in third[0] and "bad" in third[1]
    assert any(text in first[0] for text in outputs.values())


def test_control_tokens_in_a_response_stay_text(small: str, tmp_path: Path) -> None:
    rows = [
        *make_pair_rows(),
        {"query": "q", "response_1": "a<|im_end|>", "response_2": "b", "label": 0},
    ]
    tokenizer = load_tokenizer(small)
    pairs = read_chosen_pairs(load(write_run(tmp_path, small, rows), "data.held_out=0"), tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert pairs.training[-1].chosen_ids.count(end) == pairs.training[-1].rejected_ids.count(end)


def test_bad_rows_are_named_or_stop_the_run(small: str, tmp_path: Path) -> None:
    measured = {"query": "query 1", "response_1": "a", "response_2": "b", "label": 0}
    rows = make_pair_rows()
    rows[2]["label"] = 7
    rows[3]["response_1"] = "word " * 300
    path = write_run(tmp_path, small, rows)
    (tmp_path / "measure.jsonl").write_text(json.dumps(measured), encoding="utf-8")
    sets = ["data.exclude=[measure.jsonl]"]
    pairs = read_chosen_pairs(load(path, *sets), load_tokenizer(small))
    reasons = "\n".join(map(str, pairs.bad))
    for part in ("pairs.jsonl:3: field 'label': 7", "pairs.jsonl:2: its query", "pairs.jsonl:4: "):
        assert part in reasons
    assert "max_length is 128" in reasons
    assert pairs.counts()["bad_left_out"] == {"pairs.jsonl": 3}
    with pytest.raises(InputError, match="3 rows cannot be trained on"):
        read_chosen_pairs(load(path, *sets, "bad_rows=stop"), load_tokenizer(small))
    with pytest.raises(InputError, match="no pair is left to train on"):
        read_chosen_pairs(
            load(path, "max_length=64", "data.exclude=[pairs.jsonl]"),
            load_tokenizer(small),
        )


def test_margins_come_from_the_rows(small: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small)
    path = write_run(tmp_path, small)
    with pytest.raises(InputError, match="has a field margin"):
        read_chosen_pairs(load(path, "margin=true"), tokenizer)
    rows = [row | {"margin": n / 2} for n, row in enumerate(make_pair_rows())]
    del rows[3]["margin"]
    rows[4]["margin"] = -1
    path = write_run(tmp_path, small, rows)
    pairs = read_chosen_pairs(load(path, "margin=true", "data.held_out=0"), tokenizer)
    margins = {pair.query: pair.margin for pair in pairs.training}
    assert margins["query 2"] == 1.0 and margins["query 3"] == 0.0
    assert ["field 'margin'" in str(row) for row in pairs.bad] == [True]
    ignored = read_chosen_pairs(load(path, "data.held_out=0"), tokenizer)
    assert {pair.margin for pair in ignored.training} == {0.0} and not ignored.bad


def test_readings_by_hand() -> None:
    pairs = [
        ChosenPair(q, [1], [2], 0.0, extra) for q, extra in zip("aabc", (5, -1, 0, 2), strict=True)
    ]
    validation = validate(np.array([1.0, 0, 2, 3]), np.array([0.0, 1, 2, 1]), pairs)
    assert validation.accuracy.value == 2.5 / 4
    assert validation.length_accuracy.value == 2.5 / 4
    assert validation.over_length.value == 0
    assert validation.margin.value == (1 - 1 + 0 + 2) / 4
    by_hand = sum(math.log1p(math.exp(-gap)) for gap in (1, -1, 0, 2)) / 4
    assert validation.loss == pytest.approx(by_hand)
    assert validation.mean_reward == 10 / 8
    assert validation.accuracy.n == 4


@pytest.mark.training
def test_a_run_from_pairs_to_a_model(trained_run: tuple[Path, dict[str, Any]], policy: str) -> None:
    folder, record = trained_run
    out = folder / "out"
    saved_record = json.loads((out / "training.json").read_text())
    assert json.loads((out / CLAIM).read_text())["finished"]
    pairs = record["pairs"]
    steps = math.ceil(pairs["training"] / 4)
    assert saved_record["steps"] == 2 * steps and saved_record["command"] == "the command"
    assert saved_record["ties_left_out"] == {"pairs.jsonl": 4}
    assert saved_record["validation"]["accuracy"]["n"] == pairs["validation"]
    assert saved_record["validation"]["length_accuracy"]["value"] == 1.0
    assert saved_record["versions"]["trl"] and "folder" not in saved_record["config"]["data"]
    eval_steps = [entry["step"] for entry in saved_record["history"] if "eval_accuracy" in entry]
    assert eval_steps == [steps, 2 * steps]
    assert any((out / "logs").iterdir())
    assert {p.name for p in (out / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    facts = json.loads((out / "adapter/adapter_config.json").read_text())
    assert facts["base_model_name_or_path"] == policy
    weights = load_file(out / "adapter/adapter_model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float16}
    assert any(name.endswith("score.weight") for name in weights)
    assert not any(".layers.0." in name for name in weights)
    head = next(value for name, value in weights.items() if name.endswith("score.weight"))
    assert head.shape == (1, 32)


@pytest.mark.training
def test_what_is_saved_is_what_was_measured(
    trained_run: tuple[Path, dict[str, Any]], policy: str
) -> None:
    from peft import PeftModel

    folder, record = trained_run
    out = folder / "out"
    pairs = read_chosen_pairs(load(str(folder / "run.yaml")), load_tokenizer(policy)).validation
    merged = AutoModelForSequenceClassification.from_pretrained(out / "scalar")
    tokenizer = AutoTokenizer.from_pretrained(out / "scalar")
    assert merged.config.num_labels == 1
    assert merged.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    base = AutoModelForSequenceClassification.from_pretrained(policy, num_labels=1)
    base.config.pad_token_id = tokenizer.pad_token_id
    adapted = PeftModel.from_pretrained(base, str(out / "adapter"))
    by_merged = rewards_of(merged, pairs, tokenizer.pad_token_id, 3)
    by_adapter = rewards_of(adapted, pairs, tokenizer.pad_token_id, 2)
    assert np.allclose(by_merged, by_adapter, atol=1e-5)
    assert np.ptp(by_merged) > 1e-3
    again = validate(*by_merged, pairs)
    measured = record["validation"]
    assert again.loss == pytest.approx(measured.loss, abs=1e-5)
    assert again.margin.value == pytest.approx(measured.margin.value, abs=1e-5)
    assert again.accuracy == measured.accuracy


@pytest.mark.training
def test_the_built_in_model_is_base_and_adapter_merged(
    trained_run: tuple[Path, dict[str, Any]],
    policy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AUTOJ_CACHE", str(tmp_path / "cache"))
    base = (
        tmp_path
        / "cache/models"
        / f"{built_in.BASE}-{built_in._compute_digest(built_in._find_gguf(), None)}"
    )
    shutil.copytree(policy, base)
    shipped = tmp_path / "default_scalar"
    monkeypatch.setattr(built_in, "SCALAR_ADAPTER", shipped)
    with pytest.raises(ModelError, match="this installation has no adapter"):
        built_in.build_model("default-scalar")
    shutil.copytree(built_in.ADAPTER, shipped)
    with pytest.raises(ModelError, match="the adapter has no reward head"):
        built_in.build_model("default-scalar")
    shutil.rmtree(shipped)
    shutil.copytree(trained_run[0] / "out/adapter", shipped)
    folder = built_in.build_model("default-scalar")
    assert folder.parent == base.parent and folder.name.startswith("default-scalar-")
    assert built_in.build_model("default-scalar") == folder
    built_model, trained_model = (
        AutoModelForSequenceClassification.from_pretrained(path)
        for path in (folder, trained_run[0] / "out/scalar")
    )
    assert built_model.config.pad_token_id == trained_model.config.pad_token_id
    assert AutoTokenizer.from_pretrained(folder).pad_token == built_in.SCALAR_PAD
    assert all(
        torch.equal(built_model.state_dict()[k], v) for k, v in trained_model.state_dict().items()
    )
    (shipped / "adapter_config.json").write_text(
        (shipped / "adapter_config.json").read_text() + "\n"
    )
    assert built_in.build_model("default-scalar") != folder


@pytest.mark.training
def test_a_killed_run_goes_on_and_ends_the_same(
    trained_run: tuple[Path, dict[str, Any]], policy: str, tmp_path: Path
) -> None:
    config = write_run(tmp_path, policy)
    command = [sys.executable, "-m", "autoj_reward.cli", "train", "scalar", "--config", config]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not (tmp_path / "out/checkpoint-4").is_dir():  # and may be in the midst of writing it
        assert process.poll() is None, "the run ended before its second checkpoint"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out/training.json").exists()
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "goes on from" in result.stderr
    whole_weights, killed_weights = (
        load_file(p / "out/adapter/adapter_model.safetensors") for p in (trained_run[0], tmp_path)
    )
    assert whole_weights.keys() == killed_weights.keys()
    assert all(
        torch.allclose(whole_weights[name], killed_weights[name], atol=1e-6)
        for name in whole_weights
    )
    resumed_record = json.loads((tmp_path / "out/training.json").read_text())
    whole_record = json.loads((trained_run[0] / "out/training.json").read_text())
    readings = [
        [entry["eval_loss"] for entry in record["history"] if "eval_loss" in entry]
        for record in (resumed_record, whole_record)
    ]
    assert readings[0] == pytest.approx(readings[1], abs=1e-5) and len(readings[0]) == 2


@pytest.mark.training
def test_a_run_that_stops_early_is_the_first_part_of_the_whole(
    trained_run: tuple[Path, dict[str, Any]], policy: str, tmp_path: Path
) -> None:
    record = train_scalar(load(write_run(tmp_path, policy, stop_after=1)))
    [short_entry], whole_entries = (
        [entry for entry in r["history"] if "eval_loss" in entry] for r in (record, trained_run[1])
    )
    assert short_entry["eval_loss"] == pytest.approx(whole_entries[0]["eval_loss"], abs=1e-6)
    assert record["steps"] * 2 == trained_run[1]["steps"]


@pytest.mark.training
def test_all_weights_are_trained_without_lora(policy: str, tmp_path: Path) -> None:
    rows = [row | {"margin": 0.5} for row in make_pair_rows()]
    path = write_run(tmp_path, policy, rows, lora=None, margin=True, center=0.01, epochs=8)
    record = train_scalar(load(path))
    losses = [entry["loss"] for entry in record["history"] if "loss" in entry]
    assert losses[-1] < losses[0] - 0.2
    out = tmp_path / "out"
    assert not (out / "adapter").exists() and not list((out / "scalar").glob("*.bin"))
    model = AutoModelForSequenceClassification.from_pretrained(out / "scalar")
    base = AutoModelForSequenceClassification.from_pretrained(policy, num_labels=1)
    trained_weight, base_weight = (m.model.layers[0].mlp.up_proj.weight for m in (model, base))
    assert not torch.equal(trained_weight, base_weight)
    pairs = read_chosen_pairs(load(path), load_tokenizer(policy)).validation
    again = validate(*rewards_of(model, pairs, model.config.pad_token_id, 2), pairs)
    assert again.loss == pytest.approx(record["validation"].loss, abs=1e-5)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["batch_size=6", "device_batch_size=4"], "no multiple of device_batch_size 4"),
        (["stop_after=3"], "stop_after 3 is beyond epochs 2"),
        (["data.rated=[x.jsonl]"], "learns from pairs: name data.compared"),
        (["data.compared=[]"], "data.compared names no file"),
        (["center=-1"], "center"),
    ],
    ids=str,
)
def test_recipes_that_cannot_be(
    tmp_path: Path, sets: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path, "none")
    overrides = [word for item in sets for word in ("--set", item)]
    assert main(["train", "scalar", "--config", path, *overrides]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chat_template": None}, "has no chat template"),
        ({"pad_token": "<|im_start|>", "chat_template": "{{ 'a<|im_start|>' }}"}, "ends every"),
    ],
    ids=["no template", "pad at the end"],
)
def test_tokenizers_that_do_not_fit(
    small: str, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small)
    for name, value in change.items():
        setattr(tokenizer, name, value)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(str(tmp_path))


def test_the_papers_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    config = load(str(Path(__file__).parents[2] / "configs/judges/scalar_13b.yaml"))
    arguments = reward_arguments(config, 50)
    assert (arguments.learning_rate, arguments.weight_decay) == (1e-5, 0.1)
    assert (arguments.adam_beta1, arguments.adam_beta2) == (0.9, 0.95)
    assert arguments.warmup_steps == math.ceil(0.03 * 250) and arguments.num_train_epochs == 5
    assert arguments.gradient_accumulation_steps == 64 and arguments.max_length is None
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(ConfigError, match="no multiple of 5 processes"):
        reward_arguments(config, 50)
