"""Check of a judge before a training: `autoj check`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoj_reward.check.answers import AnswerRow, load_answer_rows
from autoj_reward.check.cases import CheckCase, JudgedCase
from autoj_reward.check.labels import JudgedGroup, probe_labels
from autoj_reward.check.measures import Checked
from autoj_reward.check.probes import (
    ANSWER_PROBES,
    PROBES,
    Finding,
    Probes,
    probe_rows,
    select_missed_findings,
)
from autoj_reward.check.report import decide_verdict, make_finding_record, print_check, render_check
from autoj_reward.check.rows import CheckRow, load_check_rows, stratified
from autoj_reward.check.texts import variants
from autoj_reward.config import Block, JudgeConfig, View, ViewOrAuto
from autoj_reward.conversation import Context, Prompt, Response
from autoj_reward.data.teacher import CHARS_PER_TOKEN
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.ask import ask_each
from autoj_reward.evaluate.labelled_groups import LabelledGroup, read_labelled_groups
from autoj_reward.evaluate.results import write_result
from autoj_reward.evaluate.runner import read_judge_block
from autoj_reward.evaluate.statistics import Draws
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart, to_plain, write_text
from autoj_reward.io.rows import BadRows
from autoj_reward.journal import Journal
from autoj_reward.models import max_output_tokens
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.models.unused import check_run
from autoj_reward.models.views import Abilities, resolve_view, views_of
from autoj_reward.types import JudgeInput

RESULT, PAGE, JOURNAL = "check.json", "check.html", "journal.sqlite"
"""Files in the output folder."""
RESAMPLED = ("good", "flawed")
"""Responses that are judged again with another sample."""


class CheckConfig(Block):
    """Judge and view that `autoj check` and `autoj calibrate` take from any run file.

    They stand at the file's top, or in its block `reward`.
    """

    judge: JudgeConfig = JudgeConfig()
    """The judge that is asked."""
    view: ViewOrAuto = "auto"
    """The number that counts. `auto` is resolved as for a reward."""


def check_judge(
    output: str,
    labels: str | None,
    sample: int | None,
    config: str | None,
    sets: Sequence[str],
    strict: bool,
) -> int:
    """Ask a judge about the package's own rows and labelled ones, and report which faults it has.

    The report is printed, and written as JSON and as a page. output: folder of both and of the
    journal. labels: file of labelled rows, None for none. sample: limit on the package's own rows,
    and on labelled groups, that are judged; None judges all. Returns 1 with `strict` if a bound is
    missed, else 0. Raises ConfigError for a judge that rates no single response, or needs a context
    field other than a reference answer.
    """
    if sample is not None and sample < 2:
        raise ConfigError(f"--sample is {sample}: give 2 or more")
    require_apart((labels, config), folder=output)
    check_config = load_check_config(config, sets)
    view, spec = resolve_check_judge(check_config)
    spec = replace(spec, judges_unanswered=True)  # one of the texts to rate is empty
    row_cases, probes = _build_row_cases(spec, view, sample)
    groups, bad_rows = list[LabelledGroup](), BadRows()
    if labels:
        asked = spec.context_columns({}, "single")
        groups, bad_rows = read_labelled_groups(labels, spec.facts.scale, asked)
    groups = stratified(groups, lambda group: group.kind, sample)
    cases = [*row_cases, *(_build_group_case(group, spec, view) for group in groups)]
    folder, judged_cases = Path(output), list[JudgedCase]()
    total = sum(len(case.inputs()) for case in cases)
    claim = judged_by(
        spec.name,
        folder,
        folder / RESULT,
        command="autoj check",
        total=total,
        vote=spec.asks.vote,
        files=(folder / PAGE,),
    )
    with claim:
        print(_estimate_cost(cases, spec, folder / JOURNAL))
        cost = ask_each(
            spec,
            folder / JOURNAL,
            cases,
            lambda ask, case: case.answer(ask),
            lambda _case, judged_case: judged_cases.append(judged_case),
            "checking",
            lambda case: len(case.inputs()),
            total,
            view,
        ).fields()
        findings = _probe_cases(judged_cases, groups, spec, view, probes)
        verdict = decide_verdict(findings)
        result: dict[str, Any] = {
            "view": view,
            "rows": len(row_cases),
            "labelled_groups": len(groups),
            "rows_left_out": bad_rows.count,
            "verdict": to_plain(verdict),
            "probes": [make_finding_record(finding) for finding in findings],
            "cost": cost,
        }
        settings = {"sample": sample, "view": check_config.view}
        sources = {"labels": labels} if labels else {}
        write_result(str(folder / RESULT), "check", [spec], sources, settings, result)
        write_text(folder / PAGE, render_check(spec.name, result, findings, verdict))
    print_check(findings, verdict, cost)
    print(f"results: {output}")
    return int(strict and bool(select_missed_findings(findings)))


def load_check_config(config: str | None, sets: Sequence[str]) -> CheckConfig:
    """Read judge and view from a run file.

    Raises ConfigError if a running service judges, or if a judge stands in two places.
    """
    block = read_judge_block(config, sets)
    fields = {name: block[name] for name in CheckConfig.model_fields if name in block}
    return check_run(CheckConfig, fields, str(config or "command line"))


def resolve_check_judge(check_config: CheckConfig) -> tuple[View, JudgeSpec]:
    """Return the view that counts, and the judge. Raises ConfigError if it cannot be checked."""
    spec = judge_spec(check_config.judge)
    if not spec.rates:
        raise ConfigError(
            f"the judge's format {spec.format.name} rates no single response, which this "
            "command needs: set judge.format, or measure comparisons with `autoj evaluate pairs`"
        )
    spec = spec.that_reads(check_config.view, "reward")
    views = views_of(spec.config, spec.format, Abilities())
    return resolve_view(check_config.view, "reward", spec.facts.preferred, views), spec


def _build_row_cases(
    spec: JudgeSpec, view: View, sample: int | None
) -> tuple[list[CheckCase], Probes]:
    """Return the cases of the package's own rows for this judge, and the probes that measure them.

    A judge that needs a reference answer is a verifier, and is asked about questions with one.
    Raises ConfigError for a judge that needs another context field.
    """
    needed = [name for name, required in spec.context("single").items() if required]
    if needed == ["reference"]:
        rows = stratified(load_answer_rows(), lambda row: row.kind, sample)
        return [_build_answer_case(row, n, spec, view) for n, row in enumerate(rows)], ANSWER_PROBES
    if needed:
        raise ConfigError(
            f"the judge's format {spec.format.name} needs {', '.join(needed)}, which the "
            "rows of this command have not: set judge.format to one without"
        )
    plain_rows = stratified(load_check_rows(), lambda row: row.kind, sample)
    return [_build_row_case(row, n, spec, view) for n, row in enumerate(plain_rows)], PROBES


def _build_answer_case(row: AnswerRow, place: int, spec: JudgeSpec, view: View) -> CheckCase:
    responses = {name: Response(text) for name, text in row.responses(place).items()}
    context = Context({"reference": row.reference})
    return CheckCase(row.kind, Prompt(row.query), responses, spec, view, context=context)


def _build_row_case(row: CheckRow, place: int, spec: JudgeSpec, view: View) -> CheckCase:
    repeated_names = (
        RESAMPLED if spec.facts.scale and spec.config.critique and spec.config.temperature else ()
    )
    is_compared = spec.facts.compares and spec.facts.tie is None
    responses = {name: Response(text) for name, text in variants(row, place).items()}
    return CheckCase(
        row.kind, Prompt(row.query), responses, spec, view, is_compared, repeated_names
    )


def _build_group_case(group: LabelledGroup, spec: JudgeSpec, view: View) -> CheckCase:
    responses = {str(n): response for n, response in enumerate(group.responses)}
    return CheckCase(group.kind, group.prompt, responses, spec, view, context=group.context)


def _estimate_cost(cases: Sequence[CheckCase], spec: JudgeSpec, journal: Path) -> str:
    """Return what the check will cost, in words."""
    items = list(dict.fromkeys(item for case in cases for item in case.inputs()))
    with closing(Journal(journal)) as record:
        recorded_judgements = record.get(spec.name, items)
    open_items = [item for item in items if item not in recorded_judgements]
    prompt_chars = sum(_count_chars(item, spec) for item in open_items)
    max_tokens = 1
    if isinstance(spec.format, JudgeFormat) and spec.config.critique:
        max_tokens = max_output_tokens(spec.config, spec.format)
    return (
        f"{len(items):,} judgements of {len(cases)} queries, {len(recorded_judgements):,} of them "
        f"on record; to ask: {len(open_items):,}, about {prompt_chars // CHARS_PER_TOKEN:,} tokens "
        f"of prompts and at most {max_tokens * len(open_items):,} written"
    )


def _count_chars(item: JudgeInput, spec: JudgeSpec) -> int:
    if isinstance(spec.format, JudgeFormat):
        return sum(len(message.text) for message in render(item, spec.format))
    return len(item.prompt.text) + sum(len(response.text) for response in item.responses)


def _probe_cases(
    judged_cases: Sequence[JudgedCase],
    groups: Sequence[LabelledGroup],
    spec: JudgeSpec,
    view: View,
    probes: Probes,
) -> list[Finding]:
    """Return the findings of all probes. The cases of the labelled groups come last."""
    row_cases, group_cases = (
        judged_cases[: len(judged_cases) - len(groups)],
        judged_cases[len(judged_cases) - len(groups) :],
    )
    findings = probe_rows(Checked(row_cases, spec, view), probes)
    if groups:
        judged_groups = [
            JudgedGroup(group, tuple(case.judgements.values()))
            for group, case in zip(groups, group_cases, strict=True)
        ]
        findings += probe_labels(judged_groups, view, spec.facts.scale, Draws())
    return findings
