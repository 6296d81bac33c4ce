"""Sequence classifiers as scalar reward models: their requirements and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoj_reward.config import EngineConfig
from autoj_reward.errors import ModelError
from autoj_reward.models import ResolvedModel

HEADS = ("ForSequenceClassification", "ForRewardModel")
"""Endings of the names of architectures with a classification head."""


def check_classifier(model: ResolvedModel, config: EngineConfig) -> int:
    """Return the pad token's id of a scalar reward model, after checking that the model is usable.

    Raises ModelError that says what to do for a checkpoint without a trained head, with several
    labels or without a pad token. Also raises it if the tokenizer has more tokens than the model,
    or if the model's context is shorter than max_model_len.
    """
    from transformers import AutoConfig, AutoTokenizer

    options = {"revision": model.revision, "trust_remote_code": config.trust_remote_code}
    try:
        facts = AutoConfig.from_pretrained(model.path, **options)
        tokenizer = AutoTokenizer.from_pretrained(model.path, **options)
    except (OSError, ValueError) as error:
        raise ModelError(f"{model.path}: cannot read the scalar reward model: {error}") from error
    return _check_facts(
        model.path, facts, len(tokenizer), tokenizer.pad_token_id, config.max_model_len
    )


def _check_facts(
    path: str, facts: Any, tokens: int, tokenizer_pad: int | None, max_model_len: int
) -> int:
    heads = list(facts.architectures or [])
    if not any(head.endswith(HEADS) for head in heads):
        raise ModelError(
            f"{path}: architecture {heads} has no trained classification head, so its scores would "
            "be noise: name a reward model, or a judge with a judge's format"
        )
    if facts.num_labels != 1:
        raise ModelError(
            f"{path}: {facts.num_labels} labels, and a scalar reward model has one: name another"
        )
    text = facts.get_text_config()
    if text.pad_token_id is None:
        hint = f" (the tokenizer's is {tokenizer_pad})" if tokenizer_pad is not None else ""
        raise ModelError(
            f"{path}: no pad token, and it decides where the score is read: set pad_token_id in "
            f"config.json to the one of its training{hint}"
        )
    if tokens > text.vocab_size:
        raise ModelError(
            f"{path}: the tokenizer has {tokens} tokens and the model {text.vocab_size}: the two "
            "do not belong together"
        )
    longest = getattr(text, "max_position_embeddings", None)
    if longest and max_model_len > longest:
        raise ModelError(
            f"{path}: max_model_len is {max_model_len} and the model reads {longest} tokens: set "
            "it lower"
        )
    return int(text.pad_token_id)


def scores(net: Any, rows: Sequence[Sequence[int]], pad: int, **options: Any) -> list[float]:
    """Return the scores of token sequences, one each, from a classifier with one label.

    All sequences run in one pass, padded on the right. `options` are passed to the forward call.
    """
    import torch

    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in rows], batch_first=True, padding_value=pad
    )
    lengths = torch.tensor([[len(row)] for row in rows])
    mask = (torch.arange(ids.shape[1]) < lengths).long()
    with torch.no_grad():
        out = net(input_ids=ids.to(net.device), attention_mask=mask.to(net.device), **options)
    values: list[float] = out.logits[:, 0].double().tolist()
    return values
