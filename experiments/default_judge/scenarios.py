"""Training of the scenario classifier: terms, linear SVM, calibration and threshold, and metrics.

The rows are labelled queries: the training file of the authors' scenario classifier, and Eval-P.
SVM strength, calibration and threshold are chosen by cross-validation on the training rows. Each
fold has its own terms and inverse document frequencies. Metrics come from the validation rows.
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
from autoj_reward.data.labelled import DataFile, JudgeData, data_file, data_path
from autoj_reward.errors import InputError
from autoj_reward.evaluate.agreement import calibration_bins, calibration_error
from autoj_reward.evaluate.statistics import Draws, Indices, Statistic, estimate_text, share
from autoj_reward.formats.criteria import OTHER_SCENARIO, Scenarios, load_scenarios
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField
from autoj_reward.io.files import text_digest
from autoj_reward.io.rows import Rows, Stream, read_all
from autoj_reward.io.splits import RowSplit
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
    """Files of labelled queries.

    Paths are relative to the folder of the judge's data, or begin with ./.
    """

    training: str
    """Rows of `category`, `instruction` and `input`."""
    extra: str | None = None
    """More training rows, of `scenario` and `prompt`."""
    measure: str | DataFile | None = None
    """Rows of `scenario` and `prompt` for a second measurement. null for none."""
    exclude: tuple[str, ...] = ()
    """Files whose queries must not be trained on."""
    held_out: float = Field(0.2, gt=0, lt=1)
    """Share of each scenario in `training` that is kept for validation."""


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """Query with the name of its scenario."""

    line: int
    query: str
    scenario: str


@dataclass(frozen=True, slots=True)
class Split:
    """Labelled queries for training and validation."""

    training: tuple[LabelledQuery, ...]
    validation: tuple[LabelledQuery, ...]
    measured: tuple[LabelledQuery, ...] = ()
    """Further queries that are only measured on."""


def load_scenario_rows(rows: ScenarioRows, data: JudgeData) -> Split:
    """Read and split the rows. Bad ones are left out and named on standard error."""
    scenarios = load_scenarios()
    training = read_scenario_rows(data_path(data, rows.training), scenarios)
    for row in training.bad:
        if "given up" not in row.reason:
            tqdm.write(f"left out {row}", file=sys.stderr)
    trainable = drop_measured(
        training.rows, measured_queries(data_path(data, name) for name in rows.exclude)
    )
    extra: tuple[LabelledQuery, ...] = ()
    if rows.extra is not None:
        extra = read_scenario_rows(data_path(data, rows.extra), scenarios).rows
    measured_rows: tuple[LabelledQuery, ...] = ()
    if rows.measure is not None:
        file = data_file(rows.measure)
        path = data_path(data, file.path)
        measured_rows = read_scenario_rows(path, scenarios, file.split).rows
    parts = split_rows(trainable, rows.held_out)
    return Split((*parts.training, *extra), parts.validation, measured_rows)


def read_scenario_rows(
    path: str, scenarios: Scenarios, split: RowSplit | None = None
) -> Rows[LabelledQuery]:
    """Read rows of `category`, `instruction` and `input`, or of `scenario` and `prompt`.

    Rows with an unknown scenario are left out and named by line. Raises InputError if the whole
    file cannot be read or has no usable row.
    """

    def build(line: int, value: Any) -> LabelledQuery:
        fields = check.own_fields(value)
        is_instruction = "instruction" in fields
        name = check.text(fields, "category" if is_instruction else "scenario", blank=False)
        query = check.text(fields, "instruction" if is_instruction else "prompt", blank=False)
        if is_instruction and fields.get("input"):
            query += " " + check.text(fields, "input")
        if name in GIVEN_UP:
            raise BadField("category", f"{name}: a scenario that was given up")
        if name not in scenarios:
            raise BadField("category" if is_instruction else "scenario", f"no scenario {name!r}")
        return LabelledQuery(line, query.strip(), scenarios[name].name)

    rows = read_all(Stream(path, build).within(split))
    if not rows.rows:
        raise InputError(f"{path}: no usable row; {len(rows.bad)} left out")
    return rows


def drop_measured(
    rows: Iterable[LabelledQuery], barred_queries: Collection[str]
) -> tuple[LabelledQuery, ...]:
    """Return the rows whose query does not match a query that is measured on.

    A match is an equal query, or one that begins with the other. White space is ignored. Queries
    shorter than 40 characters match only if they are equal.
    """
    plain = {" ".join(query.split()) for query in barred_queries}
    heads = {query[:40] for query in plain if len(query) >= 40}

    def matches_measured(row: LabelledQuery) -> bool:
        query = " ".join(row.query.split())
        if query in plain:
            return True
        if query[:40] not in heads:
            return False
        return any(query.startswith(m) or m.startswith(query) for m in plain if len(m) >= 40)

    return tuple(row for row in rows if not matches_measured(row))


def split_rows(rows: Sequence[LabelledQuery], share: float) -> Split:
    """Hold out a share of each scenario for validation, drawn by the query's hash.

    At least one query of each scenario is held out, unless it has only one.
    """
    groups: dict[str, list[LabelledQuery]] = defaultdict(list)
    for row in rows:
        groups[row.scenario].append(row)
    held_lines: set[int] = set()
    for group in groups.values():
        ordered_rows = sorted(group, key=lambda row: hashlib.sha256(row.query.encode()).hexdigest())
        held_lines |= {
            row.line
            for row in ordered_rows[
                : min(len(ordered_rows) - 1, max(1, round(share * len(ordered_rows))))
            ]
        }
    return Split(
        tuple(row for row in rows if row.line not in held_lines),
        tuple(row for row in rows if row.line in held_lines),
    )


THRESHOLDS = tuple(step / 100 for step in range(61))
"""Confidence thresholds to choose from."""
ABSENT = -10.0
"""Score of a scenario that is missing from a fold's training rows."""


