"""Generation of rubrics: a model writes one for each row, and a judge tests those of pairs.

    autoj rubrics generate --input rows.jsonl --output rubrics.jsonl --set judge.format=rubric-item

All rubrics are written first; then the judge scores both responses of each pair by its rubric. So
one machine holds one model at a time. Answers and judgements are on disk before they are used, and
the same command goes on after a kill or with a larger budget.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from tqdm import tqdm

from autoj_reward.client.in_flight import run_in_order
from autoj_reward.config import Block, JudgeConfig, RubricConfig
from autoj_reward.data.teacher import (
    AnswerLog,
    OutOfBudget,
    TeacherBudget,
    TeacherConfig,
    cost_line,
    estimated_cost,
    open_teacher,
)
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import ScalarFormat
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart, to_json, write_json, write_jsonl
from autoj_reward.io.markup import plural, table
from autoj_reward.io.rows import (
    KEPT,
    BadRows,
    TextRow,
    join_fields,
    look_through,
    text_rows,
)
from autoj_reward.models import resolve
from autoj_reward.models.settings import max_ongoing
from autoj_reward.models.spec import judge_spec
from autoj_reward.models.unused import load_run
from autoj_reward.rubric_items import MAX_ITEMS, RUBRIC, RubricItem
from autoj_reward.rubrics.preference import PreferenceTest
from autoj_reward.rubrics.writing import (
    OWN_COLUMNS,
    SOURCES,
    DropReason,
    RubricRow,
    WrittenRubric,
    answer_schema,
    read_rubric,
    rubric_prompt,
)

SUMMARY, ANSWERS, JOURNAL = ".summary.json", ".answers.jsonl", ".journal.sqlite"
"""Suffixes of the files beside the output."""
USUAL_ITEM_TOKENS = 30
"""Usual length of an item in tokens, for cost estimates: a guess."""


class GenerateConfig(Block):
    """Settings of `autoj rubrics generate`. Flags name the input and output files."""

    judge: JudgeConfig = JudgeConfig()
    """The judge that tests the rubrics of pairs. Its model also writes all rubrics, unless `writer`
    is set."""
    writer: TeacherConfig | None = None
    """Another model that writes the rubrics, with its prices. null: the judge's model."""
    source: Literal["auto", "pair", "reference", "query"] = "auto"
    """Texts that a rubric is written from, beside the query: a better and a worse response
    (`chosen` and `rejected`), a `reference` answer, or none. `auto` takes the first of these that a
    row has."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Input column for `reference`, `chosen`, `rejected` and each context field of the judge's
    format, where the names differ, such as `reference: answer`."""
    max_items: int = Field(12, ge=1, le=MAX_ITEMS)
    """Items of one rubric, at most."""
    near_duplicate: float = Field(0.6, gt=0, le=1)
    """Similarity from which two items of a rubric count as one: the share of runs of three words
    that they have in common (Jaccard). 1 merges only items of the same words."""
    rubric: RubricConfig | None = None
    """How the two responses of a pair are scored. null: item by item, or as the judge's format
    can."""
    budget: TeacherBudget = TeacherBudget()
    """Limit on what writing may cost. Judging is not counted."""

    @model_validator(mode="after")
    def _fitting(self) -> GenerateConfig:
        priced = self.writer is not None and (self.writer.price_in or self.writer.price_out)
        if self.budget.usd is not None and not priced:
            raise ValueError(
                "budget.usd needs prices: set writer with price_in and price_out, or limit "
                "budget.tokens"
            )
        if self.rubric and self.rubric.items:
            raise ValueError("rubric.items is for rows without items: leave it out")
        return self

    def teacher(self) -> TeacherConfig:
        """Return the model that writes the rubrics."""
        if self.writer is not None:
            return self.writer
        both = set(TeacherConfig.model_fields) & set(JudgeConfig.model_fields)
        own = {name: getattr(self.judge, name) for name in sorted(both)}
        return TeacherConfig(**own, concurrency=max_ongoing(self.judge, 0))


