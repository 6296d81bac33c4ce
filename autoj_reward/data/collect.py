"""Collect judgements or pairs of a teacher into a file that trains judges (paper, section 3).

    autoj collect --config configs/jobs/collect_pairwise.yaml [--dry-run]

The output folder gets `pairwise.jsonl`, `single.jsonl` or `altered.jsonl` (training rows for `autoj
train judge`), `set_aside.jsonl` (rows that are not trained on, each with its reason and
the teacher's answer), `answers.jsonl` (every answer with its cost), `statistics.json` and
`statistics.md`. Run again, the same command sends only the questions without an answer: after a
kill, with a larger budget, or with more rows per scenario. `--dry-run` counts and prices the
questions without sending any.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from tqdm import tqdm

from autoj_reward.data.filters import Dropped, filter_rows, measured_queries
from autoj_reward.data.labelled import DataFolder, data_path
from autoj_reward.data.preferences import Preference, SourceConfig, read_preferences
from autoj_reward.data.scenarios import by_scenario
from autoj_reward.data.statistics import render_statistics, statistics
from autoj_reward.data.teacher import (
    AnswerLog,
    OutOfBudget,
    TeacherBudget,
    TeacherConfig,
    estimated_cost,
    open_teacher,
)
from autoj_reward.data.training_rows import PROTOCOLS, RowResult, make_training_row
from autoj_reward.errors import InputError
from autoj_reward.formats.criteria import Scenario, Scenarios
from autoj_reward.formats.schema import load_format
from autoj_reward.io.claims import claim, finish
from autoj_reward.io.files import require_apart, write_json, write_jsonl, write_text
from autoj_reward.io.rows import LISTED
from autoj_reward.types import BadRow

JUDGE_FORMAT = "autoj-en"
"""Judge format of the training rows."""


class CollectConfig(DataFolder):
    """What `autoj collect` asks a teacher, about which rows, and where it writes the training data
    (paper, section 3.3)."""

    protocol: Literal["pairwise", "single", "altered"]
    """`pairwise` compares, `single` criticises one response of each row in three questions.
    `altered` writes pairs: a response to the query, and one to an altered instruction, which is the
    worse one."""
    teacher: TeacherConfig
    """The model that writes the judgements or the responses."""
    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    """Preference data to draw from. `altered` reads the queries alone, so prompts will do."""
    output: Path
    """Folder of answers, training rows and statistics."""
    scenarios: Path | None = None
    """Folder of scenario files of one's own, beside the package's."""
    rows: int | None = Field(None, ge=1)
    """Rows drawn from all that pass the filters, at most; null takes all."""
    others_below: float | None = Field(None, ge=0, le=1)
    """Confidence below which the classifier says `others`; null takes its own."""
    per_scenario: int = Field(100, ge=1)
    """Rows kept at which a scenario is full."""
    decontaminate: tuple[str, ...] = ()
    """Files whose queries measure judges; rows with one of them are left out."""
    near_duplicate: float | None = Field(0.8, gt=0, le=1)
    """Jaccard similarity from which texts count as the same, null for equal texts."""
    max_usd: float | None = Field(None, gt=0)
    """US dollars, by the teacher's `price`, that all runs into one output may cost. null: no
    limit."""
    budget: TeacherBudget = TeacherBudget()
    """Limit on the tokens that the teacher may take."""
    seed: int = 0
    """Draws the order of a scenario's rows, and with `altered` that of a pair's responses."""


CHANGEABLE = {"output", "max_usd", "budget", "per_scenario", "teacher"}
"""Keys that may change between two runs into one output."""


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Rows to put to the teacher, and the rows left out before."""

    rows: dict[str, tuple[Preference, ...]]
    """Rows by scenario, in the order in which the teacher gets them."""
    dropped: tuple[Dropped, ...]
    bad: tuple[BadRow, ...]


@dataclass(frozen=True, slots=True)
class FilledScenario:
    """Results of the rows of one scenario."""

    results: tuple[RowResult, ...]
    out_of_budget: bool
    """Whether the budget ended before all needed rows were put to the teacher."""


def prepare_rows(config: CollectConfig, scenarios: Scenarios) -> PreparedRows:
    """Read, filter and classify the rows. Raises InputError if none is left."""
    names = (*(source.path for source in config.sources), *config.decontaminate)
    require_apart([config.scenarios, *(data_path(config, n) for n in names)], folder=config.output)
    rows: list[Preference] = []
    bad: list[BadRow] = []
    wanted = PROTOCOLS[config.protocol].reads
    for source in config.sources:
        source_rows = read_preferences(source, data_path(config, source.path), wanted)
        bad += source_rows.bad
        for row in source_rows.rows:
            if row.scenario is None or row.scenario in scenarios:
                rows.append(row)
            else:
                why = f"no scenario {row.scenario!r}; `autoj scenarios` lists them"
                bad.append(BadRow(row.file, row.line, "scenario", why))
    for wrong in bad[:LISTED]:
        tqdm.write(f"left out {wrong}", file=sys.stderr)
    if len(bad) > LISTED:
        tqdm.write(f"left out {len(bad) - LISTED} more malformed rows", file=sys.stderr)
    measured = measured_queries(data_path(config, name) for name in config.decontaminate)
    filtered = filter_rows(rows, measured, config.near_duplicate)
    if not filtered.rows:
        raise InputError(
            f"no row is left of {len(rows) + len(bad)}: {len(bad)} malformed, "
            f"{dict(Counter(d.reason for d in filtered.dropped))}"
        )
    drawn_rows = list(filtered.rows)
    if config.rows is not None and len(drawn_rows) > config.rows:
        drawn_rows = random.Random(config.seed).sample(drawn_rows, config.rows)
    grouped = by_scenario(drawn_rows, scenarios, config.seed, config.others_below)
    return PreparedRows(grouped, filtered.dropped, tuple(bad))