class ScenariosConfig(Block):
    """Settings of the scenario classifier."""

    rows: ScenarioRows
    """Files of labelled queries."""
    max_terms: int = Field(20000, ge=1)
    """Number of terms kept: those that depend most on the scenario (chi-squared)."""
    strengths: tuple[float, ...] = (0.3, 1.0, 3.0)
    """Values of the SVM's C to choose from."""
    folds: int = Field(5, ge=2)
    """Number of folds of the cross-validation within the training rows."""
    bootstrap: int = Field(1000, ge=1)
    """Number of resamples for each 95 % interval."""
    seed: int = 0
    """Seed of the resamples and of the SVM."""


def train_classifier(config: ScenariosConfig, data: JudgeData, folder: Path) -> str:
    """Fit the classifier, save it to the folder, and return its metrics as text."""
    rows, draws = load_scenario_rows(config.rows, data), Draws(config.bootstrap, config.seed)
    fitted = fit_classifier(rows.training, config)
    fitted.classifier.save(folder)
    summary = [f"C {fitted.strength:g}, others below {fitted.classifier.others_below:g}"]
    for name, part in (("held out", rows.validation), ("measured besides", rows.measured)):
        if part:
            answers = fitted.classifier.classify([row.query for row in part])
            figures = compute_metrics([row.scenario for row in part], answers, draws)
            summary.append(
                f"{name}, {len(part)} rows: " + ", ".join(f"{k} {figures[k]}" for k in figures)
            )
    return "; ".join(summary)


@dataclass(frozen=True, slots=True)
class FittedClassifier:
    """Classifier with the choice of its strength."""

    classifier: LinearClassifier
    strength: float
    cross_validated: dict[float, float]
    """Macro-F1 of the out-of-fold answers by C."""


