"""Best-of-N selection by a judge's ratings (Eval-R): `autoj evaluate eval-r`.

The judge chooses among the first N candidates of each query, and a grader grades the chosen one.
The judge's ratings are also correlated with the grades (paper, section 6.3 and Table 2). Ties are
broken by the configured rules. Other rules are tried beside them, to see what they would choose.
With `shortlist`, the configured rules choose as in a best-of-N job with that shortlist. Ratings and
choices are kept in a temporary file until the grader reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from autoj_reward.config import JudgeConfig, TieBreak, View
from autoj_reward.config.jobs import REPLACES_BUDGET
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.ask import (
    JudgementCost,
    ask_each,
    rate_candidates,
    rate_each,
    require_protocol,
)
from autoj_reward.evaluate.rows import Fields, MeasuredRows, count_rows, group, strictly, text_list
from autoj_reward.evaluate.runner import EvaluateConfig, Task, open_run, run_task
from autoj_reward.evaluate.selection_metrics import (
    CONFIGURED,
    Chosen,
    GradedRow,
    selection_metrics,
)
from autoj_reward.evaluate.statistics import ResultFields, Scores, show_with_interval
from autoj_reward.formats.schema import ScalarFormat
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, text
from autoj_reward.io.files import Spool, text_digest
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.choose import choice_question, critique_view, require_direct
from autoj_reward.questions.compare import comparison_question
from autoj_reward.questions.tie_break import PlayMatch, choose
from autoj_reward.types import Candidate, Judgement, Outcome, Pair, Verdict

SINGLE_RULES = ("policy_logprob", "expected_rating", "first")
"""Tie-break rules that are tried beside the configured ones, each by itself. `pairwise` is added if
the config names it."""


class SelectionConfig(EvaluateConfig):
    """Settings of Eval-R."""

    removed_keys: ClassVar[Mapping[str, str]] = {"budget": REPLACES_BUDGET}

    grader: JudgeConfig = JudgeConfig(format="general")
    """The judge that grades the chosen responses."""
    sizes: tuple[int, ...] = Field((8, 16, 32), min_length=1)
    """Values of N for best-of-N."""
    view: View = "rating"
    """The number that ranks candidates."""
    tie_break: tuple[TieBreak, ...] = ("policy_logprob", "first")
    """Tie-break rules, applied in the given order."""
    shortlist: int | None = Field(None, ge=1)
    """Number of candidates that get critiques, as in a best-of-N job. Each N has a shortlist of its
    own. null: every candidate gets critiques."""
    grade: Literal["selected", "all"] = "selected"
    """`selected` grades the candidates that a rule chose, as in the paper. `all` grades every
    candidate, which also gives within-query correlation and the share of the possible gain."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Responses of one base model to one query."""

    line: int
    query: str
    group: str
    base: str
    """Name of the base model."""
    responses: tuple[str, ...]
    logprobs: tuple[float, ...] | None
    """Log-probability of each response under the base model; None if unknown."""
    scores: dict[str, Scores]
    """Scores of the responses in the data, by rater; None where one is missing."""


@dataclass(frozen=True, slots=True)
class Selected:
    """Ratings of a row's first candidates, up to the largest N, and the choices among them."""

    ratings: Sequence[Judgement]
    chosen: Chosen

    def to_grade(self, config: SelectionConfig) -> Sequence[int]:
        """Return the indices of the candidates that the grader rates.

        These are the ones that any rule chose or, with `grade: all`, all up to the largest N.
        """
        if config.grade == "all":
            return range(max(config.sizes))
        return sorted({s.index for by_size in self.chosen.values() for s in by_size.values()})


SelectedRow = tuple[Candidates, Selected]
SelectedDone = Callable[[SelectedRow, Scores], None]


def eval_r(
    data: str,
    scores: str | None,
    grades: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
    strict: bool,
) -> int:
    """Measure the grades of a judge's best-of-N choices, and how its ratings correlate with grades.

    scores, grades: raters in the data whose scores replace the judge's ratings or the grader's.
    """
    checked, files = open_run(SelectionConfig, config, sets, strict, result, data=data)
    judge = checked.judge_for(critique_view(checked.view, checked.shortlist), checked.tie_break)
    grader = judge_spec(checked.grader)
    rows = read_candidates(data, max(checked.sizes)).drawn(checked.sample, checked.seed)
    _require_scores(rows, {"--scores": scores, "--grades": grades}, data)
    _require_protocols(checked, judge, grader, scores, grades)

    def answer(on_answer: SelectedDone) -> ResultFields:
        judging, grading = JudgementCost(), JudgementCost()
        if scores:
            selected = asyncio.run(choose_by_scores(rows, scores, checked))
        else:
            judging, selected = choose_by_ratings(rows, checked, judge, files.journal)
        items = MeasuredRows(lambda: zip(rows, selected, strict=True), range(len(rows)))
        if grades:
            for row, choice in items:
                on_answer((row, choice), row.scores[grades])
        else:
            grading = _grade(items, checked, grader, files.journal, on_answer)
        cost = {"judge": judging.fields(), "grader": grading.fields()}
        return {"grader": grades or grader.name, "cost": cost}

    def keep(item: SelectedRow, grade_values: Scores) -> GradedRow:
        row, choice = item
        values = tuple(judgement.view(checked.view) for judgement in choice.ratings)
        return GradedRow(row.base, text_digest(row.query), values, grade_values, choice.chosen)

    return run_task(
        Task(
            "eval-r",
            checked,
            files,
            judges=[scores or judge, grades or grader],
            answer=answer,
            keep=keep,
            metrics=partial(selection_metrics, draws=checked.draws),
            show=_show,
            record=_record,
        )
    )


