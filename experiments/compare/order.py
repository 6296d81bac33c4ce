"""Order of the responses to one query by raters: figures, intervals, tables and plots.

Pure functions from responses, grades and numbers to plain data and tables. Intervals are
bootstrapped over queries. Length is always reported too, because GPT-4's own grades depend on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from autoj_reward.data.graded import Graded
from autoj_reward.evaluate.selection_metrics import (
    WithinQuery,
    order,
    order_given_length,
    share_of_gain,
)
from autoj_reward.evaluate.statistics import Statistic, difference, share
from autoj_reward.io.chart import curves
from experiments.compare.outputs import Outputs, Values
from experiments.tables import Section, tabled

SIZES = (2, 4, 8, 10, 16, 24, 32)
"""Values of N for best-of-N. Those above the number of responses are left out."""
GAIN = "share of the oracle's gain"
"""Name of the vertical axis of the plots."""
COMPARED = ("order", "order_given_length", "best_of_10")
"""Figures for which the judge's difference to each rival is computed."""
RATERS = {
    "judge": "judge, without critique",
    "written": "judge, its likeliest rating",
    "pessimistic": "judge, pessimistic",
    "critique": "judge, after a critique",
    "scalar": "scalar reward model",
    "probe": "ridge probe on the base's hidden states",
    "tfidf": "TF-IDF of the response, ridge",
    "logprob": "policy log-probability",
    "length": "length of the response",
}
"""Raters by key, with their names in tables."""
ORDERED = {"ordered": "outputs of many systems", "candidates": "candidates of a policy"}
"""Parts measured here, and the responses that each orders."""


def split_by_query(
    rows: Sequence[Graded], values: Values, systems: Collection[str] | None = None
) -> list[WithinQuery]:
    """Split the values of all outputs by query.

    An abstention counts as a value below all others of the query. `systems` selects outputs; None
    is all.
    """
    ends = [0, *accumulate(len(row.outputs) for row in rows)]
    queries = []
    for row, (start, end) in zip(rows, pairwise(ends), strict=True):
        known_numbers = [v for v in values[start:end] if v is not None]
        lowest = min(known_numbers, default=0.0) - 1
        entries = [
            (lowest if value is None else value, output.score, float(len(output.text)))
            for value, output in zip(values[start:end], row.outputs, strict=True)
            if systems is None or output.system in systems
        ]
        numbers, grades, lengths = zip(*entries, strict=True) if entries else ((), (), ())
        queries.append(WithinQuery(numbers, grades, lengths))
    return queries


def measure_order(
    outputs: Outputs, raters: Mapping[str, Values], missing: str = ""
) -> dict[str, Any]:
    """Return the figures of every rater, and the judge's less each rival's.

    They cover all systems, and separately those that no judge was trained on. `raters` maps names,
    `judge` among them, to a number for every output. `missing` says which rival is missing and why.
    """
    systems: dict[str, Collection[str] | None] = {"all": None}
    systems |= {"unseen": outputs.unseen} if outputs.unseen else {}
    return {
        "queries": len(outputs.graded),
        "rated": {
            name: {
                label: _measure_queries(outputs, split_by_query(outputs.graded, values, selection))
                for label, selection in systems.items()
            }
            | {"abstained": sum(value is None for value in values)}
            for name, values in raters.items()
        },
        "less": {
            name: _compare_raters(outputs, raters["judge"], values)
            for name, values in raters.items()
            if name != "judge"
        },
        "missing": missing,
    }


def _compare_raters(outputs: Outputs, first: Values, second: Values) -> dict[str, Any]:
    """Return the figures of the first rater less those of the second, from paired resamples."""
    first_statistics, second_statistics = (
        _make_statistics(split_by_query(outputs.graded, values)) for values in (first, second)
    )
    names = [name for name in COMPARED if name in first_statistics]
    return {
        name: _estimate(outputs, difference(first_statistics[name], second_statistics[name]))
        for name in names
    }


def _measure_queries(outputs: Outputs, queries: Sequence[WithinQuery]) -> dict[str, Any]:
    return {name: _estimate(outputs, s) for name, s in _make_statistics(queries).items()}