def generate_rubrics(
    source: str,
    output: str,
    config: str | None,
    sets: Sequence[str],
    strict: bool,
    dry_run: bool,
) -> int:
    """Let a model write a rubric for every row, and keep those that pass.

    A rubric of a pair passes if the judge, going by it, scores the better response higher. The
    rubrics kept, a summary and the reasons for what was dropped are written, and counts printed.

    With `dry_run` questions are counted and priced, and nothing is sent or written. Returns 0.
    Raises ConfigError for a judge that cannot score the rubrics of pairs.
    """
    beside = [output + suffix for suffix in (SUMMARY, ANSWERS, JOURNAL)]
    require_apart((source, config), (output, *beside))
    checked = load_run(GenerateConfig, config, sets, strict)
    writer, test = checked.teacher(), PreferenceTest(checked.judge, checked.rubric, checked.columns)
    _require_settings(checked)
    rows: list[RubricRow] = []
    stream = text_rows(source, "query").mapped(lambda row: _rubric_row(row, checked, test))
    left_out = look_through(stream, strict, rows.append)
    pairs = any(row.source == "pair" for row in rows)
    if dry_run:
        _print_estimate(checked, writer, rows, test)
        return 0
    identity = resolve(writer).identity
    names = f"{identity} and {test.spec.name}" if pairs else identity
    with judged_by(names, Path(output), Path(output)):
        with closing(AnswerLog(Path(output + ANSWERS))) as log:
            written, asked = asyncio.run(_write_all(checked, writer, rows, log))
            spent = log.spent
        cost, results = test.run(written, Path(output + JOURNAL))
        kept = [own for own in results if own.dropped is None]
        write_jsonl(output, map(_record, kept))
        summary = _summary(results, left_out)
        summary |= {"writer": identity, "questions_in_this_run": asked, "spent": asdict(spent)}
        judged = {"judge": test.spec.name, "by": test.how.by} if pairs else {}
        summary |= judged | ({"judging": cost.fields()} if cost else {})
        write_json(output + SUMMARY, summary)
    _print(summary, output)
    return 0


def _require_settings(config: GenerateConfig) -> None:
    fmt = judge_spec(config.judge).format
    if config.writer is None and isinstance(fmt, ScalarFormat):
        raise ConfigError(
            f"judge {config.judge.model} is a scalar reward model, which writes nothing: set writer"
        )
    if unknown := sorted(set(config.columns) - {*OWN_COLUMNS, *fmt.context()}):
        raise ConfigError(
            f"columns names {unknown[0]!r}, which is neither {', '.join(OWN_COLUMNS)} nor a field "
            f"of the judge's format {fmt.name}: correct it, or leave it out"
        )


def _rubric_row(row: TextRow, config: GenerateConfig, test: PreferenceTest) -> RubricRow:
    """Return the row with its source. Raises BadField if a text that the source needs is bad."""
    columns = {name: config.columns.get(name, name) for name in OWN_COLUMNS}
    source: str = config.source
    if source == "auto":
        present = {name for name, column in columns.items() if row.fields.get(column) is not None}
        source = next(own for own, names in SOURCES.items() if present >= set(names) - {"query"})
    texts = {"query": row.texts[0]}
    for name in SOURCES[source][1:]:
        texts[name] = check.text(row.fields, columns[name], blank=name == "rejected")
    if source != "pair":
        return RubricRow(row.line, row.fields, source, texts)
    if texts["chosen"].split() == texts["rejected"].split():
        raise BadField(columns["rejected"], "the same text as the better response")
    context = check.context(row.fields, test.columns).after(row.context.turns)
    return RubricRow(row.line, row.fields, source, texts, context)


