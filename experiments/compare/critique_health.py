"""Whether critiques are sound as text: their length, repetition, loops and copying. Pure.

Words are runs of letters and digits without case; a Chinese character is a word of its own.
Nothing here says whether a critique is right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

WORD = re.compile(r"[一-鿿]|[^\W_一-鿿]+")
LONGEST_CYCLE = 60
CYCLE_TIMES = 3
LEAST_LOOP = 12
COPIED_WORDS = 40
COPIED_SHARE = 0.5
LEAST_COPY = 8


@dataclass(frozen=True, slots=True)
class Health:
    """One critique.

    words: its length. hit_limit: it was cut off at the token limit.
    repetition: share of its word 4-grams that occurred before in it, 0..1; 0 below four words.
    loops: somewhere in it a unit of at most 60 words stands three times or more in a row, over
        12 words or more in all (the last time may be cut short if three are complete); or it hit
        the limit and more than half of its 8-grams occurred before, which shows longer cycles.
    copied: words of its longest run that stands in the prompt too.
    copies: copied is 40 or more, or 8 or more and at least half of the critique.
    """

    words: int
    hit_limit: bool
    repetition: float
    loops: bool
    copied: int
    copies: bool


def examine(critique: str, prompt: str, *, hit_limit: bool = False) -> Health:
    """Look at one critique beside its prompt: the template with query and responses filled in."""
    words = WORD.findall(critique.lower())
    own, given = _numbered(words, WORD.findall(prompt.lower()))
    copied = _longest_shared_run(own, given)
    return Health(
        words=len(words),
        hit_limit=hit_limit,
        repetition=_repeated(words, 4),
        loops=_cycles(own) or (hit_limit and _repeated(words, 8) > 0.5),
        copied=copied,
        copies=copied >= COPIED_WORDS
        or (copied >= LEAST_COPY and copied >= COPIED_SHARE * len(words)),
    )


def summarise(found: Sequence[Health]) -> dict[str, float | None]:
    """Return the number of critiques n, and over them the mean of each measure; None without any.

    words: a critique; repetition, loops, copies, hit_limit: 0..1.
    """
    measures = ("words", "repetition", "loops", "copies", "hit_limit")
    means = {name: fmean(getattr(h, name) for h in found) if found else None for name in measures}
    return {"n": len(found)} | means


def _numbered(*texts: list[str]) -> list[NDArray[np.intp]]:
    """Each text as numbers, equal ones for equal words."""
    known: dict[str, int] = {}
    return [np.array([known.setdefault(w, len(known)) for w in t], dtype=np.intp) for t in texts]


def _repeated(words: list[str], size: int) -> float:
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _cycles(words: NDArray[np.intp]) -> bool:
    """Whether a stretch of the words has a short period and holds it three times."""
    for period in range(1, min(LONGEST_CYCLE, len(words) // CYCLE_TIMES) + 1):
        stretch = max(CYCLE_TIMES * period, LEAST_LOOP)
        if _longest_true(words[period:] == words[:-period]) >= stretch - period:
            return True
    return False


def _longest_true(flags: NDArray[np.bool_]) -> int:
    breaks = np.flatnonzero(~flags)
    edges = np.concatenate(([-1], breaks, [len(flags)]))
    return int(np.diff(edges).max()) - 1


def _longest_shared_run(words: NDArray[np.intp], source: NDArray[np.intp]) -> int:
    """Length of the longest run of words that both hold, by dynamic programming."""
    best, ending = 0, np.zeros(len(source) + 1, dtype=np.intp)
    for word in words:
        ending[1:] = np.where(source == word, ending[:-1] + 1, 0)
        best = max(best, int(ending.max()))
    return best
