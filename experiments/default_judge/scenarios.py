"""The scenario classifier that ships: terms, a linear SVM, calibration and threshold; its metrics.

Rows are labelled queries: the training file of the authors' scenario classifier, and Eval-P.
Everything is chosen within the training rows: strengths, calibration and threshold by
cross-validation, in which each fold has terms and rarities of its own. The validation rows measure.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_matrix
from sklearn.feature_selection import chi2
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.svm import LinearSVC
from tqdm import tqdm

from autoj_reward.config import Block
from autoj_reward.data.filters import measured_queries
from autoj_reward.data.labelled import JudgeData, data_path
from autoj_reward.errors import InputError
from autoj_reward.evaluate.statistics import Draws, Indices, Statistic, estimate_text, share
from autoj_reward.formats.criteria import OTHER_SCENARIO, Scenarios, load_scenarios
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField
from autoj_reward.io.files import text_digest
from autoj_reward.io.rows import Rows, read_rows
from autoj_reward.models.scenarios import (
    Calibration,
    Classified,
    Features,
    LinearClassifier,
    log_odds,
    opening_terms,
    softmax,
    whole_terms,
    words_of,
)

GIVEN_UP = ("rejecting", "peer_review")
"""Early scenarios that the authors removed (paper, Table 7)."""


class ScenarioRows(Block):
    """Files of labelled queries, relative to the folder of the judge's data or from ./.

    training: rows of `category`, `instruction`, `input`. held_out: share of each scenario in them
        that is kept for validation. exclude: files whose queries are not to be trained on.
    extra: further training rows, of `scenario` and `prompt`. measure: such rows to measure on;
        null: none.
    """

    training: str
    extra: str | None = None
    measure: str | None = None
    exclude: tuple[str, ...] = ()
    held_out: float = Field(0.2, gt=0, lt=1)


@dataclass(frozen=True, slots=True)
class Labelled:
    """A query and its scenario by its name in the registry."""

    line: int
    query: str
    scenario: str


@dataclass(frozen=True, slots=True)
class Split:
    """Labelled queries for training, for validation, and of a further set that is only measured."""

    training: tuple[Labelled, ...]
    validation: tuple[Labelled, ...]
    measured: tuple[Labelled, ...] = ()


def load_scenario_rows(rows: ScenarioRows, data: JudgeData) -> Split:
    """Read and split the rows; bad ones are named on standard error and left out."""
    known = load_scenarios()
    found = read_scenario_rows(data_path(data, rows.training), known)
    for row in found.bad:
        if "given up" not in row.reason:
            tqdm.write(f"left out {row}", file=sys.stderr)
    kept = without(found.rows, measured_queries(data_path(data, name) for name in rows.exclude))
    extra, measured = (
        read_scenario_rows(data_path(data, name), known).rows if name else ()
        for name in (rows.extra, rows.measure)
    )
    parts = split_rows(kept, rows.held_out)
    return Split((*parts.training, *extra), parts.validation, measured)


def read_scenario_rows(path: str, known: Scenarios) -> Rows[Labelled]:
    """Read rows of `category`, `instruction` and `input`, or of `scenario` and `prompt`.

    Rows of a scenario that is none are named by line and left out. Raises InputError if the file
    as a whole cannot be read.
    """

    def build(line: int, value: Any) -> Labelled:
        fields = check.own_fields(value)
        own = "instruction" in fields
        name = check.text(fields, "category" if own else "scenario", blank=False)
        query = check.text(fields, "instruction" if own else "prompt", blank=False)
        if own and fields.get("input"):
            query += " " + check.text(fields, "input")
        if name in GIVEN_UP:
            raise BadField("category", f"{name}: a scenario that was given up")
        if name not in known:
            raise BadField("category" if own else "scenario", f"no scenario {name!r}")
        return Labelled(line, query.strip(), known[name].name)

    found = read_rows(path, build, ())
    if not found.rows:
        raise InputError(f"{path}: no usable row; {len(found.bad)} left out")
    return found


def without(rows: Iterable[Labelled], measured: Collection[str]) -> tuple[Labelled, ...]:
    """Return the rows whose query neither is, begins with, nor begins a measuring query.

    White space aside; queries of less than 40 characters must be equal.
    """
    plain = {" ".join(query.split()) for query in measured}
    heads = {query[:40] for query in plain if len(query) >= 40}

    def meets(row: Labelled) -> bool:
        query = " ".join(row.query.split())
        if query in plain:
            return True
        if query[:40] not in heads:
            return False
        return any(query.startswith(m) or m.startswith(query) for m in plain if len(m) >= 40)

    return tuple(row for row in rows if not meets(row))


def split_rows(rows: Sequence[Labelled], share: float) -> Split:
    """Split off a share of each scenario for validation, drawn by the query's hash: at least one
    query, unless there is only one."""
    groups: dict[str, list[Labelled]] = defaultdict(list)
    for row in rows:
        groups[row.scenario].append(row)
    held: set[int] = set()
    for group in groups.values():
        drawn = sorted(group, key=lambda row: hashlib.sha256(row.query.encode()).hexdigest())
        held |= {
            row.line for row in drawn[: min(len(drawn) - 1, max(1, round(share * len(drawn))))]
        }
    return Split(
        tuple(row for row in rows if row.line not in held),
        tuple(row for row in rows if row.line in held),
    )


THRESHOLDS = tuple(step / 100 for step in range(61))
ABSENT = -10.0
"""Score of a scenario that a fold's training rows lack."""


