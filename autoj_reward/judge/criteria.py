"""`judge.criteria: auto`: by what responses to a query of this kind are judged (section 3.1)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache

from autoj_reward.context import Context
from autoj_reward.conversation import question
from autoj_reward.models import CRITERIA
from autoj_reward.scenarios import load_scenarios
from autoj_reward.scenarios.rendering import criteria_text
from autoj_reward.types import JudgeInput


def with_criteria(item: JudgeInput) -> JudgeInput:
    """The input with the criteria of its query's scenario, unless it brings its own."""
    if CRITERIA in item.context:
        return item
    known = dict(item.context) | {CRITERIA: criteria_of(question(item.query, item.turns))}
    return replace(item, context=Context(known, item.turns))


@lru_cache(maxsize=256)  # responses to one query come together
def criteria_of(query: str) -> str:
    """The criteria of the scenario that the shipped classifier finds."""
    from autoj_reward.scenarios.linear import shipped_classifier  # numpy, which others do without

    [found] = shipped_classifier().classify([query])
    return criteria_text(load_scenarios()[found.scenario])


@lru_cache
def criteria_digest() -> str:
    """Names the classifier and every criterion: with others it may be another judgement."""
    from autoj_reward.scenarios.linear import SHIPPED

    texts = "\0".join(criteria_text(scenario) for scenario in load_scenarios())
    files = [(SHIPPED / name).read_bytes() for name in ("vocabulary.json", "weights.npz")]
    return hashlib.sha256(b"\0".join([*files, texts.encode()])).hexdigest()[:16]