def _print_estimate(
    config: GenerateConfig, writer: TeacherConfig, rows: Sequence[RubricRow], test: PreferenceTest
) -> None:
    """Print counts and cost by source. Recorded answers and judgements are not subtracted."""
    usual = min(config.max_items * USUAL_ITEM_TOKENS, writer.max_tokens)
    longest = (RubricItem("criterion"),) * config.max_items
    for source in SOURCES:
        own = [row for row in rows if row.source == source]
        prompts = (rubric_prompt(source, row.texts, config.max_items) for row in own)
        figures = {"rows": len(own)} | estimated_cost(writer, prompts, len(own) * usual)
        if source == "pair":
            judged = sum(test.size(WrittenRubric(row, longest)) for row in own)
            figures |= {"judgements_at_most": judged}
        if own:
            print(cost_line(source, figures))


async def _write_all(
    config: GenerateConfig, writer: TeacherConfig, rows: Sequence[RubricRow], log: AnswerLog
) -> tuple[list[WrittenRubric], int]:
    """Return the rubric of each row, and the number of questions sent."""
    found: list[WrittenRubric] = []
    with tqdm(total=len(rows), desc="writing", unit="rubric") as bar:

        def done(written: WrittenRubric) -> None:
            found.append(written)
            bar.update()

        opened = open_teacher(writer, log, config.budget, answer_schema(config.max_items))
        async with opened as teacher:

            async def write(row: RubricRow) -> WrittenRubric:
                prompt = rubric_prompt(row.source, row.texts, config.max_items)
                try:
                    answer = await teacher.ask(prompt, {"source": row.source, "line": row.line})
                except OutOfBudget:
                    return WrittenRubric(row).drop(DropReason.NOT_REACHED)
                return read_rubric(row, answer, config.max_items, config.near_duplicate)

            await run_in_order(rows, write, done)
            return found, teacher.asked


def _summary(results: Sequence[WrittenRubric], left_out: BadRows) -> dict[str, Any]:
    """Return counts of rows, rubrics and items."""
    dropped = [own for own in results if own.dropped is not None]
    written = [own for own in results if own.items]
    kept = [len(own.items) for own in results if own.dropped is None]
    reasons = Counter(str(own.dropped) for own in dropped)
    named = [
        {"line": own.row.line, "reason": own.dropped, "detail": own.detail}
        for own in dropped[:KEPT]
    ]
    return {
        "rows": len(results),
        "sources": dict(Counter(own.row.source for own in results).most_common()),
        "written": len(written),
        "kept": len(kept),
        "dropped": dict(reasons.most_common()),
        "items": sum(kept),
        "items_a_rubric": sum(kept) / len(kept) if kept else None,
        "duplicates_merged": sum(own.merged for own in written),
        "dropped_rows": named,
        "rows_left_out": left_out.count,
        "left_out": [to_json(bad) for bad in left_out.first],
    }


def _record(written: WrittenRubric) -> dict[str, Any]:
    """Return the output row: the input's fields and the rubric."""
    items = [item.record() for item in written.items]
    return join_fields(written.row.fields, {RUBRIC: items})


def _print(summary: Mapping[str, Any], output: str) -> None:
    """Print the counts as a table, and what the run has cost."""
    counts = {"rows": summary["rows"], "written": summary["written"]}
    counts |= {f"dropped: {reason}": n for reason, n in summary["dropped"].items()}
    counts |= {"kept": summary["kept"], "duplicates merged": summary["duplicates_merged"]}
    print("\n".join(table(("", "count"), [(name, f"{n:,}") for name, n in counts.items()])))
    spent, each = summary["spent"], summary["items_a_rubric"]
    print(
        f"{plural(summary['items'], 'item')} in {plural(summary['kept'], 'rubric')}"
        + (f", {each:.1f} each" if each else "")
        + f"; spent {spent['tokens_in']:,} tokens in, {spent['tokens_out']:,} out, "
        f"${spent['usd']:,.2f}; {plural(summary['rows_left_out'], 'row')} left out; "
        f"results: {output}"
    )
    if DropReason.NOT_REACHED in summary["dropped"]:
        print("Stopped by the budget: raise it and run the same command to go on.")
    if DropReason.UNAVAILABLE in summary["dropped"]:
        print("Some questions have no answer: run the same command to ask them again.")