BINS = 10


class ScenariosConfig(Block):
    """The classifier.

    max_terms: terms kept, those that depend most on the scenario (chi-squared). strengths: values
        of C to choose from, by cross-validation within the training rows. bootstrap, seed: of the
        95 % intervals; the seed is the SVM's too.
    """

    rows: ScenarioRows
    max_terms: int = Field(20000, ge=1)
    strengths: tuple[float, ...] = (0.3, 1.0, 3.0)
    folds: int = Field(5, ge=2)
    bootstrap: int = Field(1000, ge=1)
    seed: int = 0


def train_classifier(config: ScenariosConfig, data: JudgeData, folder: Path) -> str:
    """Fit the classifier, save it into the folder, and return its metrics in words."""
    rows, draws = load_scenario_rows(config.rows, data), Draws(config.bootstrap, config.seed)
    fitted = fit_classifier(rows.training, config)
    fitted.classifier.save(folder)
    told = [f"C {fitted.strength:g}, others below {fitted.classifier.others_below:g}"]
    for name, own in (("held out", rows.validation), ("measured besides", rows.measured)):
        if own:
            answers = fitted.classifier.classify([row.query for row in own])
            found = metrics([row.scenario for row in own], answers, draws)
            told.append(f"{name}, {len(own)} rows: " + ", ".join(f"{k} {found[k]}" for k in found))
    return "; ".join(told)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A classifier, and how its strength was chosen: macro-F1 of the out-of-fold answers by C."""

    classifier: LinearClassifier
    strength: float
    cross_validated: dict[float, float]


def fit_classifier(rows: Sequence[Labelled], config: ScenariosConfig) -> Fitted:
    """Fit a classifier to the rows."""
    truth = [row.scenario for row in rows]
    labels = tuple(sorted(set(truth)))
    known = np.array([labels.index(name) for name in truth])
    of_fold = folds(rows, config.folds)
    scores = {c: np.full((len(rows), len(labels)), ABSENT, np.float32) for c in config.strengths}
    for fold in tqdm(range(config.folds), desc="folds", disable=None):
        inside, outside = np.flatnonzero(of_fold != fold), np.flatnonzero(of_fold == fold)
        features = make_features([rows[i] for i in inside], config.max_terms)
        seen, unseen = (matrix(features, [rows[i] for i in at]) for at in (inside, outside))
        for c, found in scores.items():
            model = _svm(c, config.seed).fit(seen, known[inside])
            found[np.ix_(outside, model.classes_)] = model.decision_function(unseen)
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
    """Return the fold of each row; every scenario is spread over as many folds as it has rows."""
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
    """Return the rows' features: sparse, [rows, columns]."""
    found = [features.row(row.query) for row in rows]
    ends = np.cumsum([0, *(len(columns) for columns, _ in found)])
    columns = np.concatenate([columns for columns, _ in found])
    values = np.concatenate([values for _, values in found]).astype(np.float64)
    return csr_matrix((values, columns, ends), shape=(len(rows), len(features.terms)))


