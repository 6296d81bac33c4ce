"""Scenarios of the queries in a data set: preferences grouped by them, and a model that names them.

The model is GAIR/autoj-scenario-classifier, or one trained on the same published prompt (paper,
Appendix B), which is sent without a chat wrapper. Where a row names no scenario, the classifier
that ships (`models/scenarios.py`) does.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from autoj_reward.data.preferences import Preference
from autoj_reward.engine.base import Engine, Sampling
from autoj_reward.errors import InputRejected
from autoj_reward.formats.criteria import OTHER_SCENARIO, Scenarios
from autoj_reward.formats.render import Message, Part, RenderedPrompt, fill
from autoj_reward.models.scenarios import shipped_classifier

CLASSIFY_PROMPT = (Path(__file__).parent / "prompts/classify.txt").read_text(encoding="utf-8")
MAX_QUERY_TOKENS, HEAD_TOKENS, TAIL_TOKENS = 1998, 999, 1000
"""Maximum query length in tokens; a longer query keeps this many before and after an ellipsis."""
ANSWER_TOKENS = 30


def classify_prompt(query: str) -> RenderedPrompt:
    """Return the prompt for a query that is short enough."""
    return (Message("user", fill(CLASSIFY_PROMPT, {"input": (Part(query, trusted=False),)})),)


def cut_query(query: str, tokenizer: Any) -> str:
    """Return the query; over 1,998 tokens, only the first 999, an ellipsis and the last 1,000."""
    ids = tokenizer(query, add_special_tokens=False, split_special_tokens=True, verbose=False)[
        "input_ids"
    ]
    if len(ids) <= MAX_QUERY_TOKENS:
        return query
    head, tail = tokenizer.decode(ids[:HEAD_TOKENS]), tokenizer.decode(ids[-TAIL_TOKENS:])
    return f"{head}...{tail}"


class GenerativeClassifier:
    """Scenario classifier that is a language model: greedy, at most 30 tokens."""

    def __init__(self, engine: Engine, tokenizer: Any, scenarios: Scenarios) -> None:
        """engine: started, with wrapper `none`. tokenizer: the model's, to cut long queries by."""
        self._engine, self._tokenizer, self._scenarios = engine, tokenizer, scenarios

    async def classify(self, queries: Sequence[str]) -> list[str | None]:
        """Return the scenario of each query; None if none is named or the input is refused.

        `default` is the published name of `others`. Raises EngineUnavailable if the engine is down.
        """
        return list(await asyncio.gather(*map(self._classify_query, queries)))

    async def _classify_query(self, query: str) -> str | None:
        prompt = classify_prompt(cut_query(query, self._tokenizer))
        try:
            prepared = await self._engine.prepare(prompt, ANSWER_TOKENS, "reject")
            [generation] = await self._engine.generate(prepared, Sampling(ANSWER_TOKENS))
        except InputRejected:
            return None
        return read_scenario(generation.text, self._scenarios)


def read_scenario(text: str, scenarios: Scenarios) -> str | None:
    """Return the scenario named in the first line of an answer, None if it is not a known one."""
    name = (text.strip().splitlines() or [""])[0].strip().strip("'\"`.").casefold()
    if name == OTHER_SCENARIO:
        return OTHER_SCENARIO
    return scenarios[name].name if name in scenarios else None


def by_scenario(
    rows: Sequence[Preference], scenarios: Scenarios, seed: int, others_below: float | None = None
) -> dict[str, tuple[Preference, ...]]:
    """Group rows by the scenario that their source or the shipped classifier names.

    seed: draws the order of each group. others_below: as of `LinearClassifier.classify`.
    """
    unnamed = [row.query for row in rows if row.scenario is None]
    classified = (
        shipped_classifier().classify([query], others_below)[0]
        for query in tqdm(unnamed, desc="scenarios", disable=None)
    )
    groups: dict[str, list[Preference]] = defaultdict(list)
    for row in rows:
        groups[scenarios[row.scenario or next(classified).scenario].name].append(row)
    for name, group in groups.items():
        random.Random(f"{seed}:{name}").shuffle(group)
    return {name: tuple(groups[name]) for name in scenarios.names if name in groups}
