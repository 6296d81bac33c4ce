"""A language model that names the scenario, by the published prompt (paper, Appendix B).

For GAIR/autoj-scenario-classifier, and for a model of one's own trained on the same prompt. The
prompt is sent without a chat wrapper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoj_reward.engine.base import Engine, Sampling
from autoj_reward.errors import InputRejected
from autoj_reward.formats.render import Message, Part, Prompt, fill
from autoj_reward.scenarios.registry import OTHERS, Registry

TEMPLATE = (Path(__file__).parent / "classify.txt").read_text(encoding="utf-8")
MAX_QUERY, HEAD, TAIL = 1998, 999, 1000
"""Tokens: of the longest query, and what stays of a longer one on both sides of an ellipsis."""
MAX_TOKENS = 30


def classify_prompt(query: str) -> Prompt:
    """The prompt for a query that is short enough."""
    return (Message("user", fill(TEMPLATE, {"input": (Part(query, trusted=False),)})),)


def cut_query(query: str, tokenizer: Any) -> str:
    """The query, or of one over 1,998 tokens the first 999, an ellipsis, and the last 1,000."""
    ids = tokenizer(query, add_special_tokens=False, split_special_tokens=True, verbose=False)[
        "input_ids"
    ]
    if len(ids) <= MAX_QUERY:
        return query
    return str(tokenizer.decode(ids[:HEAD])) + "..." + str(tokenizer.decode(ids[-TAIL:]))


class GenerativeClassifier:
    """Names scenarios by generation; greedy, at most 30 tokens."""

    def __init__(self, engine: Engine, tokenizer: Any, known: Registry) -> None:
        """engine: started, with wrapper `none`. tokenizer: the model's, to cut long queries by."""
        self._engine, self._tokenizer, self._known = engine, tokenizer, known

    async def classify(self, queries: Sequence[str]) -> list[str | None]:
        """The scenario's name of each query; None where the answer names none or none came.

        `default` is the published name of `others`. Raises EngineUnavailable if nobody answers.
        """
        return list(await asyncio.gather(*map(self._one, queries)))

    async def _one(self, query: str) -> str | None:
        prompt = classify_prompt(cut_query(query, self._tokenizer))
        try:
            prepared = await self._engine.prepare(prompt, MAX_TOKENS, "reject")
            [said] = await self._engine.generate(prepared, Sampling(MAX_TOKENS))
        except InputRejected:
            return None
        return read_scenario(said.text, self._known)


def read_scenario(text: str, known: Registry) -> str | None:
    """The scenario that a model's answer names in its first line, None if it is none."""
    name = (text.strip().splitlines() or [""])[0].strip().strip("'\"`.").casefold()
    if name == OTHERS:
        return OTHERS
    return known[name].name if name in known else None