def fit_classifier(rows: Sequence[LabelledQuery], config: ScenariosConfig) -> FittedClassifier:
    """Fit a classifier; strength, calibration and threshold come from cross-validation."""
    truth = [row.scenario for row in rows]
    labels = tuple(sorted(set(truth)))
    label_ids = np.array([labels.index(name) for name in truth])
    fold_of_row = assign_folds(rows, config.folds)
    scores = {c: np.full((len(rows), len(labels)), ABSENT, np.float32) for c in config.strengths}
    for fold in tqdm(range(config.folds), desc="folds", disable=None):
        inside, outside = np.flatnonzero(fold_of_row != fold), np.flatnonzero(fold_of_row == fold)
        features = make_features([rows[i] for i in inside], config.max_terms)
        inside_matrix, outside_matrix = (
            make_matrix(features, [rows[i] for i in at]) for at in (inside, outside)
        )
        for c, fold_scores in scores.items():
            model = _make_svm(c, config.seed).fit(inside_matrix, label_ids[inside])
            fold_scores[np.ix_(outside, model.classes_)] = model.decision_function(outside_matrix)
    everything = np.arange(len(rows))
    f1_of_strength = {
        c: macro_f1(truth, [labels[k] for k in fold_scores.argmax(axis=1)])(everything) or 0.0
        for c, fold_scores in scores.items()
    }
    best = max(f1_of_strength, key=lambda c: (f1_of_strength[c], -c))
    calibration = calibrate(scores[best], label_ids)
    features = make_features(rows, config.max_terms)
    model = _make_svm(best, config.seed).fit(make_matrix(features, rows), label_ids)
    classifier = LinearClassifier(
        features,
        labels,
        model.coef_.T.astype(np.float16),
        model.intercept_.astype(np.float32),
        calibration,
        choose_threshold(scores[best], calibration.confidence(scores[best]), truth, labels),
    )
    return FittedClassifier(classifier, best, f1_of_strength)


def assign_folds(rows: Sequence[LabelledQuery], count: int) -> NDArray[np.intp]:
    """Return the fold of each row. The rows of a scenario are spread evenly over the folds."""
    groups: dict[str, list[int]] = defaultdict(list)
    for k, row in enumerate(rows):
        groups[row.scenario].append(k)
    fold_of_row = np.empty(len(rows), dtype=np.intp)
    for start, name in enumerate(sorted(groups)):
        ordered_indices = sorted(groups[name], key=lambda k: text_digest(rows[k].query))
        for place, k in enumerate(ordered_indices):
            fold_of_row[k] = (start + place) % count
    return fold_of_row


def make_features(rows: Sequence[LabelledQuery], max_terms: int) -> Features:
    """Return the terms in two or more rows that best separate the scenarios, with rarities."""
    word_lists = [words_of(row.query) for row in rows]
    counts = Counter(
        term for words in word_lists for term in {*whole_terms(words), *opening_terms(words)}
    )
    terms = sorted(term for term, n in counts.items() if n >= 2)
    if len(terms) > max_terms:
        term_matrix = make_matrix(_weigh_terms(terms, counts, len(rows)), rows)
        dependence = np.nan_to_num(chi2(term_matrix, [row.scenario for row in rows])[0])
        terms = [terms[k] for k in np.sort(np.argsort(-dependence, kind="stable")[:max_terms])]
    return _weigh_terms(terms, counts, len(rows))


def make_matrix(features: Features, rows: Sequence[LabelledQuery]) -> Any:
    """Return the rows' features as a sparse matrix, shape [rows, terms]."""
    feature_rows = [features.row(row.query) for row in rows]
    ends = np.cumsum([0, *(len(columns) for columns, _ in feature_rows)])
    columns = np.concatenate([columns for columns, _ in feature_rows])
    values = np.concatenate([values for _, values in feature_rows]).astype(np.float64)
    return csr_matrix((values, columns, ends), shape=(len(rows), len(features.terms)))


