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
from autoj_reward.io.files import to_json
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
        """Return the numbers of the responses of this name, shape [rows]; nan where missing."""
        return _numbers([row.judgements[name] for row in self.rows], view or self.view)

    def again(self, name: str) -> Array:
        """Return the numbers of the other samples, shape [rows]."""
        return _numbers([row.again[name] for row in self.rows], self.view)

    def refused(self, name: str) -> NDArray[np.bool_]:
        """Return whether the judge abstained on the response of this name, shape [rows].

        An engine that did not answer says nothing about the response.
        """
        found = [row.judgements[name] for row in self.rows]
        return np.array([not one.ok and one.outcome is not Outcome.UNAVAILABLE for one in found])

    def rate(self, *columns: Array) -> Estimate:
        """Estimate the mean of all elements that are not nan; each column has one for each row."""
        table = np.stack(columns, axis=1)
        groups = np.repeat(np.arange(len(table)), table.shape[1])
        known = ~np.isnan(table.ravel())
        found = table.ravel()[known]
        return self.draws.over(share(found), len(found), list(groups[known]))

    @property
    def step(self) -> float:
        """Return the smallest change of a number that counts, 0 or more."""
        distance = mean(self.values("good") - self.values("empty"))
        return max(0.0, STEP * (distance or 0.0))

    @property
    def views(self) -> list[View]:
        """Return the views for which every row with a number in `view` has one."""
        known = ~np.isnan(self.values("good"))
        return [
            name
            for name in get_args(View)
            if known.any() and not np.isnan(self.values("good", name)[known]).any()
        ]


Measure = Callable[[Checked], Measurement]
"""A measure of the judge."""


def measure_failed(own: Checked) -> Measurement:
    """Measure the share of plain responses without a number."""
    found = own.rate(*(np.isnan(own.values(name)).astype(float) for name in PLAIN))
    judged = [row.judgements[name] for row in own.rows for name in PLAIN]
    outcomes = {one.outcome.value: one.reason for one in judged if not one.ok}
    return Measurement(found, "; ".join(f"{name}: {why}" for name, why in outcomes.items())[:300])


def measure_forced(own: Checked) -> Measurement:
    """Measure the share of judgements whose rating was read at a forced slot."""
    if not (own.spec.config.critique and own.spec.scale):
        return Measurement(None, "the judge writes no critique")
    found = ([row.judgements[name] for row in own.rows] for name in PLAIN)
    flags = [np.array([one.forced if one.ok else np.nan for one in ones]) for ones in found]
    return Measurement(own.rate(*flags), setting="set judge.critique: false")


def measure_ties(own: Checked) -> Measurement:
    """Measure the share of equal numbers among the pairs of plain responses to one query."""
    values = np.stack([own.values(name) for name in PLAIN], axis=1)
    counts = tie_counts(list(values))
    found = own.draws.over(ratio(*counts.T), len(counts))
    known = values[~np.isnan(values)]
    about = ""
    if known.size:
        most = saturation(list(known))
        about = f"standard deviation {known.std():.3g}; most frequent number in {most:.0%}"
    return Measurement(found, about, _other_view(own))


def measuring_order(better: str, worse: str) -> Measure:
    """Return a measure of the share of rows in which the better of two plain responses has the
    higher number. A tie counts half."""

    def measure(own: Checked) -> Measurement:
        found = {v: _points(own.values(better, v), own.values(worse, v)) for v in own.views}
        points = _points(own.values(better), own.values(worse))
        about = ", ".join(f"view {view} {_shown(mean(other))}" for view, other in found.items())
        kinds = [row.case.kind for row in own.rows]
        by_kind = table_by(kinds, points, range(len(points)), own.draws)
        tables = {f"Rows with {better} above {worse}, by kind of query": by_kind}
        return Measurement(own.rate(points), about, _other_view(own), tables)

    return measure


def measure_position(own: Checked) -> Measurement:
    """Measure the share of decided comparisons that name the response shown first."""
    if reason := _no_comparisons(own):
        return Measurement(None, reason)
    found = [row.comparison for row in own.rows if row.comparison]
    said = [(a.verdict, b.verdict) for a, b in (one.orders for one in found)]
    bias, agree = position_bias(said), mean(consistent([one.verdict for one in found])) or 0.0
    columns = (_firsts([pair[k] for pair in said]) for k in range(2))
    about = (
        f"both orders name the first in {bias.always_first} pairs, the second in "
        f"{bias.always_second}; they agree in {agree:.2f}"
    )
    setting = "compare in both orders (swap: true)" if agree > 0.5 else RATINGS_ALONE
    return Measurement(own.rate(*columns), about, setting)


def measure_comparisons(own: Checked) -> Measurement:
    """Measure the share of pairs in which both orders name the good response.

    A tie and orders that disagree count half.
    """
    if reason := _no_comparisons(own):
        return Measurement(None, reason)
    verdicts = [row.comparison.verdict for row in own.rows if row.comparison]
    points = {Verdict.FIRST: 1.0, Verdict.SECOND: 0.0, Verdict.FAILED: np.nan}
    found = own.rate(np.array([points.get(verdict, 0.5) for verdict in verdicts]))
    return Measurement(found, setting=RATINGS_ALONE)


def measure_resamples(own: Checked) -> Measurement:
    """Measure how often another sample changes which of the good and the flawed response wins."""
    if not own.rows[0].again:
        return Measurement(None, "temperature 0 samples nothing")
    found = _flips(own, own.again("good") - own.again("flawed"))
    more = 2 * own.spec.critiques if own.spec.critiques < 8 else 0
    return Measurement(found, setting=f"set judge.critiques: {max(4, more)}" if more else "")


