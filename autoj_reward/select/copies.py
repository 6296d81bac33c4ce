"""Responses of one query that say the same in nearly the same words, to be judged once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

RUN = 3
"""Tokens of a shingle."""
NEAR = 0.9
"""Least Jaccard similarity of two responses' shingles for the second to count as a copy."""
# Numbers with their sign and inner marks, words, line breaks with the indentation that follows,
# and every other sign alone.
_TOKEN = re.compile(r"[-+]?(?:\d+(?:[.,:/]\d+)*|\.\d+)|\w+|\n[^\S\n]*|[^\w\s]")


def originals(responses: Sequence[str]) -> list[int]:
    """For each response the index of the first one that it copies, its own if it copies none.

    Exact copies are the same text but for white space around it. Near copies share at least NEAR
    of their runs of three tokens (Jaccard, repeats counted), and have everything that is no word,
    numbers, signs and line breaks, in the same order, and the same last word: that is where
    answers differ that are otherwise alike.
    A copy is compared with originals alone, so likeness does not run along chains.
    """
    found: list[int] = []
    exact: dict[str, int] = {}
    alike: dict[tuple[str, ...], list[tuple[int, Counter[tuple[str, ...]]]]] = {}
    for index, response in enumerate(responses):
        text = response.strip()
        own = exact.setdefault(text, index)
        words = tuple(_TOKEN.findall(text))
        last = next((word for word in reversed(words) if word.isalpha()), None)
        if own == index and last is not None:
            answer = (*(word for word in words if not word.isalpha()), last)
            runs = Counter(words[n : n + RUN] for n in range(max(1, len(words) - RUN + 1)))
            rivals = alike.setdefault(answer, [])
            own = next((k for k, other in rivals if _jaccard(runs, other) >= NEAR), index)
            if own == index:
                rivals.append((index, runs))
            exact[text] = own
        found.append(own)
    return found


def _jaccard(a: Counter[tuple[str, ...]], b: Counter[tuple[str, ...]]) -> float:
    return (a & b).total() / (a | b).total()
