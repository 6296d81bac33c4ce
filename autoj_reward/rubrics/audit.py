"""Audit of rubrics: what each item teaches, and whether a response without content pays."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoj_reward.config import RubricConfig, ScoreConfig, View
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.ask import ask_each, resampled
from autoj_reward.io import checks as check
from autoj_reward.io.candidates import refuse_media_in, text_rows
from autoj_reward.io.checks import BadField
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart, to_plain, write_json, write_text
from autoj_reward.io.layouts import PROMPT, SINGLE
from autoj_reward.io.rows import BadRows, Stream, TextRow, look_through
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.models.unused import load_run
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.rubric import NO_ITEMS, ScoreRubric, rubric_question
from autoj_reward.rubric_items import RUBRIC
from autoj_reward.rubrics.measures import (
    RubricAudit,
    TrivialReward,
    make_trivial_responses,
    measure_items,
)
from autoj_reward.rubrics.report import print_audit, render_audit, render_markdown
from autoj_reward.types import Candidate, JudgeInput, Judgement

GRADES = ("grade", "label")
"""Fields of a response row that may hold its grade."""
RESULT, TABLES, PAGE, JOURNAL = "audit.json", "audit.md", "audit.html", "journal.sqlite"
"""Files in the output folder."""


@dataclass(frozen=True, slots=True)
class GradedResponse:
    """A real response, and its grade if it has one."""

    text: str
    grade: float | None


@dataclass(frozen=True, slots=True)
class AuditCase:
    """A rubric, the responses to its query, and all questions about them."""

    line: int
    query: str
    responses: tuple[GradedResponse, ...]
    trivial: dict[str, ScoreRubric]
    """Question for each trivial response, by its name."""
    real: tuple[ScoreRubric, ...]
    """Question for each real response."""
    samples: int
    """Number of times that each real response is judged."""

    @property
    def most_inputs(self) -> int:
        """Return the number of judge inputs."""
        real = self.samples * sum(question.most_inputs for question in self.real)
        return real + sum(question.most_inputs for question in self.trivial.values())

    async def answer(self, ask: Ask) -> tuple[RubricAudit, list[Judgement]]:
        """Return the audit and all judgements behind it."""
        async with asyncio.TaskGroup() as tasks:
            trivial_tasks = {
                n: tasks.create_task(question.answer(ask)) for n, question in self.trivial.items()
            }
            sample_tasks = [
                [
                    tasks.create_task(question.answer(_resample(ask, sample)))
                    for sample in range(self.samples)
                ]
                for question in self.real
            ]
        trivial = {name: task.result() for name, task in trivial_tasks.items()}
        scores = [[task.result() for task in response_tasks] for response_tasks in sample_tasks]
        items = next(iter(self.trivial.values())).items
        grades = tuple(response.grade for response in self.responses)
        audit = RubricAudit(
            self.line,
            self.query,
            len(self.responses),
            measure_items(items, scores, grades, trivial),
            tuple(
                TrivialReward(name, score.score, score.reason) for name, score in trivial.items()
            ),
        )
        all_scores = [
            *trivial.values(),
            *(score for response_scores in scores for score in response_scores),
        ]
        return audit, [judgement for score in all_scores for judgement in score.judgements]


def _resample(ask: Ask, sample: int) -> Ask:
    """Return an `ask` for the sample of this index."""

    async def ask_again(items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
        return await ask([resampled(item, sample) for item in items], view)

    return ask_again


def audit(
    source: str,
    responses: str | None,
    output: str,
    config: str | None,
    sets: Sequence[str],
    samples: int,
    most: float,
    strict: bool,
) -> int:
    """Audit the rubric of every row, and write and print what is found.

    Returns 1 with `strict` if a trivial response earns more than `most` or cannot be judged, else
    0. Raises ConfigError for a judge that cannot judge rubrics this way.
    """
    require_apart((source, responses, config), folder=output)
    settings = load_run(ScoreConfig, config, sets)
    if settings.panel:
        raise ConfigError("panel rates responses for `autoj score`: an audit has one judge")
    spec = judge_spec(settings.judge)
    how = settings.rubric or spec.facts.default_rubric
    # One of the trivial responses is empty.
    spec = replace(spec.that_scores(how), judges_unanswered=True)
    _require_settings(how, samples, most, settings.judge.temperature)
    rows, bad_rows = _read_rubric_rows(source, spec, how, settings.columns, settings.layout)
    real_responses = (
        _read_responses(responses, {row.prompt.text for row in rows}, bad_rows) if responses else {}
    )
    cases = [
        _build_case(row, real_responses.get(row.prompt.text, ()), spec, how, samples)
        for row in rows
    ]
    folder, audits = Path(output), list[RubricAudit]()
    total = sum(case.most_inputs for case in cases)
    claim = judged_by(
        spec.name,
        folder,
        folder / RESULT,
        command="autoj rubrics audit",
        total=total,
        scored_by=how.by,
        vote=spec.asks.vote,
        files=(folder / TABLES, folder / PAGE),
    )
    with claim:
        cost = ask_each(
            spec,
            folder / JOURNAL,
            cases,
            lambda ask, case: case.answer(ask),
            lambda case, rubric_audit: audits.append(rubric_audit),
            "auditing",
            lambda case: case.most_inputs,
            total,
            scoring=how,
        )
        summary = _summarize(audits, most)
        bad_records = [to_plain(bad) for bad in bad_rows.first]
        result = {"judge": spec.name, "by": how.by, "samples": samples, "most": most}
        result |= {"summary": summary, "cost": cost.fields()}
        result |= {"rows_left_out": bad_rows.count, "left_out": bad_records}
        write_json(
            folder / RESULT,
            result | {"rubrics": [_make_record(rubric_audit) for rubric_audit in audits]},
        )
        write_text(folder / TABLES, render_markdown(audits))
        write_text(folder / PAGE, render_audit(audits, result, bad_rows.first))
    print_audit(audits, summary, bad_rows.count, most, output)
    return int(strict and bool(summary["gamed"] or summary["unknown"]))


def _require_settings(how: RubricConfig, samples: int, most: float, temperature: float) -> None:
    if not 0 <= most <= 1:
        raise ConfigError(f"--most is {most}: give a share of the reward, 0 to 1")
    if samples < 1:
        raise ConfigError(f"--samples is {samples}: give 1 or more")
    if samples > 1 and how.by == "overall":
        raise ConfigError(
            f"--samples is {samples} and rubric.by is overall, which has no verdict on an item: "
            "leave --samples out, or set rubric.by to items or checklist"
        )
    if samples > 1 and temperature == 0:
        raise ConfigError(
            f"--samples is {samples} at temperature 0, which gives the same verdict each time: set "
            "judge.temperature, for example 0.7"
        )


def _read_rubric_rows(
    source: str, spec: JudgeSpec, how: RubricConfig, columns: dict[str, str], layout: str | None
) -> tuple[list[TextRow], BadRows]:
    """Return the rows with a rubric, and the bad ones. Raises InputError without a usable row."""
    context_columns = spec.context_columns(columns, how.protocol, how)

    def require_items(row: TextRow) -> TextRow:
        if not (row.rubric or how.items):
            raise BadField(columns.get(RUBRIC, RUBRIC), NO_ITEMS)
        return row

    rows: list[TextRow] = []
    stream = text_rows(source, PROMPT, context_columns, columns, layout).mapped(require_items)
    return rows, look_through(stream, each=rows.append)


def _read_responses(
    source: str, queries: set[str], bad_rows: BadRows
) -> dict[str, list[GradedResponse]]:
    """Return the responses to these queries. Bad rows are added to `bad_rows`."""
    responses_by_query = defaultdict[str, list[GradedResponse]](list)

    def read_graded(row: TextRow) -> tuple[str, GradedResponse]:
        query, [response] = row.prompt.text, row.responses
        if query not in queries:
            raise BadField("query", f"no rubric has this query: {check.show(query)}")
        refuse_media_in(response.turns, "response", "audits")
        name = next((name for name in GRADES if row.fields.get(name) is not None), None)
        grade = None if name is None else check.number(row.fields[name], name)
        return query, GradedResponse(response.text, grade)

    def keep(row: tuple[str, GradedResponse]) -> None:
        responses_by_query[row[0]].append(row[1])

    rows: Stream[tuple[str, GradedResponse]] = text_rows(source, SINGLE).mapped(read_graded)
    bad_rows.extend(look_through(rows, each=keep))
    return responses_by_query


def _build_case(
    row: TextRow,
    responses: Sequence[GradedResponse],
    spec: JudgeSpec,
    how: RubricConfig,
    samples: int,
) -> AuditCase:
    query = row.prompt.text

    def make_question(text: str) -> ScoreRubric:
        candidate = Candidate(row.prompt, text, context=row.context, rubric=row.rubric)
        return rubric_question(candidate, spec.facts, spec.asks, how)

    texts = make_trivial_responses(query, make_question("").items)
    trivial = {name: make_question(text) for name, text in texts.items()}
    real_questions = tuple(make_question(response.text) for response in responses)
    return AuditCase(row.line, query, tuple(responses), trivial, real_questions, samples)


def _summarize(audits: Sequence[RubricAudit], most: float) -> dict[str, int]:
    """Return counts over all rubrics."""
    return {
        "rubrics": len(audits),
        "responses": sum(audit.responses for audit in audits),
        "items": sum(len(audit.items) for audit in audits),
        "constant_items": sum(audit.constant for audit in audits),
        "redundant_items": sum(audit.redundant for audit in audits),
        "gamed": sum(audit.is_gamed(most) for audit in audits),
        "unknown": sum(audit.unknown for audit in audits),
    }


def _make_record(audit: RubricAudit) -> dict[str, Any]:
    best = audit.best
    record: dict[str, Any] = to_plain(audit)
    return record | {"best_trivial": best.name if best else None}
