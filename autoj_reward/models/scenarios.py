"""Scenario classifier of this package: a linear model on the terms of a query, in numpy.

The terms are words and pairs of words, once of the whole query and once of its opening, where most
queries state their task. The files (`weights.npz`, `vocabulary.json`) contain no code. Data,
training and quality are described in scenario_classifier/README.md.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoj_reward.errors import ModelError
from autoj_reward.formats.criteria import OTHER_SCENARIO

CLASSIFIER_FILES = Path(__file__).parent / "scenario_classifier"
"""Folder of the classifier's files."""
TERM = re.compile(r"\w+|[^\w\s]")
"""Pattern of a word or a punctuation mark."""
OPENING = 15
"""Number of words and punctuation marks in the opening."""
HEAD_CHARS, TAIL_CHARS = 4000, 2000
"""Characters read from the start and from the end of a longer query."""


@dataclass(frozen=True, slots=True)
class Features:
    """Terms that the classifier knows."""

    terms: dict[str, int]
    """Column of each term."""
    rarity: NDArray[np.float32]
    """Inverse document frequency, shape [terms]."""

    def row(self, query: str) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Return columns and values of a query's terms: (1 + log count) times inverse document
        frequency.

        The terms of the whole query and those of its opening are each scaled to length 1.
        """
        words = words_of(query)
        columns, values = [np.empty(0, np.intp)], [np.empty(0, np.float32)]
        for group in (Counter(whole_terms(words)), Counter(opening_terms(words))):
            known_terms = [(self.terms[term], n) for term, n in group.items() if term in self.terms]
            if known_terms:
                term_columns = np.array([column for column, _ in known_terms], np.intp)
                counts = np.array([n for _, n in known_terms], np.float32)
                weights = (1 + np.log(counts)) * self.rarity[term_columns]
                columns.append(term_columns)
                values.append(weights / np.linalg.norm(weights))
        return np.concatenate(columns), np.concatenate(values).astype(np.float32)


def words_of(query: str) -> list[str]:
    """Return words and punctuation marks in lower case.

    A very long query gives only its two ends.
    """
    text = query.lower()
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        text = text[:HEAD_CHARS] + " " + text[-TAIL_CHARS:]
    return TERM.findall(text)


def whole_terms(words: Sequence[str]) -> Iterator[str]:
    """Yield words and pairs of neighbouring words."""
    yield from words
    yield from _join_runs(words, 2)


def opening_terms(words: Sequence[str]) -> Iterator[str]:
    """Yield runs of one to three words in the opening, and the first one, two and three words.

    Prefixes distinguish them from the terms of the whole query.
    """
    head = words[:OPENING]
    for n in (1, 2, 3):
        yield from (f"^{run}" for run in _join_runs(head, n))
        yield "^^" + " ".join(head[:n])


def _join_runs(words: Sequence[str], n: int) -> Iterator[str]:
    return (" ".join(words[start : start + n]) for start in range(len(words) - n + 1))


@dataclass(frozen=True, slots=True)
class Classified:
    """Scenario of a query, with its probability."""

    scenario: str
    """`best`, or `others` if the confidence is too low."""
    confidence: float
    """Probability that `best` is right, 0..1."""
    best: str
    """Most probable scenario."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Curve from scores to the probability that the highest one is right.

    It is a softmax with a temperature, then a logistic curve on the log-odds of the largest
    probability.
    """

    temperature: float = 1.0
    """Divisor of the scores before the softmax."""
    slope: float = 1.0
    """Slope of the logistic curve."""
    offset: float = 0.0
    """Offset of the logistic curve."""

    def confidence(self, scores: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return a probability, 0..1, for each row of scores [queries, labels]; shape [queries]."""
        odds = self.slope * log_odds(scores, self.temperature) + self.offset
        return np.asarray(1 / (1 + np.exp(-odds)), np.float64)


@dataclass(frozen=True, slots=True)
class LinearClassifier:
    """Linear classifier of queries by scenario."""

    features: Features
    labels: tuple[str, ...]
    """Names of the scenarios."""
    weights: NDArray[np.float16]
    """Shape [terms, labels]."""
    bias: NDArray[np.float32]
    """Shape [labels]."""
    calibration: Calibration
    others_below: float = 0.0
    """Confidence below which the scenario is `others`, 0..1."""

    def scores(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """Return the linear scores, shape [queries, labels]."""
        scores = np.empty((len(queries), len(self.labels)), dtype=np.float32)
        for k, query in enumerate(queries):
            columns, values = self.features.row(query)
            scores[k] = values @ self.weights[columns].astype(np.float32) + self.bias
        return scores

    def classify(
        self, queries: Sequence[str], others_below: float | None = None
    ) -> list[Classified]:
        """Return each query's scenario. `others_below` replaces the classifier's own threshold."""
        limit = self.others_below if others_below is None else others_below
        scores = self.scores(queries)
        best_labels = [self.labels[k] for k in scores.argmax(axis=1)]
        confidences = self.calibration.confidence(scores).tolist()
        return [
            Classified(best if c >= limit else OTHER_SCENARIO, c, best)
            for best, c in zip(best_labels, confidences, strict=True)
        ]

    def save(self, folder: Path) -> None:
        """Write the classifier's two files into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {"rarity": self.features.rarity, "weights": self.weights, "bias": self.bias}
        with (folder / "weights.npz").open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        facts = {
            "labels": self.labels,
            "calibration": asdict(self.calibration),
            "others_below": self.others_below,
            "terms": list(self.features.terms),
        }
        text = json.dumps(facts, ensure_ascii=True, indent=0) + "\n"
        (folder / "vocabulary.json").write_text(text, encoding="ascii")

    @classmethod
    def load(cls, folder: Path) -> LinearClassifier:
        """Read the classifier's two files.

        Raises ModelError if they are missing or do not match.
        """
        try:
            facts = json.loads((folder / "vocabulary.json").read_text(encoding="ascii"))
            with np.load(folder / "weights.npz", allow_pickle=False) as archive:
                arrays = dict(archive)
            features = Features(
                {term: column for column, term in enumerate(facts["terms"])}, arrays["rarity"]
            )
            classifier = cls(
                features,
                tuple(facts["labels"]),
                arrays["weights"],
                arrays["bias"],
                Calibration(**facts["calibration"]),
                float(facts["others_below"]),
            )
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise ModelError(
                f"{folder}: no scenario classifier can be read there: {error}"
            ) from error
        expected = (len(features.terms), len(classifier.labels))
        if classifier.weights.shape != expected or classifier.bias.shape != expected[1:]:
            raise ModelError(
                f"{folder}: weights {classifier.weights.shape} where {expected} is needed"
            )
        return classifier


def softmax(scores: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    """Return the softmax of scores divided by the temperature, shape [queries, labels]."""
    scaled = scores.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def log_odds(scores: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    """Return the log-odds of each row's largest softmax probability, at most about 14."""
    best = np.clip(softmax(scores, temperature).max(axis=1), 1e-6, 1 - 1e-6)
    return np.asarray(np.log(best / (1 - best)))


@lru_cache
def shipped_classifier() -> LinearClassifier:
    """Return the classifier of this package, loaded once."""
    return LinearClassifier.load(CLASSIFIER_FILES)
