"""Agreement of a judge with labelled pairs: `autoj evaluate eval-p` and `autoj evaluate pairs`.

Pairs may have any layout. A verdict agrees only if both orders
give it and it equals the label (paper, section 6.1).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Literal

from pydantic import Field

from autoj_reward.config import View
from autoj_reward.config.load import with_layout
from autoj_reward.conversation import EMPTY_CONTEXT, Context, ContextColumn, Prompt, Response
from autoj_reward.data.labelled import LABELS
from autoj_reward.errors import ConfigError
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
)
from autoj_reward.evaluate.runner import EvaluateConfig, RunFiles, Task, open_run, run_task
from autoj_reward.evaluate.statistics import ResultFields, show_with_interval
from autoj_reward.io.candidates import PairRow, pair_rows
from autoj_reward.io.files import text_digest
from autoj_reward.io.items import Item
from autoj_reward.io.splits import RowSplit
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
    """Path of each field in the data, where a column has a name of its own: `prompt: question`,
    `response_1: answers[0].text`, `label: winner`, or a context field of the judge's format."""
    layout: str | None = None
    """Layout of the rows: a name that `autoj data layouts` lists. null: that of each row, found
    from its columns."""
    split: RowSplit | None = None
    """Rows of the data that are measured, drawn by a hash. null measures all."""


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two responses to a query, with the human label."""

    line: int
    prompt: Prompt
    responses: tuple[Response, Response]
    label: Verdict
    """FIRST, SECOND or TIE."""
    group: str
    """Group that metrics are reported by, such as a scenario group or a subset."""
    id: str | int | None
    fields: Fields
    """Fields that identify the row, to check files of answers against."""
    context: Context = EMPTY_CONTEXT
    """Context fields of the row, for a judge whose format shows them."""
    layout: str = ""
    """Name of the row's layout."""

    @property
    def query(self) -> str:
        """The prompt as a text."""
        return self.prompt.text


BY_SCENARIO = "autoj_pairwise_test"
"""Layout of Eval-P, whose metrics are reported by the group of the row's scenario."""
BY_SECTION = "rewardbench1"
"""Layout of RewardBench, whose metrics are reported by section too."""
REMEDIES = {
    "single": "set protocol=pointwise, which rates each response alone",
    "pairwise": "set protocol=pairwise, which compares the two responses",
}
"""What to set for a judge whose format lacks a protocol, by the other protocol that it has."""
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
    checked, files = open_run(PairsConfig, config, sets, strict, result, _compares, **sources)
    if verdicts is None:
        if swapped_verdicts is not None:
            raise ConfigError("--swapped-verdicts is nothing without --verdicts: name both")
        checked = checked.model_copy(update={"layout": BY_SCENARIO})
        return _run_judge(checked, files, "eval-p")
    if checked.sample is not None:
        raise ConfigError("sample: verdicts from a file are measured on all rows; drop it")
    kind = "pairwise" if checked.protocol == "pairwise" else "single"
    columns = judge_spec(checked.judge).context_columns(checked.columns, kind)
    pairs = read_pairs(data, columns, checked.columns, BY_SCENARIO, checked.split, strict=True)
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
    data: str,
    layout: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
    strict: bool,
) -> int:
    """Measure agreement and consistency on the labelled pairs of a file of any layout."""
    layouts = with_layout(sets, layout)
    checked, files = open_run(PairsConfig, config, layouts, strict, result, _compares, data=data)
    return _run_judge(checked, files)


def _compares(config: PairsConfig) -> bool:
    """Return whether the judge compares the responses; otherwise it rates each."""
    return config.protocol == "pairwise"


def _run_judge(config: PairsConfig, files: RunFiles, task: str | None = None) -> int:
    """task: name of the evaluation; None takes that of the rows' layout."""
    is_compared = config.protocol == "pairwise"
    spec = judge_spec(config.judge) if is_compared else config.judge_for(config.view)
    if config.tie_threshold is None:
        config = config.model_copy(update={"tie_threshold": spec.facts.tie or 0.0})
    kind = "pairwise" if is_compared else "single"
    require_protocol(spec, kind, REMEDIES)
    columns = spec.context_columns(config.columns, kind)
    source = files.sources["data"]
    how = (config.columns, config.layout, config.split)
    all_pairs = read_pairs(source, columns, *how, strict=task is not None)
    layout = next(iter(all_pairs)).layout
    rows = all_pairs.drawn(config.sample, config.seed)

    def compute_metrics(judged: Sequence[JudgedPair]) -> ResultFields:
        fields = pair_metrics(judged, config.draws)
        fields |= comparison_metrics(judged) if is_compared else rating_metrics(judged)
        if layout == BY_SECTION:
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

    return _run(task or layout, config, files, spec, answer, compute_metrics)


