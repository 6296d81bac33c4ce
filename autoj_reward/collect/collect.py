"""Collect judgements of a teacher into a file that trains judges (paper, section 3).

    autoj collect --config configs/jobs/collect_pairwise.yaml [--dry-run]

The output folder gets `pairwise.jsonl` or `single.jsonl` (training rows in the published form, for
`autoj train judge`), `set_aside.jsonl` (rows that are not trained on, each with its reason and what
the teacher said), `answers.jsonl` (every answer that was given, with its cost) and
`statistics.json` and `.md`. Run again, the same command asks only what was not answered yet: after
a kill, with a larger budget, or with more rows a scenario. `--dry-run` counts and prices the
questions and asks none.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from autoj_reward.collect.answers import AnswerLog
from autoj_reward.collect.config import CollectConfig
from autoj_reward.collect.intake import Dropped, measured_queries, take_in
from autoj_reward.collect.protocols import Result, judged
from autoj_reward.collect.sources import Preference, read_preferences
from autoj_reward.collect.statistics import render_statistics, statistics
from autoj_reward.collect.teacher import OutOfBudget, open_teacher
from autoj_reward.errors import InputError
from autoj_reward.evaluate.labelled import JudgeData, data_path
from autoj_reward.formats.schema import load_format
from autoj_reward.io.claims import claim
from autoj_reward.io.files import require_apart, write_json, write_jsonl, write_text
from autoj_reward.io.rows import LISTED
from autoj_reward.scenarios import Registry, Scenario
from autoj_reward.scenarios.linear import shipped_classifier
from autoj_reward.types import BadRow

FORMAT = "autoj-en"


@dataclass(frozen=True, slots=True)
class Work:
    """Rows to ask about, by scenario in the order of asking, and what was left out before."""

    rows: dict[str, tuple[Preference, ...]]
    dropped: tuple[Dropped, ...]
    bad: tuple[BadRow, ...]


@dataclass(frozen=True, slots=True)
class Filled:
    """What became of a scenario's rows. out_of_budget: some were not asked for want of money."""

    results: tuple[Result, ...]
    out_of_budget: bool


def prepare(config: CollectConfig, known: Registry) -> Work:
    """Read, filter and classify the rows. Raises InputError if none is left."""
    data = JudgeData(folder=config.folder)
    names = (*(source.path for source in config.sources), *config.decontaminate)
    require_apart([config.scenarios, *(data_path(data, n) for n in names)], folder=config.output)
    rows: list[Preference] = []
    bad: list[BadRow] = []
    for source in config.sources:
        found = read_preferences(source, data_path(data, source.path))
        bad += found.bad
        for row in found.rows:
            if row.scenario is None or row.scenario in known:
                rows.append(row)
            else:
                why = f"no scenario {row.scenario!r}; `autoj scenarios` lists them"
                bad.append(BadRow(row.file, row.line, "scenario", why))
    for wrong in bad[:LISTED]:
        tqdm.write(f"left out {wrong}", file=sys.stderr)
    if len(bad) > LISTED:
        tqdm.write(f"left out {len(bad) - LISTED} more malformed rows", file=sys.stderr)
    measured = measured_queries(data_path(data, name) for name in config.decontaminate)
    taken = take_in(rows, measured, config.near_duplicate)
    if not taken.rows:
        raise InputError(
            f"no row is left of {len(rows) + len(bad)}: {len(bad)} malformed, "
            f"{dict(Counter(d.reason for d in taken.dropped))}"
        )
    kept = list(taken.rows)
    if config.rows is not None and len(kept) > config.rows:
        kept = random.Random(config.seed).sample(kept, config.rows)
    return Work(_by_scenario(config, kept, known), taken.dropped, tuple(bad))


async def collect(config: CollectConfig, work: Work, known: Registry) -> dict[str, Any]:
    """Ask the teacher and write the output folder; returns its statistics."""
    claim(config.output, config, changeable={"output", "budget", "per_scenario", "teacher"})
    fmt = load_format(FORMAT)
    log = AnswerLog(config.output / "answers.jsonl")
    goal = sum(min(config.per_scenario, len(rows)) for rows in work.rows.values())
    try:
        with tqdm(total=goal, desc="judgements kept", unit="row") as bar:
            async with open_teacher(config.teacher, log, config.budget) as teacher:

                async def ask(row: Preference, scenario: Scenario) -> Result:
                    result = await judged(config.protocol, teacher, row, scenario, fmt)
                    bar.update(result.training is not None)
                    return result

                filled = await asyncio.gather(
                    *(
                        fill(lambda row, s=known[name]: ask(row, s), rows, config.per_scenario)  # type: ignore[misc]
                        for name, rows in work.rows.items()
                    )
                )
                asked = teacher.asked
    finally:
        log.close()
    results = [result for each in filled for result in each.results]
    found = statistics(
        results,
        protocol=config.protocol,
        bad=len(work.bad),
        dropped=Counter(d.reason for d in work.dropped),
        rows=sum(map(len, work.rows.values())),
        asked=asked,
        spent=log.spent,
        stopped=any(each.out_of_budget for each in filled),
    )
    _write(config, results, work.dropped, found)
    return found


async def fill(
    ask: Callable[[Preference], Awaitable[Result]], rows: Sequence[Preference], full: int
) -> Filled:
    """Ask about rows until `full` are kept, or there are no more (paper, section 3.3).

    No more rows are in question at a time than are still wanted, so none is asked in vain.
    """
    results: list[Result] = []
    start = 0
    while start < len(rows) and (want := full - sum(r.training is not None for r in results)):
        wave = rows[start : start + want]
        start += len(wave)
        done = await asyncio.gather(*map(ask, wave), return_exceptions=True)
        for result in done:
            if isinstance(result, Result):
                results.append(result)
            elif not isinstance(result, OutOfBudget):
                raise result
        if any(isinstance(result, OutOfBudget) for result in done):
            return Filled(tuple(results), True)
    return Filled(tuple(results), False)


def _by_scenario(
    config: CollectConfig, rows: Sequence[Preference], known: Registry
) -> dict[str, tuple[Preference, ...]]:
    """Rows by the scenario that their source or the classifier names, each in a drawn order."""
    unnamed = [row.query for row in rows if row.scenario is None]
    said = (
        shipped_classifier().classify([query], config.others_below)[0]
        for query in tqdm(unnamed, desc="scenarios", disable=None)
    )
    groups: dict[str, list[Preference]] = defaultdict(list)
    for row in rows:
        groups[known[row.scenario or next(said).scenario].name].append(row)
    for name, group in groups.items():
        random.Random(f"{config.seed}:{name}").shuffle(group)
    return {name: tuple(groups[name]) for name in known.names if name in groups}


def _write(
    config: CollectConfig,
    results: Sequence[Result],
    dropped: Iterable[Dropped],
    found: dict[str, Any],
) -> None:
    kept = (result.training for result in results if result.training is not None)
    write_jsonl(config.output / f"{config.protocol}.jsonl", kept)
    aside = [(d.row, d.reason, "") for d in dropped]
    aside += [(r.row, str(r.reason), r.answer) for r in results if r.reason is not None]
    write_jsonl(config.output / "set_aside.jsonl", (_aside(*each) for each in aside))
    write_json(config.output / "statistics.json", found)
    write_text(config.output / "statistics.md", render_statistics(found))


def _aside(row: Preference, reason: str, answer: str) -> dict[str, Any]:
    told = {name: getattr(row, name) for name in ("file", "line", "query", "responses", "label")}
    return {"reason": reason, "source_dataset": row.source} | told | {"answer": answer}
