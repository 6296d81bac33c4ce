"""A judge's shape with random weights, and its work: prompts, and lengths of what it writes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from autoj_reward.capacity.roofline import Lengths
from autoj_reward.capacity.shape import ModelShape
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models.built_in import BASE, build
from autoj_reward.types import JudgeInput
from experiments.speed.throughput.work import BACKGROUND

SPREAD = 0.24
"""Standard deviation of a released judgement's length over its mean: the 113 critiques of Auto-J on
Eval-C's development half, whose quantiles lie symmetrically around the median."""
RANGE = (0.32, 1.75)
"""The shortest and the longest of them over their mean."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """ids: candidates of a query one after another. prefix: mean tokens that a query's share."""

    ids: list[list[int]]
    prefix: int


def output_lengths(count: int, mean: int, seed: int) -> list[int]:
    """Tokens of so many critiques, spread around a mean as the released judgements are."""
    drawn = np.random.default_rng(seed).normal(1.0, SPREAD, count).clip(*RANGE)
    return [max(1, round(mean * float(share))) for share in drawn]


def make_prompts(
    folder: Path, vocabulary: int, lengths: Lengths, queries: int, seed: int
) -> Prompts:
    """Prompts of `autoj-en` around random words, of about the lengths given.

    Ids of the tokenizer that the vocabulary does not have are folded into it: equal texts stay
    equal, so the shared prefixes stay shared. Template lengths are those of the format.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokens, fmt = PromptTokenizer(tokenizer, "chat"), load_format("autoj-en")
    rng, found, shared = random.Random(seed), list[list[int]](), 0
    for _ in tqdm(range(queries), desc="prompts"):
        query = _text(tokenizer, lengths.query, rng)
        responses = [_text(tokenizer, lengths.response, rng) for _ in range(lengths.candidates)]
        prompts = [render(JudgeInput("single", query, (response,)), fmt) for response in responses]
        group = [[token % vocabulary for token in tokens.ids(prompt)] for prompt in prompts]
        shared += common_prefix(group)
        found += group
    return Prompts(found, round(shared / queries))


def common_prefix(group: list[list[int]]) -> int:
    """Leading tokens that all prompts of a group have; of a single one, all but the last."""
    if len(group) == 1:
        return len(group[0]) - 1
    first, last = min(group), max(group)
    return next(
        (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )


def write_shape(shape: ModelShape, folder: Path) -> Path:
    """A model folder with config and tokenizer, and no weights: for vLLM's `load_format: dummy`.

    The tokenizer is the built-in model's; ids stay below the shape's vocabulary.
    """
    from transformers import AutoTokenizer, LlamaConfig

    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        attention_bias=shape.qkv_bias,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
    )
    config.save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(str(build(BASE))).save_pretrained(str(folder))
    return folder


def _text(tokenizer: Any, tokens: int, rng: random.Random) -> str:
    """Random words of about so many tokens."""
    words = " ".join(rng.choices(BACKGROUND.split(), k=tokens))
    ids = tokenizer(words, add_special_tokens=False)["input_ids"]
    return str(tokenizer.decode(ids[:tokens]))
