"""What all responses to a query share is read once, a long reference included, by vLLM itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoj_reward.types import JudgeInput
from tests.engine.asking import judged

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


def test_32_candidates_read_a_long_reference_once(tmp_path: Path, smollm2: object) -> None:
    shared = len(smollm2(REFERENCE)["input_ids"])  # type: ignore[operator]
    assert shared >= 2000
    (tmp_path / "format.yaml").write_text(FORMAT, encoding="utf-8")
    (tmp_path / "single.txt").write_text(TEMPLATE, encoding="utf-8")
    config = {
        "format": str(tmp_path),
        "critique": False,
        "max_tokens": 16,
        "max_model_len": 4096,
        "kv_cache_gib": 0.5,
    }
    context = {"reference": REFERENCE}
    asked = [JudgeInput("When?", (f"In {1890 + n}.",), context=context) for n in range(32)]
    found = judged(tmp_path, config, asked)
    assert {one["outcome"] for one in found} == {"ok"}
    usage = [one["usage"] for one in found]
    read = [one["tokens_in"] - one["tokens_cached"] for one in usage]
    rate = sum(one["tokens_cached"] for one in usage) / sum(one["tokens_in"] for one in usage)
    print(f"{shared} tokens shared; {sum(read)} read for 32 candidates; cache hit rate {rate:.3f}")
    assert [size > shared for size in read].count(True) == 1
    assert sum(read) < 2 * shared and rate > 0.95
