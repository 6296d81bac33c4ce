"""Checks on what passes between a client and a service: texts sent, and judgements received."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from autoj_reward.conversation import show
from autoj_reward.engine.base import ROUNDING
from autoj_reward.errors import InputRejected
from autoj_reward.formats.render import require_unicode
from autoj_reward.types import (
    DIRECT,
    MAX_FLOAT,
    PAIRWISE,
    RATING,
    SINGLE,
    VERDICT,
    JudgeInput,
    Judgement,
    Reading,
)

SLOTS = {SINGLE: RATING, PAIRWISE: VERDICT}
"""The slot that an OK judgement must have, for the protocols of every generative judge."""
RATED = (RATING, DIRECT)
"""Slots whose numbers lie on the rating scale."""


def require_sound(
    judgement: Judgement, item: JudgeInput, scale: tuple[float, float] | None
) -> None:
    """Raise ValueError for a judgement with impossible values, such as a rating off the scale."""
    slot = SLOTS.get(item.protocol)
    if judgement.ok and slot and judgement.reading(slot) is None:
        raise ValueError(f"it is ok and says nothing of the {slot}")
    if judgement.ok and item.protocol == SINGLE and judgement.rating is None:
        raise ValueError("its rating is no number")
    if not isinstance(judgement.critique, str) or not isinstance(judgement.reason, str):
        raise ValueError("its texts are none")
    for reading in judgement.readings:
        _require_sound_reading(reading, scale)


def _require_sound_reading(reading: Reading, scale: tuple[float, float] | None) -> None:
    if not isinstance(reading.slot, str) or not isinstance(reading.label, str):
        raise ValueError("its names are none")
    _require_shares([share for _, share in reading.distribution or ()])
    low, high = (scale if reading.slot in RATED else None) or (-math.inf, math.inf)
    for name, number in (("value", reading.value), ("expected", reading.expected)):
        if number is None:
            continue
        if not _is_number(number) or not low <= number <= high:
            within = f" from {low:g} to {high:g}" if scale else ""
            raise ValueError(f"{name} is {number!r}, and no rating{within}")
    _require_shares([0.0 if reading.outside is None else reading.outside])
    _require_shares([reading.unknown])


def _require_shares(shares: Sequence[Any]) -> None:
    """Raise ValueError unless these are probabilities that add up to at most 1."""
    if not all(_is_number(share) and share >= 0 for share in shares) or sum(shares) > 1 + ROUNDING:
        raise ValueError("its probabilities are none")


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= MAX_FLOAT


def find_no_text(values: Iterable[Any]) -> str:
    """Return why an input with these values cannot be judged: one is no text. Empty if all are."""
    for value in values:
        if not isinstance(value, str):
            return f"a judge reads texts, not {show(value)}"
    return ""


def find_rejection_reason(texts: Iterable[str]) -> str:
    """Return why a service rejects an input with these texts, or "" if it does not."""
    for text in texts:
        try:
            require_unicode(text)
        except InputRejected as error:
            return str(error)
    return ""
