"""Systems ranked by a judge against a leaderboard: `autoj evaluate ranking`.

The mean rating of each system's outputs beside a column of the leaderboard (paper, section 6.4 and
Table 23). The same from a table of both columns, without a judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from autoj_reward.errors import ConfigError, EngineUnavailable
from autoj_reward.evaluate.ask import rate_each, require_protocol
from autoj_reward.evaluate.config import RankingConfig, with_view_read
from autoj_reward.evaluate.intervals import Draws, Figures, Indices, mean, share
from autoj_reward.evaluate.metrics import Correlation, correlation, kendall, pearson, spearman
from autoj_reward.evaluate.results import Cost, beside, claimed, journal_path, require_own, save
from autoj_reward.evaluate.rows import drawn
from autoj_reward.evaluate.systems import Standing, read_leaderboard, read_outputs, read_table
from autoj_reward.io.chart import scatter
from autoj_reward.io.files import write_text
from autoj_reward.models.unused import load_run
from autoj_reward.types import Candidate, Judgement

CORRELATIONS: dict[str, Correlation] = {
    "spearman": spearman,
    "pearson": pearson,
    "kendall": kendall,
}
Ratings = NDArray[np.float64]
"""[systems, instructions]; NaN where the judge abstained."""


def ranking(
    data: str | None,
    leaderboard: str | None,
    table: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
    strict: bool,
) -> int:
    """Correlation of a judge's ranking of systems with a leaderboard's."""
    checked = load_run(RankingConfig, config, sets, strict)
    require_own(result, checked, config, data, leaderboard, table)
    checked = with_view_read(checked)
    with claimed(result, table or checked.judge):
        return _ranked(checked, data, leaderboard, table, result)


def _ranked(
    checked: RankingConfig,
    data: str | None,
    leaderboard: str | None,
    table: str | None,
    result: str,
) -> int:
    intervals = checked.draws
    if table is not None and data is None and leaderboard is None:
        standings = read_table(table)
        content = figures(standings, intervals)
        return _finish(result, checked, table, {"table": table}, content, standings)
    if data is None or leaderboard is None or table is not None:
        raise ConfigError("name either --table, or both --data and --leaderboard")
    outputs = read_outputs(data)
    known = read_leaderboard(leaderboard, checked.column, outputs)
    require_protocol(checked.judge, "single")
    instructions = drawn(list(next(iter(outputs.values()))), checked.sample, checked.seed)
    ratings, cost = rate(outputs, instructions, checked, result)
    means = {name: mean(own) for name, own in zip(outputs, ratings, strict=True)}
    if silent := [name for name, rating in means.items() if rating is None]:
        raise EngineUnavailable(
            f"the judge gave no {checked.view} for any output of {', '.join(silent)}: see the "
            "reasons in the journal, or choose another view"
        )
    standings = tuple(
        Standing(name, rating, known[name]) for name, rating in means.items() if rating is not None
    )
    content = figures(standings, intervals)
    content["instructions"] = len(instructions)
    content["over_instructions"] = over_instructions(ratings, standings, intervals)
    _add_own_intervals(content["systems"], outputs, ratings, intervals)
    content["cost"] = cost.figures()
    sources = {"data": data, "leaderboard": leaderboard}
    return _finish(result, checked, None, sources, content, standings)


def rate(
    outputs: dict[str, dict[str, str]],
    instructions: Sequence[str],
    config: RankingConfig,
    result: str,
) -> tuple[Ratings, Cost]:
    """The rating of every system on every instruction; of a judgement nothing else is kept."""
    ratings = np.full((len(outputs), len(instructions)), np.nan)
    cost = Cost()

    def done(place: int, found: list[Judgement]) -> None:
        values = (judgement.view(config.view) for judgement in found)
        ratings[:, place] = [np.nan if value is None else value for value in values]
        cost.add(found)

    # All systems of an instruction together: they share its prefix in the judge's cache.
    asked = (
        (place, [Candidate(text, own[text]) for own in outputs.values()])
        for place, text in enumerate(instructions)
    )
    journal = journal_path(config, result)
    rate_each(config.judge, journal, asked, done, "rating systems", ratings.size, config.view)
    return ratings, cost


def figures(standings: Sequence[Standing], intervals: Draws) -> Figures:
    """Correlations with intervals over systems, and where the two rankings differ."""
    own = [s.rating for s in standings]
    theirs = [s.reference for s in standings]
    names = [s.system for s in standings]
    overall: Figures = {"n": len(standings)}
    for name, measure in CORRELATIONS.items():
        overall |= intervals.number(name, correlation(measure, own, theirs), names)
    ranks, references = (_ranks(values) for values in (own, theirs))
    rows: list[dict[str, Any]] = [
        {
            "system": s.system,
            "rating": round(s.rating, 4),
            "reference": s.reference,
            "reference_rank": references[i],
            "rank": ranks[i],
            "difference": ranks[i] - references[i],
        }
        for i, s in enumerate(standings)
    ]
    rows.sort(key=lambda row: row["reference_rank"])
    moved = [abs(row["difference"]) for row in rows]
    overall["mean_rank_difference"] = round(float(np.mean(moved)), 4)
    overall["largest_rank_difference"] = max(moved)
    return {"overall": overall, "systems": rows}


def over_instructions(ratings: Ratings, standings: Sequence[Standing], intervals: Draws) -> Figures:
    """The same correlations with intervals over instructions: these systems, other questions."""
    theirs = [s.reference for s in standings]
    found: Figures = {}
    for name, measure in CORRELATIONS.items():

        def statistic(rows: Indices, measure: Correlation = measure) -> float | None:
            means = [mean(own) for own in ratings[:, rows]]
            return None if None in means else measure(means, theirs)  # type: ignore[arg-type]

        found |= intervals.number(name, statistic, range(ratings.shape[1]))
    return found


def _add_own_intervals(
    rows: list[dict[str, Any]],
    systems: dict[str, dict[str, str]],
    ratings: Ratings,
    intervals: Draws,
) -> None:
    """Each system's mean rating with its interval, and how many outputs got none."""
    places = {name: i for i, name in enumerate(systems)}
    for row in rows:
        own = ratings[places[row["system"]]]
        row |= intervals.number("rating", share(own), range(len(own)))
        row["abstained"] = int(np.isnan(own).sum())


def _ranks(values: Sequence[float]) -> list[int]:
    """1 for the highest; equals share the better rank."""
    return [int(rank) for rank in rankdata([-value for value in values], method="min")]


def _finish(
    result: str,
    config: RankingConfig,
    judged: str | None,
    sources: dict[str, str],
    content: Figures,
    standings: Sequence[Standing],
) -> int:
    plot = beside(result, ".svg")
    points = [(s.system, s.reference, s.rating) for s in standings]
    write_text(plot, scatter(points, "leaderboard", "mean rating"))
    save(result, "ranking", config, judged or config.judge, sources, content)
    overall = content["overall"]
    print(f"{'system':<34}{'rating':>8}{'leaderboard':>13}{'ranks':>9}{'diff':>6}")
    for row in content["systems"]:
        ranks = f"{row['rank']} / {row['reference_rank']}"
        print(
            f"{row['system'][:33]:<34}{row['rating']:>8.3f}{row['reference']:>13.2f}{ranks:>9}"
            f"{row['difference']:>+6d}"
        )
    said = [f"{name} {overall[name]:.3f}" for name in CORRELATIONS if overall[name] is not None]
    print(f"{overall['n']} systems: {', '.join(said) or 'no correlation is defined'}")
    print(f"result: {result}, plot: {plot}")
    return 0
