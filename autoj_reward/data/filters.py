"""Filters for preference rows before the teacher is queried. Each dropped row has a reason.

Two counts decide whether a text is English; no model is needed. At least 90 % of its letters must
be ASCII. Common words of another language in Latin script must not outnumber common English words.
Code and short texts without such words pass. The test is made for corpora and can misjudge single
short texts. MinHash over runs of words (datasketch) finds near duplicates.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from autoj_reward.data.preferences import Preference
from autoj_reward.errors import ConfigError
from autoj_reward.io.candidates import naming_layout, prompt_of_row
from autoj_reward.io.files import text_digest
from autoj_reward.io.layouts import PROMPT
from autoj_reward.io.reader import read_items
from autoj_reward.io.rows import read_all, require_clean
from autoj_reward.types import Verdict

ENGLISH_LETTERS = 0.9
"""Minimum share of ASCII letters among the letters of an English text."""
COMMON_WORDS = {
    "en": "the of and to in is that it for you was with on as are be this have from or not but "
    "what your can how will would about which do if they we my",
    "de": "der die das und ist nicht ein eine einen ich sie mit auf für dem den des von zu wie "
    "auch werden wird sich oder",
    "es": "el los las una por para con del que como más pero sobre este está son cómo qué y su",
    "fr": "le les des et est une pour dans que qui pas sur avec vous je ce sont plus au du nous",
    "it": "il che per una sono con non più gli della del come anche nel questo alla è dei e",
    "nl": "de het een van en niet dat voor met zijn op aan ook wordt hoe ik naar deze",
    "pl": "nie jest się na że jak do w z to przez oraz czy dla są",
    "pt": "o os uma para com não que mais como dos das por são você em um é e seu",
}
WORD_SETS = {language: frozenset(text.split()) for language, text in COMMON_WORDS.items()}
RUN_WORDS = 3
"""Length of a run, in words."""
PERMUTATIONS = 128
"""Number of permutations of a MinHash sketch."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Preference row that the filters left out, with the reason."""

    row: Preference
    reason: str
    """Such as `duplicate`; counted under this name in the statistics."""


@dataclass(frozen=True, slots=True)
class FilteredRows:
    """Result of the filters: the rows that passed, in input order, and the rows left out."""

    rows: tuple[Preference, ...]
    dropped: tuple[Dropped, ...]


def filter_rows(
    rows: Iterable[Preference], measured: Sequence[str], near_duplicate: float | None
) -> FilteredRows:
    """Drop unusable rows: not English, empty, contradictory, duplicate, or used for evaluation.

    measured: evaluation queries; rows with the same query or a near duplicate are dropped.
    near_duplicate: Jaccard similarity from which two texts count as the same. With None only equal
    texts do (case and white space are ignored). Raises ConfigError if near duplicates are asked for
    and datasketch is not installed.
    """
    kept_rows: list[Preference] = []
    dropped: list[Dropped] = []
    rows = list(rows)
    contradicted = _find_contradicted(rows)
    kept_keys: set[str] = set()
    exact = {normalize(query) for query in measured}
    near_row = NearDuplicates(near_duplicate) if near_duplicate else None
    near_query = NearDuplicates(near_duplicate) if near_duplicate else None
    if near_query:
        for query in sorted(exact):
            near_query.add(query)
    for row in tqdm(rows, desc="filters", disable=None):
        key, text = _compute_key(row), "\n".join((row.query, *sorted(row.responses)))
        if row.english is False or (row.english is None and not is_english(text)):
            reason = "not_english"
        elif not all(response.strip() for response in row.responses):
            reason = "empty_response"
        elif len(set(map(normalize, row.responses))) < len(row.responses):
            reason = "equal_responses"
        elif key in contradicted:
            reason = "labels_contradict"
        elif key in kept_keys:
            reason = "duplicate"
        elif normalize(row.query) in exact:
            reason = "measured"
        elif near_query and near_query.near(row.query):
            reason = "nearly_measured"
        elif near_row and near_row.near(text):
            reason = "near_duplicate"
        else:
            kept_rows.append(row)
            kept_keys.add(key)
            if near_row:
                near_row.add(text)
            continue
        dropped.append(Dropped(row, reason))
    return FilteredRows(tuple(kept_rows), tuple(dropped))


def measured_queries(paths: Iterable[str]) -> list[str]:
    """Read the queries of evaluation files, of any layout.

    Raises InputError with the rows that have no query: an evaluation file must be read completely.
    """
    queries: list[str] = []
    for path in paths:
        items = read_items(path, PROMPT)
        rows = read_all(items.mapped(naming_layout(lambda item: prompt_of_row(item).text)))
        require_clean(rows)
        queries += rows.rows
    return queries


def _find_contradicted(rows: Iterable[Preference]) -> set[str]:
    """Return the keys of pairs that occur several times with different labels."""
    labels: dict[str, set[Verdict]] = defaultdict(set)
    for row in rows:
        if row.label is not None:
            in_order = normalize(row.responses[0]) <= normalize(row.responses[1])
            labels[_compute_key(row)].add(row.label if in_order else row.label.swapped())
    return {key for key, pair_labels in labels.items() if len(pair_labels) > 1}


def _compute_key(row: Preference) -> str:
    """Return a digest of a row that is the same in either order of its responses."""
    text = "\0".join((normalize(row.query), *sorted(map(normalize, row.responses))))
    return text_digest(text).hex()


def normalize(text: str) -> str:
    """Return a text in one case and with single blanks, to compare texts by."""
    return " ".join(text.casefold().split())


def is_english(text: str) -> bool:
    """Return whether a text is English. Code and text without letters count as English."""
    letters = [c for c in text if c.isalpha()]
    if not letters:
        return True
    if sum(c.isascii() for c in letters) < ENGLISH_LETTERS * len(letters):
        return False
    words = re.findall(r"[^\W\d_]+", text.lower())
    counts = {
        language: sum(word in common for word in words) for language, common in WORD_SETS.items()
    }
    english = counts.pop("en")
    return english >= max(counts.values())


class NearDuplicates:
    """Index of the texts seen so far, in which near duplicates of another text are found."""

    def __init__(self, threshold: float) -> None:
        """threshold: Jaccard similarity of the sets of 3-word runs from which texts count as near
        duplicates, 0..1; MinHash estimates it with a standard error of about 0.04 at 0.8.

        Raises ConfigError where the package datasketch is missing.
        """
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
        self._sketches: list[Any] = []

    def add(self, text: str) -> None:
        """Add a text to the index."""
        sketch = self._make_sketch(text)
        self._index.insert(len(self._sketches), sketch)
        self._sketches.append(sketch)

    def near(self, text: str) -> bool:
        """Return whether an indexed text has at least the threshold's similarity to this one."""
        sketch = self._make_sketch(text)
        neighbours = self._index.query(sketch)
        return any(self._sketches[k].jaccard(sketch) >= self._threshold for k in neighbours)

    def _make_sketch(self, text: str) -> Any:
        sketch = self._minhash(num_perm=PERMUTATIONS)
        sketch.update_batch([run.encode() for run in word_runs(text)])
        return sketch


def word_runs(text: str) -> set[str]:
    """Return all runs of 3 words in lower case. A shorter text is one run of all its words."""
    words = re.findall(r"\w+", text.lower())
    last = max(1, len(words) - RUN_WORDS + 1)
    return {" ".join(words[start : start + RUN_WORDS]) for start in range(last)}