def calibrate(scores: NDArray[np.float32], label_ids: NDArray[np.intp]) -> Calibration:
    """Fit a temperature and a logistic curve by maximum likelihood.

    The temperature maximises the likelihood of the known labels, the curve that of the best label
    being right.
    """

    def loss(log_temperature: float) -> float:
        chances = softmax(scores, float(np.exp(log_temperature)))
        return -float(np.log(chances[np.arange(len(label_ids)), label_ids] + 1e-12).mean())

    temperature = float(np.exp(minimize_scalar(loss, bounds=(-5, 3), method="bounded").x))
    is_right = scores.argmax(axis=1) == label_ids
    if is_right.all() or not is_right.any():
        return Calibration(temperature)
    curve = LogisticRegression(C=1e4).fit(log_odds(scores, temperature)[:, None], is_right)
    return Calibration(temperature, float(curve.coef_[0, 0]), float(curve.intercept_[0]))


def choose_threshold(
    scores: NDArray[np.float32],
    confidence: NDArray[np.float64],
    truth: Sequence[str],
    labels: Sequence[str],
) -> float:
    """Return the confidence threshold with the highest macro-F1; the lowest one if several tie.

    Answers below it become `others`.
    """
    best = [labels[k] for k in scores.argmax(axis=1)]
    everything = np.arange(len(truth))

    def measure_limit(limit: float) -> float:
        answers = [
            b if c >= limit else OTHER_SCENARIO for b, c in zip(best, confidence, strict=True)
        ]
        return macro_f1(truth, answers)(everything) or 0.0

    return max(THRESHOLDS, key=lambda limit: (measure_limit(limit), -limit))


def _weigh_terms(terms: Sequence[str], counts: Mapping[str, int], rows: int) -> Features:
    rarity = np.log((1 + rows) / (1 + np.array([counts[term] for term in terms]))) + 1
    return Features({term: k for k, term in enumerate(terms)}, rarity.astype(np.float32))


def _make_svm(strength: float, seed: int) -> LinearSVC:
    return LinearSVC(C=strength, class_weight="balanced", max_iter=20000, random_state=seed)


def macro_f1(truth: Sequence[str], answers: Sequence[str]) -> Statistic:
    """Return the macro-F1 statistic: the mean of F1 over the scenarios of the true labels."""
    names = {name: k for k, name in enumerate(sorted({*truth, *answers}))}
    a, b = (np.array([names[name] for name in side]) for side in (truth, answers))

    def score(rows: Indices) -> float | None:
        present = np.unique(a[rows])
        if not present.size:
            return None
        return float(f1_score(a[rows], b[rows], labels=present, average="macro", zero_division=0))

    return score


def accuracy(truth: Sequence[str], answers: Sequence[str]) -> Statistic:
    """Return the accuracy statistic: the share of rows with the right scenario."""
    return share([a == b for a, b in zip(truth, answers, strict=True)])


def compute_metrics(
    truth: Sequence[str], answers: Sequence[Classified], draws: Draws
) -> dict[str, str]:
    """Return accuracy and macro-F1 with 95 % bootstrap intervals, and calibration figures.

    Calibration is that of the most probable scenario, before the threshold is applied.
    """
    scenarios = [answer.scenario for answer in answers]
    confidence = np.array([answer.confidence for answer in answers])
    is_right = np.array([a == b.best for a, b in zip(truth, answers, strict=True)], dtype=float)
    return {
        "accuracy": estimate_text(asdict(draws.over(accuracy(truth, scenarios), len(truth)))),
        "macro-F1": estimate_text(asdict(draws.over(macro_f1(truth, scenarios), len(truth)))),
        "calibration error": f"{calibration_error(calibration_bins(confidence, is_right)):.3f}",
        "mean confidence": f"{confidence.mean():.3f}",
        "most probable right": f"{is_right.mean():.3f}",
    }
