from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from autoj_reward.config import load_config
from autoj_reward.data.graded import GradedData
from autoj_reward.data.labelled import Compared, Rated
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.training.common import LoraBlock, freeze_below, with_lora
from autoj_reward.training.judge.examples import schedule
from autoj_reward.training.judge.recipe import LossConfig, MixConfig, TrainJudgeConfig
from autoj_reward.training.judge.sft import training_arguments
from autoj_reward.training.judge.targets import (
    Example,
    ExampleBuilder,
    TokenTree,
    Tree,
    TreeSlot,
    batch,
    shorten,
)
from autoj_reward.training.judge.train import train_judge
from autoj_reward.training.judge.trainer import Collator, read_losses
from autoj_reward.types import JudgeInput, Verdict
from tests.tiny import llama, saved

FORMAT = load_format("autoj-en")
ALL = LossConfig(slot_after=1, slot_direct=1, verdict=1, preference=1)
CRITIQUE = "It is short.\n\nRating: [[4]]"
RATED = Rated("f", 1, "Why?", "Because.", 4.0, CRITIQUE)
PAIR = Compared("f", 2, "Why?", ("Because.", "It scatters light."), Verdict.SECOND)


@pytest.fixture(scope="module")
def tiny(smollm2: Any) -> Any:
    return llama(smollm2).eval()


@pytest.fixture(scope="module")
def folder(tiny: Any, smollm2: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tiny, smollm2, tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def builder(smollm2: Any) -> ExampleBuilder:
    return ExampleBuilder(PromptTokenizer(smollm2, "chat"), FORMAT, ALL)


def list_path_ids(tree: TokenTree, node: int) -> list[int]:
    ids = []
    while node >= 0:
        ids.append(tree.ids[node])
        node = tree.parents[node]
    return ids[::-1]


def test_a_tree_shares_what_its_paths_have_in_common() -> None:
    tree = TokenTree()
    assert tree.add([5, 6, 7]) == [0, 1, 2]
    assert tree.linear
    assert tree.add([5, 6, 8, 9]) == [0, 1, 3, 4]
    assert tree.add([5, 6, 8]) == [0, 1, 3]
    assert not tree.linear


def test_trees_without_branches_need_no_mask_of_their_own() -> None:
    first, second = TokenTree(), TokenTree()
    first.add([1, 2, 3])
    second.add([4])
    inputs = batch([first, second], pad=0)
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert inputs["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0]]


def test_every_path_of_a_tree_is_computed_as_if_alone(tiny: Any, builder: ExampleBuilder) -> None:
    items = [builder.rated(RATED), builder.compared(PAIR), builder.preferred(PAIR)]
    inputs = Collator(0)(items)
    del inputs["examples"], inputs["logits_to_keep"]
    with torch.no_grad():
        together = tiny(**inputs).logits
        for row, tree in enumerate(tree for item in items for tree in item.trees):
            assert tree.logit_nodes
            for node in tree.logit_nodes:
                alone = tiny(torch.tensor([list_path_ids(tree.tokens, node)])).logits[0, -1]
                assert torch.allclose(alone, together[row, node], atol=1e-5)


def test_what_a_rated_row_teaches(builder: ExampleBuilder, smollm2: Any) -> None:
    item = builder.rated(RATED)
    [tree] = item.trees
    prompt = builder.tokens.ids(render(JudgeInput("single", "Why?", ("Because.",)), FORMAT))
    assert tree.tokens.ids[: len(prompt)] == prompt
    assert tree.text[0][0] == len(prompt) - 1
    assert smollm2.decode([token for _, token in tree.text]) == CRITIQUE + "<|im_end|>"
    assert tree.after and tree.direct
    head = smollm2.decode(prompt)
    for slot, text in ((tree.after, CRITIQUE[:-3]), (tree.direct, "Rating: [[")):
        texts = {
            prefix: smollm2.decode(list_path_ids(tree.tokens, node)).removeprefix(head)
            for prefix, node in slot.nodes.items()
        }
        [digit] = [prefix for prefix in texts if prefix]
        assert texts == {(): text, digit: text + "1"}
        assert [smollm2.decode(list(ids)) for ids in slot.labels] == list(FORMAT.scale.labels)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (99, "One two. Three four!\n\n1. Five? Six seven.\n\n"),
        (7, "One two. Three four!\n\nSix seven.\n\n"),
        (5, "One two. Six seven.\n\n"),
        (2, "Six seven.\n\n"),
        (1, "Six seven.\n\n"),
    ],
)
def test_a_brief_critique_keeps_its_first_sentences_and_its_last(limit: int, expected: str) -> None:
    text = "One two. Three four!\n\n1. Five? Six seven.\n\n"
    assert shorten(text, limit, lambda part: len(part.split())) == expected


