"""Quality of a judge, and of the rivals it must beat, on rows that it was not trained on.

    python -m experiments.compare.judge_quality --config configs/experiments/judge_quality.yaml

Parts:

- `single`: ratings after greedy critiques.
- `single_direct`: ratings at the slot right after the prompt.
- `base`: the judge before its training.
- `rivals`: predictors that are no judges.
- `ordered`: how judge, scalar reward model and rivals order the outputs of many systems.
- `candidates`: how they order responses sampled from a policy and graded by a program.

`autoj evaluate eval-p` measures labelled pairs. Every judgement and sample is saved in the output
folder's journal before it is used. The same command thus resumes, and a judged part costs nothing
in another run. The results quality.json and quality.md are written after each judge. `ordered` also
writes quality-best-of-n.svg, and `candidates` quality-best-of-n-candidates.svg.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from autoj_reward.data.labelled import Rated
from autoj_reward.errors import InputError
from autoj_reward.journal import Journal
from autoj_reward.models.spec import judge_spec
from autoj_reward.types import BadRow
from experiments.compare import order, ratings, rivals
from experiments.compare.outputs import (
    Outputs,
    Values,
    make_rated_rows,
    read_graded_outputs,
    sample_candidates,
)
from experiments.compare.panel import (
    PARTS,
    JudgeQualityConfig,
    Material,
    ask,
    load_judge_format,
    read_material,
)
from experiments.compare.ratings import JUDGED, PartFigures
from experiments.study import Study, study_command
from experiments.tables import report


async def study(run: Study[JudgeQualityConfig]) -> str:
    """Measure the parts, one judge after another. Return the report. Raises AutojError."""
    config, judges = run.config, run.config.judges
    judged_parts = [part for part in run.parts if part in JUDGED]
    material, bad = Material((), (), config.draws), list[BadRow]()
    if judged_parts or "rivals" in run.parts:  # the other parts have rows of their own
        material, bad = read_material(config, run.limit)
    if judged_parts and not material.rated:
        raise InputError(
            f"no rows for {', '.join(judged_parts)}: raise data.held_out, give more files, or "
            "name the other parts with --parts"
        )
    figures_by_part, text = dict[str, PartFigures](), ""

    def write() -> str:
        measured_parts = {
            part: figures_by_part[part] for part in run.parts if part in figures_by_part
        }
        predictions = {
            part: part_figures.predictions for part, part_figures in measured_parts.items()
        }
        named_judges = judges | ({"scalar": config.scalar} if config.scalar else {})
        result = {
            "judges": {name: judge_spec(judge).name for name, judge in named_judges.items()},
            "rows": {"rated": len(material.rated), "training": len(material.training)},
            "left_out": bad,
            "parts": {part: part_figures.figures for part, part_figures in measured_parts.items()},
            "comparisons": ratings.compare_parts(material, predictions),
        }
        return run.write("quality", result, markdown, order.draw_order_plots)

    with closing(Journal(config.output / "journal.sqlite")) as journal:
        for part in judged_parts:
            judge = judges[JUDGED[part]]
            inputs = ratings.make_single_inputs(material.rated)
            answers = await ask(judge, journal, inputs)
            judgements = [answers[item] for item in inputs]
            fmt = load_judge_format(judge)
            figures_by_part[part] = ratings.measure_judgements(
                material, fmt, judgements, judge.critique
            )
            text = write()
        if "rivals" in run.parts:
            rival_predictions = _predict_ratings(config, material.training, material.rated)
            figures_by_part["rivals"] = ratings.measure_rivals(material, *rival_predictions)
            text = write()
        if "ordered" in run.parts:
            figures_by_part["ordered"] = PartFigures(await _order_outputs(run, journal))
            text = write()
        if "candidates" in run.parts:
            figures, left_out = await _order_candidates(run, journal)
            figures_by_part["candidates"] = PartFigures(figures)
            bad += left_out
            text = write()
    return text


async def _order_outputs(run: Study[JudgeQualityConfig], journal: Journal) -> dict[str, Any]:
    """Return how judge, scalar model and rivals order the outputs of many systems."""
    config, settings = run.config, run.config.ordered
    fmt = load_judge_format(config.judge)
    outputs = read_graded_outputs(config.data, settings, fmt, config.draws, run.limit)
    raters = await _ask_raters(config, outputs, settings.critique, journal)
    predictions, missing = _predict_ratings(config, outputs.fitted, make_rated_rows(outputs.graded))
    # A constant gives no order.
    raters |= {
        name: prediction.values for name, prediction in predictions.items() if name != "constant"
    }
    layer = predictions["probe"].layer if "probe" in predictions else None
    return order.measure_order(outputs, raters, missing) | {"layer": layer}


async def _order_candidates(
    run: Study[JudgeQualityConfig], journal: Journal
) -> tuple[dict[str, Any], list[BadRow]]:
    """Return how judge, scalar model, length and log-probability order the candidates of a policy.

    Also return the rows that were left out.
    """
    config, settings = run.config, run.config.candidates
    assert settings is not None  # else the config has no such part
    outputs, bad = await sample_candidates(settings, journal, config.draws, run.limit)
    raters = await _ask_raters(config, outputs, settings.critique, journal)
    raters |= {
        "logprob": outputs.logprobs,
        "length": rivals.predict_by_length(make_rated_rows(outputs.graded)).values,
    }
    return order.measure_order(outputs, raters), bad


async def _ask_raters(
    config: JudgeQualityConfig, outputs: Outputs, critique: bool, journal: Journal
) -> dict[str, Values]:
    """Return the numbers that the judge and the scalar model give to every output."""
    judges = config.judges
    direct = judges["direct"]
    judge_views = {
        "judge": (direct, "expected"),
        "written": (direct, "rating"),
        "pessimistic": (direct, "pessimistic"),
    }
    if critique:
        judge_views["critique"] = (judges["greedy"], "expected")
    if config.scalar:
        judge_views["scalar"] = (config.scalar, "rating")
    values = dict[str, Values]()
    for name, (judge, view) in judge_views.items():
        answers = await ask(judge, journal, outputs.make_inputs())
        values[name] = [answers[item].view(view) for item in outputs.make_inputs()]
    return values


def _predict_ratings(
    config: JudgeQualityConfig, training: Sequence[Rated], rows: Sequence[Rated]
) -> tuple[dict[str, rivals.Prediction], str]:
    """Return the rivals' predictions for the rows, and why one of the rivals is missing."""
    if not rows:
        return {}, "no held-out rated rows"
    predictions = {
        "tfidf": rivals.predict_by_tfidf(training, rows),
        "length": rivals.predict_by_length(rows),
        "constant": rivals.predict_by_mean(training, rows),
    }
    base = config.base
    if base is None or base.kind != "vllm":
        return predictions, "no probe: the config has no base whose weights are here"
    states = rivals.read_hidden_states([*training, *rows], base, config.output)
    return predictions | {
        "probe": rivals.predict_by_probe(training, rows, states, config.probe_layers)
    }, ""


def markdown(result: dict[str, Any]) -> str:
    """Return the report with all tables for a model card.

    Parts that were not measured are left out.
    """
    rows = result["rows"]
    about = (
        f"Judges: {', '.join(result['judges'].values())}. Rows: {rows['rated']} rated held out, "
        f"{rows['training']} rated for the rivals to fit; {len(result['left_out'])} malformed rows "
        "left out."
    )
    tables = [*ratings.make_rating_sections(result), *order.make_order_sections(result)]
    return report("Judge quality", result, tables, about)


main = study_command(JudgeQualityConfig, study, PARTS, limit="rows of a file, or queries")

if __name__ == "__main__":
    sys.exit(main())
