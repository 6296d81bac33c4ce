"""Check of a judge before a training: `autoj check`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from autoj_reward.check.cases import CheckCase, JudgedCase
from autoj_reward.check.labels import JudgedGroup, probe_labels
from autoj_reward.check.measures import Checked
from autoj_reward.check.probes import Finding, missed_findings, probe_rows
from autoj_reward.check.report import finding_record, print_check, render_check, verdict_of
from autoj_reward.check.rows import (
    CheckRow,
    LabelledGroup,
    load_check_rows,
    read_labelled_groups,
    stratified,
)
from autoj_reward.check.texts import variants
from autoj_reward.config import Block, JudgeConfig, View, ViewOrAuto
from autoj_reward.config.load import read_config
from autoj_reward.data.teacher import CHARS_PER_TOKEN
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.ask import ask_each
from autoj_reward.evaluate.results import write_result
from autoj_reward.evaluate.statistics import Draws
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart, to_json, write_text
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
    field.
    """
    if sample is not None and sample < 2:
        raise ConfigError(f"--sample is {sample}: give 2 or more")
    require_apart((labels, config), folder=output)
    checked = load_checked(config, sets)
    view, spec = resolve_checked(checked)
    rows = stratified(load_check_rows(), lambda row: row.kind, sample)
    groups, left_out = read_labelled_groups(labels, spec.scale) if labels else ([], BadRows())
    groups = stratified(groups, lambda own: own.kind, sample)
    cases = [
        *(_row_case(row, place, spec, view) for place, row in enumerate(rows)),
        *(_group_case(own, spec, view) for own in groups),
    ]
    folder, judged = Path(output), list[JudgedCase]()
    total = sum(len(own.inputs()) for own in cases)
    with judged_by(spec.name, folder, folder / RESULT, total):
        print(_estimate(cases, spec, folder / JOURNAL))
        cost = ask_each(
            spec,
            folder / JOURNAL,
            cases,
            lambda ask, own: own.answer(ask),
            lambda _own, found: judged.append(found),
            "checking",
            lambda own: len(own.inputs()),
            total,
            view,
        ).fields()
        findings = _findings(judged, groups, spec, view)
        verdict = verdict_of(findings)
        result: dict[str, Any] = {
            "view": view,
            "rows": len(rows),
            "labelled_groups": len(groups),
            "rows_left_out": left_out.count,
            "verdict": to_json(verdict),
            "probes": [finding_record(own) for own in findings],
            "cost": cost,
        }
        settings = {"sample": sample, "view": checked.view}
        sources = {"labels": labels} if labels else {}
        write_result(str(folder / RESULT), "check", spec, sources, settings, result)
        write_text(folder / PAGE, render_check(spec.name, result, findings, verdict))
    print_check(findings, verdict, cost)
    print(f"results: {output}")
    return int(strict and bool(missed_findings(findings)))


def load_checked(config: str | None, sets: Sequence[str]) -> CheckConfig:
    """Read judge and view from a run file.

    Raises ConfigError if a running service judges, or if a judge stands in two places.
    """
    data = read_config(config, sets)
    block = data["reward"] if isinstance(data.get("reward"), dict) else data
    if block.get("service"):
        raise ConfigError(
            "reward.service names a running service, and this command opens the judge itself: add "
            "--set reward.service=null, and name the judge in reward.judge"
        )
    if block is not data and "judge" in data:
        raise ConfigError(
            f"{config or 'the command line'} has a judge at its top and a block reward: name the "
            "judge in reward.judge"
        )
    known = {name: block[name] for name in CheckConfig.model_fields if name in block}
    return check_run(CheckConfig, known, str(config or "command line"))


def resolve_checked(checked: CheckConfig) -> tuple[View, JudgeSpec]:
    """Return the view that counts, and the judge. Raises ConfigError if it cannot be checked."""
    spec = judge_spec(checked.judge)
    if not spec.rates:
        raise ConfigError(
            f"the judge's format {spec.format.name} rates no single response, which this "
            "command needs: set judge.format, or measure comparisons with `autoj evaluate pairs`"
        )
    if needed := [name for name, required in spec.context("single").items() if required]:
        raise ConfigError(
            f"the judge's format {spec.format.name} needs {', '.join(needed)}, which the rows of "
            "this command have not: set judge.format to one without"
        )
    spec = spec.that_reads(checked.view, "reward")
    views = views_of(spec.config, spec.format, Abilities())
    return resolve_view(checked.view, "reward", spec.preferred, views), spec


def _row_case(row: CheckRow, place: int, spec: JudgeSpec, view: View) -> CheckCase:
    again = RESAMPLED if spec.scale and spec.config.critique and spec.config.temperature else ()
    compared = spec.compares and spec.ratings_tie is None
    texts = variants(row, place)
    return CheckCase(row.kind, row.query, texts, spec, view, compared, again)


def _group_case(own: LabelledGroup, spec: JudgeSpec, view: View) -> CheckCase:
    texts = {str(n): text for n, text in enumerate(own.responses)}
    return CheckCase(own.kind, own.query, texts, spec, view, context=own.context)


def _estimate(cases: Sequence[CheckCase], spec: JudgeSpec, journal: Path) -> str:
    """Return what the check will cost, in words."""
    items = list(dict.fromkeys(item for own in cases for item in own.inputs()))
    with closing(Journal(journal)) as record:
        on_record = record.get(spec.name, items)
    left = [item for item in items if item not in on_record]
    chars = sum(_chars(item, spec) for item in left)
    each = 1
    if isinstance(spec.format, JudgeFormat) and spec.config.critique:
        each = max_output_tokens(spec.config, spec.format)
    return (
        f"{len(items):,} judgements of {len(cases)} queries, {len(on_record):,} of them on record; "
        f"to ask: {len(left):,}, about {chars // CHARS_PER_TOKEN:,} tokens of prompts and "
        f"at most {each * len(left):,} written"
    )


def _chars(item: JudgeInput, spec: JudgeSpec) -> int:
    if isinstance(spec.format, JudgeFormat):
        return sum(len(message.text) for message in render(item, spec.format))
    return len(item.query) + sum(map(len, item.responses))


def _findings(
    judged: Sequence[JudgedCase], groups: Sequence[LabelledGroup], spec: JudgeSpec, view: View
) -> list[Finding]:
    """Return the findings of all probes. The cases of the labelled groups come last."""
    own, labelled = judged[: len(judged) - len(groups)], judged[len(judged) - len(groups) :]
    found = probe_rows(Checked(own, spec, view))
    if groups:
        together = [
            JudgedGroup(group, tuple(case.judgements.values()))
            for group, case in zip(groups, labelled, strict=True)
        ]
        found += probe_labels(together, view, spec.scale, Draws())
    return found
