"""Fitting the small classifier: terms, a linear SVM, calibration and threshold.

Everything is chosen within the training rows: strengths, calibration and threshold by
cross-validation, in which each fold has terms and rarities of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_matrix
from sklearn.feature_selection import chi2
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from tqdm import tqdm

from autoj_reward.io.encoding import text_digest
from autoj_reward.scenarios.features import Features, opening_terms, whole_terms, words_of
from autoj_reward.scenarios.linear import (
    Calibration,
    LinearClassifier,
    log_odds,
    probabilities,
)
from autoj_reward.scenarios.registry import OTHERS
from experiments.scenario_classifier.config import ScenarioClassifierConfig
from experiments.scenario_classifier.data import Labelled
from experiments.scenario_classifier.figures import macro_f1

THRESHOLDS = tuple(step / 100 for step in range(61))
ABSENT = -10.0
"""Score of a scenario that a fold's training rows lack."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A classifier, and how its strength was chosen: macro-F1 of the out-of-fold answers by C."""

    classifier: LinearClassifier
    strength: float
    cross_validated: dict[float, float]


def fit(rows: Sequence[Labelled], config: ScenarioClassifierConfig) -> Fitted:
    """A classifier of these rows."""
    truth = [row.scenario for row in rows]
    labels = tuple(sorted(set(truth)))
    known = np.array([labels.index(name) for name in truth])
    of_fold = folds(rows, config.folds)
    scores = {c: np.full((len(rows), len(labels)), ABSENT, np.float32) for c in config.strengths}
    for fold in tqdm(range(config.folds), desc="folds", disable=None):
        inside, outside = np.flatnonzero(of_fold != fold), np.flatnonzero(of_fold == fold)
        features = make_features([rows[i] for i in inside], config.max_terms)
        train, test = (matrix(features, [rows[i] for i in at]) for at in (inside, outside))
        for c, found in scores.items():
            model = _svm(c, config.seed).fit(train, known[inside])
            found[np.ix_(outside, model.classes_)] = model.decision_function(test)
    everything = np.arange(len(rows))
    reached = {
        c: macro_f1(truth, [labels[k] for k in found.argmax(axis=1)])(everything) or 0.0
        for c, found in scores.items()
    }
    best = max(reached, key=lambda c: (reached[c], -c))
    calibration = calibrate(scores[best], known)
    features = make_features(rows, config.max_terms)
    model = _svm(best, config.seed).fit(matrix(features, rows), known)
    classifier = LinearClassifier(
        features,
        labels,
        model.coef_.T.astype(np.float16),
        model.intercept_.astype(np.float32),
        calibration,
        threshold(scores[best], calibration.confidence(scores[best]), truth, labels),
    )
    return Fitted(classifier, best, reached)


def folds(rows: Sequence[Labelled], count: int) -> NDArray[np.intp]:
    """The fold of each row; every scenario is spread over as many folds as it has rows."""
    groups: dict[str, list[int]] = defaultdict(list)
    for k, row in enumerate(rows):
        groups[row.scenario].append(k)
    found = np.empty(len(rows), dtype=np.intp)
    for start, name in enumerate(sorted(groups)):
        drawn = sorted(groups[name], key=lambda k: text_digest(rows[k].query))
        for place, k in enumerate(drawn):
            found[k] = (start + place) % count
    return found


def make_features(rows: Sequence[Labelled], max_terms: int) -> Features:
    """Terms of two rows or more, those that tell scenarios apart best, with their rarities."""
    spelled = [words_of(row.query) for row in rows]
    counts = Counter(
        term for words in spelled for term in {*whole_terms(words), *opening_terms(words)}
    )
    terms = sorted(term for term, n in counts.items() if n >= 2)
    if len(terms) > max_terms:
        seen = matrix(_features(terms, counts, len(rows)), rows)
        told = np.nan_to_num(chi2(seen, [row.scenario for row in rows])[0])
        terms = [terms[k] for k in np.sort(np.argsort(-told, kind="stable")[:max_terms])]
    return _features(terms, counts, len(rows))


def matrix(features: Features, rows: Sequence[Labelled]) -> Any:
    """The rows' features: sparse, [rows, columns]."""
    found = [features.row(row.query) for row in rows]
    ends = np.cumsum([0, *(len(columns) for columns, _ in found)])
    columns = np.concatenate([columns for columns, _ in found])
    values = np.concatenate([values for _, values in found]).astype(np.float64)
    return csr_matrix((values, columns, ends), shape=(len(rows), len(features.terms)))


def calibrate(scores: NDArray[np.float32], known: NDArray[np.intp]) -> Calibration:
    """The temperature with the highest likelihood of the known labels, then the logistic curve with
    the highest likelihood of the best label's being right."""

    def loss(log_temperature: float) -> float:
        chances = probabilities(scores, float(np.exp(log_temperature)))
        return -float(np.log(chances[np.arange(len(known)), known] + 1e-12).mean())

    temperature = float(np.exp(minimize_scalar(loss, bounds=(-5, 3), method="bounded").x))
    right = scores.argmax(axis=1) == known
    if right.all() or not right.any():
        return Calibration(temperature)
    curve = LogisticRegression(C=1e4).fit(log_odds(scores, temperature)[:, None], right)
    return Calibration(temperature, float(curve.coef_[0, 0]), float(curve.intercept_[0]))


def threshold(
    scores: NDArray[np.float32],
    confidence: NDArray[np.float64],
    truth: Sequence[str],
    labels: Sequence[str],
) -> float:
    """The lowest confidence limit with the highest macro-F1, answers below it being `others`."""
    best = [labels[k] for k in scores.argmax(axis=1)]
    everything = np.arange(len(truth))

    def reached(limit: float) -> float:
        said = [b if c >= limit else OTHERS for b, c in zip(best, confidence, strict=True)]
        return macro_f1(truth, said)(everything) or 0.0

    return max(THRESHOLDS, key=lambda limit: (reached(limit), -limit))


def _features(terms: Sequence[str], counts: Mapping[str, int], rows: int) -> Features:
    rarity = np.log((1 + rows) / (1 + np.array([counts[term] for term in terms]))) + 1
    return Features({term: k for k, term in enumerate(terms)}, rarity.astype(np.float32))


def _svm(strength: float, seed: int) -> LinearSVC:
    return LinearSVC(C=strength, class_weight="balanced", max_iter=20000, random_state=seed)
