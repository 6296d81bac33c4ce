"""Correlation of a judge's ranking of systems with a leaderboard.

    python -m experiments.paper ranking --data FOLDER --leaderboard L.csv --json OUT

Correlates the mean rating of each system's outputs with a column of the leaderboard (paper, section
6.4 and Table 23). A table that has both columns is measured without a judge.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import kendalltau, rankdata

from autoj_reward.config import View
from autoj_reward.errors import ConfigError, EngineUnavailable, InputError
from autoj_reward.evaluate.ask import rate_each, require_protocol
from autoj_reward.evaluate.rows import Fields, Unique, drawn, read_strict
from autoj_reward.evaluate.runner import EvaluateConfig, RunFiles, Task, open_run, run_task
from autoj_reward.evaluate.statistics import (
    Array,
    Correlation,
    Draws,
    Indices,
    ResultFields,
    Scores,
    correlation,
    mean,
    pearson,
    share,
    spearman,
)
from autoj_reward.io import checks as check
from autoj_reward.io.chart import COLOURS, Frame, add_margin, ticks
from autoj_reward.io.checks import BadField, text
from autoj_reward.io.files import write_text
from autoj_reward.io.markup import esc, num
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.types import Candidate


def kendall(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Kendall's tau-b, -1..1, which takes ties into account; None and errors as for
    `pearson`."""
    if pearson(x, y) is None:
        return None
    return float(kendalltau(x, y).statistic)


CORRELATIONS: dict[str, Correlation] = {
    "spearman": spearman,
    "pearson": pearson,
    "kendall": kendall,
}
"""Correlations that are reported, by their result field."""
MAX_SCORE = 1e70
"""Largest score or rating of a table: a product of four of them must stay finite."""
OUTPUT_SUFFIXES = (".jsonl", ".json", ".jsonl.gz")
"""Endings of the files of outputs in a folder; other files are ignored."""
RATING_COLUMN, REFERENCE_COLUMN = "rating", "win_rate"
"""Columns of a table. A table of three columns without these names has system, rating and reference
in this order."""


class RankingConfig(EvaluateConfig):
    """Settings of the ranking of systems.

    `sample` draws instructions, the same for every system.
    """

    view: View = "rating"
    """The number that is averaged."""
    column: str = "win_rate"
    """The leaderboard's column to compare with."""


@dataclass(frozen=True, slots=True)
class RankedSystem:
    """A system with the judge's rating of it and its leaderboard score."""

    system: str
    rating: float
    """The judge's mean rating of the system's outputs."""
    reference: float
    """The system's number in the leaderboard's column."""


RatingsDone = Callable[[str, Scores], None]
"""Callback that gets each instruction with the ratings of all systems' outputs to it."""


def ranking(
    data: str | None,
    leaderboard: str | None,
    table: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
    strict: bool,
) -> int:
    """Measure the correlation of a judge's ranking of systems with a leaderboard's.

    data: folder of outputs, one file a system. leaderboard: CSV file. table: CSV file of ratings
    and scores, in place of both and of a judge. Raises ConfigError for any other combination.
    """
    sources = {"data": data, "leaderboard": leaderboard, "table": table}
    checked, files = open_run(RankingConfig, config, sets, strict, result, **sources)
    if table is not None and data is None and leaderboard is None:
        systems = read_table(table)
        fields = compute_system_metrics(systems, checked.draws)
        return _run(checked, files, table, lambda _on_answer: {}, lambda _rows: fields)
    if data is None or leaderboard is None or table is not None:
        raise ConfigError("name either --table, or both --data and --leaderboard")
    judge = checked.judge_for(checked.view)
    outputs = read_system_outputs(data)
    reference = read_leaderboard(leaderboard, checked.column, outputs)
    require_protocol(judge, "single")
    instructions = drawn(list(next(iter(outputs.values()))), checked.sample, checked.seed)

    def make_candidates(instruction: str) -> list[Candidate]:
        # The outputs to one instruction go together, since they share its prefix in the KV cache.
        return [
            Candidate(instruction, system_outputs[instruction])
            for system_outputs in outputs.values()
        ]

    def answer(on_answer: RatingsDone) -> ResultFields:
        view, label = checked.view, "rating systems"
        cost = rate_each(
            judge, files.journal, instructions, make_candidates, on_answer, label, view
        )
        return {"instructions": len(instructions), "cost": cost.fields()}

    def compute_metrics(rows: Sequence[Scores]) -> ResultFields:
        return compute_rated_system_metrics(
            dict(zip(outputs, np.array(rows, dtype=float).T, strict=True)), reference, checked
        )

    return _run(checked, files, judge, answer, compute_metrics)


