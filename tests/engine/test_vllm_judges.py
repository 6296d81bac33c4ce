"""Five judges on one vLLM engine.

One thinks, and its thinking is cut at the limit. One reads a long reference answer, which all
responses to a query share in the prefix cache. Two write critiques, one of them with a frequency
penalty. The last one is held to a JSON schema once its thinking is cut.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.config import JudgeConfig
from autoj_reward.formats.schema import FORMATS
from autoj_reward.models import resolve
from autoj_reward.types import JudgeInput
from tests.engine.asking import judge_in_process

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

FORMAT = r"""
name: by-reference
scale: {low: 1, high: 10}
single:
  template: single.txt
  fields: {question: query, reference: reference, answer: response}
  open: 'Rating: \[\['
  close: '\]\]'
  force: "\nRating: [["
"""
TEMPLATE = (
    "Question: {question}\nReference: {reference}\nAnswer: {answer}\nRate the answer, 1 to 10."
)
REFERENCE = "The mill by the river burned in 1903 and was built anew of brick. " * 120
ONCE = JudgeInput("single", "Why?", ("Because.",))
BY_REFERENCE = [
    JudgeInput("single", "When?", (f"In {1890 + n}.",), context={"reference": REFERENCE})
    for n in range(32)
]


@pytest.fixture(scope="module")
def judgements(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """Return the judgements of all five judges.

    The thinking judge rates ONCE with and without a critique. The second one rates BY_REFERENCE.
    Two critique ONCE without and with a frequency penalty, and the last one in JSON.
    """
    folder = tmp_path_factory.mktemp("judges")
    engine = {"model": str(write_thinking_model(folder / "model")), "max_model_len": 4096}
    engine |= {"kv_cache_gib": 0.5, "max_sequences": 8}
    written = str(write_thinking_format(folder / "json", "json"))
    writes_json = engine | {"format": written, "thinking_tokens": 5, "max_tokens": 60}
    thinks = {"format": str(write_thinking_format(folder / "thinks")), "thinking_tokens": 5}
    thinks |= {"max_tokens": 7, "direct": True}
    reads = {
        "format": str(make_reference_format(folder / "reads")),
        "critique": False,
        "max_tokens": 16,
    }
    critiques = engine | {"max_tokens": 128, "format": "autoj-en"}
    return judge_in_process(
        folder,
        (engine | thinks, [ONCE, replace(ONCE, direct=True)]),
        (engine | reads, BY_REFERENCE),
        (critiques, [ONCE]),
        (critiques | {"frequency_penalty": 2.0}, [ONCE]),
        (writes_json, [ONCE]),
    )


def write_thinking_model(folder: Path) -> Path:
    """Create the default judge with a chat template that opens a thinking block."""
    from transformers import AutoTokenizer

    default = Path(resolve(JudgeConfig()).path)
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(default / name)
    tokenizer = AutoTokenizer.from_pretrained(default)
    tokenizer.chat_template += "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
    tokenizer.save_pretrained(folder)
    return folder


def write_thinking_format(folder: Path, name: str = "autoj-en") -> Path:
    shutil.copytree(FORMATS / name, folder)
    data = yaml.safe_load((folder / "format.yaml").read_text(encoding="utf-8"))
    data["thinking"] = {"open": "<think>", "close": "</think>"}
    (folder / "format.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return folder


def make_reference_format(folder: Path) -> Path:
    folder.mkdir()
    (folder / "format.yaml").write_text(FORMAT, encoding="utf-8")
    (folder / "single.txt").write_text(TEMPLATE, encoding="utf-8")
    return folder


def test_vllm_goes_on_from_a_block_that_was_cut(judgements: list[list[Any]]) -> None:
    whole, direct = judgements[0]
    assert whole["outcome"] == "ok" and whole["forced"]
    assert whole["flags"] == ["output_truncated", "thinking_cut"]
    assert whole["thinking"] and whole["thinking"] not in whole["critique"]
    assert 5 + 7 < whole["usage"]["tokens_out"] <= 5 + 7 + 12  # two slots, one read twice
    # The reading right after the prompt is the same, with a critique and without.
    assert whole["rating"]["direct"] == pytest.approx(direct["rating"]["expected"], abs=1e-3)
    assert (direct["thinking"], direct["critique"]) == ("", "")


def test_32_candidates_read_a_long_reference_once(
    judgements: list[list[Any]], smollm2: object
) -> None:
    shared = len(smollm2(REFERENCE)["input_ids"])  # type: ignore[operator]
    assert shared >= 2000
    assert {record["outcome"] for record in judgements[1]} == {"ok"}
    usage = [record["usage"] for record in judgements[1]]
    sizes = [record["tokens_in"] - record["tokens_cached"] for record in usage]
    rate = sum(record["tokens_cached"] for record in usage) / sum(
        record["tokens_in"] for record in usage
    )
    print(f"{shared} tokens shared; {sum(sizes)} read for 32 candidates; cache hit rate {rate:.3f}")
    assert [size > shared for size in sizes].count(True) == 1
    assert sum(sizes) < 2 * shared and rate > 0.95
    # Eight have a place at a time, so the last of them wait for others; one alone does not.
    [[alone]] = judgements[2:3]
    assert max(record["queued_s"] for record in usage) > alone["usage"]["queued_s"]
    assert alone["usage"]["queued_s"] < alone["usage"]["latency_s"]


def test_vllm_repeats_less_under_a_frequency_penalty(judgements: list[list[Any]]) -> None:
    # The prompt opens a thinking block that this judge never closes, so all that it writes is one.
    plain, penalised = (record["thinking"].split() for [record] in judgements[2:4])
    assert plain and penalised
    print(" ".join(plain), "|", " ".join(penalised))
    assert len(set(penalised)) / len(penalised) > len(set(plain)) / len(plain)


def test_vllm_holds_a_judge_to_the_schema(judgements: list[list[Any]]) -> None:
    [[record]] = judgements[4:]
    print(record["critique"])
    assert record["outcome"] == "ok" and "thinking_cut" in record["flags"]
    # This judge was never trained to write JSON.
    assert re.match(r'\s*\{\s*"critique"\s*:\s*"', record["critique"])
    assert record["rating"]["value"] in range(1, 11)
    assert 1 <= record["rating"]["expected"] <= 10
