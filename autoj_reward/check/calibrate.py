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
from autoj_reward.check.run import load_check_config, resolve_check_judge
from autoj_reward.config import View
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.evaluate.ask import ask_each, rate_candidates
from autoj_reward.evaluate.labelled_groups import LabelledGroup, read_labelled_groups
from autoj_reward.evaluate.results import path_beside, write_result
from autoj_reward.evaluate.statistics import Array, Draws, ResultFields, estimate_text
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart, to_plain
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

    def predict_held_out(self) -> tuple[Array, Array]:
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
    view, spec = resolve_check_judge(load_check_config(config, sets))
    asked = spec.context_columns({}, "single")
    groups, bad_rows = read_labelled_groups(labels, None, asked)
    _require_labels(labels, groups)
    ratings: list[tuple[Judgement, float, str]] = []

    async def rate(ask: Ask, group: LabelledGroup) -> tuple[list[Judgement], list[Judgement]]:
        candidates = [
            Candidate(group.prompt, response, context=group.context) for response in group.responses
        ]
        judgements = await rate_candidates(ask, candidates, spec, view)
        return judgements, judgements

    def record_ratings(group: LabelledGroup, judgements: Sequence[Judgement]) -> None:
        ratings.extend(
            (judgement, grade, group.prompt.text)
            for judgement, grade in zip(judgements, group.grades, strict=True)
        )

    def count_inputs(group: LabelledGroup) -> int:
        return spec.asks.critiques * len(group.responses)

    with judged_by(
        spec.name, Path(output), Path(output), command="autoj calibrate", vote=spec.asks.vote
    ):
        cost = ask_each(
            spec, journal, groups, rate, record_ratings, "rating", count_inputs, view=view
        ).fields()
        known_ratings = [
            (judgement, number, grade, query)
            for judgement, grade, query in ratings
            if (number := judgement.view(view)) is not None
        ]
        failed_count = len(ratings) - len(known_ratings)
        _require_many(
            labels, [query for *_, query in known_ratings], f" ({failed_count} judgements failed)"
        )
        judgements, numbers, known_labels, queries = (
            list(column) for column in zip(*known_ratings, strict=True)
        )
        spreads = [judgement.spread(view) for judgement in judgements]
        rows = LabelledNumbers(
            np.array(numbers), np.array(known_labels), queries, np.array(spreads, dtype=float)
        )
        result = _fit_calibration(labels, rows, spec, view)
        if abstain:
            result["abstain"] = _find_doubt_limit(labels, rows, *abstain)
        result |= {"failed": failed_count, "rows_left_out": bad_rows.count, "cost": cost}
        write_result(output, "calibrate", [spec], {"labels": labels}, {"view": view}, result)
    _print_result(result, view)
    print(f"calibration: {output}")
    return 0


def _print_result(result: ResultFields, view: View) -> None:
    low, high = result["scale"]
    print(
        f"{result['method']} map of {view} to labels of {low:g} to {high:g}, {result['n']} labels"
    )
    for name, text in ERRORS.items():
        print(f"error of {text}: {estimate_text(result['error'][name]) or 'on another scale'}")
    if rule := result.get("abstain"):
        print(
            f"abstains on {rule['abstains']:.1%} of the labels, where the distribution is wider "
            f"than {rule['max_spread']:.3g} points; of the others {rule['wrong']:.1%} are wrong by "
            f"more than {rule['wrong_by']:g}, at most {rule['bound']:.1%} with "
            f"{CONFIDENCE:.0%} confidence"
        )


def _require_labels(source: str, groups: Sequence[LabelledGroup]) -> None:
    """Raise InputError for labels that say nothing about a single response, or too few of them."""
    if any(group.compared for group in groups):
        raise InputError(
            f"{source}: labels of pairs order two responses, and a calibration needs a number of "
            "each: give response and rating, or responses and grades"
        )
    _require_many(source, [group.prompt.text for group in groups for _ in group.grades])
    if len({grade for group in groups for grade in group.grades}) == 1:
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


def _fit_calibration(
    source: str, rows: LabelledNumbers, spec: JudgeSpec, view: View
) -> ResultFields:
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
        "critiques": spec.asks.critiques,
        "vote": spec.asks.vote,
        "method": "isotonic" if rows.isotonic else "linear",
        "scale": rows.scale,
        "n": len(rows.labels),
        "queries": len(set(rows.queries)),
        "knots": knots,
        "error": _compute_errors(rows, spec),
    }


def _find_doubt_limit(
    source: str, rows: LabelledNumbers, max_wrong: float, wrong_by: float
) -> ResultFields:
    """Return the loosest limit of doubt that keeps the share of wrong numbers, on queries left out
    of the fit. Raises InputError if none does."""
    if np.isnan(rows.spreads).any():
        raise InputError(
            f"{source}: the judge gave no distribution, so its doubt is unknown: leave --abstain "
            "out, or take a judge with log-probabilities"
        )
    mapped_numbers, _ = rows.predict_held_out()
    wrong = np.abs(mapped_numbers - rows.labels) > wrong_by
    limits = doubt_limits(rows.spreads, wrong, rows.queries)
    limit = loosest_limit(limits, max_wrong)
    if limit is None:
        best = min(limits, key=lambda limit: limit.bound)
        raise InputError(
            f"{source}: no limit of doubt keeps at most {max_wrong:.1%} of the numbers wrong by "
            f"more than {wrong_by:g} with {CONFIDENCE:.0%} confidence: the best, on {best.queries} "
            f"queries, has {best.wrong:.1%} and at most {best.bound:.1%}; give more labels, or "
            "a larger share or more points"
        )
    return {"wrong_by": wrong_by, "max_wrong": max_wrong, **asdict(limit)}


def _compute_errors(rows: LabelledNumbers, spec: JudgeSpec) -> ResultFields:
    """Return root mean squared errors on queries left out of the fit; `ERRORS` names them.

    The raw one is None if a label is not on the judge's scale.
    """
    low, high = spec.facts.scale or (float("inf"), float("-inf"))
    on_scale = low <= rows.scale[0] and rows.scale[1] <= high
    mapped_numbers, mean_labels = rows.predict_held_out()
    predictions_by_name = {
        "raw": rows.numbers,
        "calibrated": mapped_numbers,
        "mean_label": mean_labels,
    }
    draws, n = Draws(), len(rows.labels)
    return {
        name: to_plain(draws.over(root_mean_square(predictions - rows.labels), n, rows.queries))
        if on_scale or name != "raw"
        else None
        for name, predictions in predictions_by_name.items()
    }
