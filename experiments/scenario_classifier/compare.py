"""Train the scenario classifier of this package and measure it beside its rivals.

    python -m experiments.scenario_classifier.compare --config configs/scenario_classifier.yaml

Parts: `constant` (the commonest scenario), `terms` (TF-IDF and a linear model, which needs numpy
alone), `vectors` (token embeddings of the base model and a linear model) and `finetuned` (a
language model trained on the published prompt). The
classifier on terms lies in `classifier/` of the output folder afterwards, as the package ships it;
figures are in `scenario_classifier.json` and `.md`.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from autoj_reward.collect.intake import measured_queries
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.labelled import JudgeData, data_path
from autoj_reward.scenarios import load_scenarios
from autoj_reward.scenarios.linear import Classified
from experiments.scenario_classifier.config import LabelledData, ScenarioClassifierConfig
from experiments.scenario_classifier.data import Labelled, Split, read_labelled, split, without
from experiments.scenario_classifier.figures import figures, lead
from experiments.scenario_classifier.fit import fit
from experiments.scenario_classifier.report import render_report
from experiments.scenario_classifier.rivals import finetuned, probe
from experiments.study import Study, command


def load(data: LabelledData) -> tuple[Split, tuple[Labelled, ...], dict[str, int]]:
    """Training and validation rows, rows measured besides, and how many were left out and why."""
    known, where = load_scenarios(), JudgeData(folder=data.folder)
    found = read_labelled(data_path(where, data.training), known)
    for row in found.bad:
        if "given up" not in row.reason:
            tqdm.write(f"left out {row}", file=sys.stderr)
    excluded = measured_queries(data_path(where, name) for name in data.exclude)
    kept = without(found.rows, excluded)
    extra, measured = (
        read_labelled(data_path(where, name), known).rows if name else ()
        for name in (data.extra, data.measure)
    )
    parts = split(kept, data.held_out)
    counts = {
        "malformed or given up": len(found.bad),
        "excluded": len(found.rows) - len(kept),
        "extra": len(extra),
    }
    return Split((*parts.training, *extra), parts.validation), measured, counts


def compare(config: ScenarioClassifierConfig) -> dict[str, Any]:
    """Fit and measure every part of the config."""
    rows, measured, left_out = load(config.data)
    cut, said, scored = len(rows.validation), dict[str, list[Classified]](), dict[str, Any]()
    for part in config.parts:
        tqdm.write(part, file=sys.stderr)
        said[part], facts = answers(part, config, rows.training, [*rows.validation, *measured])
        scored[part] = {
            "validation": _figures(rows.validation, said[part][:cut], config),
            "measured": _figures(measured, said[part][cut:], config),
            **facts,
        }
    order = sorted(scored, key=lambda part: -scored[part]["validation"]["macro_f1"].value)
    names = {part: [answer.scenario for answer in said[part][:cut]] for part in order}
    truth = [row.scenario for row in rows.validation]
    return {
        "rows": {
            "training": len(rows.training),
            "validation": cut,
            "scenarios": len({row.scenario for row in rows.training}),
            "measured": len(measured),
            **left_out,
        },
        "classifiers": scored,
        "leads": {
            f"{order[0]} over {other}": lead(truth, names[order[0]], names[other], config.draws)
            for other in order[1:]
        },
    }


def answers(
    part: str,
    config: ScenarioClassifierConfig,
    training: Sequence[Labelled],
    asked: Sequence[Labelled],
) -> tuple[list[Classified], dict[str, Any]]:
    """What a part says of the rows asked, and what else is worth reporting of it."""
    if part == "constant":
        [(common, _)] = Counter(row.scenario for row in training).most_common(1)
        return [Classified(common, math.nan, common)] * len(asked), {"says": common}
    if part == "vectors":
        return probe(training, asked, config)
    if part == "finetuned":
        if config.finetuned is None:
            raise ConfigError("the part finetuned needs `finetuned`: the folder of the model")
        return asyncio.run(finetuned(asked, config.finetuned))
    fitted = fit(training, config)
    fitted.classifier.save(config.output / "classifier")
    started = time.perf_counter()
    found = fitted.classifier.classify([row.query for row in asked])
    return found, {
        "strength": fitted.strength,
        "cross_validated": fitted.cross_validated,
        "calibration": fitted.classifier.calibration,
        "others_below": fitted.classifier.others_below,
        "ms_per_query": 1000 * (time.perf_counter() - started) / max(1, len(asked)),
    }


def _figures(
    rows: Sequence[Labelled], said: Sequence[Classified], config: ScenarioClassifierConfig
) -> dict[str, Any] | None:
    if not rows:
        return None
    return figures([row.scenario for row in rows], said, config.draws)


def study(run: Study[ScenarioClassifierConfig]) -> str:
    """Compare and write."""
    return run.write("scenario_classifier", compare(run.config), render_report)


main = command(ScenarioClassifierConfig, study)

if __name__ == "__main__":
    sys.exit(main())