def read_candidates(source: str, min_responses: int) -> MeasuredRows[Candidates]:
    """Return the candidates of a file, one record for each query and base model.

    Rows have `scenario`, `prompt` and `outputs`. Either `outputs` holds, for each base model, an
    object of `outputs`, `logprobs` and `scores` (by rater), or the row itself has these three.
    min_responses: candidates that each query must have. Raises InputError that names every bad row.
    """

    def build(line: int, row: Fields) -> list[Candidates]:
        query, name = text(row, "prompt", blank=False), group(row)
        outputs = row.get("outputs")
        blocks = {"responses": row} if isinstance(outputs, list) else outputs
        if not isinstance(blocks, dict) or not blocks:
            raise BadField(
                "outputs", f"{check.show(outputs)} is no list and no lists by base model"
            )
        records = []
        for base, block in blocks.items():
            where = "outputs" if block is row else f"outputs.{base}"
            if not isinstance(block, dict):
                raise BadField(where, f"not an object: {check.show(block)}")
            records.append(
                Candidates(line, query, name, base, *_read_lists(block, where, min_responses))
            )
        return records

    rows = strictly(source, build)
    count = count_rows(rows, size=len)
    return MeasuredRows(lambda: (record for row in rows.usable() for record in row), range(count))


def _read_lists(
    block: dict[str, Any], where: str, min_responses: int
) -> tuple[tuple[str, ...], tuple[float, ...] | None, dict[str, Scores]]:
    responses = text_list(block, "outputs")
    if len(responses) < min_responses:
        raise BadField(
            where, f"{len(responses)} responses; best of {min_responses} needs {min_responses}"
        )
    logprobs = check.numbers(block, "logprobs", len(responses))
    scores = block.get("scores") or {}
    if not isinstance(scores, dict):
        raise BadField(f"{where}.scores", f"not lists by name: {check.show(scores)}")
    scores_by_rater = {}
    for name, values in scores.items():
        if not isinstance(values, list) or len(values) != len(responses):
            description = (
                f"{len(values)} numbers" if isinstance(values, list) else check.show(values)
            )
            raise BadField(
                f"{where}.scores.{name}", f"{description} for {len(responses)} responses"
            )
        scores_by_rater[name] = tuple(
            _read_score(value, f"{where}.scores.{name}") for value in values
        )
    return responses, logprobs, scores_by_rater


def _read_score(value: Any, where: str) -> float | None:
    return None if value is None else check.number(value, where)


def choose_by_ratings(
    rows: MeasuredRows[Candidates], config: SelectionConfig, spec: JudgeSpec, journal: Path
) -> tuple[JudgementCost, Spool[Selected]]:
    """Rate the candidates up to the largest N and choose among them; return cost and choices."""
    choices = Spool[Selected]()
    k = spec.asks.critiques
    max_size = max(config.sizes)

    async def rate_and_choose(ask: Ask, row: Candidates) -> tuple[Selected, Sequence[Judgement]]:
        candidates = _build_candidates(row)

        async def meet(i: int, j: int) -> Verdict:
            pair = Pair.of(candidates[i], candidates[j])
            return (await comparison_question(pair, spec.facts, spec.asks).answer(ask)).verdict

        if config.shortlist is not None:
            choice = await choose_from_shortlists(ask, row, config, spec)
        else:
            ratings = await rate_candidates(ask, candidates[:max_size], spec, config.view)
            choice = Selected(ratings, await choose_among(row, ratings, config, meet))
        return choice, choice.ratings

    def require(views: frozenset[View]) -> None:
        if config.shortlist is not None:
            require_direct(views)
        resolve_view(config.view, "choose", None, views)

    cost = ask_each(
        spec,
        journal,
        rows,
        rate_and_choose,
        on_answer=lambda _row, choice: choices.add(choice),
        label="rating candidates",
        size=lambda _row: k * max_size,
        view=config.view,
        require=require,
    )
    return cost, choices


async def choose_by_scores(
    rows: MeasuredRows[Candidates], name: str, config: SelectionConfig
) -> Spool[Selected]:
    """Choose by the scores of the rater `name` in the data."""
    choices = Spool[Selected]()
    for row in rows:
        ratings = _convert_scores(row.scores[name])
        choices.add(Selected(ratings, await choose_among(row, ratings, config)))
    return choices


