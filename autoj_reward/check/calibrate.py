"""Calibration of a judge on labelled rows: `autoj calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from autoj_reward.check.abstain import CONFIDENCE, doubt_limits, loosest_limit
from autoj_reward.check.monotone import (
    LEAST_ISOTONIC,
    fit_knots,
    predict_held_out,
    root_mean_square,
)
from autoj_reward.check.rows import LabelledGroup, read_labelled_groups
from autoj_reward.check.run import load_checked, resolve_checked
from autoj_reward.config import View
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.evaluate.ask import ask_each, rate_candidates
from autoj_reward.evaluate.results import path_beside, write_result
from autoj_reward.evaluate.statistics import Array, Draws, ResultFields, estimate_text
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart, to_json
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.questions.ask import Ask
from autoj_reward.types import Candidate, Judgement

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
    spreads: Array
    """Standard deviation of each distribution, shape [n]; nan without one."""

    @property
    def scale(self) -> tuple[float, float]:
        """Lowest and highest label."""
        return float(self.labels.min()), float(self.labels.max())

    @property
    def isotonic(self) -> bool:
        """Whether there are enough labels for a map of any rising shape."""
        return len(self.labels) >= LEAST_ISOTONIC

    def held_out(self) -> tuple[Array, Array]:
        """Return the mapped number and the mean label of each row, by fits without its query."""
        return predict_held_out(self.numbers, self.labels, self.queries, self.scale, self.isotonic)


def calibrate_judge(
    labels: str,
    output: str,
    abstain: Sequence[float] | None,
    config: str | None,
    sets: Sequence[str],
) -> int:
    """Rate labelled rows, fit a map from the judge's number to the label, and write it to a file.

    labels: file of labelled rows. output: the file that `reward.calibration` names. abstain: a
    share and a number of points; also find the limit of doubt beyond which the judge abstains, so
    that at most this share of the other mapped numbers is further than that from its label. Returns
    0. Raises InputError for labels that no map, or no such limit, can be fitted to, and ConfigError
    as `autoj check` does and for a share or points out of range.
    """
    if abstain and not (0 < abstain[0] < 1 and abstain[1] >= 0):
        share, points = abstain
        raise ConfigError(
            f"--abstain is {share:g} {points:g}: give a share between 0 and 1, and 0 points or more"
        )
    journal = path_beside(output, ".journal.sqlite")
    require_apart((labels, config), [output, journal])
    view, spec = resolve_checked(load_checked(config, sets))
    groups, left_out = read_labelled_groups(labels, None)
    _require_labels(labels, groups)
    rated: list[tuple[Judgement, float, str]] = []

    async def rate(ask: Ask, own: LabelledGroup) -> tuple[list[Judgement], list[Judgement]]:
        asked = [Candidate(own.query, text, context=own.context) for text in own.responses]
        found = await rate_candidates(ask, asked, spec, view)
        return found, found

    def done(own: LabelledGroup, found: Sequence[Judgement]) -> None:
        rated.extend((one, y, own.query) for one, y in zip(found, own.grades, strict=True))

    def size(own: LabelledGroup) -> int:
        return spec.critiques * len(own.responses)

    with judged_by(spec.name, Path(output), Path(output)):
        cost = ask_each(spec, journal, groups, rate, done, "rating", size, view=view).fields()
        known = [(one, x, y, query) for one, y, query in rated if (x := one.view(view)) is not None]
        failed = len(rated) - len(known)
        _require_many(labels, [query for *_, query in known], f" ({failed} judgements failed)")
        judged, numbers, own_labels, queries = (list(column) for column in zip(*known, strict=True))
        spreads = [one.spread(view) for one in judged]
        rows = LabelledNumbers(
            np.array(numbers), np.array(own_labels), queries, np.array(spreads, dtype=float)
        )
        found = _calibrated(labels, rows, spec, view)
        if abstain:
            found["abstain"] = _abstain(labels, rows, *abstain)
        found |= {"failed": failed, "rows_left_out": left_out.count, "cost": cost}
        write_result(output, "calibrate", spec, {"labels": labels}, {"view": view}, found)
    _print(found, view)
    print(f"calibration: {output}")
    return 0


def _print(found: ResultFields, view: View) -> None:
    low, high = found["scale"]
    print(f"{found['method']} map of {view} to labels of {low:g} to {high:g}, {found['n']} labels")
    for name, text in ERRORS.items():
        print(f"error of {text}: {estimate_text(found['error'][name]) or 'on another scale'}")
    if rule := found.get("abstain"):
        print(
            f"abstains on {rule['abstains']:.1%} of the labels, where the distribution is wider "
            f"than {rule['max_spread']:.3g} points; of the others {rule['wrong']:.1%} are wrong by "
            f"more than {rule['wrong_by']:g}, at most {rule['bound']:.1%} with "
            f"{CONFIDENCE:.0%} confidence"
        )


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


def _calibrated(source: str, rows: LabelledNumbers, spec: JudgeSpec, view: View) -> ResultFields:
    """Fit the map and return the fields of the result. Raises InputError without a rising map."""
    knots = fit_knots(rows.numbers, rows.labels, rows.scale, rows.isotonic)
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
        "method": "isotonic" if rows.isotonic else "linear",
        "scale": rows.scale,
        "n": len(rows.labels),
        "queries": len(set(rows.queries)),
        "knots": knots,
        "error": _errors(rows, spec),
    }


def _abstain(source: str, rows: LabelledNumbers, max_wrong: float, wrong_by: float) -> ResultFields:
    """Return the loosest limit of doubt that keeps the share of wrong numbers, on queries left out
    of the fit. Raises InputError if none does."""
    if np.isnan(rows.spreads).any():
        raise InputError(
            f"{source}: the judge gave no distribution, so its doubt is unknown: leave --abstain "
            "out, or take a judge with log-probabilities"
        )
    mapped, _ = rows.held_out()
    wrong = np.abs(mapped - rows.labels) > wrong_by
    limits = doubt_limits(rows.spreads, wrong, rows.queries)
    found = loosest_limit(limits, max_wrong)
    if found is None:
        best = min(limits, key=lambda own: own.bound)
        raise InputError(
            f"{source}: no limit of doubt keeps at most {max_wrong:.1%} of the numbers wrong by "
            f"more than {wrong_by:g} with {CONFIDENCE:.0%} confidence: the best, on {best.queries} "
            f"queries, has {best.wrong:.1%} and at most {best.bound:.1%}; give more labels, or "
            "a larger share or more points"
        )
    return {"wrong_by": wrong_by, "max_wrong": max_wrong, **asdict(found)}


def _errors(rows: LabelledNumbers, spec: JudgeSpec) -> ResultFields:
    """Return root mean squared errors on queries left out of the fit; `ERRORS` names them.

    The raw one is None if a label is not on the judge's scale.
    """
    low, high = spec.scale or (float("inf"), float("-inf"))
    on_scale = low <= rows.scale[0] and rows.scale[1] <= high
    mapped, constant = rows.held_out()
    predicted = {"raw": rows.numbers, "calibrated": mapped, "mean_label": constant}
    draws, n = Draws(), len(rows.labels)
    return {
        name: to_json(draws.over(root_mean_square(own - rows.labels), n, rows.queries))
        if on_scale or name != "raw"
        else None
        for name, own in predicted.items()
    }
