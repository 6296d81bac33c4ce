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
before they are used, so the same command resumes. The results are tie_rules.json, tie_rules.md and
a plot for each judge, tie_rules-JUDGE.svg.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import numpy as np
from pydantic import Field

from autoj_reward.config import JudgeConfig
from autoj_reward.data.labelled import JudgeData
from autoj_reward.evaluate.selection_metrics import tie_counts
from autoj_reward.evaluate.statistics import difference, ratio
from autoj_reward.io.chart import curves
from autoj_reward.journal import Journal
from experiments.compare.order import SIZES, make_order_statistics, split_by_query
from experiments.compare.outputs import OrderedConfig, Outputs, Values, read_graded_outputs
from experiments.compare.panel import ask, load_judge_format, make_greedy
from experiments.study import ResampledConfig, Study, study_command
from experiments.tables import report, tabled

WRITTEN = "written"
"""The way that the others are compared with."""


class TieRulesConfig(ResampledConfig):
    """Judges, and the responses that they order."""

    judges: dict[str, JudgeConfig] = Field(min_length=1)
    """Judges by name. Each is asked once for every response, at temperature 0."""
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
        others = {"length": _measure_lengths(outputs)}
        if config.scalar:
            others["scalar"] = await _read_values(config.scalar, outputs, journal, "rating")
        for name, judge in config.judges.items():
            ways = await _ask_judge(judge, outputs, journal) | others
            judged[name] = _measure_ways(outputs, ways)
            figures = {"queries": len(outputs.graded), "judges": judged}
            text = run.write("tie_rules", figures, markdown, draw_plots)
    return text


def _measure_lengths(outputs: Outputs) -> Values:
    return [float(len(output.text)) for row in outputs.graded for output in row.outputs]


async def _read_values(
    judge: JudgeConfig, outputs: Outputs, journal: Journal, view: Any
) -> list[float | None]:
    """Return the number that a judge gives to every output."""
    answers = await ask(judge, journal, outputs.make_inputs())
    return [answers[item].view(view) for item in outputs.make_inputs()]


async def _ask_judge(judge: JudgeConfig, outputs: Outputs, journal: Journal) -> dict[str, Values]:
    """Return by way the numbers by which the judge's best response is chosen."""
    greedy = make_greedy(judge, judge.critique)
    written = await _read_values(greedy, outputs, journal, "rating")
    expected = await _read_values(greedy, outputs, journal, "expected")
    ways: dict[str, Values] = {
        WRITTEN: written,
        "written-expected": break_ties(written, expected),
        "expected": expected,
    }
    if judge.critique:
        prompted = make_greedy(judge, critique=False)
        direct = await _read_values(prompted, outputs, journal, "expected")
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
    statistics = {
        way: make_order_statistics(split_by_query(outputs.graded, values))
        for way, values in ways.items()
    }
    queries = len(outputs.graded)
    measured = {}
    for way, values in ways.items():
        counts = tie_counts(query.values for query in split_by_query(outputs.graded, values))
        shares = {name: s for name, s in statistics[way].items() if name.startswith("best_of")}
        figures = {"ties": asdict(outputs.draws.over(ratio(*counts.T), queries))}
        for name, statistic in shares.items():
            less = difference(statistic, statistics[WRITTEN][name])
            figures[name] = asdict(outputs.draws.over(statistic, queries))
            figures[f"less_{name}"] = asdict(outputs.draws.over(less, queries))
        measured[way] = figures | {"abstained": sum(value is None for value in values)}
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
    """Return a plot for each judge: the share of the oracle's gain by N, one line per way."""
    return {judge: curves(_draw_ways(ways), "N", LABEL) for judge, ways in result["judges"].items()}


LABEL = "share of the oracle's gain"


def _draw_ways(ways: Mapping[str, Any]) -> dict[str, Sequence[tuple[float, float]]]:
    return {
        way: [
            (float(n), figures[f"best_of_{n}"]["value"])
            for n in SIZES
            if figures.get(f"best_of_{n}")
        ]
        for way, figures in ways.items()
    }


main = study_command(TieRulesConfig, study, limit="instructions")

if __name__ == "__main__":
    sys.exit(main())
