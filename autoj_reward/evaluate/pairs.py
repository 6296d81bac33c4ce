"""Agreement of a judge with labelled pairs: `autoj evaluate eval-p` and `autoj evaluate pairs`.

Reads pairs in the forms of the benchmarks that publish them. A verdict agrees only if both orders
give it and it equals the label (paper, section 6.1).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Literal

from pydantic import Field

from autoj_reward.config import View
from autoj_reward.conversation import EMPTY_CONTEXT, Context, ContextColumn
from autoj_reward.data.labelled import LABELS, Compared, compared
from autoj_reward.errors import ConfigError, did_you_mean
from autoj_reward.evaluate.agreement import (
    count_markup,
    pointwise_verdicts,
    verdict_probabilities,
)
from autoj_reward.evaluate.ask import ask_each, rate_candidates, require_protocol
from autoj_reward.evaluate.pair_metrics import (
    JudgedPair,
    PairVerdicts,
    comparison_metrics,
    pair_metrics,
    rating_metrics,
    section_scores,
)
from autoj_reward.evaluate.rows import (
    NAMING,
    Fields,
    MeasuredRows,
    Unique,
    choice,
    group,
    measured,
    read_answers,
    row_id,
    strictly,
)
from autoj_reward.evaluate.runner import EvaluateConfig, RunFiles, Task, open_run, run_task
from autoj_reward.evaluate.statistics import ResultFields
from autoj_reward.formats.schema import load_format
from autoj_reward.io.checks import context, text
from autoj_reward.io.files import text_digest
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.compare import compare_all, comparison_question, swap_consistent
from autoj_reward.types import Candidate, Judgement, Pair, Verdict


class PairsConfig(EvaluateConfig):
    """Settings of the evaluations on labelled pairs: Eval-P, RewardBench, JudgeBench, LLMBar."""

    protocol: Literal["pairwise", "pointwise"] = "pairwise"
    """`pairwise` compares the two responses in both orders; `pointwise` rates each alone."""
    view: View = "expected"
    """The number that `pointwise` compares."""
    tie_threshold: float | None = Field(None, ge=0)
    """Largest difference of ratings that `pointwise` counts as a tie. null: the judge's own
    threshold if it compares by ratings, else 0. Search it on validation rows, never on the rows
    that are measured."""
    repeats: int = Field(1, ge=1, le=16)
    """Times that each comparison is repeated, to measure stability."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column of the data for each context field of the judge's format, where the names differ."""


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two responses to a query, with the human label."""

    line: int
    query: str
    responses: tuple[str, str]
    label: Verdict
    """FIRST, SECOND or TIE."""
    group: str
    """Group that metrics are reported by, such as a scenario group or a subset."""
    id: str | int | None
    fields: Fields
    """Fields that identify the row, to check files of answers against."""
    context: Context = EMPTY_CONTEXT
    """Context fields of the row, for a judge whose format shows them."""


@dataclass(frozen=True, slots=True)
class PairForm:
    """Names of a row's fields in one benchmark's form."""

    query: str
    responses: tuple[str, str]
    label: dict[Any, Verdict] | None
    """Verdict for each value of the field `label`; None: the first response is always the better
    one."""
    group: str = ""
    """Field of the group. `scenario` gives the group of the row's scenario. Empty: the row's
    `subset`, or `all` without one."""
    id: str = "id"


FORMS = {
    "eval-p": PairForm("prompt", ("response 1", "response 2"), dict(enumerate(LABELS)), "scenario"),
    "rewardbench": PairForm("prompt", ("chosen", "rejected"), None, "subset"),
    "judgebench": PairForm(
        "question",
        ("response_A", "response_B"),
        {"A>B": Verdict.FIRST, "B>A": Verdict.SECOND, "A=B": Verdict.TIE},
        "source",
        "pair_id",
    ),
    "llmbar": PairForm("input", ("output_1", "output_2"), {1: Verdict.FIRST, 2: Verdict.SECOND}),
}
"""Fields of each benchmark's rows, by the name of its form."""
LABELLED = "labelled"
"""Name for any form that training reads: PandaLM, Anthropic HH, and this project's own."""
PairAnswer = tuple[PairVerdicts, Sequence[Judgement]]
"""Verdicts on a pair, and the judgements of the first repetition; empty if verdicts come from a
file."""
PairDone = Callable[[LabelledPair, PairAnswer], None]
"""Callback that gets each pair with its answer, in input order."""
PairQuestion = Callable[[Ask, LabelledPair], Awaitable[tuple[PairAnswer, list[Judgement]]]]
"""Question about one pair. Returns the answer, and the judgements that the cost counts."""


