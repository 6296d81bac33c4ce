"""A judge without training that writes one of some given texts, each as often as the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from tests.tiny import llama, saved

DECISION = "So, the final decision is "
DECISIONS = tuple(DECISION + label for label in ("Response 1", "Response 2", "Tie"))
LOGIT = 4.0
"""Weight of a next token; the norm before the head makes some 22 of it."""
FEATURE = 0.3
"""Weight of a token's own feature in the blocks."""


def save_writer(tokenizer: Any, folder: Path, texts: Sequence[str] = DECISIONS) -> Path:
    """Save a tiny Llama that answers every chat prompt with one of the texts, then ends.

    Its blocks add nothing to begin with, so that a token alone decides what follows it, and an
    adapter learns fast. No token may stand twice in the texts with different followers.
    """
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=True
    )["input_ids"]
    followers: dict[int, set[int]] = {}
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        path = [prompt[-1], *ids, tokenizer.eos_token_id]
        for token, follower in pairwise(path):
            followers.setdefault(token, set()).add(follower)
    model = llama(tokenizer)
    tokens = sorted({follower for nexts in followers.values() for follower in nexts})
    assert len(followers) + len(tokens) <= model.config.hidden_size
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
            # Each token has a feature of its own, from which an adapter learns what follows it.
            for weight in (block.mlp.gate_proj.weight, block.mlp.up_proj.weight):
                weight.copy_(FEATURE * torch.eye(*weight.shape))
        model.model.embed_tokens.weight.zero_()
        model.lm_head.weight.zero_()
        for place, (token, nexts) in enumerate(followers.items()):
            model.model.embed_tokens.weight[token, place] = 1
            for follower in nexts:
                model.lm_head.weight[follower, place] = LOGIT
        for place, token in enumerate(tokens, len(followers)):
            model.lm_head.weight[token, place] = LOGIT
    return saved(model, tokenizer, folder)