async def choose_among(
    row: Candidates,
    judgements: Sequence[Judgement],
    config: SelectionConfig,
    meet: PlayMatch | None = None,
) -> Chosen:
    """Choose from a row's candidates by each tie-break and for each N.

    meet: compares two candidates, for the rule `pairwise`.
    """
    rules = {CONFIGURED: tuple(config.tie_break)} | {rule: (rule, "first") for rule in SINGLE_RULES}
    if "pairwise" in config.tie_break:
        rules["pairwise"] = ("pairwise", "first")
    candidates = _build_candidates(row)
    return {
        rule: {
            n: await choose(
                candidates[:n], judgements[:n], view=config.view, rules=order, meet=meet
            )
            for n in config.sizes
        }
        for rule, order in rules.items()
    }


async def choose_from_shortlists(
    ask: Ask, row: Candidates, config: SelectionConfig, spec: JudgeSpec
) -> Selected:
    """Choose among the first N responses for each N, each time from a shortlist of its own.

    The ratings are those of the largest N.
    """
    candidates = _build_candidates(row)
    answers = {
        n: await choice_question(
            candidates[:n],
            spec.facts,
            spec.asks,
            view=config.view,
            rules=config.tie_break,
            shortlist=config.shortlist,
        ).answer(ask)
        for n in config.sizes
    }
    return Selected(
        answers[max(config.sizes)].judgements,
        {CONFIGURED: {n: answer.selection for n, answer in answers.items()}},
    )


def _build_candidates(row: Candidates) -> list[Candidate]:
    logprobs = row.logprobs or (None,) * len(row.responses)
    return [
        Candidate(row.query, response, logprob)
        for response, logprob in zip(row.responses, logprobs, strict=True)
    ]


def _grade(
    items: MeasuredRows[SelectedRow],
    config: SelectionConfig,
    grader: JudgeSpec,
    journal: Path,
    on_answer: SelectedDone,
) -> JudgementCost:
    """Grade the candidates of `Selected.to_grade` and return the cost; the others get None."""

    def make_candidates(item: SelectedRow) -> list[Candidate]:
        row, choice = item
        return [Candidate(row.query, row.responses[i]) for i in choice.to_grade(config)]

    def pass_on_grades(item: SelectedRow, grades: Scores) -> None:
        row, choice = item
        grades_by_index = dict(zip(choice.to_grade(config), grades, strict=True))
        on_answer(item, tuple(grades_by_index.get(i) for i in range(len(row.responses))))

    return rate_each(grader, journal, items, make_candidates, pass_on_grades, "grading", "rating")


def _require_protocols(
    config: SelectionConfig,
    judge: JudgeSpec,
    grader: JudgeSpec,
    scores: str | None,
    grades: str | None,
) -> None:
    writes_critiques = not scores and judge.config.critique
    if config.shortlist is not None and (
        not writes_critiques or isinstance(judge.format, ScalarFormat)
    ):
        raise ConfigError("shortlist saves critiques, and nobody writes any here: leave it out")
    if scores is None:
        require_protocol(judge, "single")
    if "pairwise" in config.tie_break:
        if scores is not None:
            raise ConfigError("tie_break: pairwise asks the judge, and --scores asks nobody")
        require_protocol(judge, "pairwise")
    if grades is None:
        require_protocol(grader, "single")


def _require_scores(
    rows: Iterable[Candidates], raters_by_flag: Mapping[str, str | None], data: str
) -> None:
    given_raters = {flag: name for flag, name in raters_by_flag.items() if name}
    for row in rows if given_raters else ():
        for flag, name in given_raters.items():
            if name not in row.scores:
                present_raters = ", ".join(row.scores) or "none"
                where = f"{data}:{row.line}: no scores by {name!r} for {row.base}"
                raise ConfigError(f"{where} (there: {present_raters}): name another with {flag}")


def _convert_scores(scores: Scores) -> tuple[Judgement, ...]:
    """Convert scores of a file to judgements; a missing one becomes an UNPARSABLE judgement."""
    return tuple(
        Judgement(Outcome.UNPARSABLE, reason="no score in the file")
        if score is None
        else Judgement.of_score(score)
        for score in scores
    )


def _record(item: SelectedRow, grades: Scores) -> dict[str, Any]:
    row, choice = item
    return {
        "line": row.line,
        "group": row.group,
        "base": row.base,
        "query": row.query,
        "responses": row.responses,
        "ratings": [judgement.view("rating") for judgement in choice.ratings],
        "grades": grades,
        "critiques": [judgement.critique for judgement in choice.ratings],
        "chosen": {
            rule: {str(n): selection.index for n, selection in by_size.items()}
            for rule, by_size in choice.chosen.items()
        },
    }


def _show(fields: ResultFields) -> None:
    for base, metrics in fields["bases"].items():
        for n, best in metrics["best_of"].items():
            grade = show_with_interval(best, "grade", 3)
            print(f"{base:<28}best of {n:>3}  mean grade {grade}")
    overall = fields["overall"]
    texts = [
        f"{name} {show_with_interval(overall, name, 3)}"
        for name in ("pearson", "spearman")
        if overall[name] is not None
    ]
    print(f"{overall['n']} graded: {', '.join(texts) or 'no correlation is defined'}")