def _run(
    config: RankingConfig,
    files: RunFiles,
    judge: JudgeSpec | str,
    answer: Callable[[RatingsDone], ResultFields],
    metrics: Callable[[Sequence[Scores]], ResultFields],
) -> int:
    def keep(_instruction: str, ratings: Scores) -> Scores:
        return ratings

    show = partial(_show, plot=files.beside(".svg"))
    return run_task(Task("ranking", config, files, [judge], answer, keep, metrics, show))


def read_system_outputs(folder: str) -> dict[str, dict[str, str]]:
    """Return each system's outputs by instruction, all in the order of the first system.

    The folder has one file a system: rows of `instruction`, `output` and `generator`, which names
    the system. Raises InputError for bad and repeated rows, a file with two systems, two files of
    one system, and systems with different instructions.
    """
    paths = sorted(p for p in Path(folder).glob("*") if p.name.endswith(OUTPUT_SUFFIXES))
    if not paths:
        raise InputError(
            f"{folder}: no file of outputs there; give one {OUTPUT_SUFFIXES[0]} a system"
        )
    outputs_by_system: dict[str, dict[str, str]] = {}
    files: dict[str, Path] = {}
    for path in paths:
        system, outputs = _read_system(path)
        if system in outputs_by_system:
            raise InputError(f"{path}: outputs of {system!r}, as in {files[system]}: keep one")
        outputs_by_system[system], files[system] = outputs, path
    first, *other_systems = outputs_by_system
    for system in other_systems:
        for complete, incomplete in ((first, system), (system, first)):
            if missing := outputs_by_system[complete].keys() - outputs_by_system[incomplete].keys():
                raise InputError(
                    f"{files[incomplete]}: {len(missing)} instructions of {complete} are missing, "
                    f"for example {check.show(min(missing))}: give every system the "
                    "same instructions"
                )
    return {
        system: {text: outputs_by_system[system][text] for text in outputs_by_system[first]}
        for system in outputs_by_system
    }


def read_leaderboard(path: str, column: str, systems: Iterable[str]) -> dict[str, float]:
    """Return a column of a CSV leaderboard by system; its first column names the systems.

    Raises InputError that names all missing systems, for a missing column and for a bad number.
    """
    header, rows = _read_csv(path)
    if column not in header[1:]:
        raise InputError(f"{path}: no column {column!r}; its columns are {', '.join(header[1:])}")
    cells = {row[0]: (line, row[header.index(column)]) for line, row in rows}
    if missing := [name for name in systems if name not in cells]:
        raise InputError(
            f"{path}: no row for {', '.join(missing)}: add them, or take their outputs away"
        )
    return {name: _parse_number(path, *cells[name], column) for name in systems}


