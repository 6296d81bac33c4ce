"""Health of critiques as text: length, repetition, loops and copying. Pure functions.

A word is a run of letters and digits, in any case; each Chinese character is a word. Nothing here
says whether a critique is right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

WORD = re.compile(r"[一-鿿]|[^\W_一-鿿]+")
"""Pattern of a word."""
LONGEST_CYCLE = 60
"""Longest repeated unit that is searched for, in words."""
CYCLE_TIMES = 3
"""Repetitions in a row that make a loop."""
LEAST_LOOP = 12
"""Minimum length of a loop in words."""
COPIED_WORDS = 40
"""Length of a run from the prompt, in words, that always counts as copying."""
COPIED_SHARE = 0.5
"""Share of the critique from which a shorter run counts as copying."""
LEAST_COPY = 8
"""Minimum length of such a run in words."""


@dataclass(frozen=True, slots=True)
class Health:
    """Measures of one critique."""

    words: int
    """Length in words."""
    hit_limit: bool
    """Whether it was cut off at the token limit."""
    repetition: float
    """Share of its word 4-grams that occurred before in it, 0..1; 0 below four words."""
    loops: bool
    """Whether it repeats itself in a loop.

    A loop is a unit of at most 60 words that stands three times or more in a row, over 12 words or
    more. After three complete times the last one may be cut short. A critique that hit the limit
    also counts if more than half of its 8-grams occurred before: that shows longer cycles.
    """
    copied: int
    """Length in words of its longest run that also stands in the prompt."""
    copies: bool
    """Whether `copied` is 40 or more, or 8 or more and at least half of the critique."""


def examine(critique: str, prompt: str, *, hit_limit: bool = False) -> Health:
    """Measure one critique. `prompt` is the template with query and responses filled in."""
    words = WORD.findall(critique.lower())
    critique_ids, prompt_ids = _number_words(words, WORD.findall(prompt.lower()))
    copied = _measure_shared_run(critique_ids, prompt_ids)
    return Health(
        words=len(words),
        hit_limit=hit_limit,
        repetition=_measure_repetition(words, 4),
        loops=_has_cycle(critique_ids) or (hit_limit and _measure_repetition(words, 8) > 0.5),
        copied=copied,
        copies=copied >= COPIED_WORDS
        or (copied >= LEAST_COPY and copied >= COPIED_SHARE * len(words)),
    )


def summarise(measurements: Sequence[Health]) -> dict[str, float | None]:
    """Return the number of critiques n, and the mean of each measure; None without critiques.

    The mean length is in words, the other means are shares, 0..1.
    """
    measures = ("words", "repetition", "loops", "copies", "hit_limit")
    means = {
        name: fmean(getattr(h, name) for h in measurements) if measurements else None
        for name in measures
    }
    return {"n": len(measurements)} | means


def _number_words(*texts: list[str]) -> list[NDArray[np.intp]]:
    """Return each text as an array of numbers, equal for equal words."""
    ids: dict[str, int] = {}
    return [np.array([ids.setdefault(w, len(ids)) for w in t], dtype=np.intp) for t in texts]


def _measure_repetition(words: list[str], size: int) -> float:
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _has_cycle(words: NDArray[np.intp]) -> bool:
    """Return whether the words contain a loop with a short period."""
    for period in range(1, min(LONGEST_CYCLE, len(words) // CYCLE_TIMES) + 1):
        stretch = max(CYCLE_TIMES * period, LEAST_LOOP)
        if _measure_longest_true(words[period:] == words[:-period]) >= stretch - period:
            return True
    return False


def _measure_longest_true(flags: NDArray[np.bool_]) -> int:
    breaks = np.flatnonzero(~flags)
    edges = np.concatenate(([-1], breaks, [len(flags)]))
    return int(np.diff(edges).max()) - 1


def _measure_shared_run(words: NDArray[np.intp], source: NDArray[np.intp]) -> int:
    """Return the length of the longest run of words that both contain, by dynamic programming."""
    best, ending = 0, np.zeros(len(source) + 1, dtype=np.intp)
    for word in words:
        ending[1:] = np.where(source == word, ending[:-1] + 1, 0)
        best = max(best, int(ending.max()))
    return best