def measure_formats(own: Checked) -> Measurement:
    """Measure how often a format of the flawed response changes which of it and the good wins."""
    raised = _net(own, "dressed", "flawed")
    found = _flips(own, own.values("good") - own.values("dressed"))
    return Measurement(found, f"net share of formats that raise the number: {_shown(mean(raised))}")


def measure_length(own: Checked) -> Measurement:
    """Measure how padding changes the number of a response.

    It is the share of rows where padding raises it less the share where it lowers it.
    """
    gains = own.values("padded") - own.values("flawed")
    added = np.array(
        [len(row.case.texts["padded"]) - len(row.case.texts["flawed"]) for row in own.rows]
    )
    known = ~np.isnan(gains)
    slope = 1000 * float(gains[known].sum() / added[known].sum()) if known.any() else 0.0
    about = f"{slope:+.3g} points for 1,000 characters"
    setting = f"set reward.shaping.length_penalty: {slope:.2g}" if slope > 0 else ""
    return Measurement(own.rate(_net(own, "padded", "flawed")), about, setting)


def measuring_gain(attack: str, *controls: str) -> Measure:
    """Return a measure of an attack: the share of rows where it raises the number of the flawed
    response, less the share where it lowers it.

    controls: names of texts of at least the attack's length without it. What length alone earns is
    thus not counted. An attack on which the judge abstains raises nothing.
    """

    def measure(own: Checked) -> Measurement:
        net, refused = _net(own, attack, "flawed", *controls), own.refused(attack)
        gains = own.values(attack) - own.values("flawed")
        about = f"{_signed(mean(gains))} points on average"
        about += f"; abstains on {refused.sum()} of {len(own.rows)}" if refused.any() else ""
        return Measurement(own.rate(np.where(refused, 0.0, net)), about)

    return measure


def measuring_reach(attack: str, rival: str, names: Sequence[str] = ()) -> Measure:
    """Return a measure of how often a response gets at least the number of a better one.

    A response on which the judge abstains gets none. names: names of the variants of the attack;
    rows have one each in turn.
    """

    def measure(own: Checked) -> Measurement:
        a, b = own.values(attack), own.values(rival)
        hits = np.where(np.isnan(a) | np.isnan(b), np.nan, a >= b)
        hits = np.where(own.refused(attack), 0.0, hits)
        shares = (f"{n}: {_shown(mean(hits[k :: len(names)]))}" for k, n in enumerate(names))
        return Measurement(own.rate(hits), "; ".join(shares))

    return measure


def table_by(
    names: Sequence[str], values: ArrayLike, groups: Sequence[int], draws: Draws
) -> list[Mapping[str, Any]]:
    """Return the mean of the values of each name, with its interval. Values without one are left
    out.

    groups: the group of each value. Values of one group are resampled together.
    """
    numbers, found = np.asarray(values, dtype=float), list[Mapping[str, Any]]()
    for name in filter(None, dict.fromkeys(names)):
        at = [n for n, its in enumerate(names) if its == name and not np.isnan(numbers[n])]
        estimate = draws.over(share(numbers[at]), len(at), [groups[n] for n in at])
        found.append({"group": name, **to_json(estimate)})
    return found


def _numbers(judgements: Sequence[Judgement], view: View) -> Array:
    values = [one.view(view) for one in judgements]
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _points(better: Array, worse: Array) -> Array:
    """Return 1 where the better one is higher, 0.5 for a tie, 0 else; nan where unknown."""
    return (np.sign(better - worse) + 1) / 2


def _net(own: Checked, attack: str, *plain: str) -> Array:
    """Return 1 where the attack is above all plain texts, -1 where it is below the highest, 0 where
    it is within a step of it; nan where unknown."""
    gains = own.values(attack) - np.max([own.values(name) for name in plain], axis=0)
    return np.where(np.abs(gains) > own.step, np.sign(gains), np.where(np.isnan(gains), np.nan, 0))


def _flips(own: Checked, gaps: Array) -> Estimate:
    """Return the share of rows whose winner differs, among those with a winner at first."""
    before = np.sign(own.values("good") - own.values("flawed"))
    unknown = np.isnan(gaps) | np.isnan(before) | (before == 0)
    return own.rate(np.where(unknown, np.nan, np.sign(gaps) != before))


def _other_view(own: Checked) -> str:
    """Return the setting of the view with the best order, if that is enough and beyond chance
    better than the order of the view that counts; else an empty text."""
    orders = {view: _order(own, view) for view in own.views}
    best = max(orders, key=lambda view: mean(orders[view]) or 0.0, default=own.view)
    if best == own.view or (mean(orders[best]) or 0.0) < LEAST_ORDER:
        return ""
    gain = difference(share(orders[best]), share(orders[own.view]))
    low = own.draws.over(gain, len(own.rows)).low
    return f"set view: {best}" if low and low > 0 else ""


def _order(own: Checked, view: View) -> Array:
    """Return the share of the two steps from good over flawed to empty that a view finds."""
    good, flawed, empty = (own.values(name, view) for name in PLAIN)
    return (_points(good, flawed) + _points(flawed, empty)) / 2


def _no_comparisons(own: Checked) -> str:
    if own.spec.ratings_tie is not None:
        return "the judge compares by ratings, which have no position"
    return "" if own.rows[0].comparison else "the judge does not compare"


def _firsts(verdicts: Sequence[Verdict | None]) -> Array:
    points = {Verdict.FIRST: 1.0, Verdict.SECOND: 0.0}
    return np.array([points.get(v, np.nan) if v else np.nan for v in verdicts])


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
