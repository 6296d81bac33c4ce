"""Responses of one query that say the same in nearly the same words, to be judged once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

RUN = 3
"""Words of a shingle."""
NEAR = 0.9
"""Least Jaccard similarity of two responses' shingles for the second to count as a copy."""
# Numbers keep their sign and inner marks, and symbols such as < are words; punctuation is not.
_WORD = re.compile(r"[-+]?\d+(?:[.,:/]\d+)*|\w+|[^\w\s.,;:!?'\"()\[\]{}*_`#~…–—-]")


def originals(responses: Sequence[str]) -> list[int]:
    """For each response the index of the first one that it copies, its own if it copies none.

    Exact copies have the same words after case, space and punctuation are dropped. Near copies
    share at least NEAR of their runs of three words (Jaccard, repeats counted), and have the same
    numbers in the same order and the same last word, since that is where answers differ that are
    otherwise alike.
    A response without a word is a copy only of the very same text. A copy is compared with
    originals alone, so likeness does not run along chains.
    """
    found: list[int] = []
    exact: dict[tuple[str, ...], int] = {}
    alike: dict[tuple[str, ...], list[tuple[int, Counter[tuple[str, ...]]]]] = {}
    for index, response in enumerate(responses):
        words = tuple(_WORD.findall(response.casefold()))
        own = exact.setdefault(words or (response, ""), index)
        if own == index and words:
            answer = (*(word for word in words if word[-1].isdigit()), words[-1])
            runs = Counter(words[n : n + RUN] for n in range(max(1, len(words) - RUN + 1)))
            rivals = alike.setdefault(answer, [])
            own = next((k for k, other in rivals if _jaccard(runs, other) >= NEAR), index)
            if own == index:
                rivals.append((index, runs))
            exact[words] = own
        found.append(own)
    return found


def _jaccard(a: Counter[tuple[str, ...]], b: Counter[tuple[str, ...]]) -> float:
    return (a & b).total() / (a | b).total()
