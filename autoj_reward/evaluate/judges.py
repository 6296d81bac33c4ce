"""Comparison of judges on labelled rows of any layout: `autoj evaluate judges`.

Generative judges and scalar reward models are asked about the same responses, one judge after
another. A judge rates each response alone, or with `protocol: pairwise` compares every two
responses of a query in both orders.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from autoj_reward.config import Block, JudgeConfig, View, ViewOrAuto
from autoj_reward.config.load import read_config, with_layout
from autoj_reward.conversation import Context
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.evaluate.ask import ask_each, rate_candidates, require_protocol
from autoj_reward.evaluate.judge_metrics import (
    ComparedGroup,
    JudgedResponses,
    compare_judges,
    count_duels,
)
from autoj_reward.evaluate.judges_page import print_judges, render_judges
from autoj_reward.evaluate.labelled_groups import LabelledGroup, read_labelled_groups
from autoj_reward.evaluate.results import ROWS, path_beside, write_result
from autoj_reward.evaluate.rows import drawn
from autoj_reward.evaluate.runner import UNRECORDED, MeasureConfig, read_judge_block
from autoj_reward.evaluate.statistics import ResultFields, Scores
from autoj_reward.formats.schema import ScalarFormat
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import filling, require_apart, text_digest, write_text
from autoj_reward.io.rows import BadRows
from autoj_reward.io.track import tracking
from autoj_reward.models.spec import JudgeSpec, join_context_columns, judge_spec
from autoj_reward.models.unused import check_run
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.compare import compare_all, comparison_question
from autoj_reward.types import Candidate, Comparison, Judgement, Pair, Verdict

PAGE, JOURNAL = ".html", ".journal.sqlite"
"""Suffixes of files beside the result."""
RUN_FILE_ENDINGS = (".yaml", ".yml")
"""Endings by which `--judge` tells a run file from a model."""


class ComparedJudge(Block):
    """One of the judges that are compared, and how it is asked."""

    judge: JudgeConfig = JudgeConfig()
    """The judge that is measured."""
    view: ViewOrAuto = "auto"
    """The number of a rating that counts. `auto`: the expected rating if the judge gives it, else
    the written one."""
    protocol: Literal["pointwise", "pairwise"] = "pointwise"
    """`pointwise` rates each response alone; `pairwise` compares every two responses of a query in
    both orders."""

    @property
    def kind(self) -> str:
        """Protocol of the judge's format that is used."""
        return "pairwise" if self.protocol == "pairwise" else "single"


class CompareJudgesConfig(MeasureConfig):
    """Settings of a comparison of judges on labelled rows."""

    judges: dict[str, ComparedJudge] = Field(default_factory=dict)
    """The judges by name, in addition to those of `--judge`. Two or more."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Path of each field in the data, where a column has a name of its own, as for `autoj evaluate
    pairs`."""
    layout: str | None = None
    """Layout of the rows: a name that `autoj data layouts` lists. null: that of each row, found
    from its columns."""


@dataclass(frozen=True, slots=True)
class OpenJudge:
    """A judge that is ready to be asked."""

    name: str
    """Name in the result."""
    config: ComparedJudge
    spec: JudgeSpec

    @property
    def view(self) -> View | None:
        """The view that every rating must have; None if the judgements decide."""
        return self.spec.preferred if self.config.view == "auto" else self.config.view

    def count_inputs(self, group: LabelledGroup) -> int:
        """Return the number of judge inputs of a group."""
        if self.config.protocol == "pairwise":
            return 2 * count_duels(len(group.responses))
        return self.spec.asks.critiques * len(group.responses)

    def read_context(self, group: LabelledGroup) -> Context:
        """Return the context of a group that this judge shows."""
        return self.spec.shown_context(group.context, self.config.kind)


