"""Judgements as judges give them, for tests that need no judge."""

from __future__ import annotations

from typing import Any

from autoj_reward.io.rows import TextRow
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


def texts_of(item: JudgeInput) -> tuple[str, ...]:
    """Return the texts of an input's responses."""
    return tuple(response.text for response in item.responses)


def texts_in(row: TextRow) -> tuple[str, ...]:
    """Return the texts of a row: of its prompt, then of its responses."""
    return (row.prompt.text, *(response.text for response in row.responses))


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
    rating = Reading(RATING, f"{value:g}", value, distribution, expected, outside, unknown, forced)
    direct_readings = (
        () if direct is None else (Reading(DIRECT, f"{direct:g}", direct, expected=direct),)
    )
    return Judgement(Outcome.OK, readings=(rating, *direct_readings), **more)


def compared(
    verdict: Verdict, confidence: Distribution | None = None, forced: bool = False, **more: Any
) -> Judgement:
    """A judgement that is ok and compares two responses. more: its other fields."""
    comparison = Reading(VERDICT, verdict.value, distribution=confidence, forced=forced)
    return Judgement(Outcome.OK, readings=(comparison,), **more)


def reading(judgement: Judgement, slot: str = RATING) -> Reading:
    """What a judgement says in a slot that it must have."""
    slot_reading = judgement.reading(slot)
    assert slot_reading is not None, judgement
    return slot_reading


def asked(query: str, responses: tuple[str, ...], **more: Any) -> JudgeInput:
    """An input that rates one response, or compares two."""
    return JudgeInput("single" if len(responses) == 1 else "pairwise", query, responses, **more)