def read_table(path: str) -> tuple[RankedSystem, ...]:
    """Return the systems of a CSV table.

    The first column names the system. The columns `rating` and `win_rate` follow anywhere, or there
    are just three columns: system, judge's rating, leaderboard's score. Raises InputError that
    names the bad row.
    """
    header, rows = _read_csv(path)
    has_names = {RATING_COLUMN, REFERENCE_COLUMN} <= set(header)
    if not has_names and len(header) != 3:
        raise InputError(
            f"{path}: columns {', '.join(header)}: name two of them {RATING_COLUMN} and "
            f"{REFERENCE_COLUMN}, or keep three: system, rating, leaderboard"
        )
    places = (header.index(RATING_COLUMN), header.index(REFERENCE_COLUMN)) if has_names else (1, 2)
    return tuple(
        RankedSystem(row[0], *(_parse_number(path, line, row[at], header[at]) for at in places))
        for line, row in rows
    )


def _read_system(path: Path) -> tuple[str, dict[str, str]]:
    instructions, systems = Unique(), dict[str, int]()

    def build(line: int, row: Fields) -> tuple[str, str]:
        instruction = text(row, "instruction", blank=False)
        instructions.check(line, "instruction", instruction)
        system = text(row, "generator", blank=False)
        systems.setdefault(system, line)
        if len(systems) > 1:
            first = next(iter(systems))
            raise BadField("generator", f"{check.show(system)} in a file of {check.show(first)}")
        return instruction, text(row, "output")

    rows = read_strict(str(path), build)
    return next(iter(systems)), dict(rows)


