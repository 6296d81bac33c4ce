"""A judge's ratings of single responses, compared with reference ratings and rivals.

Pure functions from rows and judgements to the report's figures and tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoj_reward.data.labelled import Rated
from autoj_reward.evaluate.statistics import correlation, difference, pearson, share, spearman
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.io.markup import Table
from autoj_reward.types import JudgeInput, Judgement, Outcome
from experiments.compare.critique_health import examine, summarise
from experiments.compare.outputs import Values
from experiments.compare.panel import Material
from experiments.compare.rivals import Prediction
from experiments.tables import Section, tabled

JUDGED = {"single": "greedy", "single_direct": "direct", "base": "base"}
"""Judge of each part, as a key of the config's `judges`."""
ANSWERED = (Outcome.OK, Outcome.TRUNCATED, Outcome.UNPARSABLE)
"""Outcomes of judgements for which the judge wrote a text."""
VIEWS = ("rating", "expected", "pessimistic")
"""Views of a judge that are compared."""
CORRELATIONS = {"spearman": spearman, "pearson": pearson}
"""Correlations with the reference rating, by name."""


@dataclass(frozen=True, slots=True)
class PartFigures:
    """Result of one part."""

    figures: dict[str, Any]
    """Plain data for the report."""
    predictions: dict[str, Values] = field(default_factory=dict)
    """By view, the number for every rated row; None where the judge abstained."""


def make_single_inputs(rows: Sequence[Rated]) -> list[JudgeInput]:
    """Return a judge input for each response."""
    return [JudgeInput("single", row.query, (row.response,)) for row in rows]


def measure_judgements(
    material: Material, fmt: JudgeFormat, judgements: Sequence[Judgement], critiques: bool
) -> PartFigures:
    """Return the figures of a judge's ratings of the rated rows, in their order.

    With `critiques` the judge wrote critiques. Their figures are then added, with the health of the
    reference critiques.
    """
    rows = material.rated
    predictions = {view: [j.view(view) for j in judgements] for view in VIEWS}
    figures = {
        "abstained": sum(not j.ok for j in judgements),
        "outcomes": dict(Counter(j.outcome.value for j in judgements)),
        **{view: measure_ratings(material, values) for view, values in predictions.items()},
    }
    prompts = [
        "\n".join(message.text for message in render(item, fmt))
        for item in make_single_inputs(rows)
    ]
    if critiques:
        texts = zip(rows, prompts, judgements, strict=True)
        answered_rows = [(row, p, j) for row, p, j in texts if j.outcome in ANSWERED]
        parsed_share = share([j.ok and not j.forced for _, _, j in answered_rows])
        figures |= {
            "parsed": material.estimate(parsed_share, [row.query for row, _, _ in answered_rows]),
            "health": summarise(
                [
                    examine(j.critique, prompt, hit_limit="output_truncated" in j.flags)
                    for _, prompt, j in answered_rows
                ]
            ),
            "reference_health": summarise(
                [
                    examine(row.judgement, prompt)
                    for row, prompt in zip(rows, prompts, strict=True)
                    if row.judgement
                ]
            ),
        }
    return PartFigures(figures, dict(predictions))


def measure_rivals(
    material: Material, rival_predictions: Mapping[str, Prediction], missing: str
) -> PartFigures:
    """Return the figures of the part `rivals`.

    `rival_predictions` holds predictions for the rated rows. `missing` says which rival is not
    measured, and why.
    """
    figures_by_rival = {}
    for name, prediction in rival_predictions.items():
        figures_by_rival[name] = measure_ratings(material, prediction.values) | {
            "layer": prediction.layer
        }
        if name == "length":
            figures_by_rival[name]["mae"] = None  # characters are no rating
    predictions: dict[str, Values] = {
        name: prediction.values for name, prediction in rival_predictions.items()
    }
    return PartFigures({"rated": figures_by_rival, "missing": missing}, predictions)


def measure_ratings(material: Material, values: Values) -> dict[str, Any]:
    """Return correlations and mean absolute error of values against the reference ratings.

    There is one value for each rated row. A row is left out if its value is None: the rater
    abstained.
    """
    pairs = [(v, row) for v, row in zip(values, material.rated, strict=True) if v is not None]
    queries = [row.query for _, row in pairs]
    given_values = np.array([v for v, _ in pairs])
    references = np.array([row.rating for _, row in pairs])
    figures = {
        name: material.estimate(correlation(measure, given_values, references), queries)
        for name, measure in CORRELATIONS.items()
    }
    return figures | {"mae": material.estimate(share(np.abs(given_values - references)), queries)}


def compare_parts(
    material: Material, predictions: Mapping[str, Mapping[str, Values]]
) -> dict[str, Any]:
    """Return paired differences between the parts that were measured.

    `against` holds the judge's best view less each rival. The view with the highest Spearman
    correlation is chosen on the rows that measure it, which flatters the judge.
    """
    views = {
        f"{part} {view}": values
        for part in ("single", "single_direct")
        for view, values in predictions.get(part, {}).items()
    }
    spearman_by_view = {
        name: r for name, v in views.items() if (r := _correlate(material, v)) is not None
    }
    best = max(spearman_by_view, key=lambda name: spearman_by_view[name], default=None)
    others = {name: predictions.get("rivals", {}).get(name) for name in ("tfidf", "probe")}
    others["base expected"] = predictions.get("base", {}).get("expected")
    return {
        "best_view": best,
        "against": {
            name: compare_paired(material, views[best], values)
            for name, values in others.items()
            if best and values
        },
    }


