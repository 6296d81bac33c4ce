"""Calibration of a judge on labelled rows: `autoj calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoj_reward.check.monotone import (
    LEAST_ISOTONIC,
    fit_knots,
    predict_held_out,
    root_mean_square,
)
from autoj_reward.check.rows import LabelledGroup, read_labelled_groups
from autoj_reward.check.run import load_checked, resolve_checked
from autoj_reward.config import View
from autoj_reward.errors import InputError
from autoj_reward.evaluate.ask import rate_each
from autoj_reward.evaluate.results import path_beside, write_result
from autoj_reward.evaluate.statistics import Array, Draws, ResultFields, Scores, estimate_text
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart, to_json
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.types import Candidate

LEAST_LABELS, LEAST_QUERIES = 30, 10
"""Smallest number of labelled responses, and of their queries, that a map is fitted to."""
ERRORS = {
    "raw": "the judge's number taken as the label",
    "calibrated": "the mapped number",
    "mean_label": "the mean of the labels for every response",
}
"""Errors in a result, with their text in print."""


@dataclass(frozen=True, slots=True)
class LabelledNumbers:
    """Numbers of a judge with the labels of the same responses."""

    numbers: Array
    """Shape [n]."""
    labels: Array
    """Shape [n]."""
    queries: list[str]
    """Query of each response."""

    @property
    def scale(self) -> tuple[float, float]:
        """Lowest and highest label."""
        return float(self.labels.min()), float(self.labels.max())


def calibrate_judge(labels: str, output: str, config: str | None, sets: Sequence[str]) -> int:
    """Rate labelled rows, fit a map from the judge's number to the label, and write it to a file.

    labels: file of labelled rows. output: the file that `reward.calibration` names. Returns 0.
    Raises InputError for labels that no map can be fitted to, ConfigError as `autoj check` does.
    """
    journal = path_beside(output, ".journal.sqlite")
    require_apart((labels, config), [output, journal])
    view, spec = resolve_checked(load_checked(config, sets))
    groups, left_out = read_labelled_groups(labels, None)
    _require_labels(labels, groups)
    rated: list[tuple[float | None, float, str]] = []

    def done(own: LabelledGroup, numbers: Scores) -> None:
        rated.extend((x, y, own.query) for x, y in zip(numbers, own.grades, strict=True))

    def candidates(own: LabelledGroup) -> list[Candidate]:
        return [Candidate(own.query, text, context=own.context) for text in own.responses]

    with judged_by(spec.name, Path(output), Path(output)):
        cost = rate_each(spec, journal, groups, candidates, done, "rating", view).fields()
        known = [(x, y, query) for x, y, query in rated if x is not None]
        failed = len(rated) - len(known)
        _require_many(labels, [query for *_, query in known], f" ({failed} judgements failed)")
        found = _calibrated(labels, known, spec, view)
        found |= {"failed": failed, "rows_left_out": left_out.count, "cost": cost}
        write_result(output, "calibrate", spec, {"labels": labels}, {"view": view}, found)
    low, high = found["scale"]
    print(f"{found['method']} map of {view} to labels of {low:g} to {high:g}, {found['n']} labels")
    for name, text in ERRORS.items():
        print(f"error of {text}: {estimate_text(found['error'][name]) or 'on another scale'}")
    print(f"calibration: {output}")
    return 0


def _require_labels(source: str, groups: Sequence[LabelledGroup]) -> None:
    """Raise InputError for labels that say nothing about a single response, or too few of them."""
    if any(own.compared for own in groups):
        raise InputError(
            f"{source}: labels of pairs order two responses, and a calibration needs a number of "
            "each: give response and rating, or responses and grades"
        )
    _require_many(source, [own.query for own in groups for _ in own.grades])
    if len({grade for own in groups for grade in own.grades}) == 1:
        raise InputError(
            f"{source}: every label is {groups[0].grades[0]:g}: label responses that differ"
        )


def _require_many(source: str, queries: Sequence[str], about: str = "") -> None:
    """Raise InputError if too few responses have a label. queries: query of each."""
    if len(queries) < LEAST_LABELS or len(set(queries)) < LEAST_QUERIES:
        raise InputError(
            f"{source}: {len(queries)} labels of {len(set(queries))} queries{about}: a calibration "
            f"needs at least {LEAST_LABELS} of {LEAST_QUERIES}, and {LEAST_ISOTONIC} for a map of "
            "any shape"
        )


def _calibrated(
    source: str, known: Sequence[tuple[float, float, str]], spec: JudgeSpec, view: View
) -> ResultFields:
    """Fit the map and return the fields of the result. Raises InputError without a rising map."""
    x, y, queries = (list(column) for column in zip(*known, strict=True))
    rows = LabelledNumbers(np.array(x), np.array(y), queries)
    isotonic = len(known) >= LEAST_ISOTONIC
    knots = fit_knots(rows.numbers, rows.labels, rows.scale, isotonic)
    if len(knots) < 2:
        why = "the labels do not rise with its numbers"
        if np.ptp(rows.numbers) == 0:
            why = f"it gave every response the number {rows.numbers[0]:g}"
        raise InputError(
            f"{source}: judge {spec.config.model} cannot be calibrated by view {view}: {why}; "
            "`autoj check --labels` measures its order; try another view or judge"
        )
    return {
        "view": view,
        "critiques": spec.critiques,
        "vote": spec.vote,
        "method": "isotonic" if isotonic else "linear",
        "scale": rows.scale,
        "n": len(known),
        "queries": len(set(queries)),
        "knots": knots,
        "error": _errors(rows, spec, isotonic),
    }


def _errors(rows: LabelledNumbers, spec: JudgeSpec, isotonic: bool) -> ResultFields:
    """Return root mean squared errors on queries left out of the fit; `ERRORS` names them.

    The raw one is None if a label is not on the judge's scale.
    """
    low, high = spec.scale or (float("inf"), float("-inf"))
    on_scale = low <= rows.scale[0] and rows.scale[1] <= high
    mapped, constant = predict_held_out(
        rows.numbers, rows.labels, rows.queries, rows.scale, isotonic
    )
    predicted = {"raw": rows.numbers, "calibrated": mapped, "mean_label": constant}
    draws, n = Draws(), len(rows.labels)
    return {
        name: to_json(draws.over(root_mean_square(own - rows.labels), n, rows.queries))
        if on_scale or name != "raw"
        else None
        for name, own in predicted.items()
    }