def _read_csv(path: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header, and the line number and cells of each row.

    Raises InputError for a file without a header or rows, and for a system that is repeated.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as CSV: {error}") from error
    if len(lines) < 2:
        raise InputError(f"{path}: a header and a row for each system are needed")
    (_, header), *rows = lines
    header = [cell.strip() for cell in header]
    if len(header) > 1 and all(_is_number(cell) for cell in header[1:]):
        raise InputError(
            f"{path}:1: numbers where the names of the columns should be: add a header"
        )
    first_lines: dict[str, int] = {}
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(f"{path}:{line}: {len(row)} cells under {len(header)} columns")
        if (first := first_lines.setdefault(row[0], line)) != line:
            raise InputError(f"{path}:{line}: {row[0]!r} is also the system of line {first}")
    return header, rows


def _parse_number(path: str, line: int, cell: str, column: str) -> float:
    if not _is_number(cell):
        raise InputError(f"{path}:{line}: column {column!r}: {cell!r} is no finite number")
    if abs(float(cell)) > MAX_SCORE:
        raise InputError(f"{path}:{line}: column {column!r}: {cell!r} is beyond {MAX_SCORE:g}")
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def compute_rated_system_metrics(
    ratings: Mapping[str, Array], reference: Mapping[str, float], config: RankingConfig
) -> ResultFields:
    """Return the metrics of rated systems, with intervals over systems and over instructions.

    ratings: by system, the ratings of its outputs, shape [instructions]; nan where the judge
    abstained. Raises EngineUnavailable if a system has no rating at all.
    """
    draws, means = (
        config.draws,
        {name: mean(system_ratings) for name, system_ratings in ratings.items()},
    )
    if silent := [name for name, rating in means.items() if rating is None]:
        raise EngineUnavailable(
            f"the judge gave no {config.view} for any output of {', '.join(silent)}: see the "
            "reasons in the journal, or choose another view"
        )
    systems = [
        RankedSystem(name, rating, reference[name])
        for name, rating in means.items()
        if rating is not None
    ]
    fields = compute_system_metrics(systems, draws)
    for row in fields["systems"]:
        system_ratings = ratings[row["system"]]
        row |= draws.number("rating", share(system_ratings), range(len(system_ratings)))
        row["abstained"] = int(np.isnan(system_ratings).sum())
    fields["over_instructions"] = over_instructions(ratings, reference, draws)
    return fields


def compute_system_metrics(systems: Sequence[RankedSystem], draws: Draws) -> ResultFields:
    """Return the correlations with intervals over systems, and each system's rank in both rankings.

    `difference` is the judge's rank minus the leaderboard's; a positive one means that the judge
    ranks the system lower.
    """
    ratings = [s.rating for s in systems]
    reference_scores = [s.reference for s in systems]
    names = [s.system for s in systems]
    overall: ResultFields = {"n": len(systems)}
    for name, measure in CORRELATIONS.items():
        overall |= draws.number(name, correlation(measure, ratings, reference_scores), names)
    ranks, reference_ranks = (_compute_ranks(values) for values in (ratings, reference_scores))
    rows: list[dict[str, Any]] = [
        {
            "system": s.system,
            "rating": round(s.rating, 4),
            "reference": s.reference,
            "reference_rank": reference_ranks[i],
            "rank": ranks[i],
            "difference": ranks[i] - reference_ranks[i],
        }
        for i, s in enumerate(systems)
    ]
    rows.sort(key=lambda row: row["reference_rank"])
    moved = [abs(row["difference"]) for row in rows]
    overall["mean_rank_difference"] = round(float(np.mean(moved)), 4)
    overall["largest_rank_difference"] = max(moved)
    return {"overall": overall, "systems": rows}


def over_instructions(
    ratings: Mapping[str, Array], reference: Mapping[str, float], draws: Draws
) -> ResultFields:
    """Return the correlations with intervals over instructions instead of systems.

    They say how the result would vary with other instructions for the same systems. Parameters are
    those of `compute_rated_system_metrics`.
    """
    table, reference_scores = (
        np.array(list(ratings.values())),
        [reference[name] for name in ratings],
    )
    fields: ResultFields = {}
    for name, measure in CORRELATIONS.items():

        def compute_statistic(rows: Indices, measure: Correlation = measure) -> float | None:
            means = [mean(system_ratings) for system_ratings in table[:, rows]]
            return None if None in means else measure(means, reference_scores)  # type: ignore[arg-type]

        fields |= draws.number(name, compute_statistic, range(table.shape[1]))
    return fields


def _compute_ranks(values: Sequence[float]) -> list[int]:
    """Return the rank of each value, 1 for the highest. Equal values share the better rank."""
    return [int(rank) for rank in rankdata([-value for value in values], method="min")]


def draw_scatter(points: Sequence[tuple[str, float, float]]) -> str:
    """Return an SVG of systems, each as (name, leaderboard score, mean rating).

    The name appears on hovering. Raises ValueError without a point.
    """
    if not points:
        raise ValueError("no points")
    wide = add_margin([x for _, x, _ in points])
    tall = add_margin([y for _, _, y in points])
    frame = Frame()
    x = frame.x(*wide)
    y = frame.y(*tall)
    body = [frame.y_axis(ticks(*tall), y)]
    body += [frame.x_tick(x(mark), num(mark)) for mark in ticks(*wide)]
    body += [
        f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="4" fill="{COLOURS[0]}" fill-opacity="0.75">'
        f"<title>{esc(name)}: {num(a)}, {num(b)}</title></circle>"
        for name, a, b in points
    ]
    return frame.svg(body, "leaderboard", "mean rating")


def _show(fields: ResultFields, plot: Path) -> None:
    """Print the result, and write its plot."""
    points = [(s["system"], s["reference"], s["rating"]) for s in fields["systems"]]
    write_text(plot, draw_scatter(points))
    overall = fields["overall"]
    print(f"{'system':<34}{'rating':>8}{'leaderboard':>13}{'ranks':>9}{'diff':>6}")
    for row in fields["systems"]:
        ranks = f"{row['rank']} / {row['reference_rank']}"
        print(
            f"{row['system'][:33]:<34}{row['rating']:>8.3f}{row['reference']:>13.2f}{ranks:>9}"
            f"{row['difference']:>+6d}"
        )
    texts = [f"{name} {overall[name]:.3f}" for name in CORRELATIONS if overall[name] is not None]
    print(f"{overall['n']} systems: {', '.join(texts) or 'no correlation is defined'}")
    print(f"plot: {plot}")
