"""How good a judge is, beside what it must beat, on rows that it was not trained on.

    python -m experiments.compare.judge_quality --config configs/experiments/judge_quality.yaml

Parts: `single` (critique, greedy), `single_direct` (the rating slot right after the prompt),
`base` (the untuned rival), `rivals` (predictors that are no judge) and `ordered` (how judge and
rivals order the outputs of many systems to one instruction). Labelled pairs are measured by the
part `eval_p` of `experiments.compare.ablation`, and comparisons by `autoj evaluate eval-p`.
Every judgement is in the output folder's journal before it is used, so the same command goes on
where it stopped, and a part that was judged costs nothing in another run.
Results, after each judge: quality.json, quality.md; with `ordered` quality-best-of-n.svg.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing

from autoj_reward.config import JudgeConfig, View
from autoj_reward.data.labelled import Rated
from autoj_reward.errors import InputError
from autoj_reward.formats.schema import JudgeFormat, load_format
from autoj_reward.journal import Journal
from autoj_reward.judge.make import judge_name
from autoj_reward.models import format_and_wrapper
from experiments.compare import rivals
from experiments.compare.judge_quality.config import PARTS, JudgeQualityConfig
from experiments.compare.judge_quality.ordered import ordered
from experiments.compare.judge_quality.outputs import as_rated, read_outputs
from experiments.compare.judge_quality.parts import JUDGED, Measured, comparisons, rival_figures
from experiments.compare.judge_quality.report import ordered_plots, render_quality
from experiments.compare.panel import ask, read_material
from experiments.study import Study, command


async def study(run: Study[JudgeQualityConfig]) -> str:
    """Measure the parts, a judge after the other. Raises AutojError."""
    config = run.config
    judges = config.judges
    formats = {name: load_format(format_and_wrapper(judge)[0]) for name, judge in judges.items()}
    material, bad = read_material(config, formats["greedy"], run.limit)
    asked = {part: JUDGED[part].inputs(material) for part in run.parts if part in JUDGED}
    if empty := [part for part, inputs in asked.items() if not inputs]:
        raise InputError(
            f"no rows for {', '.join(empty)}: raise data.held_out, give more files, or name the "
            "other parts with --parts"
        )
    named = judges | ({"scalar": config.scalar} if config.scalar else {})
    head = {
        "judges": {name: judge_name(judge) for name, judge in named.items()},
        "rows": {
            "rated": len(material.rated),
            "training": len(material.training),
            "left_out": bad,
        },
    }
    measured: dict[str, Measured] = {}
    text = ""

    def write() -> str:
        known = {part: measured[part] for part in run.parts if part in measured}
        predictions = {part: own.predictions for part, own in known.items()}
        found = {
            "parts": {part: own.figures for part, own in known.items()},
            "comparisons": comparisons(material, predictions),
        }
        return run.write("quality", head | found, render_quality, ordered_plots)

    with closing(Journal(config.output / "journal.sqlite")) as journal:
        for name, judge in judges.items():
            own = {part: inputs for part, inputs in asked.items() if JUDGED[part].judge == name}
            if not own:
                continue
            answers = await ask(judge, journal, (i for items in own.values() for i in items))
            for part, inputs in own.items():
                judgements = [answers[item] for item in inputs]
                measured[part] = JUDGED[part].measure(material, formats[name], judgements)
            text = write()
        if "rivals" in run.parts:
            found = _predictions(config, material.training, material.rated)
            measured["rivals"] = rival_figures(material, *found)
            text = write()
        if "ordered" in run.parts:
            measured["ordered"] = await _ordered(run, judges, formats["direct"], journal)
            text = write()
    return text


async def _ordered(
    run: Study[JudgeQualityConfig],
    judges: Mapping[str, JudgeConfig],
    fmt: JudgeFormat,
    journal: Journal,
) -> Measured:
    """How the judge and its rivals order the outputs of many systems."""
    config = run.config
    outputs = read_outputs(config.data, config.ordered, fmt, config.draws, run.limit)
    raters: dict[str, tuple[JudgeConfig, View]] = {"judge": (judges["direct"], "expected")}
    if config.ordered.critique:
        raters["critique"] = (judges["greedy"], "expected")
    if config.scalar:
        raters["scalar"] = (config.scalar, "rating")
    views = {}
    for rater, (judge, view) in raters.items():
        answers = await ask(judge, journal, outputs.inputs())
        views[rater] = [answers[item].view(view) for item in outputs.inputs()]
    found = _predictions(config, outputs.fitted, as_rated(outputs.graded))
    return Measured(ordered(outputs, views, *found))


def _predictions(
    config: JudgeQualityConfig, training: Sequence[Rated], rows: Sequence[Rated]
) -> tuple[dict[str, rivals.Prediction], str]:
    """What the rivals predict for the rows, and why one of them does not."""
    if not rows:
        return {}, "no held-out rated rows"
    found = {
        "tfidf": rivals.tfidf(training, rows),
        "length": rivals.length(rows),
        "constant": rivals.constant(training, rows),
    }
    base = config.base
    if base is None or base.kind != "vllm":
        return found, "no probe: the config has no base whose weights are here"
    states = rivals.hidden_states([*training, *rows], base, config.output)
    return found | {"probe": rivals.probe(training, rows, states, config.probe_layers)}, ""


main = command(JudgeQualityConfig, study, PARTS, limit="rows of a file")

if __name__ == "__main__":
    sys.exit(main())