def evaluate_judges(
    data: str,
    judges: Sequence[str],
    result: str,
    config: str | None,
    sets: Sequence[str],
    layout: str | None,
    strict: bool,
) -> int:
    """Measure several judges on the same labelled rows, and the differences between them.

    judges: models and run files, from the command line. Returns 1 if a judge judged nothing, else
    0.
    """
    checked = load_compared_judges(config, with_layout(sets, layout), judges, strict)
    journal = checked.journal or path_beside(result, JOURNAL)
    files = (path_beside(result, ROWS), path_beside(result, PAGE))
    run_files = [name for name in judges if name.endswith(RUN_FILE_ENDINGS)]
    require_apart([config, data, *run_files], [result, *files, journal])
    opened = [_open(name, one) for name, one in checked.judges.items()]
    shown = [(one.spec, one.config.kind) for one in opened]
    asked = join_context_columns(shown, checked.columns)
    groups, bad_rows = read_labelled_groups(data, None, asked, checked.columns, checked.layout)
    groups = list(drawn(_require_duels(groups, data), checked.sample, checked.seed))

    names = " and ".join(one.spec.name for one in opened)
    claim = judged_by(
        names, Path(result), Path(result), command="autoj evaluate judges", files=files
    )
    tracked = tracking(checked.track, f"judges {result}", checked)
    with claim, tracked as reports:
        judged = {}
        for one in opened:
            answer = _compare if one.config.protocol == "pairwise" else _rate
            judged[one.name] = answer(one, groups, journal)
        compared = [_reduce(group) for group in groups]
        fields = _describe_rows(groups, bad_rows)
        fields |= compare_judges(compared, judged, checked.draws)
        for one in opened:
            fields["judges"][one.name]["judge"] = one.spec.name
        _write_rows(files[0], groups, judged)
        settings = checked.model_dump(mode="json", exclude=UNRECORDED)
        specs = [one.spec for one in opened]
        write_result(result, "judges", specs, {"data": data}, settings, fields)
        write_text(files[1], render_judges(data, fields))
        reports.send(len(groups), fields)
    print_judges(fields)
    print(f"result: {result}; page: {files[1]}")
    silent = [name for name, one in judged.items() if not one.has_numbers]
    for name in silent:
        outcomes = fields["judges"][name]["cost"]["outcomes"]
        reasons = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        print(f"autoj evaluate judges: warning: {name} judged nothing: {reasons}", file=sys.stderr)
    return int(bool(silent))


def load_compared_judges(
    config: str | None, sets: Sequence[str], judges: Sequence[str], strict: bool
) -> CompareJudgesConfig:
    """Read the config, and add the judges of the command line.

    A name that ends in .yaml or .yml is a run file, whose judge and view are taken; any other one
    is a model. Raises ConfigError for two judges of one name, and for fewer than two.
    """
    data = read_config(config, sets)
    blocks = data.setdefault("judges", {})
    if not isinstance(blocks, dict):
        raise ConfigError(f"{config}: judges is no mapping of names to judges")
    for typed in judges:
        name, block = _read_typed(typed)
        if name in blocks:
            raise ConfigError(
                f"--judge {typed}: a second judge called {name!r}: rename its run file, or name "
                "both under `judges` in a run file of --config"
            )
        blocks[name] = block
    checked = check_run(CompareJudgesConfig, data, str(config or "command line"), strict)
    if len(checked.judges) < 2:
        raise ConfigError(
            f"{len(checked.judges)} judges named, and a comparison has two or more: give --judge "
            "MODEL or --judge RUN_FILE.yaml again"
        )
    return checked


