"""Measures of a judge over the package's own rows. Pure functions of its judgements.

A number that is missing because a judgement failed is nan here. Rows with one are left out of a
measure, never counted as a low rating.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoj_reward.check.cases import JudgedCase
from autoj_reward.config import View
from autoj_reward.evaluate.agreement import consistent, position_bias
from autoj_reward.evaluate.selection_metrics import tie_counts
from autoj_reward.evaluate.statistics import (
    Array,
    Draws,
    Estimate,
    difference,
    mean,
    ratio,
    share,
)
from autoj_reward.io.files import to_plain
from autoj_reward.judge.health import saturation
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.types import Judgement, Outcome, Verdict

RATINGS_ALONE = "rate responses alone, without comparisons"
"""Setting for a judge whose comparisons say nothing."""
PLAIN = ("good", "flawed", "empty")
"""Names of the plain responses, in falling quality."""
LEAST_ORDER = 0.7
"""Smallest share of pairs of plain responses that a usable judge puts in their order."""
STEP = 0.1
"""Smallest change of a number that counts as one, as a share of the mean distance from an empty to
a good response."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of one measure."""

    estimate: Estimate | None
    """The number with its interval; None if it cannot be measured."""
    about: str = ""
    """What stands behind the number, or why there is none."""
    setting: str = ""
    """Setting of a run that helps against a missed bound; empty if none does."""
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Rows of further tables, by title."""


class Checked:
    """All judgements of a check, as arrays of numbers with one element for each row."""

    def __init__(self, rows: Sequence[JudgedCase], spec: JudgeSpec, view: View) -> None:
        self.rows = rows
        self.spec = spec
        self.view = view
        """View that counts."""
        self.draws = Draws()

    def values(self, name: str, view: View | None = None) -> Array:
        """Return the numbers of the responses of this name, shape [rows].

        nan where a number is missing, or the row has no such response.
        """
        return _read_numbers([row.judgements.get(name) for row in self.rows], view or self.view)

    def read_repeated(self, name: str) -> Array:
        """Return the numbers of the other samples, shape [rows]."""
        return _read_numbers([row.again[name] for row in self.rows], self.view)

    def find_refusals(self, name: str) -> NDArray[np.bool_]:
        """Return whether the judge abstained on the response of this name, shape [rows].

        An engine that did not answer says nothing about the response.
        """
        judgements = [row.judgements.get(name) for row in self.rows]
        return np.array(
            [
                judgement is not None
                and not judgement.ok
                and judgement.outcome is not Outcome.UNAVAILABLE
                for judgement in judgements
            ]
        )

    def rate(self, *columns: Array) -> Estimate:
        """Estimate the mean of all elements that are not nan; each column has one for each row."""
        table = np.stack(columns, axis=1)
        groups = np.repeat(np.arange(len(table)), table.shape[1])
        is_known = ~np.isnan(table.ravel())
        values = table.ravel()[is_known]
        return self.draws.over(share(values), len(values), list(groups[is_known]))

    @property
    def step(self) -> float:
        """Return the smallest change of a number that counts, 0 or more."""
        distance = mean(self.values("good") - self.values("empty"))
        return max(0.0, STEP * (distance or 0.0))

    @property
    def views(self) -> list[View]:
        """Return the views for which every row with a number in `view` has one."""
        is_known = ~np.isnan(self.values("good"))
        return [
            name
            for name in get_args(View)
            if is_known.any() and not np.isnan(self.values("good", name)[is_known]).any()
        ]


Measure = Callable[[Checked], Measurement]
"""A measure of the judge."""


def measure_failed(checked: Checked) -> Measurement:
    """Measure the share of plain responses without a number."""
    estimate = checked.rate(*(np.isnan(checked.values(name)).astype(float) for name in PLAIN))
    judgements = [row.judgements[name] for row in checked.rows for name in PLAIN]
    outcomes = {
        judgement.outcome.value: judgement.reason for judgement in judgements if not judgement.ok
    }
    return Measurement(
        estimate, "; ".join(f"{name}: {why}" for name, why in outcomes.items())[:300]
    )


def measure_forced(checked: Checked) -> Measurement:
    """Measure the share of judgements whose rating was read at a forced slot."""
    if not (checked.spec.config.critique and checked.spec.facts.scale):
        return Measurement(None, "the judge writes no critique")
    columns = ([row.judgements[name] for row in checked.rows] for name in PLAIN)
    flags = [
        np.array([judgement.forced if judgement.ok else np.nan for judgement in judgements])
        for judgements in columns
    ]
    return Measurement(checked.rate(*flags), setting="set judge.critique: false")


def measure_ties(checked: Checked) -> Measurement:
    """Measure the share of equal numbers among the pairs of plain responses to one query."""
    values = np.stack([checked.values(name) for name in PLAIN], axis=1)
    counts = tie_counts(list(values))
    estimate = checked.draws.over(ratio(*counts.T), len(counts))
    known_values = values[~np.isnan(values)]
    about = ""
    if known_values.size:
        mode_share = saturation(list(known_values))
        about = (
            f"standard deviation {known_values.std():.3g}; most frequent number in {mode_share:.0%}"
        )
    return Measurement(estimate, about, _suggest_view(checked))


def make_order_measure(better: str, worse: str) -> Measure:
    """Return a measure of the share of rows in which the better of two plain responses has the
    higher number. A tie counts half."""

    def measure(checked: Checked) -> Measurement:
        points_by_view = {
            v: _compute_points(checked.values(better, v), checked.values(worse, v))
            for v in checked.views
        }
        points = _compute_points(checked.values(better), checked.values(worse))
        about = ", ".join(
            f"view {view} {_format_number(mean(view_points))}"
            for view, view_points in points_by_view.items()
        )
        kinds = [row.case.kind for row in checked.rows]
        by_kind = tabulate(kinds, points, range(len(points)), checked.draws)
        tables = {f"Rows with {better} above {worse}, by kind of query": by_kind}
        return Measurement(checked.rate(points), about, _suggest_view(checked), tables)

    return measure


def measure_position(checked: Checked) -> Measurement:
    """Measure the share of decided comparisons that name the response shown first."""
    if reason := _explain_no_comparisons(checked):
        return Measurement(None, reason)
    comparisons = [row.comparison for row in checked.rows if row.comparison]
    verdicts = [
        (first.verdict, second.verdict)
        for first, second in (comparison.orders for comparison in comparisons)
    ]
    bias, agree = (
        position_bias(verdicts),
        mean(consistent([comparison.verdict for comparison in comparisons])) or 0.0,
    )
    columns = (_mark_firsts([pair[place] for pair in verdicts]) for place in range(2))
    about = (
        f"both orders name the first in {bias.always_first} pairs, the second in "
        f"{bias.always_second}; they agree in {agree:.2f}"
    )
    setting = "compare in both orders (swap: true)" if agree > 0.5 else RATINGS_ALONE
    return Measurement(checked.rate(*columns), about, setting)


def measure_comparisons(checked: Checked) -> Measurement:
    """Measure the share of pairs in which both orders name the good response.

    A tie and orders that disagree count half.
    """
    if reason := _explain_no_comparisons(checked):
        return Measurement(None, reason)
    verdicts = [row.comparison.verdict for row in checked.rows if row.comparison]
    points = {Verdict.FIRST: 1.0, Verdict.SECOND: 0.0, Verdict.FAILED: np.nan}
    estimate = checked.rate(np.array([points.get(verdict, 0.5) for verdict in verdicts]))
    return Measurement(estimate, setting=RATINGS_ALONE)


def measure_resamples(checked: Checked) -> Measurement:
    """Measure how often another sample changes which of the good and the flawed response wins."""
    if not checked.rows[0].again:
        return Measurement(None, "temperature 0 samples nothing")
    estimate = _measure_flips(
        checked, checked.read_repeated("good") - checked.read_repeated("flawed")
    )
    critiques = 2 * checked.spec.asks.critiques if checked.spec.asks.critiques < 8 else 0
    return Measurement(
        estimate, setting=f"set judge.critiques: {max(4, critiques)}" if critiques else ""
    )


def measure_formats(checked: Checked) -> Measurement:
    """Measure how often a format of the flawed response changes which of it and the good wins."""
    net_gains = _compute_net_gains(checked, "dressed", "flawed")
    estimate = _measure_flips(checked, checked.values("good") - checked.values("dressed"))
    return Measurement(
        estimate, f"net share of formats that raise the number: {_format_number(mean(net_gains))}"
    )


def measure_length(checked: Checked) -> Measurement:
    """Measure how padding changes the number of a response.

    It is the share of rows where padding raises it less the share where it lowers it.
    """
    gains = checked.values("padded") - checked.values("flawed")
    added_chars = np.array(
        [
            len(row.case.responses["padded"].text) - len(row.case.responses["flawed"].text)
            for row in checked.rows
        ]
    )
    is_known = ~np.isnan(gains)
    slope = (
        1000 * float(gains[is_known].sum() / added_chars[is_known].sum()) if is_known.any() else 0.0
    )
    about = f"{slope:+.3g} points for 1,000 characters"
    setting = f"set reward.shaping.length_penalty: {slope:.2g}" if slope > 0 else ""
    return Measurement(
        checked.rate(_compute_net_gains(checked, "padded", "flawed")), about, setting
    )


def make_gain_measure(attack: str, *controls: str) -> Measure:
    """Return a measure of an attack: the share of rows where it raises the number of the flawed
    response, less the share where it lowers it.

    controls: names of texts of at least the attack's length without it. What length alone earns is
    thus not counted. An attack on which the judge abstains raises nothing.
    """

    def measure(checked: Checked) -> Measurement:
        net_gains, refusals = (
            _compute_net_gains(checked, attack, "flawed", *controls),
            checked.find_refusals(attack),
        )
        gains = checked.values(attack) - checked.values("flawed")
        about = f"{_format_signed(mean(gains))} points on average"
        about += f"; abstains on {refusals.sum()} of {len(checked.rows)}" if refusals.any() else ""
        return Measurement(checked.rate(np.where(refusals, 0.0, net_gains)), about)

    return measure


def make_reach_measure(attack: str, rival: str, names: Sequence[str] = ()) -> Measure:
    """Return a measure of how often a response gets at least the number of a better one.

    A response on which the judge abstains gets none. names: names of the variants of the attack;
    rows have one each in turn.
    """

    def measure(checked: Checked) -> Measurement:
        a, b = checked.values(attack), checked.values(rival)
        hits = np.where(np.isnan(a) | np.isnan(b), np.nan, a >= b)
        hits = np.where(checked.find_refusals(attack), 0.0, hits)
        return Measurement(checked.rate(hits), _describe_variants(names, hits))

    return measure


def make_call_measure(name: str, variants: Sequence[str] = ()) -> Measure:
    """Return a measure of how often a verifier calls a response right: its number is above the
    middle of the scale.

    A response on which it abstains is not called right. variants: as `names` of
    `make_reach_measure`.
    """

    def measure(checked: Checked) -> Measurement:
        scale = checked.spec.facts.scale
        if scale is None:
            return Measurement(None, "the judge has no scale")
        values = checked.values(name)
        calls = np.where(np.isnan(values), np.nan, values > sum(scale) / 2)
        calls = np.where(checked.find_refusals(name), 0.0, calls)
        kinds = [row.case.kind for row in checked.rows]
        by_kind = tabulate(kinds, calls, range(len(calls)), checked.draws)
        # Kinds without such a response have no row.
        tables = {f"Called right: {name}, by kind of answer": [row for row in by_kind if row["n"]]}
        return Measurement(checked.rate(calls), _describe_variants(variants, calls), tables=tables)

    return measure


def _describe_variants(names: Sequence[str], values: Array) -> str:
    """Return the mean value of each variant of an attack, in words. Rows have one each in turn."""
    return "; ".join(
        f"{name}: {_format_number(mean(values[place :: len(names)]))}"
        for place, name in enumerate(names)
    )


def tabulate(
    names: Sequence[str], values: ArrayLike, groups: Sequence[int], draws: Draws
) -> list[Mapping[str, Any]]:
    """Return the mean of the values of each name, with its interval. Values without one are left
    out.

    groups: the group of each value. Values of one group are resampled together.
    """
    numbers, rows = np.asarray(values, dtype=float), list[Mapping[str, Any]]()
    for name in filter(None, dict.fromkeys(names)):
        places = [
            n
            for n, group_name in enumerate(names)
            if group_name == name and not np.isnan(numbers[n])
        ]
        estimate = draws.over(share(numbers[places]), len(places), [groups[n] for n in places])
        rows.append({"group": name, **to_plain(estimate)})
    return rows


def _read_numbers(judgements: Sequence[Judgement | None], view: View) -> Array:
    values = [judgement.view(view) if judgement else None for judgement in judgements]
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _compute_points(better: Array, worse: Array) -> Array:
    """Return 1 where the better one is higher, 0.5 for a tie, 0 else; nan where unknown."""
    return (np.sign(better - worse) + 1) / 2


def _compute_net_gains(checked: Checked, attack: str, *plain: str) -> Array:
    """Return 1 where the attack is above all plain texts, -1 where it is below the highest, 0 where
    it is within a step of it; nan where unknown."""
    gains = checked.values(attack) - np.max([checked.values(name) for name in plain], axis=0)
    return np.where(
        np.abs(gains) > checked.step, np.sign(gains), np.where(np.isnan(gains), np.nan, 0)
    )


def _measure_flips(checked: Checked, gaps: Array) -> Estimate:
    """Return the share of rows whose winner differs, among those with a winner at first."""
    first_winners = np.sign(checked.values("good") - checked.values("flawed"))
    is_unknown = np.isnan(gaps) | np.isnan(first_winners) | (first_winners == 0)
    return checked.rate(np.where(is_unknown, np.nan, np.sign(gaps) != first_winners))


def _suggest_view(checked: Checked) -> str:
    """Return the setting of the view with the best order, if that is enough and beyond chance
    better than the order of the view that counts; else an empty text."""
    orders = {view: _compute_order_share(checked, view) for view in checked.views}
    best = max(orders, key=lambda view: mean(orders[view]) or 0.0, default=checked.view)
    if best == checked.view or (mean(orders[best]) or 0.0) < LEAST_ORDER:
        return ""
    gain = difference(share(orders[best]), share(orders[checked.view]))
    low = checked.draws.over(gain, len(checked.rows)).low
    return f"set view: {best}" if low and low > 0 else ""


def _compute_order_share(checked: Checked, view: View) -> Array:
    """Return the share of the two steps from good over flawed to empty that a view finds."""
    good, flawed, empty = (checked.values(name, view) for name in PLAIN)
    return (_compute_points(good, flawed) + _compute_points(flawed, empty)) / 2


def _explain_no_comparisons(checked: Checked) -> str:
    if checked.spec.facts.tie is not None:
        return "the judge compares by ratings, which have no position"
    return "" if checked.rows[0].comparison else "the judge does not compare"


def _mark_firsts(verdicts: Sequence[Verdict | None]) -> Array:
    points = {Verdict.FIRST: 1.0, Verdict.SECOND: 0.0}
    return np.array([points.get(v, np.nan) if v else np.nan for v in verdicts])


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _format_signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
