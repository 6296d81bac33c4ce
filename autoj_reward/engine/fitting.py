"""Make a prompt fit beside its output, for every engine that tokenizes."""

from __future__ import annotations

from dataclasses import replace

from autoj_reward.config import OverLong
from autoj_reward.engine.base import Generation, Prepared
from autoj_reward.errors import InputRejected
from autoj_reward.formats.render import Prompt
from autoj_reward.formats.tokens import PromptTokenizer


def fitted(
    tokens: PromptTokenizer,
    prompt: Prompt,
    max_model_len: int,
    max_tokens: int,
    over_long: OverLong,
) -> Prepared:
    """Tokenize; cut over-long responses as told, or raise InputRejected with the numbers."""
    budget = max_model_len - max_tokens
    if over_long != "reject":
        prompt, ids, cut = tokens.fit(prompt, budget, over_long)
        return Prepared(prompt, tuple(ids), cut, tokens.tail(ids))
    ids = tokens.ids(prompt)
    if len(ids) > budget:
        raise InputRejected(
            f"the prompt has {len(ids)} tokens and max_model_len leaves {budget} beside "
            f"{max_tokens} tokens of output"
        )
    return Prepared(prompt, tuple(ids), tail=tokens.tail(ids))


def continued(tokens: PromptTokenizer, prepared: Prepared, own: Generation, text: str) -> Prepared:
    """The prompt with what the judge wrote and the text after it, by the ids that it wrote where
    they are known."""
    more = [*own.ids, *tokens.written(text)] if own.ids else tokens.written(own.text + text)
    ids = (*prepared.ids, *more)
    return replace(prepared, ids=ids, tail=tokens.tail(ids))
