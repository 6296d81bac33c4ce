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
from autoj_reward.io.candidates import read_context, refuse_media_in, text_rows
from autoj_reward.io.checks import BadField
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart, to_plain, write_json, write_jsonl
from autoj_reward.io.layouts import PROMPT
from autoj_reward.io.markup import plural, table
from autoj_reward.io.rows import (
    KEPT,
    BadRows,
    TextRow,
    join_fields,
    look_through,
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
    max_usd: float | None = Field(None, gt=0)
    """US dollars, by the writer's `price`, that writing may cost in all runs into one output. null:
    no limit."""
    budget: TeacherBudget = TeacherBudget()
    """Limit on the tokens of writing. Judging is not counted."""

    @model_validator(mode="after")
    def _validate_settings(self) -> GenerateConfig:
        writer = self.writer or self.judge
        if self.max_usd is not None and writer.price is None:
            raise ValueError(
                "max_usd needs a price: set that of the writer, or limit budget.tokens"
            )
        if self.rubric and self.rubric.items:
            raise ValueError("rubric.items is for rows without items: leave it out")
        return self

    def teacher(self) -> TeacherConfig:
        """Return the model that writes the rubrics."""
        if self.writer is not None:
            return self.writer
        shared_fields = set(TeacherConfig.model_fields) & set(JudgeConfig.model_fields)
        fields = {name: getattr(self.judge, name) for name in sorted(shared_fields)}
        return TeacherConfig(**fields, concurrency=max_ongoing(self.judge, 0))


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
    side_files = [output + suffix for suffix in (SUMMARY, ANSWERS, JOURNAL)]
    require_apart((source, config), (output, *side_files))
    settings = load_run(GenerateConfig, config, sets, strict)
    writer, test = (
        settings.teacher(),
        PreferenceTest(settings.judge, settings.rubric, settings.columns),
    )
    _require_settings(settings)
    rows: list[RubricRow] = []
    stream = text_rows(source, PROMPT).mapped(lambda row: _read_rubric_row(row, settings, test))
    bad_rows = look_through(stream, strict, rows.append)
    pairs = any(row.source == "pair" for row in rows)
    if dry_run:
        _print_estimate(settings, writer, rows, test)
        return 0
    identity = resolve(writer).identity
    model_names = f"{identity} and {test.spec.name}" if pairs else identity
    with judged_by(
        model_names,
        Path(output),
        Path(output),
        command="autoj rubrics generate",
        files=(output + SUMMARY,),
    ):
        with closing(AnswerLog(Path(output + ANSWERS))) as log:
            rubrics, question_count = asyncio.run(_write_all(settings, writer, rows, log))
            spending = log.spent
        cost, results = test.run(rubrics, Path(output + JOURNAL))
        kept_rubrics = [rubric for rubric in results if rubric.dropped is None]
        write_jsonl(output, map(_make_record, kept_rubrics))
        summary = _summarize(results, bad_rows)
        summary |= {
            "writer": identity,
            "questions_in_this_run": question_count,
            "spent": asdict(spending),
        }
        judge_fields = {"judge": test.spec.name, "by": test.how.by} if pairs else {}
        summary |= judge_fields | ({"judging": cost.fields()} if cost else {})
        write_json(output + SUMMARY, summary)
    _print_summary(summary, output)
    return 0


def _require_settings(config: GenerateConfig) -> None:
    fmt = judge_spec(config.judge).format
    if config.writer is None and isinstance(fmt, ScalarFormat):
        raise ConfigError(
            f"judge {config.judge.model} is a scalar reward model, which writes nothing: set writer"
        )
    if unknown_columns := sorted(set(config.columns) - {*OWN_COLUMNS, *fmt.context()}):
        raise ConfigError(
            f"columns names {unknown_columns[0]!r}, which is neither {', '.join(OWN_COLUMNS)} nor "
            f"a field of the judge's format {fmt.name}: correct it, or leave it out"
        )


def _read_rubric_row(row: TextRow, config: GenerateConfig, test: PreferenceTest) -> RubricRow:
    """Return the row with its source. Raises BadField if a text that the source needs is bad."""
    columns = {name: config.columns.get(name, name) for name in OWN_COLUMNS}
    source: str = config.source
    if source == "auto":
        present_texts = {
            name for name, column in columns.items() if row.fields.get(column) is not None
        }
        source = next(
            name for name, names in SOURCES.items() if present_texts >= set(names) - {"query"}
        )
    refuse_media_in(row.prompt.turns, "query", "writers of rubrics")
    texts = {"query": row.prompt.text}
    for name in SOURCES[source][1:]:
        texts[name] = check.text(row.fields, columns[name], blank=name == "rejected")
    if source != "pair":
        return RubricRow(row.line, row.fields, source, texts, row.prompt)
    if texts["chosen"].split() == texts["rejected"].split():
        raise BadField(columns["rejected"], "the same text as the better response")
    context, _ = read_context(row.fields, test.columns)
    return RubricRow(row.line, row.fields, source, texts, row.prompt, context)


def _print_estimate(
    config: GenerateConfig, writer: TeacherConfig, rows: Sequence[RubricRow], test: PreferenceTest
) -> None:
    """Print counts and cost by source. Recorded answers and judgements are not subtracted."""
    usual_tokens = min(config.max_items * USUAL_ITEM_TOKENS, writer.max_tokens)
    longest_rubric = (RubricItem("criterion"),) * config.max_items
    for source in SOURCES:
        source_rows = [row for row in rows if row.source == source]
        prompts = (rubric_prompt(source, row.texts, config.max_items) for row in source_rows)
        figures = {"rows": len(source_rows)} | estimated_cost(
            writer, prompts, len(source_rows) * usual_tokens
        )
        if source == "pair":
            judgement_count = sum(
                test.count_inputs(WrittenRubric(row, longest_rubric)) for row in source_rows
            )
            figures |= {"judgements_at_most": judgement_count}
        if source_rows:
            print(cost_line(source, figures))


async def _write_all(
    config: GenerateConfig, writer: TeacherConfig, rows: Sequence[RubricRow], log: AnswerLog
) -> tuple[list[WrittenRubric], int]:
    """Return the rubric of each row, and the number of questions sent."""
    rubrics: list[WrittenRubric] = []
    with tqdm(total=len(rows), desc="writing", unit="rubric") as bar:

        def record_rubric(rubric: WrittenRubric) -> None:
            rubrics.append(rubric)
            bar.update()

        schema = answer_schema(config.max_items)
        teacher_session = open_teacher(writer, log, config.budget, schema, config.max_usd)
        async with teacher_session as teacher:

            async def write(row: RubricRow) -> WrittenRubric:
                prompt = rubric_prompt(row.source, row.texts, config.max_items)
                try:
                    answer = await teacher.ask(prompt, {"source": row.source, "line": row.line})
                except OutOfBudget:
                    return WrittenRubric(row).drop(DropReason.NOT_REACHED)
                return read_rubric(row, answer, config.max_items, config.near_duplicate)

            await run_in_order(rows, write, record_rubric)
            return rubrics, teacher.asked


def _summarize(results: Sequence[WrittenRubric], bad_rows: BadRows) -> dict[str, Any]:
    """Return counts of rows, rubrics and items."""
    dropped_rubrics = [rubric for rubric in results if rubric.dropped is not None]
    written_rubrics = [rubric for rubric in results if rubric.items]
    item_counts = [len(rubric.items) for rubric in results if rubric.dropped is None]
    reasons = Counter(str(rubric.dropped) for rubric in dropped_rubrics)
    dropped_rows = [
        {"line": rubric.row.line, "reason": rubric.dropped, "detail": rubric.detail}
        for rubric in dropped_rubrics[:KEPT]
    ]
    return {
        "rows": len(results),
        "sources": dict(Counter(rubric.row.source for rubric in results).most_common()),
        "written": len(written_rubrics),
        "kept": len(item_counts),
        "dropped": dict(reasons.most_common()),
        "items": sum(item_counts),
        "items_a_rubric": sum(item_counts) / len(item_counts) if item_counts else None,
        "duplicates_merged": sum(rubric.merged for rubric in written_rubrics),
        "dropped_rows": dropped_rows,
        "rows_left_out": bad_rows.count,
        "left_out": [to_plain(bad) for bad in bad_rows.first],
    }


def _make_record(rubric: WrittenRubric) -> dict[str, Any]:
    """Return the output row: the input's fields and the rubric."""
    items = [item.record() for item in rubric.items]
    return join_fields(rubric.row.fields, {RUBRIC: items})


def _print_summary(summary: Mapping[str, Any], output: str) -> None:
    """Print the counts as a table, and what the run has cost."""
    counts = {"rows": summary["rows"], "written": summary["written"]}
    counts |= {f"dropped: {reason}": n for reason, n in summary["dropped"].items()}
    counts |= {"kept": summary["kept"], "duplicates merged": summary["duplicates_merged"]}
    print("\n".join(table(("", "count"), [(name, f"{n:,}") for name, n in counts.items()])))
    spending, items_per_rubric = summary["spent"], summary["items_a_rubric"]
    print(
        f"{plural(summary['items'], 'item')} in {plural(summary['kept'], 'rubric')}"
        + (f", {items_per_rubric:.1f} each" if items_per_rubric else "")
        + f"; spent {spending['tokens_in']:,} tokens in, {spending['tokens_out']:,} out, "
        f"${spending['usd']:,.2f}; {plural(summary['rows_left_out'], 'row')} left out; "
        f"results: {output}"
    )
    if DropReason.NOT_REACHED in summary["dropped"]:
        print("Stopped by the budget: raise it and run the same command to go on.")
    if DropReason.UNAVAILABLE in summary["dropped"]:
        print("Some questions have no answer: run the same command to ask them again.")