def eval_p(
    data: str,
    verdicts: str | None,
    swapped_verdicts: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
    strict: bool,
) -> int:
    """Measure agreement and consistency on Eval-P by group (paper, Table 1 and Figure 4).

    verdicts, swapped_verdicts: files of verdicts on the two orders, in place of a judge.
    """
    sources = {"data": data, "verdicts": verdicts, "swapped_verdicts": swapped_verdicts}
    checked, files = open_run(PairsConfig, config, sets, strict, result, **sources)
    if verdicts is None:
        if swapped_verdicts is not None:
            raise ConfigError("--swapped-verdicts is nothing without --verdicts: name both")
        return _run_judge("eval-p", checked, files)
    if checked.sample is not None:
        raise ConfigError("sample: verdicts from a file are measured on all rows; drop it")
    kind = "pairwise" if checked.protocol == "pairwise" else "single"
    columns = judge_spec(checked.judge).context_columns(checked.columns, kind)
    pairs = read_pairs(data, "eval-p", columns)
    first_orders = read_verdicts(verdicts, data, pairs)
    second_orders = read_verdicts(swapped_verdicts, data, pairs) if swapped_verdicts else None

    def recall(on_answer: PairDone) -> ResultFields:
        for pair, first, second in zip(
            pairs, first_orders, second_orders or repeat(None), strict=False
        ):
            orders = (first, second) if second else None
            judgements = [Judgement.of_verdict(verdict) for verdict in orders or (first,)]
            on_answer(pair, (PairVerdicts(swap_consistent(*judgements).verdict, orders), ()))
        return {}

    metrics = partial(pair_metrics, draws=checked.draws)
    return _run("eval-p", checked, files, verdicts, recall, metrics)


def pairs(
    data: str, form: str, result: str, config: str | None, sets: Sequence[str], strict: bool
) -> int:
    """Measure agreement and consistency on pairs in the form of any of `FORMS`, or `labelled`."""
    checked, files = open_run(PairsConfig, config, sets, strict, result, data=data)
    return _run_judge(form, checked, files)


def _run_judge(form: str, config: PairsConfig, files: RunFiles) -> int:
    is_compared = config.protocol == "pairwise"
    spec = judge_spec(config.judge) if is_compared else config.judge_for(config.view)
    if config.tie_threshold is None:
        config = config.model_copy(update={"tie_threshold": spec.facts.tie or 0.0})
    kind = "pairwise" if is_compared else "single"
    columns = spec.context_columns(config.columns, kind)
    all_pairs = read_pairs(files.sources["data"], form, columns)
    rows = all_pairs.drawn(config.sample, config.seed)
    require_protocol(spec, kind)

    def compute_metrics(judged: Sequence[JudgedPair]) -> ResultFields:
        fields = pair_metrics(judged, config.draws)
        fields |= comparison_metrics(judged) if is_compared else rating_metrics(judged)
        if form == "rewardbench":
            fields["sections"] = section_scores(judged, config.draws)
        return fields

    question = (
        _make_comparison_question(config, spec)
        if is_compared
        else _make_rating_question(config, spec)
    )
    inputs_a_pair = 2 * (config.repeats if is_compared else spec.asks.critiques)
    label, view = ("comparing", None) if is_compared else ("rating", config.view)

    def answer(on_answer: PairDone) -> ResultFields:
        cost = ask_each(
            spec,
            files.journal,
            rows,
            question,
            on_answer,
            label,
            lambda _pair: inputs_a_pair,
            view=view,
        )
        return {"cost": cost.fields()}

    return _run(form, config, files, spec, answer, compute_metrics)


def _run(
    form: str,
    config: PairsConfig,
    files: RunFiles,
    judge: JudgeSpec | str,
    answer: Callable[[PairDone], ResultFields],
    metrics: Callable[[Sequence[JudgedPair]], ResultFields],
) -> int:
    return run_task(
        Task(form, config, files, [judge], answer, judged_pair, metrics, _show, _record)
    )


def read_pairs(
    source: str, form: str, columns: Sequence[ContextColumn] = ()
) -> MeasuredRows[LabelledPair]:
    """Return the pairs of a file in the form of one of `FORMS`, or `labelled`.

    columns: context columns to read; pairs of `labelled` have no context. RewardBench's chosen
    response is always FIRST; judging both orders makes up for that. Bad rows of `labelled` are
    named and left out, since published files have some. Otherwise raises InputError that names
    every bad row: missing fields, unknown labels and scenarios, repeated ids. Raises ConfigError
    for an unknown form.
    """
    if form == LABELLED:
        rows = compared(source, load_format("autoj-en"))
        return measured(rows.mapped(_convert_pair), strict=False)
    if form not in FORMS:
        names = [*FORMS, LABELLED]
        raise ConfigError(
            f"--format {form!r} is unknown{did_you_mean(form, names)} (known: {', '.join(names)})"
        )
    ids, pair_form = Unique(), FORMS[form]

    def build(line: int, row: Fields) -> LabelledPair:
        first, second = (text(row, name) for name in pair_form.responses)
        label = choice(row, "label", pair_form.label) if pair_form.label else Verdict.FIRST
        ids.check(line, pair_form.id, name := row_id(row, pair_form.id))
        identifying_fields = {key: value for key, value in row.items() if key in NAMING}
        query = text(row, pair_form.query, blank=False)
        (row_context, _), title = context(row, columns), _read_group(row, pair_form.group)
        return LabelledPair(
            line, query, (first, second), label, title, name, identifying_fields, row_context
        )

    return measured(strictly(source, build))