def test_a_brief_critique_ends_in_the_same_rating(smollm2: Any) -> None:
    tokens = PromptTokenizer(smollm2, "chat")
    long = " ".join(f"Point {n} is made well." for n in range(30)) + " All in all, fair."
    row = Rated("f", 1, "Why?", "Because.", 4.0, long + "\n\nRating: [[4]]")
    [tree] = ExampleBuilder(tokens, FORMAT, ALL, brief=40).rated(row).trees
    text = smollm2.decode([token for _, token in tree.text])
    assert text.startswith("Point 0 is made well. Point 1 ")
    assert text.endswith("well. All in all, fair.\n\nRating: [[4]]<|im_end|>")
    assert len(smollm2(text.partition("\n\n")[0]).input_ids) <= 40


def test_the_direct_slot_alone_needs_no_judgement(builder: ExampleBuilder) -> None:
    [alone], [both] = builder.direct(RATED).trees, builder.rated(RATED).trees
    assert alone.tokens.linear and not (alone.text or alone.after)
    assert alone.direct and both.direct and alone.direct.labels == both.direct.labels
    ends = [
        list_path_ids(tree.tokens, tree.direct.nodes[()]) for tree in (alone, both) if tree.direct
    ]
    assert ends[0] == ends[1]


def test_what_a_pair_teaches(builder: ExampleBuilder, smollm2: Any) -> None:
    [tree] = builder.compared(PAIR).trees
    text = "So, the final decision is Response 2"
    assert smollm2.decode([token for _, token in tree.text]) == text + "<|im_end|>"
    assert tree.verdict is not None
    spellings = [smollm2.decode(list(ids)).strip() for ids in tree.verdict.labels]
    assert spellings == ["Response 1", "Response 2", "Tie"]
    assert builder.compared(PAIR).target == 1
    assert [builder.preferred(row).target for row in (PAIR, _make_compared(Verdict.TIE))] == [
        0.0,
        0.5,
    ]


def _make_compared(label: Verdict) -> Compared:
    return Compared("f", 3, "q", ("a", "b"), label)


def test_the_plain_recipe_is_one_path_and_reads_no_slot(smollm2: Any) -> None:
    plain = ExampleBuilder(PromptTokenizer(smollm2, "chat"), FORMAT, LossConfig())
    [tree] = plain.rated(RATED).trees
    assert tree.tokens.linear and not (tree.after or tree.direct)


def make_logits_reader(rows: dict[int, dict[int, float]], size: int = 12) -> Any:
    """What a model says at given nodes: token to probability, the rest on token 0."""

    def read_logits(nodes: list[int]) -> Tensor:
        probs = torch.full((len(nodes), size), 1e-9)
        for at, node in enumerate(nodes):
            for token, p in rows[node].items():
                probs[at, token] = p
            probs[at, 0] = 1 - sum(rows[node].values())
        return probs.log()

    return read_logits


SLOT = TreeSlot(labels=((1,), (2,), (1, 10)), nodes={(): 0, (1,): 1})


