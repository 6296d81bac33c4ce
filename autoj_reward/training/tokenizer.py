"""A tokenizer fit to train with: padding ends nothing."""

from __future__ import annotations

from typing import Any

from autoj_reward.errors import ConfigError


def set_own_pad(tokenizer: Any) -> None:
    """Pad with a token of its own where a tokenizer pads with its end of sequence or not at all."""
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        tokenizer.pad_token = _unused_token(tokenizer)


def _unused_token(tokenizer: Any) -> str:
    """A special token that is neither the end of sequence nor part of the chat template."""
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}], tokenize=False
    )
    for token in tokenizer.all_special_tokens:
        if token not in shown and token != tokenizer.eos_token:
            return str(token)
    raise ConfigError(
        f"the tokenizer of {tokenizer.name_or_path} has no token to pad with but its end of "
        "sequence: save it with a pad token of its own and name that folder"
    )