def _read_typed(typed: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the block of a judge as `--judge` names it."""
    if not typed.endswith(RUN_FILE_ENDINGS):
        return Path(typed).name, {"judge": {"model": typed}}
    block = read_judge_block(typed, ())
    fields = {name: block[name] for name in ComparedJudge.model_fields if name in block}
    if "judge" not in fields:
        raise ConfigError(f"--judge {typed}: the run file has no judge")
    return Path(typed).stem, fields


def _open(name: str, config: ComparedJudge) -> OpenJudge:
    """Resolve a judge. Raises ConfigError or FormatError if it cannot be asked this way."""
    spec = judge_spec(config.judge)
    if config.protocol == "pointwise":
        if not spec.rates:
            raise ConfigError(
                f"judges.{name}: the format {spec.format.name} rates no single response: set its "
                "protocol to pairwise"
            )
        spec = spec.that_reads(config.view, "reward")
    require_protocol(spec, config.kind)
    return OpenJudge(name, config, spec)


def _require_duels(groups: Sequence[LabelledGroup], source: str) -> list[LabelledGroup]:
    """Return the groups of two responses or more. Raises InputError if no label decides."""
    several = [group for group in groups if len(group.responses) > 1]
    if not any(len(set(group.grades)) > 1 for group in several):
        raise InputError(f"{source}: no query has two responses with different labels")
    return several


def _rate(one: OpenJudge, groups: Sequence[LabelledGroup], journal: Path) -> JudgedResponses:
    """Rate every response alone.

    With `view: auto` and no preferred view, the expected ratings count if the judge gave any: some
    endpoints tell no probabilities. A response without the number that counts has None.
    """
    expected = list[Scores]()
    written = list[Scores]()
    preferred = list[Scores]()

    async def rate(ask: Ask, group: LabelledGroup) -> tuple[list[Judgement], list[Judgement]]:
        context = one.read_context(group)
        candidates = [
            Candidate(group.prompt, response, context=context) for response in group.responses
        ]
        judgements = await rate_candidates(ask, candidates, one.spec, one.view)
        return judgements, judgements

    def keep(_group: LabelledGroup, judgements: Sequence[Judgement]) -> None:
        expected.append(tuple(judgement.view("expected") for judgement in judgements))
        written.append(tuple(judgement.view("rating") for judgement in judgements))
        if one.view:
            preferred.append(tuple(judgement.view(one.view) for judgement in judgements))

    label = f"rating: {one.name}"
    cost = ask_each(one.spec, journal, groups, rate, keep, label, one.count_inputs, view=one.view)
    if one.view:
        return JudgedResponses.of_numbers(one.view, preferred, cost)
    if isinstance(one.spec.format, ScalarFormat):
        return JudgedResponses.of_numbers("score", written, cost)
    has_expected = any(number is not None for numbers in expected for number in numbers)
    if has_expected:
        return JudgedResponses.of_numbers("expected", expected, cost)
    return JudgedResponses.of_numbers("rating", written, cost)


def _compare(one: OpenJudge, groups: Sequence[LabelledGroup], journal: Path) -> JudgedResponses:
    """Compare every two responses of a group, in both orders."""
    verdicts = list[list[Verdict]]()

    async def compare(ask: Ask, group: LabelledGroup) -> tuple[list[Comparison], list[Judgement]]:
        context = one.read_context(group)
        questions = [
            comparison_question(
                Pair(group.prompt, first, second, context), one.spec.facts, one.spec.asks
            )
            for first, second in combinations(group.responses, 2)
        ]
        comparisons = await compare_all(questions, ask)
        orders = [order for comparison in comparisons for order in comparison.orders]
        return comparisons, orders

    def keep(_group: LabelledGroup, comparisons: Sequence[Comparison]) -> None:
        verdicts.append([comparison.verdict for comparison in comparisons])

    label = f"comparing: {one.name}"
    cost = ask_each(one.spec, journal, groups, compare, keep, label, one.count_inputs)
    return JudgedResponses.of_verdicts(verdicts, cost)


def _reduce(group: LabelledGroup) -> ComparedGroup:
    """Return what the metrics use of a group, without its texts."""
    lengths = tuple(float(len(response.text)) for response in group.responses)
    return ComparedGroup(text_digest(group.prompt.text), group.grades, lengths, group.compared)


def _describe_rows(groups: Sequence[LabelledGroup], bad_rows: BadRows) -> ResultFields:
    return {
        "queries": len(groups),
        "responses": sum(len(group.responses) for group in groups),
        "rows_left_out": bad_rows.count,
    }


def _write_rows(
    path: Path, groups: Sequence[LabelledGroup], judged: Mapping[str, JudgedResponses]
) -> None:
    """Write the numbers or points of every judge beside the responses, a line for each query."""
    with filling(path) as file:
        for place, group in enumerate(groups):
            file.line(
                {
                    "query": group.prompt.text,
                    "responses": [response.text for response in group.responses],
                    "grades": group.grades,
                    "judges": {name: one.find_answers(place) for name, one in judged.items()},
                }
            )
