"""Judgements as judges give them, for tests that need no judge."""

from __future__ import annotations

from typing import Any

from autoj_reward.types import (
    DIRECT,
    RATING,
    VERDICT,
    JudgeInput,
    Judgement,
    Outcome,
    Reading,
    Verdict,
)

Distribution = tuple[tuple[str, float], ...]


def rated(
    value: float,
    distribution: Distribution | None = None,
    expected: float | None = None,
    outside: float | None = None,
    direct: float | None = None,
    unknown: float = 0.0,
    forced: bool = False,
    **more: Any,
) -> Judgement:
    """A judgement that is ok and rates one response. more: its other fields."""
    own = Reading(RATING, f"{value:g}", value, distribution, expected, outside, unknown, forced)
    before = () if direct is None else (Reading(DIRECT, f"{direct:g}", direct, expected=direct),)
    return Judgement(Outcome.OK, readings=(own, *before), **more)


def compared(
    verdict: Verdict, confidence: Distribution | None = None, forced: bool = False, **more: Any
) -> Judgement:
    """A judgement that is ok and compares two responses. more: its other fields."""
    own = Reading(VERDICT, verdict.value, distribution=confidence, forced=forced)
    return Judgement(Outcome.OK, readings=(own,), **more)


def reading(judgement: Judgement, slot: str = RATING) -> Reading:
    """What a judgement says in a slot that it must have."""
    found = judgement.reading(slot)
    assert found is not None, judgement
    return found


def asked(query: str, responses: tuple[str, ...], **more: Any) -> JudgeInput:
    """An input that rates one response, or compares two."""
    return JudgeInput("single" if len(responses) == 1 else "pairwise", query, responses, **more)
