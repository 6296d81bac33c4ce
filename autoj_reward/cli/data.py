"""Commands that make training data for judges and train judges on it.

They are `autoj collect`, `scenarios`, `classify`, `train judge` and `train scalar`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autoj_reward.cli.main import (
    INPUT,
    LAYOUT,
    OUTPUT,
    RUN,
    SET,
    STRICT_KEYS,
    STRICT_ROWS,
    command,
    flag,
)

if TYPE_CHECKING:
    from autoj_reward.io.rows import QueryRow


@command(
    *(RUN, SET, STRICT_KEYS),
    flag("--dry-run", action="store_true", help="print counts and cost without asking the teacher"),
)
def collect(config: str, sets: Sequence[str], strict: bool, dry_run: bool) -> int:
    """Ask a teacher model for judgements or pairs and write the training data; print counts."""
    import asyncio

    from autoj_reward.data.collect import (
        CollectConfig,
        collect_judgements,
        estimate_cost,
        prepare_rows,
    )
    from autoj_reward.data.statistics import render_statistics
    from autoj_reward.data.teacher import cost_line
    from autoj_reward.formats.criteria import load_scenarios
    from autoj_reward.models.unused import load_run

    checked = load_run(CollectConfig, config, sets, strict)
    known_scenarios = load_scenarios(checked.scenarios)
    work = prepare_rows(checked, known_scenarios)
    if dry_run:
        for case, figures in estimate_cost(checked, work.rows, known_scenarios).items():
            print(cost_line(case, figures))
        return 0
    counts = asyncio.run(collect_judgements(checked, work, known_scenarios))
    print(f"{render_statistics(counts)}\nresults: {checked.output}")
    return 0


@command(
    flag(
        "--show",
        metavar="NAME",
        help="print the criteria of one scenario, as the teacher reads them",
    ),
    flag("--folder", metavar="DIR", help="folder with your own scenario files"),
)
def scenarios(show: str | None, folder: str | None) -> int:
    """List the scenarios, or print the system message of one."""
    from pathlib import Path

    from autoj_reward.formats.criteria import load_scenarios, system_message

    known_scenarios = load_scenarios(Path(folder) if folder else None)
    if show is not None:
        print(system_message(known_scenarios[show]))
        return 0
    width = max(map(len, known_scenarios.names))
    for scenario in known_scenarios:
        count = len(scenario.criteria)
        print(f"{scenario.name:{width}}  {scenario.group:21} {count:2}  {scenario.description}")
    return 0


@command(
    *(INPUT, OUTPUT, STRICT_ROWS),
    flag(
        "--others-below",
        type=float,
        metavar="CONFIDENCE",
        help="confidence, 0 to 1, below which the scenario is `others`",
    ),
)
def classify(source: str, output: str, strict: bool, others_below: float | None) -> int:
    """Add `scenario`, `confidence` and `best` to every row; print the count of each scenario."""
    import json
    from collections import Counter
    from dataclasses import asdict
    from pathlib import Path

    from autoj_reward.errors import ConfigError
    from autoj_reward.io.candidates import read_queries
    from autoj_reward.io.claims import judged_by
    from autoj_reward.io.files import require_apart, write_jsonl
    from autoj_reward.io.rows import join_fields, require_usable
    from autoj_reward.models.scenarios import shipped_classifier

    if others_below is not None and not 0 <= others_below <= 1:
        raise ConfigError(f"--others-below {others_below:g}: a confidence is between 0 and 1")
    require_apart([source], [output])
    rows = read_queries(source)
    require_usable(rows, source, strict)
    queries = [row.prompt.last_user_text for row in rows.rows]
    classifications = shipped_classifier().classify(queries, others_below)
    pairs = zip(rows.rows, classifications, strict=True)
    records = (
        join_fields(_collect_fields(row), asdict(classification)) for row, classification in pairs
    )
    with judged_by("", Path(output), Path(output), command="autoj classify"):
        write_jsonl(output, records)
    counts = Counter(classification.scenario for classification in classifications)
    print(json.dumps({"output": output, "scenarios": dict(counts.most_common())}))
    return 0


def _collect_fields(row: QueryRow) -> dict[str, Any]:
    """Return the fields of the input row, without those that are missing."""
    responses = row.responses and [response.record() for response in row.responses]
    fields = {"query": row.prompt.text, "responses": responses, "logprobs": row.logprobs}
    return {name: value for name, value in fields.items() if value is not None} | row.extra


@command()
def layouts() -> int:
    """List the layouts: name, what has it, and the columns by which it is recognised."""
    from autoj_reward.io.layouts import load_layouts

    for layout in load_layouts().values():
        also = f", {layout.also}" if layout.also else ""
        print(f"{layout.name:26} {layout.title}{also}: {layout.needed}")
    return 0


@command(
    flag("source", metavar="FILE", help="input, .jsonl, .csv, .parquet, a folder, or hf://..."),
    flag("--json", action="store_true", dest="as_json", help="print one JSON line for each item"),
    LAYOUT,
    flag(
        "--columns",
        action="append",
        default=[],
        metavar="FIELD=PATH",
        help="where a field is, for example prompt=question or response=output.text",
    ),
    flag("--rows", type=int, metavar="N", help="rows to show (3; all with --json)"),
)
def show(
    source: str, as_json: bool, layout: str | None, columns: Sequence[str], rows: int | None
) -> int:
    """Show what is read of the rows."""
    from autoj_reward.io.shown import show_rows

    return show_rows(source, as_json, layout, columns, rows)


@command(RUN, SET)
def judge(config: str, sets: Sequence[str]) -> int:
    """Train a judge."""
    from autoj_reward.io.provenance import as_typed
    from autoj_reward.training.judge.recipe import load_training
    from autoj_reward.training.judge.train import train_judge

    train_judge(load_training(config, sets), as_typed())
    return 0


@command(RUN, SET)
def sample(config: str, sets: Sequence[str]) -> int:
    """Sample a judge, and write pairs of right and wrong outputs."""
    from autoj_reward.errors import ConfigError
    from autoj_reward.training.judge.recipe import JudgeDPOConfig, load_training

    checked = load_training(config, sets)
    if not isinstance(checked, JudgeDPOConfig):
        raise ConfigError(f"{config}: pairs are for method: dpo, which this run file does not name")
    from autoj_reward.training.judge.sample import describe_summary, sample_pairs

    print(describe_summary(sample_pairs(checked)))
    return 0


@command(RUN, SET)
def scalar(config: str, sets: Sequence[str]) -> int:
    """Train a scalar reward model."""
    from autoj_reward.config import load_config
    from autoj_reward.io.provenance import as_typed
    from autoj_reward.training.scalar.data import TrainScalarConfig

    checked = load_config(TrainScalarConfig, config, sets)  # before the slow import of torch
    from autoj_reward.training.scalar.train import train_scalar

    train_scalar(checked, as_typed())
    return 0
