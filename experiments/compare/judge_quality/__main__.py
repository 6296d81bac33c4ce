"""How good a judge is, beside what it must beat, on rows that it was not trained on.

    python -m experiments.compare.judge_quality --config configs/judge_quality.yaml

Parts: `single` (critique, greedy), `single_direct` (the rating slot right after the prompt),
`single_k` (k sampled critiques), `base` (the untuned rival), `pairwise` (both orders), `pointwise`
(pairs by expected rating) and `rivals` (predictors that are no judge). Every judgement is in the
output folder's journal before it is used, so the same command goes on where it stopped.
`quality.json` and `quality.md` are written after each part; parts that earlier runs measured of the
same judges on the same rows stay in them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from autoj_reward.client.judging import asking
from autoj_reward.errors import InputError
from autoj_reward.io.files import plain, write_json, write_text
from autoj_reward.io.provenance import describe_machine, installed_versions
from autoj_reward.journal import Journal
from autoj_reward.judge.make import judge_name
from autoj_reward.models import format_and_wrapper, resolve
from autoj_reward.prompts.format import load_format
from autoj_reward.types import BadRow
from experiments.compare import rivals
from experiments.compare.judge_quality.config import PARTS, JudgeQualityConfig
from experiments.compare.judge_quality.figures import Material, Measured, comparisons, rival_figures
from experiments.compare.judge_quality.material import read_material
from experiments.compare.judge_quality.parts import JUDGED
from experiments.compare.judge_quality.report import render_quality
from experiments.study import parts_flag, run_command

RESULT_FILES = ("predictions.json", "quality.json")


class Results:
    """The result files of one folder. Whatever is added is on disk at once."""

    def __init__(self, folder: Path, head: dict[str, Any], material: Material) -> None:
        self._folder, self._material = folder, material
        kept, quality = (_earlier(folder / name, head["identity"]) for name in RESULT_FILES)
        self.quality: dict[str, Any] = head | {"parts": quality.get("parts", {})}
        self._predictions: dict[str, Any] = kept.get("parts", {})

    def add(self, part: str, measured: Measured, run: dict[str, Any]) -> None:
        """Put a part in, or in place of an earlier measurement of it."""
        self.quality["parts"][part] = plain(measured.figures) | {"run": run}
        self._predictions[part] = measured.predictions
        self.quality["comparisons"] = plain(comparisons(self._material, self._predictions))
        rows = [f"{row.source}:{row.line}" for row in self._material.rated]
        kept = {
            "identity": self.quality["identity"],
            "rows": rows,
            "reference": [row.rating for row in self._material.rated],
            "parts": self._predictions,
        }
        for name, content in zip(RESULT_FILES, (kept, self.quality), strict=True):
            write_json(self._folder / name, content)
        write_text(self._folder / "quality.md", render_quality(self.quality))


def _earlier(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """An earlier result of the same judges and rows, else nothing."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["identity"] == identity:
            return found
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        pass
    tqdm.write(f"{path} is of other judges or rows, and is replaced")
    return {}


async def run(
    config: JudgeQualityConfig, parts: Sequence[str], command: str, limit: int | None = None
) -> dict[str, Any]:
    """Measure the parts; returns what is in `quality.json`. Raises AutojError."""
    judges = config.judges
    formats = {name: load_format(format_and_wrapper(judge)[0]) for name, judge in judges.items()}
    material, bad = read_material(config, formats["greedy"], limit)
    asked = {part: JUDGED[part].inputs(material) for part in parts if part in JUDGED}
    if empty := [part for part, inputs in asked.items() if not inputs]:
        raise InputError(
            f"no rows for {', '.join(empty)}: raise data.held_out, give more files, or name the "
            "other parts with --parts"
        )
    results = Results(config.output, _head(config, material, bad, command), material)
    journal = Journal(config.output / "journal.sqlite")
    try:
        for name, judge in judges.items():
            own = {part: inputs for part, inputs in asked.items() if JUDGED[part].judge == name}
            if not own:
                continue
            async with asking(judge, journal, [i for items in own.values() for i in items]) as ask:
                for part, inputs in own.items():
                    started = time.monotonic()
                    judgements = await ask(inputs)
                    spent = {"seconds": time.monotonic() - started, "judgements": len(inputs)}
                    measured = JUDGED[part].measure(material, formats[name], judgements)
                    results.add(part, measured, spent)
    finally:
        journal.close()
    if "rivals" in parts:
        started = time.monotonic()
        measured = rival_figures(material, *_predictions(config, material))
        results.add("rivals", measured, {"seconds": time.monotonic() - started})
    return results.quality


def _predictions(
    config: JudgeQualityConfig, material: Material
) -> tuple[dict[str, rivals.Prediction], str]:
    """What the rivals predict for the rated rows, and why one of them does not."""
    rows, training = material.rated, material.training
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


def _head(
    config: JudgeQualityConfig, material: Material, bad: Sequence[BadRow], command: str
) -> dict[str, Any]:
    """What `quality.json` says of the run; results of another `identity` do not mix with it."""
    rows = repr((material.rated, material.training, material.pairs, material.validation))
    digest = hashlib.sha256(rows.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    models = {"judge": config.judge} | ({"base": config.base} if config.base else {})
    return {
        "identity": {
            "judges": {name: judge_name(judge) for name, judge in config.judges.items()},
            "models": {name: resolve(judge).identity for name, judge in models.items()},
            "rows": digest,
            "critiques": [config.critiques, config.temperature],
            "bootstrap": [config.bootstrap, config.seed],
        },
        "command": command,
        "at": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "versions": installed_versions(),
        "rows": {
            "rated": len(material.rated),
            "training": len(material.training),
            "pairs": len(material.pairs),
            "validation": len(material.validation),
            "left_out": [plain(row) for row in bad],
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the tables."""

    def work(config: JudgeQualityConfig, flags: argparse.Namespace, command: str) -> str:
        quality = asyncio.run(run(config, config.parts(flags.parts), command, flags.limit))
        return f"{render_quality(quality)}\nresults: {config.output / 'quality.json'}"

    extra = parts_flag(PARTS) | {
        "--limit": {"type": int, "metavar": "N", "help": "rows of a file, for a quick look"},
    }
    return run_command(
        "experiments.compare.judge_quality", __doc__, JudgeQualityConfig, work, arguments, extra
    )


if __name__ == "__main__":
    sys.exit(main())