def calibrate(scores: NDArray[np.float32], known: NDArray[np.intp]) -> Calibration:
    """Fit the temperature with the highest likelihood of the known labels, then the logistic curve
    with the highest likelihood of the best label's being right."""

    def loss(log_temperature: float) -> float:
        chances = softmax(scores, float(np.exp(log_temperature)))
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
    """Return the lowest confidence limit with the highest macro-F1, answers below it being
    `others`."""
    best = [labels[k] for k in scores.argmax(axis=1)]
    everything = np.arange(len(truth))

    def reached(limit: float) -> float:
        said = [b if c >= limit else OTHER_SCENARIO for b, c in zip(best, confidence, strict=True)]
        return macro_f1(truth, said)(everything) or 0.0

    return max(THRESHOLDS, key=lambda limit: (reached(limit), -limit))


def _features(terms: Sequence[str], counts: Mapping[str, int], rows: int) -> Features:
    rarity = np.log((1 + rows) / (1 + np.array([counts[term] for term in terms]))) + 1
    return Features({term: k for k, term in enumerate(terms)}, rarity.astype(np.float32))


def _svm(strength: float, seed: int) -> LinearSVC:
    return LinearSVC(C=strength, class_weight="balanced", max_iter=20000, random_state=seed)


def macro_f1(truth: Sequence[str], said: Sequence[str]) -> Statistic:
    """Return the statistic macro F1: the unweighted mean over the scenarios of the true labels."""
    names = {name: k for k, name in enumerate(sorted({*truth, *said}))}
    a, b = (np.array([names[name] for name in side]) for side in (truth, said))

    def score(rows: Indices) -> float | None:
        present = np.unique(a[rows])
        if not present.size:
            return None
        return float(f1_score(a[rows], b[rows], labels=present, average="macro", zero_division=0))

    return score


def accuracy(truth: Sequence[str], said: Sequence[str]) -> Statistic:
    """Return the statistic accuracy: the share of rows whose scenario is right."""
    return share([a == b for a, b in zip(truth, said, strict=True)])


def metrics(truth: Sequence[str], said: Sequence[Classified], draws: Draws) -> dict[str, str]:
    """Accuracy and macro-F1 with 95 % bootstrap intervals, and the calibration of the most probable
    scenario, whatever the threshold makes of it."""
    named = [answer.scenario for answer in said]
    confidence = np.array([answer.confidence for answer in said])
    right = np.array([a == b.best for a, b in zip(truth, said, strict=True)], dtype=float)
    return {
        "accuracy": estimate_text(asdict(draws.over(accuracy(truth, named), len(truth)))),
        "macro-F1": estimate_text(asdict(draws.over(macro_f1(truth, named), len(truth)))),
        "calibration error": f"{calibration_error(right, confidence):.3f}",
        "mean confidence": f"{confidence.mean():.3f}",
        "most probable right": f"{right.mean():.3f}",
    }


def calibration_error(right: NDArray[np.float64], confidence: NDArray[np.float64]) -> float:
    """Expected calibration error over ten bins of equal width, 0..1."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [
        abs(float(right[bins == b].mean() - confidence[bins == b].mean())) * (bins == b).mean()
        for b in np.unique(bins)
    ]
    return float(sum(gaps))
