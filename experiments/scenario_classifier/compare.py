"""Train the scenario classifier of this package and measure it beside its rivals.

    python -m experiments.scenario_classifier.compare --config configs/scenario_classifier.yaml

Parts: `constant` (the commonest scenario), `terms` (TF-IDF and a linear model, which needs numpy
alone), `vectors` (token embeddings of the base model and a linear model), `states` (its hidden
states and a linear model) and `finetuned` (a language model trained on the published prompt). The
classifier on terms lies in `classifier/` of the output folder afterwards, as the package ships it;
figures are in `scenario_classifier.json` and `.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tqdm import tqdm

from autoj_reward.collect.intake import measured_queries
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.labelled import JudgeData, data_path
from autoj_reward.io.files import write_json, write_text
from autoj_reward.scenarios import load_scenarios
from autoj_reward.scenarios.linear import Classified, LinearClassifier
from experiments.scenario_classifier.config import LabelledData, ScenarioClassifierConfig
from experiments.scenario_classifier.data import Labelled, Split, read_labelled, split, without
from experiments.scenario_classifier.figures import figures, lead
from experiments.scenario_classifier.fit import fit
from experiments.scenario_classifier.report import render_report
from experiments.scenario_classifier.rivals import finetuned, probe, states, vectors
from experiments.study import run_command


@dataclass(frozen=True, slots=True)
class Said:
    """What a classifier answers on the validation rows, and on those measured besides, with what
    else is worth reporting of it."""

    validation: list[Classified]
    measured: list[Classified]
    facts: dict[str, Any]


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
    """Fit and measure every part of the config; returns what `scenario_classifier.json` holds."""
    rows, measured, left_out = load(config.data)
    said: dict[str, Said] = {}
    for part in config.parts:
        tqdm.write(part, file=sys.stderr)
        if part == "terms":
            fitted = fit(rows.training, config)
            fitted.classifier.save(config.output / "classifier")
            facts = {
                "strength": fitted.strength,
                "cross_validated": fitted.cross_validated,
                "calibration": asdict(fitted.classifier.calibration),
                "others_below": fitted.classifier.others_below,
            }
            said[part] = _ask(fitted.classifier, rows.validation, measured, facts)
        elif part == "constant":
            [(common, _)] = Counter(row.scenario for row in rows.training).most_common(1)
            answer = Classified(common, math.nan, common)
            said[part] = Said(
                [answer] * len(rows.validation), [answer] * len(measured), {"says": common}
            )
        else:
            said[part] = _rival(part, config, rows, measured)
    scored = {
        part: {
            "validation": _figures(rows.validation, found.validation, config),
            "measured": _figures(measured, found.measured, config),
            **found.facts,
        }
        for part, found in said.items()
    }
    result = {
        "config": json.loads(config.model_dump_json(exclude={"data": {"folder"}, "output": True})),
        "rows": {
            "training": len(rows.training),
            "validation": len(rows.validation),
            "scenarios": len({row.scenario for row in rows.training}),
            "measured": len(measured),
            **left_out,
        },
        "parts": scored,
    }
    order = sorted(scored, key=lambda part: -scored[part]["validation"]["macro_f1"]["value"])
    result["leads"] = {
        f"{order[0]} over {other}": lead(
            [row.scenario for row in rows.validation],
            [answer.scenario for answer in said[order[0]].validation],
            [answer.scenario for answer in said[other].validation],
            config.bootstrap,
            config.seed,
        )
        for other in order[1:]
    }
    return result


def _ask(
    classifier: LinearClassifier,
    validation: Sequence[Labelled],
    measured: Sequence[Labelled],
    facts: dict[str, Any],
) -> Said:
    started = time.perf_counter()
    found = classifier.classify([row.query for row in validation])
    seconds = time.perf_counter() - started
    return Said(
        found,
        classifier.classify([row.query for row in measured]),
        facts | {"ms_per_query": 1000 * seconds / max(1, len(validation))},
    )


def _figures(
    rows: Sequence[Labelled], said: Sequence[Classified], config: ScenarioClassifierConfig
) -> dict[str, Any] | None:
    if not rows:
        return None
    return figures([row.scenario for row in rows], said, config.bootstrap, config.seed)


def _rival(
    part: str,
    config: ScenarioClassifierConfig,
    rows: Split,
    measured: Sequence[Labelled],
) -> Said:
    asked = [*rows.validation, *measured]
    if part != "finetuned":
        features = vectors if part == "vectors" else states
        found, facts = probe(rows.training, asked, features, config)
    else:
        if config.finetuned is None:
            raise ConfigError("the part finetuned needs `finetuned`: the folder of the model")
        found, facts = asyncio.run(finetuned(asked, config.finetuned))
    cut = len(rows.validation)
    return Said(found[:cut], found[cut:], facts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and write."""

    def work(config: ScenarioClassifierConfig, _flags: argparse.Namespace, _command: str) -> str:
        result = compare(config)
        write_json(config.output / "scenario_classifier.json", result)
        report = render_report(result)
        write_text(config.output / "scenario_classifier.md", report)
        return report

    return run_command(
        "experiments.scenario_classifier.compare",
        __doc__,
        ScenarioClassifierConfig,
        work,
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