def compare_paired(material: Material, first: Values, second: Values) -> dict[str, Any]:
    """Return the correlations of `first` with the reference less those of `second`.

    They come from paired resamples of the rated rows where both have a value.
    """
    indices = [i for i, pair in enumerate(zip(first, second, strict=True)) if None not in pair]
    references = [material.rated[i].rating for i in indices]
    first_values, second_values = (
        np.array([values[i] for i in indices], dtype=float) for values in (first, second)
    )
    return {
        name: material.estimate(
            difference(
                correlation(measure, first_values, references),
                correlation(measure, second_values, references),
            ),
            [material.rated[i].query for i in indices],
        )
        for name, measure in CORRELATIONS.items()
    }


def _correlate(material: Material, values: Values) -> float | None:
    pairs = [
        (v, row.rating) for v, row in zip(values, material.rated, strict=True) if v is not None
    ]
    return spearman(*zip(*pairs, strict=True)) if pairs else None


NAMES = {
    "single": "judge, with critique",
    "single_direct": "judge, without critique",
    "base": "untuned base, with critique",
    "tfidf": "TF-IDF of the response, ridge",
    "probe": "ridge probe on the base's hidden states",
    "length": "length of the response",
    "constant": "constant (mean training rating)",
}
"""Names of raters in tables."""
RATINGS = {
    "rater": "{rater}",
    "view": "{view}",
    "Spearman": "{spearman}",
    "Pearson": "{pearson}",
    "MAE": "{mae}",
    "n": "{spearman[n]}",
    "abstained": "{abstained}",
}
"""Columns of the table of ratings."""
TEXTS = {
    "text": "{text}",
    "n": "{n}",
    "parses, without forcing": "{parsed}",
    "words, mean": "{words:.0f}",
    "repetition": "{repetition:.3f}",
    "loops": "{loops:.3f}",
    "copies": "{copies:.3f}",
    "cut off": "{hit_limit:.3f}",
    "outcomes": "{ends}",
}
"""Columns of the table of critiques."""
DIFFERENCES = {
    "first": "judge: {best}",
    "second": "{second}",
    "Spearman": "{spearman}",
    "Pearson": "{pearson}",
    "n": "{spearman[n]}",
}
"""Columns of the table of differences."""
RATINGS_NOTE = (
    "Correlation with the reference rating on held-out rows, [95 % interval], n rows; MAE is the "
    "mean absolute error in rating points. Rows where a judge abstained are left out of its line "
    "and counted as abstained. A constant has no correlation. Published for Auto-J 13B on other "
    "rows (arXiv 2310.05470, Table 2): 0.55 and 0.57."
)
"""Note under the table of ratings."""
DIFFERENCES_NOTE = (
    "First less second on the same rows, from paired resamples. The judge's view is the one with "
    "the highest Spearman correlation on these rows, which flatters it."
)
"""Note under the table of differences."""
TEXTS_NOTE = (
    "Repetition: share of 4-grams that occurred before in the critique. Loops: a unit of at most "
    "60 words three times in a row, or cut off with most 8-grams repeated. Copies: 40 words in a "
    "row from the prompt, or half of the critique."
)
"""Note under the table of critiques."""


def make_rating_sections(result: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the tables of the parts that were measured."""
    parts = {name: figures for name, figures in result["parts"].items() if name in JUDGED}
    rivals = result["parts"].get("rivals", {"rated": {}, "missing": ""})
    rows = [
        figures[view] | {"rater": NAMES[part], "view": view, "abstained": figures["abstained"]}
        for part, figures in parts.items()
        for view in VIEWS
    ]
    for name, figures in rivals["rated"].items():
        view = None if figures["layer"] is None else f"layer {figures['layer']}"
        rows.append(figures | {"rater": NAMES[name], "view": view, "abstained": None})
    missing = f" Not measured: {rivals['missing']}." if rivals["missing"] else ""
    yield "Ratings of single responses", tabled(rows, RATINGS), RATINGS_NOTE + missing
    yield "Critiques", _make_text_table(parts), TEXTS_NOTE
    best, against = result["comparisons"]["best_view"], result["comparisons"]["against"]
    gaps = [gap | {"best": best, "second": name} for name, gap in against.items()]
    yield "Paired differences", tabled(gaps, DIFFERENCES), DIFFERENCES_NOTE


def _make_text_table(parts: Mapping[str, Any]) -> Table:
    rows, references = [], list[dict[str, Any]]()
    for part, figures in parts.items():
        if "health" in figures:
            ends = ", ".join(f"{name} {count}" for name, count in figures["outcomes"].items())
            labels = {"text": NAMES[part], "parsed": figures["parsed"], "ends": ends}
            rows.append(figures["health"] | labels)
            reference = figures["reference_health"]
            references = [reference | {"text": "reference", "parsed": None, "ends": None}]
    return tabled([row for row in [*rows, *references] if row["n"]], TEXTS)
