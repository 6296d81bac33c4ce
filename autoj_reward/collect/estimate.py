"""What a collection would ask and cost, before anything is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autoj_reward.collect.config import CollectConfig
from autoj_reward.collect.protocols import questions
from autoj_reward.collect.sources import Preference
from autoj_reward.collect.teacher import cost_of, estimated_tokens
from autoj_reward.scenarios import Registry

USUAL_ANSWERS = {"pairwise": (400,), "single": (280, 210, 400)}
"""Tokens of each answer, for estimates: the means of Auto-J's released critiques at 4 characters a
token; of its comparisons, which are not released, a guess."""


def estimate(
    config: CollectConfig, rows: Mapping[str, Sequence[Preference]], known: Registry
) -> dict[str, Any]:
    """Questions and cost of a collection: if every answer is kept, and if every row is asked.

    rows: by scenario, in the order of asking. Answers on record are not taken off. `usd_longest`
    prices every answer at max_tokens.
    """
    usual = [min(n, config.teacher.max_tokens) for n in USUAL_ANSWERS[config.protocol]]
    cases: dict[str, Any] = {}
    for case, most in (("every_answer_kept", config.per_scenario), ("every_row_asked", None)):
        asked = [(row, known[name]) for name, group in rows.items() for row in group[:most]]
        tokens_in = count = 0
        for row, scenario in asked:
            prompts = questions(config.protocol, row, scenario)
            tokens_in += sum(map(estimated_tokens, prompts))
            count += len(prompts)
        likely = cost_of(config.teacher, tokens_in, len(asked) * sum(usual))
        longest = cost_of(config.teacher, tokens_in, count * config.teacher.max_tokens)
        cases[case] = {
            "rows": len(asked),
            "questions": count,
            **asdict(likely),
            "usd_longest": longest.usd,
        }
    return cases
