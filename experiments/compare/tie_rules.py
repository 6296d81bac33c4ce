"""What the rule that breaks ties buys of best-of-N, beside other numbers of the same judgements.

    python -m experiments.compare.tie_rules --config configs/experiments/tie_rules.yaml

Each judge rates outputs of many systems to one instruction, graded by GPT-4. Its written ratings
are often equal. From the same judgements the best response is chosen by

- `written`: the written rating, with ties drawn,
- `written-expected`: the written rating, with ties broken by the expected rating, which the
  log-probabilities at the verdict's slot give,
- `written-direct`: the written rating, with ties broken by the expected rating right after the
  prompt,
- `expected` and `direct`: these numbers alone,
- `length`: no judge; `scalar`: a scalar reward model.

A judge that writes no critique has no `direct`. Judgements are saved in the output folder's journal
before they are used, so the same command resumes. The results are tie_rules.json, tie_rules.md, a
plot for each judge, tie_rules-JUDGE.svg, and one of all judges, tie_rules-all.svg.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import numpy as np
from pydantic import Field

from autoj_reward.config import JudgeConfig, View
from autoj_reward.data.labelled import JudgeData
from autoj_reward.evaluate.selection_metrics import tie_counts
from autoj_reward.evaluate.statistics import difference, ratio
from autoj_reward.io.chart import curves
from autoj_reward.journal import Journal
from experiments.compare.order import (
    GAIN,
    SIZES,
    list_gains,
    make_gain_statistics,
    split_by_query,
)
from experiments.compare.outputs import (
    OrderedConfig,
    Outputs,
    Values,
    make_rated_rows,
    read_graded_outputs,
)
from experiments.compare.panel import ask, load_judge_format, make_greedy
from experiments.compare.rivals import predict_by_length
from experiments.study import ResampledConfig, Study, study_command
from experiments.tables import report, tabled

WRITTEN, TIES_BROKEN = "written", "written-expected"
"""The way that the others are compared with, and its rule that every judge has."""
ALL = "all"
"""Name of the plot of all judges."""


class TieRulesConfig(ResampledConfig):
    """Judges, and the responses that they order."""

    judges: dict[str, JudgeConfig] = Field(min_length=1)
    """Judges by name, none of them `all`. Each is asked once for every response, at temperature
    0."""
    scalar: JudgeConfig | None = None
    """Scalar reward model. null for none."""
    data: JudgeData
    """Data with the graded outputs."""
    ordered: OrderedConfig = OrderedConfig()
    """Selection of the graded outputs."""


async def study(run: Study[TieRulesConfig]) -> str:
    """Measure one judge after another and return the report."""
    config = run.config
    fmt = load_judge_format(next(iter(config.judges.values())))
    outputs = read_graded_outputs(config.data, config.ordered, fmt, config.draws, run.limit)
    judged: dict[str, Any] = {}
    text = ""
    with closing(Journal(config.output / "journal.sqlite")) as journal:
        lengths = predict_by_length(make_rated_rows(outputs.graded)).values
        others: dict[str, Values] = {"length": lengths}
        if config.scalar:
            [others["scalar"]] = await _read_views(config.scalar, outputs, journal, ["rating"])
        for name, judge in config.judges.items():
            ways = await _ask_judge(judge, outputs, journal) | others
            judged[name] = _measure_ways(outputs, ways)
            figures = {"queries": len(outputs.graded), "judges": judged}
            text = run.write("tie_rules", figures, markdown, draw_plots)
    return text


async def _read_views(
    judge: JudgeConfig, outputs: Outputs, journal: Journal, views: Sequence[View]
) -> list[Values]:
    """Return by view the numbers that a judge gives to all outputs."""
    inputs = outputs.make_inputs()
    answers = await ask(judge, journal, inputs)
    return [[answers[item].view(view) for item in inputs] for view in views]


async def _ask_judge(judge: JudgeConfig, outputs: Outputs, journal: Journal) -> dict[str, Values]:
    """Return by way the numbers by which the judge's best response is chosen."""
    greedy = make_greedy(judge, judge.critique)
    written, expected = await _read_views(greedy, outputs, journal, ["rating", "expected"])
    ways: dict[str, Values] = {
        WRITTEN: written,
        TIES_BROKEN: break_ties(written, expected),
        "expected": expected,
    }
    if judge.critique:
        prompted = make_greedy(judge, critique=False)
        [direct] = await _read_views(prompted, outputs, journal, ["expected"])
        ways |= {"written-direct": break_ties(written, direct), "direct": direct}
    return ways