async def collect_judgements(
    config: CollectConfig, work: PreparedRows, scenarios: Scenarios
) -> dict[str, Any]:
    """Query the teacher, write the output folder and return the statistics."""
    claim(config.output, config, changeable=CHANGEABLE)
    fmt = load_format(JUDGE_FORMAT)
    log = AnswerLog(config.output / "answers.jsonl")
    goal = sum(min(config.per_scenario, len(rows)) for rows in work.rows.values())
    try:
        with tqdm(total=goal, desc="kept", unit="row") as bar:
            opened = open_teacher(config.teacher, log, config.budget, max_usd=config.max_usd)
            async with opened as teacher:

                async def ask(scenario: Scenario, row: Preference) -> RowResult:
                    result = await make_training_row(
                        config.protocol, teacher, row, scenario, fmt, config.seed
                    )
                    bar.update(result.training is not None)
                    return result

                filled_scenarios = await asyncio.gather(
                    *(
                        fill_scenario(partial(ask, scenarios[name]), rows, config.per_scenario)
                        for name, rows in work.rows.items()
                    )
                )
                questions_sent = teacher.asked
    finally:
        log.close()
    results = [result for filled in filled_scenarios for result in filled.results]
    counts = statistics(
        results,
        protocol=config.protocol,
        bad=len(work.bad),
        dropped=Counter(d.reason for d in work.dropped),
        rows=sum(map(len, work.rows.values())),
        questions_sent=questions_sent,
        spent=log.spent,
        stopped=any(filled.out_of_budget for filled in filled_scenarios),
    )
    _write(config, results, work.dropped, counts)
    finish(config.output)
    return counts


async def fill_scenario(
    ask: Callable[[Preference], Awaitable[RowResult]], rows: Sequence[Preference], full: int
) -> FilledScenario:
    """Query the teacher about rows until `full` are kept or none is left (paper, section 3.3).

    At most as many rows are in flight as are still needed, so no question is wasted. An error other
    than OutOfBudget is raised.
    """
    results: list[RowResult] = []
    start = 0
    while start < len(rows) and (needed := full - sum(r.training is not None for r in results)):
        wave = rows[start : start + needed]
        start += len(wave)
        wave_results = await asyncio.gather(*map(ask, wave), return_exceptions=True)
        for result in wave_results:
            if isinstance(result, RowResult):
                results.append(result)
            elif not isinstance(result, OutOfBudget):
                raise result
        if any(isinstance(result, OutOfBudget) for result in wave_results):
            return FilledScenario(tuple(results), True)
    return FilledScenario(tuple(results), False)


def estimate_cost(
    config: CollectConfig, rows: Mapping[str, Sequence[Preference]], scenarios: Scenarios
) -> dict[str, Any]:
    """Estimate questions and cost for two cases: every answer is kept, and every row is asked.

    rows: by scenario, in query order. See `estimated_cost`.
    """
    protocol = PROTOCOLS[config.protocol]
    usual = sum(min(n, config.teacher.max_tokens) for n in protocol.usual_tokens)
    cases: dict[str, Any] = {}
    for case, limit in (("every_answer_kept", config.per_scenario), ("every_row_asked", None)):
        asked_rows = [
            (row, scenarios[name]) for name, group in rows.items() for row in group[:limit]
        ]
        prompts = (
            prompt
            for row_and_scenario in asked_rows
            for prompt in protocol.estimate(*row_and_scenario)
        )
        cost = estimated_cost(config.teacher, prompts, len(asked_rows) * usual)
        cases[case] = {"rows": len(asked_rows)} | cost
    return cases


def _write(
    config: CollectConfig,
    results: Sequence[RowResult],
    dropped: Iterable[Dropped],
    counts: dict[str, Any],
) -> None:
    training_rows = (result.training for result in results if result.training is not None)
    write_jsonl(config.output / f"{config.protocol}.jsonl", training_rows)
    set_aside_rows = [(d.row, d.reason, "") for d in dropped]
    set_aside_rows += [(r.row, str(r.reason), r.answer) for r in results if r.reason is not None]
    write_jsonl(
        config.output / "set_aside.jsonl", (_make_set_aside_row(*entry) for entry in set_aside_rows)
    )
    write_json(config.output / "statistics.json", counts)
    write_text(config.output / "statistics.md", render_statistics(counts))


def _make_set_aside_row(row: Preference, reason: str, answer: str) -> dict[str, Any]:
    row_fields = {
        name: getattr(row, name) for name in ("file", "line", "query", "responses", "label")
    }
    return {"reason": reason, "source_dataset": row.source} | row_fields | {"answer": answer}