def _make_statistics(queries: Sequence[WithinQuery]) -> dict[str, Statistic]:
    """Return by name the mean of both correlations over queries, and the gain of each best of N."""
    statistics = {
        measure.__name__: share(
            [np.nan if (r := measure(query)) is None else r for query in queries]
        )
        for measure in (order, order_given_length)
    }
    return statistics | make_gain_statistics(queries)


def make_gain_statistics(queries: Sequence[WithinQuery]) -> dict[str, Statistic]:
    """Return the share of the oracle's gain of each best of N, by name (`best_of_N`)."""
    fewest = min((len(query.grades) for query in queries), default=0)
    values = [query.values for query in queries]
    grades = [query.grades for query in queries]
    return {f"best_of_{n}": share_of_gain(values, grades, n) for n in SIZES if n <= fewest}


def _estimate(outputs: Outputs, statistic: Statistic) -> dict[str, Any]:
    return asdict(outputs.draws.over(statistic, len(outputs.graded)))


COLUMNS = {
    "rater": "{rater}",
    "responses": "{of}",
    "Spearman": "{order}",
    "partial, given length": "{order_given_length}",
    **{f"best of {n}": f"{{best_of_{n}}}" for n in SIZES},
    "abstained": "{abstained}",
}
"""Columns of the table of raters."""
LESS_COLUMNS = {"rival": "{rater}"} | {
    head: cell for head, cell in COLUMNS.items() if cell.strip("{}") in COMPARED
}
"""Columns of the table of differences."""
NOTE = (
    "Means over queries of Spearman's correlation with the grade, and of the same with length held "
    "fixed (partial, of ranks), [95 % interval over queries]. Best of N: what the best of N drawn "
    "responses gains over a random one, as a share of what an oracle gains. Unseen: the outputs of "
    "systems that are in no training. The rivals fit scores less their instruction's mean."
)
"""Note under the table of raters."""
LESS = "The judge less each rival on the same queries, from paired resamples."
"""Note under the table of differences."""


def make_order_sections(result: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the tables of the parts that were measured."""
    blank = dict.fromkeys(cell.strip("{}") for cell in COLUMNS.values())
    for part, description in ORDERED.items():
        if part_figures := result["parts"].get(part):
            rows = [
                blank
                | figures
                | {"rater": RATERS[name], "of": label, "abstained": rater_figures["abstained"]}
                for name, rater_figures in part_figures["rated"].items()
                for label, figures in rater_figures.items()
                if label != "abstained"
            ]
            less = [
                blank | gap | {"rater": RATERS[name]} for name, gap in part_figures["less"].items()
            ]
            note = (
                f"{NOTE} Not measured: {part_figures['missing']}."
                if part_figures["missing"]
                else NOTE
            )
            yield (
                f"Ordering {description} ({part_figures['queries']} queries)",
                tabled(rows, COLUMNS),
                note,
            )
            yield f"The judge less its rivals, {description}", tabled(less, LESS_COLUMNS), LESS


def draw_order_plots(result: Mapping[str, Any]) -> dict[str, str]:
    """Return plots of the share of an oracle's gain by N, one line per rater, as SVG by name.

    Random choice is 0 and the oracle 1.
    """
    plots = {}
    for part, name in (("ordered", "best-of-n"), ("candidates", "best-of-n-candidates")):
        if part_figures := result["parts"].get(part):
            lines = {
                rater: list_gains(rater_figures["all"])
                for rater, rater_figures in part_figures["rated"].items()
            }
            last = max((n for line in lines.values() for n, _ in line), default=SIZES[-1])
            lines |= {"oracle": [(SIZES[0], 1), (last, 1)], "random": [(SIZES[0], 0), (last, 0)]}
            plots[name] = curves(lines, "N", GAIN, {"oracle", "random"})
    return plots


def list_gains(figures: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the points (N, share of the oracle's gain) of the figures of one rater."""
    return [(n, at["value"]) for n in SIZES if (at := figures.get(f"best_of_{n}"))]