def read_verdicts(
    source: str, data: str, pairs: MeasuredRows[LabelledPair]
) -> MeasuredRows[Verdict]:
    """Read verdicts in the paper's released form: rows of `{"output": 0}`, in data order.

    0 is FIRST, 1 is SECOND and 2 is a tie. In the file of the swapped order, 0 is the response that
    this order shows first. Raises InputError as `read_answers` does.
    """
    options = dict(enumerate(LABELS))
    fields = (pair.fields for pair in pairs)
    return read_answers(source, data, fields, lambda row: choice(row, "output", options))


def _make_comparison_question(config: PairsConfig, spec: JudgeSpec) -> PairQuestion:
    """Return a question that compares a pair in both orders, `repeats` times.

    The first repetition gives the verdict; the others only measure stability.
    """

    async def compare(ask: Ask, pair: LabelledPair) -> tuple[PairAnswer, list[Judgement]]:
        contest = Pair(pair.query, *pair.responses, pair.context)
        repetitions = [
            comparison_question(contest, spec.facts, spec.asks, sample=k)
            for k in range(config.repeats)
        ]
        comparisons = await compare_all(repetitions, ask)
        rounds = tuple(comparison.verdict for comparison in comparisons)
        first, second = judgements = list(comparisons[0].orders)
        order_probabilities = map(
            verdict_probabilities, judgements, (pair.label, pair.label.swapped())
        )
        probabilities = tuple(order for order in order_probabilities if order)
        orders = (first.verdict, second.verdict)
        return (PairVerdicts(rounds[0], orders, rounds, probabilities), judgements), judgements

    return compare


def _make_rating_question(config: PairsConfig, spec: JudgeSpec) -> PairQuestion:
    """Return a question that rates each response alone, and compares by `tie_threshold`."""

    async def rate_both(ask: Ask, pair: LabelledPair) -> tuple[PairAnswer, list[Judgement]]:
        sides = [Candidate(pair.query, r, context=pair.context) for r in pair.responses]
        judgements = await rate_candidates(ask, sides, spec, config.view)
        a, b = (side.view(config.view) for side in judgements)
        gap = None if a is None or b is None else a - b
        [verdict] = pointwise_verdicts([gap], config.tie_threshold or 0.0)
        return (PairVerdicts(verdict, gap=gap), judgements), judgements

    return rate_both


def judged_pair(pair: LabelledPair, answer: PairAnswer) -> JudgedPair:
    """Return the record of a pair and its verdicts that the metrics use."""
    first, second = pair.responses
    return JudgedPair(
        text_digest(pair.query),
        pair.group,
        pair.label,
        (len(first), len(second)),
        (count_markup(first), count_markup(second)),
        answer[0],
    )


def _convert_pair(row: Compared) -> LabelledPair:
    return LabelledPair(row.line, row.query, row.responses, row.label, "all", None, {})


def _read_group(row: Fields, field: str) -> str:
    if field == "scenario":
        return group(row)
    if field:
        return text(row, field, blank=False)
    return text(row, "subset") if "subset" in row else "all"


def _record(pair: LabelledPair, answer: PairAnswer) -> dict[str, Any]:
    """Return a judged pair as the leaderboard page shows it."""
    verdicts, judgements = answer
    return {
        "line": pair.line,
        "id": pair.id,
        "group": pair.group,
        "query": pair.query,
        "responses": pair.responses,
        "label": pair.label,
        "verdict": verdicts.joint,
        "agrees": verdicts.joint is pair.label,
        "orders": verdicts.orders or (),
        "judgements": [
            {
                "outcome": judgement.outcome,
                "reason": judgement.reason,
                "critique": judgement.critique,
                "rating": judgement.view("rating"),
                "expected": judgement.view("expected"),
                "forced": judgement.forced,
                "flags": judgement.flags,
            }
            for judgement in judgements
        ],
    }


def _show(fields: ResultFields) -> None:
    print(f"{'group':<24}{'n':>6}{'agreement':>11}{'consistency':>13}")
    for name, metrics in [*fields["groups"].items(), ("overall", fields["overall"])]:
        same = "-" if metrics["consistency"] is None else f"{metrics['consistency']:.2f}"
        print(f"{name[:23]:<24}{metrics['n']:>6}{metrics['agreement']:>11.2f}{same:>13}")
    for name, metrics in fields.get("sections", {}).items():
        print(f"{'section ' + name:<24}{metrics['n']:>6}{metrics['score']:>11.2f}")
