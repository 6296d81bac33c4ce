"""Near duplicates by MinHash over runs of words (datasketch)."""

from __future__ import annotations

import re
from typing import Any

from autoj_reward.errors import ConfigError

RUN = 3
PERMUTATIONS = 128


class NearDuplicates:
    """Texts seen so far; asks whether another is nearly one of them.

    threshold: Jaccard similarity of the sets of 3-word runs, 0..1, from which texts count as near
    duplicates; MinHash estimates it with a standard error of about 0.04 at 0.8.
    """

    def __init__(self, threshold: float) -> None:
        """Raises ConfigError where the package datasketch is missing."""
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError as error:
            raise ConfigError(
                "near_duplicate needs the package datasketch: install it, or set near_duplicate: "
                "null to compare exact texts only"
            ) from error
        self._threshold = threshold
        self._minhash = MinHash
        self._index: Any = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS)
        self._kept: list[Any] = []

    def add(self, text: str) -> None:
        """Remember a text."""
        sketch = self._sketch(text)
        self._index.insert(len(self._kept), sketch)
        self._kept.append(sketch)

    def near(self, text: str) -> bool:
        """Whether a text seen before is at least as similar as the threshold, by estimate."""
        sketch = self._sketch(text)
        found = self._index.query(sketch)
        return any(self._kept[k].jaccard(sketch) >= self._threshold for k in found)

    def _sketch(self, text: str) -> Any:
        sketch = self._minhash(num_perm=PERMUTATIONS)
        sketch.update_batch([run.encode() for run in word_runs(text)])
        return sketch


def word_runs(text: str) -> set[str]:
    """The text's runs of 3 words in lower case; of a shorter text, all its words as one."""
    words = re.findall(r"\w+", text.lower())
    last = max(1, len(words) - RUN + 1)
    return {" ".join(words[start : start + RUN]) for start in range(last)}