def test_losses_by_hand() -> None:
    tree = Tree(TokenTree(), text=[(2, 3), (3, 4)], direct=SLOT)
    read_logits = make_logits_reader({0: {1: 0.5, 2: 0.3}, 1: {10: 0.4}, 2: {3: 0.5}, 3: {4: 0.25}})
    losses = LossConfig(judgement=2, slot_direct=3, spread=1.0)
    scale = torch.tensor([1.0, 2.0, 3.0])
    result = read_losses(Example("rated", "f", 1, (tree,), 2.0), [read_logits], losses, scale)
    side = math.exp(-0.5)
    slot = -(side * math.log(0.3) + math.log(0.3) + side * math.log(0.2)) / (1 + 2 * side)
    text = -(math.log(0.5) + math.log(0.25)) / 2
    assert result.parts["slot_direct"] == pytest.approx(slot, abs=1e-4)
    assert result.parts["judgement"] == pytest.approx(text, abs=1e-4)
    assert result.loss.item() == pytest.approx(2 * text + 3 * slot, abs=1e-3)
    expected = (0.3 * 1 + 0.3 * 2 + 0.2 * 3) / 0.8
    assert result.expected["direct"][0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("target", [1.0, 0.5, 0.0])
def test_preference_loss_by_hand(target: float) -> None:
    better = make_logits_reader({0: {2: 0.9}, 1: {10: 0.5}})
    worse = make_logits_reader({0: {1: 0.9}, 1: {10: 0.0}})
    tree = Tree(TokenTree(), direct=SLOT)
    losses = LossConfig(preference=1, preference_scale=1.5)
    item = Example("preferred", "f", 1, (tree, tree), target)
    result = read_losses(item, [better, worse], losses, torch.tensor([1.0, 2.0, 3.0]))
    win = 1 / (1 + math.exp(-1.5 * (result.expected["direct"][0] - result.expected["direct"][1])))
    assert win > 0.8
    by_hand = -target * math.log(win) - (1 - target) * math.log(1 - win)
    assert result.parts["preference"] == pytest.approx(by_hand, abs=1e-4)


def test_a_verdict_is_learned_among_the_labels() -> None:
    tree = Tree(TokenTree(), verdict=SLOT)
    read_logits = make_logits_reader({0: {1: 0.5, 2: 0.3}, 1: {10: 0.4}})
    item = Example("compared", "f", 1, (tree,), 2)
    result = read_losses(item, [read_logits], LossConfig(verdict=1), torch.tensor([1.0, 2.0, 3.0]))
    assert result.parts == {"verdict": pytest.approx(-math.log(0.2), abs=1e-4)}


def test_an_epoch_shows_what_the_mix_says() -> None:
    items = {
        part: [Example(part, "f", n, (), 0.0) for n in range(20)] for part in ("rated", "compared")
    }
    order = schedule(items, MixConfig(rated=2, compared=0.25), epochs=3, seed=1)
    assert len(order) == 3 * (40 + 5)
    for n in range(3):
        epoch = order[45 * n : 45 * (n + 1)]
        lines = [item.line for item in epoch if item.part == "rated"]
        assert sorted(lines) == sorted([*range(20), *range(20)])
    drawn = [{i.line for i in order[45 * n : 45 * (n + 1)] if i.part == "compared"} for n in (0, 1)]
    assert drawn[0] != drawn[1]
    assert order == schedule(items, MixConfig(rated=2, compared=0.25), epochs=3, seed=1)
    assert len(schedule(items, MixConfig(rated=1, compared=0), epochs=0.5, seed=0)) == 10


def write_run(folder: Path, model: Path, **change: Any) -> Path:
    """Data and config of a small run on the tiny model; ends at the config file."""
    rated = [
        {"query": f"q{n}", "response": f"r{n}", "rating": 1 + n % 9, "judgement": ""}
        for n in range(12)
    ]
    trained = [
        {
            "usrmsg": render(JudgeInput("single", f"t{n}", (f"answer {n}",)), FORMAT)[-1].text,
            "target_output": f"Fine {n}.\n\nRating: [[{1 + n % 9}]]",
            "pred_score": str(1 + n % 9),
        }
        for n in range(12)
    ]
    pairs = [
        {"query": f"p{n}", "response_1": "a", "response_2": f"b{n}", "label": n % 3}
        for n in range(8)
    ]
    for name, rows in (("rated", rated), ("trained", trained), ("pairs", pairs)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    config = {
        "model": str(model),
        "output": str(folder / "out"),
        "data": {
            "folder": str(folder),
            "rated": ["rated.jsonl", "trained.jsonl"],
            "compared": ["pairs.jsonl"],
            "held_out": 0.4,
        },
        "lora": {"rank": 2, "alpha": 4},
        "losses": {"slot_after": 1, "slot_direct": 1, "verdict": 1, "preference": 1},
        "mix": {"rated": 1, "direct": 0.5, "compared": 0.5, "preferred": 0.5},
        "epochs": 2,
        "batch_size": 4,
        "device_batch_size": 2,
        "learning_rate": 0.005,
        "save_steps": 2,
        "validations": 2,
    } | change
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@pytest.mark.training
def test_a_run_from_data_to_a_judge(tmp_path: Path, folder: Path) -> None:
    record = train_judge(load_config(TrainJudgeConfig, write_run(tmp_path, folder)))
    out = tmp_path / "out"
    assert record["examples"]["training"].keys() == {"rated", "direct", "compared", "preferred"}
    assert record["examples"]["validation"].keys() == {"rated", "compared", "preferred"}
    assert record["left_out"] == {}
    for name in ("spearman_after", "spearman_direct", "agreement_verdict", "loss_judgement"):
        assert math.isfinite(record["validation"][f"eval_{name}"])
    assert sum("eval_spearman_direct" in entry for entry in record["history"]) == 2
    assert any((out / "logs").iterdir())
    adapter = json.loads((out / "adapter/adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == str(folder)
    assert not list((out / "adapter").glob("*.bin"))
    judge = AutoModelForCausalLM.from_pretrained(out / "judge")
    base = AutoModelForCausalLM.from_pretrained(folder)
    trained_weight, base_weight = (m.model.layers[1].mlp.up_proj.weight for m in (judge, base))
    assert not torch.equal(trained_weight, base_weight)


@pytest.mark.training
def test_a_run_ends_at_its_steps(tmp_path: Path, folder: Path) -> None:
    """Its data stands beside the run file."""
    data = {"rated": ["trained.jsonl"], "held_out": 0.4}
    path = write_run(tmp_path, folder, data=data, mix={"rated": 1}, losses={}, max_steps=2)
    record = train_judge(load_config(TrainJudgeConfig, path))
    assert record["steps"] == 2
    rates = [entry["learning_rate"] for entry in record["history"] if "learning_rate" in entry]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.training
def test_graded_outputs_are_ordered(tmp_path: Path, folder: Path) -> None:
    """Good outputs say so in their words, and are no longer than the others."""
    names = [f"s{n}" for n in range(12)]
    texts = {name: f"{'good' if n % 2 else 'poor'} answer {name}" for n, name in enumerate(names)}
    queries = [f"Question {n}?" for n in range(30)]
    rows: dict[str, list[Any]] = {
        "outputs": [{"instruction": q, "outputs": texts} for q in queries],
        "preferences": [
            {"annotator": "gpt4_turbo_logprob", "instruction": q, "second": name,
             "preference": 0.9 if n % 2 else 1e-4}
            for q in queries for n, name in enumerate(names)
        ],
    }  # fmt: skip
    for name, lines in rows.items():
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    config = load_config(
        TrainJudgeConfig, write_run(tmp_path, folder, lora=None, learning_rate=0.003)
    )
    graded = GradedData(folder=str(tmp_path), test=0.1, validation=0.3, test_systems=("s0", "s1"))
    config = config.model_copy(
        update={
            "data": config.data.model_copy(update={"graded": graded}),
            "mix": MixConfig(rated=0, compared=0, ranked=1),
            "losses": LossConfig(judgement=0, ranking=1, preference_scale=4),
            "epochs": 3.0,
        }
    )
    record = train_judge(config)
    assert record["examples"]["training"].keys() >= {"ranked"}
    last = record["validation"]
    first = next(e for e in record["history"] if "eval_loss_ranking" in e)
    assert last["eval_loss_ranking"] < first["eval_loss_ranking"]
    assert last["eval_order"] > 0.5


def test_an_adapter_goes_on_from_a_block_up(tmp_path: Path, folder: Path) -> None:
    base = LlamaForCausalLM.from_pretrained(folder)
    model = with_lora(base, LoraBlock(rank=2), "CAUSAL_LM")
    freeze_below(model, 1)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained and all(".layers.1." in name for name in trained)


@pytest.mark.training
def test_all_weights_are_trained_without_lora(tmp_path: Path, folder: Path) -> None:
    plain = {"lora": None, "losses": {}, "mix": {"rated": 1, "compared": 0}, "epochs": 6}
    record = train_judge(load_config(TrainJudgeConfig, write_run(tmp_path, folder, **plain)))
    losses = [entry["loss/judgement"] for entry in record["history"] if "loss/judgement" in entry]
    assert losses[-1] < losses[0] - 0.5
    assert record["left_out"] == {"rated.jsonl": 12}  # rows without a judgement teach it nothing
    assert {p.name for p in (tmp_path / "out/judge").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert not (tmp_path / "out/adapter").exists()
    assert not (tmp_path / "out/judge/training_args.bin").exists()


@pytest.mark.training
def test_a_killed_run_goes_on_and_ends_the_same(tmp_path: Path, folder: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for path in (whole, killed):
        path.mkdir()
    train_judge(load_config(TrainJudgeConfig, write_run(whole, folder)))
    config = write_run(killed, folder)
    command = [sys.executable, "-m", "autoj_reward.cli", "train", "judge", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not (killed / "out/checkpoint-4").is_dir():  # and may be in the midst of writing it
        assert process.poll() is None, "the run ended before its second checkpoint"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "out/training.json").exists()
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "goes on from" in result.stderr
    whole_weights, killed_weights = (
        load_file(p / "out/adapter/adapter_model.safetensors") for p in (whole, killed)
    )
    assert whole_weights.keys() == killed_weights.keys()
    assert all(
        torch.allclose(whole_weights[name], killed_weights[name], atol=1e-6)
        for name in whole_weights
    )


@pytest.mark.training
def test_bad_rows_are_left_out_and_counted_or_stop_the_run(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path, folder, epochs=0.2, validations=1)
    rows = (tmp_path / "rated.jsonl").read_text(encoding="utf-8").splitlines()
    rows[1] = json.dumps({"query": "q", "response": "r", "rating": 12})
    rows[2] = json.dumps({"query": "long", "response": "word " * 600, "rating": 2})
    (tmp_path / "rated.jsonl").write_text("\n".join(rows), encoding="utf-8")
    measure = [{"query": "q3", "response_1": "a", "response_2": "b", "label": 0}]
    (tmp_path / "measure.jsonl").write_text(json.dumps(measure[0]), encoding="utf-8")
    sets = ["max_length=512", "data.exclude=[measure.jsonl]"]
    with pytest.raises(InputError) as caught:
        train_judge(load_config(TrainJudgeConfig, path, [*sets, "bad_rows=stop"]))
    assert "3 rows cannot be trained on" in str(caught.value)
    assert "rated.jsonl:2: field 'rating': 12 is no rating" in str(caught.value)
    assert not list((tmp_path / "out").glob("checkpoint-*"))
    (tmp_path / "out/config.json").unlink()
    record = train_judge(load_config(TrainJudgeConfig, path, sets))
    assert record["left_out"] == {"rated.jsonl": 3}
    errors = capsys.readouterr().err
    for part in ("rated.jsonl:2", "rated.jsonl:3: 7", "rated.jsonl:4: its query", "max_length"):
        assert part in errors


def test_a_folder_belongs_to_one_run(tmp_path: Path, folder: Path) -> None:
    path = write_run(tmp_path, folder, max_length=64)
    with pytest.raises(InputError, match="no row is left to train on"):
        train_judge(load_config(TrainJudgeConfig, path))
    with pytest.raises(ConfigError, match=r"holds a run of another config \(seed changed\)"):
        train_judge(load_config(TrainJudgeConfig, path, ["seed=3"]))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["attention=flash_attention_2", "losses.slot_direct=1"], "set attention to sdpa"),
        (["attention=flash_attention_2", "losses={slot_after: 1}"], "set attention to sdpa"),
        (["attention=flash_attention_2", "losses={verdict: 1}"], "set attention to sdpa"),
        (["adapter=x", "lora=null"], "give a lora block"),
    ],
)
def test_recipes_that_cannot_be(tmp_path: Path, sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(TrainJudgeConfig, write_run(tmp_path, tmp_path), sets)


def test_the_papers_recipe() -> None:
    configs = Path(__file__).parents[2] / "configs"
    os.environ.pop("WORLD_SIZE", None)
    config = load_config(TrainJudgeConfig, configs / "judges/autoj_13b.yaml")
    assert config.losses == LossConfig() and config.lora is None
    # 3,436 pairs in two orders and 960 rated rows twice: 687 steps. The paper says 675.
    examples = 5 * (2 * 3436 + 2 * 960)
    assert math.ceil(examples / config.batch_size) == 687
    arguments = training_arguments(config, examples, validate=False)
    assert (arguments.learning_rate, arguments.weight_decay) == (1e-5, 0.1)
    assert (arguments.adam_beta1, arguments.adam_beta2) == (0.9, 0.95)
    assert arguments.warmup_steps == math.ceil(0.03 * 687)
    assert arguments.lr_scheduler_type == "cosine"
    assert arguments.gradient_accumulation_steps * 2 == 64
