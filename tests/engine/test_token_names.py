"""Endpoints' names of tokens when log-probabilities are requested by token ids."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.engine.base import Generation
from autoj_reward.engine.openai import name_by_id, name_by_piece, name_by_text
from tests.engine.test_openai_engine import (
    Answer,
    Endpoint,
    completion,
    config,
    prompt,
    start_engine,
)
from tests.tokenizers import FAMILIES

LABELS = {"Response 1": 0.6, "Response 2": 0.3, "Tie": 0.1}
SLOT = "So, the final decision is "
Name = Callable[[Any, int], str]


@pytest.mark.parametrize("family", FAMILIES)
def test_vllm_names_every_token_as_one_of_them(
    family: str, tokenizer_named: Callable[[str], Any]
) -> None:
    detokenizer_utils = pytest.importorskip("vllm.tokenizers.detokenizer_utils")
    tokenizer = tokenizer_named(family)
    ids = list(range(len(tokenizer)))
    theirs = detokenizer_utils.convert_ids_list_to_tokens(tokenizer, ids)
    names = [[name(tokenizer, i) for i in ids] for name in (name_by_piece, name_by_text)]
    assert theirs in names
    spaces = [name.startswith(" ") for name in names[0]]
    assert any(spaces)
    if family == "llama2-metaspace":  # decoding a token alone leaves its space out
        assert theirs == names[0] != names[1]


def name_by_vllm(tokenizer: Any, token: int) -> str:
    from vllm.tokenizers.detokenizer_utils import convert_ids_list_to_tokens

    [name] = convert_ids_list_to_tokens(tokenizer, [token])
    return str(name)


@pytest.mark.parametrize("family", ["llama2", "llama2-metaspace", "gemma", "qwen", "llama3"])
@pytest.mark.parametrize("name", [name_by_id, name_by_vllm, name_by_text], ids=lambda f: f.__name__)
async def test_label_probabilities_by_any_names(
    endpoint: Endpoint,
    family: str,
    name: Name,
    tokenizer_named: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    """The same piece without its leading space is another token, with another probability."""
    tokenizer = tokenizer_named(family)
    tokenizer.save_pretrained(tmp_path)
    async with start_engine(config(endpoint, tokenizer=str(tmp_path))) as engine:
        assert engine.tokens is not None
        prepared = await engine.prepare(prompt("hi"), 16, "truncate")
        probs_by_ids = {
            (*prepared.ids, *engine.tokens.written(SLOT + label)): p for label, p in LABELS.items()
        }

        def answer(path: str, body: dict[str, Any]) -> Answer:
            table = add_twins(
                tokenizer, compute_next_probs(tokenizer, body["prompt"], probs_by_ids)
            )
            return completion("", {name(tokenizer, i): math.log(p) for i, p in table.items()})

        endpoint.answer = answer
        label_probs = await engine.label_probs(prepared, Generation(""), 0, SLOT, [*LABELS])
    assert label_probs is not None and dict(label_probs.probs) == pytest.approx(LABELS)


def compute_next_probs(
    tokenizer: Any, context: Sequence[int], probs_by_ids: dict[tuple[int, ...], float]
) -> dict[int, float]:
    """Return the next tokens' probabilities among the texts that begin with the context."""
    continuations = {
        ids: p for ids, p in probs_by_ids.items() if ids[: len(context)] == tuple(context)
    }
    probs: dict[int, float] = {}
    for ids, p in continuations.items():
        token = ids[len(context)]
        probs[token] = probs.get(token, 0.0) + p / sum(continuations.values())
    return probs


def add_twins(tokenizer: Any, table: dict[int, float]) -> dict[int, float]:
    """Return the table with added tokens that differ from its own only by a leading space."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    twins: dict[int, float] = {}
    for token in table:
        piece = tokenizer.convert_ids_to_tokens(token)
        twin = vocabulary.get(piece[1:] if piece[0] in "\u2581Ġ" else "\u2581" + piece)
        twins |= {twin: 1e-3} if twin is not None and twin not in table else {}
    return twins | table  # where two have one name, the likelier one is told