def _run(
    task: str,
    config: PairsConfig,
    files: RunFiles,
    judge: JudgeSpec | str,
    answer: Callable[[PairDone], ResultFields],
    metrics: Callable[[Sequence[JudgedPair]], ResultFields],
) -> int:
    return run_task(
        Task(task, config, files, [judge], answer, judged_pair, metrics, _show, _record)
    )


def read_pairs(
    source: str,
    asked: Sequence[ContextColumn] = (),
    columns: Mapping[str, str] | None = None,
    layout: str | None = None,
    split: RowSplit | None = None,
    strict: bool = False,
) -> MeasuredRows[LabelledPair]:
    """Return the labelled pairs of a file.

    Where a layout always puts the better response first, it stays there; judging both orders makes
    up for that. asked: context fields to read. columns, layout, split: as for `read_items`. Bad
    rows are named and left out, since published files have some. With `strict` they raise
    InputError, and so does an id that stands twice.
    """
    ids = Unique()

    def convert(pair: PairRow) -> LabelledPair:
        row = pair.item.fields
        name = pair.item.find("id")
        if strict:
            ids.check(pair.line, pair.item.found_at("id"), row_id(row, "id"))
        identifying_fields = {key: value for key, value in row.items() if key in NAMING}
        return LabelledPair(
            pair.line,
            pair.prompt,
            pair.responses,
            pair.label,
            _read_group(pair.item, strict),
            name if isinstance(name, str | int) else None,
            identifying_fields,
            pair.context,
            pair.item.layout.name,
        )

    return measured(pair_rows(source, asked, columns, layout, split).mapped(convert), strict)


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
        contest = Pair(pair.prompt, *pair.responses, pair.context)
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
        sides = [Candidate(pair.prompt, r, context=pair.context) for r in pair.responses]
        judgements = await rate_candidates(ask, sides, spec, config.view)
        a, b = (side.view(config.view) for side in judgements)
        gap = None if a is None or b is None else a - b
        [verdict] = pointwise_verdicts([gap], config.tie_threshold or 0.0)
        return (PairVerdicts(verdict, gap=gap), judgements), judgements

    return rate_both


def judged_pair(pair: LabelledPair, answer: PairAnswer) -> JudgedPair:
    """Return the record of a pair and its verdicts that the metrics use."""
    first, second = (response.text for response in pair.responses)
    return JudgedPair(
        text_digest(pair.query),
        pair.group,
        pair.label,
        (len(first), len(second)),
        (count_markup(first), count_markup(second)),
        answer[0],
    )


def _read_group(item: Item, strict: bool) -> str:
    # Eval-P needs the scenario of every row; other pairs with its columns may have none.
    if item.layout.name == BY_SCENARIO and (strict or item.find("scenario") is not None):
        return group(item.fields)
    value = item.find("group")
    return value if isinstance(value, str) and value.strip() else "all"


def _record(pair: LabelledPair, answer: PairAnswer) -> dict[str, Any]:
    """Return a judged pair as the leaderboard page shows it."""
    verdicts, judgements = answer
    return {
        "line": pair.line,
        "id": pair.id,
        "group": pair.group,
        "query": pair.query,
        "responses": [response.text for response in pair.responses],
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
    print(f"{'group':<24}{'n':>6}  {'agreement':<24}{'consistency'}")
    for name, metrics in [*fields["groups"].items(), ("overall", fields["overall"])]:
        agreement = show_with_interval(metrics, "agreement")
        consistency = show_with_interval(metrics, "consistency")
        print(f"{name[:23]:<24}{metrics['n']:>6}  {agreement:<24}{consistency}")
    for name, metrics in fields.get("sections", {}).items():
        score = show_with_interval(metrics, "score")
        print(f"{'section ' + name:<24}{metrics['n']:>6}  {score}")