def break_ties(ratings: Values, numbers: Values) -> list[float | None]:
    """Return numbers that order responses by their rating, and those of equal rating by the other
    number. Without that a response comes last among its equals."""
    keys = [
        None if rating is None else (rating, -np.inf if number is None else number)
        for rating, number in zip(ratings, numbers, strict=True)
    ]
    places = {key: place for place, key in enumerate(sorted({key for key in keys if key}))}
    return [None if key is None else float(places[key]) for key in keys]


def _measure_ways(outputs: Outputs, ways: Mapping[str, Values]) -> dict[str, Any]:
    """Return the figures of each way, and its best of N less that of `written`."""
    count = len(outputs.graded)
    written_gains = make_gain_statistics(split_by_query(outputs.graded, ways[WRITTEN]))
    measured = {}
    for way, values in ways.items():
        queries = split_by_query(outputs.graded, values)
        ties = ratio(*tie_counts(query.values for query in queries).T)
        figures: dict[str, Any] = {"ties": asdict(outputs.draws.over(ties, count))}
        for name, gain in make_gain_statistics(queries).items():
            less = difference(gain, written_gains[name])
            figures[name] = asdict(outputs.draws.over(gain, count))
            figures[f"less_{name}"] = asdict(outputs.draws.over(less, count))
        figures["abstained"] = sum(value is None for value in values)
        measured[way] = figures
    return measured


COLUMNS = {
    "chosen by": "{way}",
    "pairs tied": "{ties}",
    **{f"best of {n}": f"{{best_of_{n}}}" for n in SIZES},
    "less `written`, best of 10": "{less_best_of_10}",
    "abstained": "{abstained}",
}
"""Columns of the table of a judge."""
NOTE = (
    "{queries} queries. Best of N: what the best of N drawn responses gains over a random one, as "
    "a share of what an oracle gains, [95 % interval over queries]. The last difference comes from "
    "paired resamples."
)
"""Note under every table."""


def markdown(result: Mapping[str, Any]) -> str:
    """Return the report."""
    return report("Tie rules", dict(result), _make_sections(result))


def _make_sections(result: Mapping[str, Any]) -> Iterator[Any]:
    blank: dict[str, Any] = {f"best_of_{n}": None for n in SIZES} | {"less_best_of_10": None}
    for judge, ways in result["judges"].items():
        rows = [blank | figures | {"way": way} for way, figures in ways.items()]
        columns = {
            head: cell
            for head, cell in COLUMNS.items()
            if any(row.get(cell.strip("{}")) is not None for row in rows)
        }
        yield judge, tabled(rows, columns), NOTE.format(queries=result["queries"])


def draw_plots(result: Mapping[str, Any]) -> dict[str, str]:
    """Return plots of the share of the oracle's gain by N: one for each judge, with a line per way,
    and one of all judges with and without the rule that breaks ties."""
    plots = {}
    overview = {}
    drawn = []
    for judge, ways in result["judges"].items():
        lines = {way: list_gains(figures) for way, figures in ways.items()}
        plots[judge] = curves(lines, "N", GAIN)
        # Lines of one first word share a colour.
        overview[f"{judge} {TIES_BROKEN}"] = lines[TIES_BROKEN]
        overview[f"{judge} {WRITTEN}"] = lines[WRITTEN]
        drawn.append(f"{judge} {WRITTEN}")
    # Every judge orders the same responses, so their length is the same line for all.
    overview["length"] = lines["length"]
    x_name = "N; solid: equal ratings ordered by log-probabilities; dashed: drawn"
    plots[ALL] = curves(overview, x_name, GAIN, dashed=drawn)
    return plots


main = study_command(TieRulesConfig, study, limit="instructions")

if __name__ == "__main__":
    sys.exit(main())
