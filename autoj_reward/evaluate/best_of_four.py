"""Best-of-four accuracy on RewardBench 2: `autoj evaluate best-of-four`.

Rows have `prompt`, `chosen` and `rejected` (lists of responses), `subset` and `id`. Each response
is rated alone. In the subset Ties several responses are correct. There, all of them should be rated
above the wrong ones, by more than they differ among themselves (arXiv 2506.01937).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from pydantic import Field

from autoj_reward.config import View
from autoj_reward.conversation import EMPTY_CONTEXT, Context, ContextColumn
from autoj_reward.evaluate.ask import rate_each, require_protocol
from autoj_reward.evaluate.rows import Fields, Unique, measured, row_id, strictly, text_list
from autoj_reward.evaluate.runner import EvaluateConfig, Task, open_run, run_task
from autoj_reward.evaluate.statistics import (
    Draws,
    Indices,
    ResultFields,
    Scores,
    share,
    show_with_interval,
)
from autoj_reward.io import checks as check
from autoj_reward.io.candidates import read_context
from autoj_reward.io.checks import BadField, text
from autoj_reward.io.files import text_digest
from autoj_reward.io.rows import Stream
from autoj_reward.types import Candidate

TIES = "Ties"
"""Name of RewardBench 2's subset with several correct responses."""
TIES_ID = re.compile(r"(ref|tied):(\w+)")
"""Pattern of ids in Ties. `ref` rows have one correct response, `tied` rows several; a `ref` and a
`tied` row with the same number are scored together."""


class BestOfFourConfig(EvaluateConfig):
    """Settings of the evaluation on RewardBench 2."""

    view: View = "expected"
    """The number that ranks the responses."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column of the data for each context field of the judge's format, where the names differ."""


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """One row of RewardBench 2: a query and its responses."""

    line: int
    id: str | int | None
    query: str
    subset: str
    responses: tuple[str, ...]
    """The correct responses, then the wrong ones."""
    correct: int
    """Number of correct responses."""
    context: Context = EMPTY_CONTEXT
    """Context fields of the row, for a judge whose format shows them."""


@dataclass(frozen=True, slots=True)
class RatedChoice:
    """Ratings of a row's responses, without the texts."""

    id: str | int | None
    query: bytes
    """Digest of the query."""
    subset: str
    correct: int
    """Number of correct responses."""
    ratings: Scores
    """Ratings of the correct responses, then of the wrong ones."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Ratings of one row in Ties, reduced to their order and distances (in rating points)."""

    accurate: bool
    """Whether every correct response is rated above every wrong one."""
    among_correct: float
    """Highest rating of a correct response minus the lowest."""
    above_wrong: float
    """Lowest rating of a correct response minus the highest of a wrong one."""


def best_of_four(
    data: str, result: str, config: str | None, sets: Sequence[str], strict: bool
) -> int:
    """Measure a judge's accuracy on each subset of RewardBench 2, and the mean over subsets.

    data: file of rows. result: the result file to write.
    """
    checked, files = open_run(BestOfFourConfig, config, sets, strict, result, data=data)
    judge = checked.judge_for(checked.view)
    require_protocol(judge, "single")
    columns = judge.context_columns(checked.columns, "single")
    choices = measured(read_choices(data, columns)).drawn(checked.sample, checked.seed)

    def make_candidates(row: ChoiceRow) -> list[Candidate]:
        return [Candidate(row.query, text, context=row.context) for text in row.responses]

    def answer(on_answer: Callable[[ChoiceRow, Scores], None]) -> ResultFields:
        cost = rate_each(
            judge, files.journal, choices, make_candidates, on_answer, "rating", checked.view
        )
        return {"cost": cost.fields()}

    return run_task(
        Task(
            "best-of-four",
            checked,
            files,
            judges=[judge],
            answer=answer,
            keep=_keep,
            metrics=partial(compute_subset_metrics, draws=checked.draws),
            show=_show,
            record=_record,
        )
    )


def read_choices(source: str, columns: Sequence[ContextColumn] = ()) -> Stream[ChoiceRow]:
    """Return the rows of a file as a stream; a bad row is yielded as a BadRow.

    columns: context columns to read with each row.
    """
    ids = Unique()

    def build(line: int, row: Fields) -> ChoiceRow:
        ids.check(line, "id", name := row_id(row, "id"))
        subset = text(row, "subset", blank=False)
        if subset == TIES and not TIES_ID.fullmatch(str(name)):
            raise BadField("id", f"{check.show(name)} in {TIES}: write ref:NUMBER or tied:NUMBER")
        right, wrong = text_list(row, "chosen"), text_list(row, "rejected")
        query = text(row, "prompt", blank=False)
        context, _ = read_context(row, columns)
        return ChoiceRow(line, name, query, subset, (*right, *wrong), len(right), context)

    return strictly(source, build)


def credit(ratings: Scores, correct: int) -> float:
    """Return the share of correct responses among those with the highest rating, 0..1.

    ratings: the first `correct` are those of correct responses. A response without a rating is
    never the highest; 0 if there is no rating.
    """
    known_ratings = [rating for rating in ratings if rating is not None]
    if not known_ratings:
        return 0.0
    best = [i for i, rating in enumerate(ratings) if rating == max(known_ratings)]
    return sum(i < correct for i in best) / len(best)


def spread_of(ratings: Scores, correct: int) -> Spread | None:
    """Return the order and distances of a row's ratings; None if a response has no rating.

    ratings: the first `correct` are those of correct responses.
    """
    known_ratings = [rating for rating in ratings if rating is not None]
    if len(known_ratings) < len(ratings):
        return None
    right, wrong = known_ratings[:correct], known_ratings[correct:]
    above = min(right) - max(wrong)
    return Spread(above > 0, max(right) - min(right), above)


def ties_score(pairs: Sequence[tuple[Spread | None, Spread | None]]) -> float | None:
    """Return the score of Ties as RewardBench 2 computes it, at most 1.01; None without pairs.

    pairs: (row with one correct answer, row with several). The score is a sum of means over pairs:
    - 0.3 x accuracy of the row with one correct answer, and 0.3 x that of the row with several.
    - 0.2 x share in which `above_wrong` exceeds `among_correct` in the row with several.
    - 0.2 x share in which the smaller `above_wrong` of both rows also exceeds it.
    - 0.01 x tanh(smaller `above_wrong` / `among_correct` - 1).
    A row with a missing rating counts as wrong; the tanh of its pair counts as -1.
    """
    if not pairs:
        return None
    ref_accurate = [bool(ref and ref.accurate) for ref, _ in pairs]
    tied_accurate = [bool(tied and tied.accurate) for _, tied in pairs]
    preferred, hard, margin = [], [], []
    for ref, tied in pairs:
        if ref is None or tied is None:
            preferred.append(tied is not None and tied.above_wrong > tied.among_correct)
            hard.append(False)
            margin.append(-1.0)
            continue
        least = min(ref.above_wrong, tied.above_wrong)
        preferred.append(tied.above_wrong > tied.among_correct)
        hard.append(least > tied.among_correct)
        spread = tied.among_correct
        ratio = least / spread if spread else np.copysign(np.inf, least) if least else 0.0
        margin.append(float(np.tanh(ratio - 1)))
    means = [float(np.mean(x)) for x in (ref_accurate, tied_accurate, preferred, hard, margin)]
    return float(np.dot((0.3, 0.3, 0.2, 0.2, 0.01), means))


def compute_subset_metrics(rows: Sequence[RatedChoice], draws: Draws) -> ResultFields:
    """Return the accuracy of every subset in percent, and the unweighted mean over subsets."""
    names = list(dict.fromkeys(row.subset for row in rows))
    groups: ResultFields = {}
    for name in names:
        members = [row for row in rows if row.subset == name]
        abstained = sum(rating is None for row in members for rating in row.ratings)
        groups[name] = {"n": len(members), "abstained": abstained}
        if name == TIES:
            groups[name] |= _score_ties(members, draws)
        else:
            credits = [credit(row.ratings, row.correct) for row in members]
            groups[name] |= draws.percent(
                "accuracy", share(credits), [row.query for row in members]
            )
    accuracies = [g["accuracy"] for g in groups.values() if g["accuracy"] is not None]
    mean = round(float(np.mean(accuracies)), 2) if accuracies else None
    return {"overall": {"n": len(rows), "accuracy": mean}, "groups": groups}


def _score_ties(rows: Sequence[RatedChoice], draws: Draws) -> ResultFields:
    sides: dict[str, dict[str, Spread | None]] = {"ref": {}, "tied": {}}
    for row in rows:
        if match := TIES_ID.fullmatch(str(row.id)):
            sides[match[1]][match[2]] = spread_of(row.ratings, row.correct)
    paired_names = [name for name in sides["ref"] if name in sides["tied"]]
    pairs = [(sides["ref"][name], sides["tied"][name]) for name in paired_names]

    def compute_statistic(picked: Indices) -> float | None:
        return ties_score([pairs[i] for i in picked])

    return {"pairs": len(pairs)} | draws.percent("accuracy", compute_statistic, paired_names)


def _keep(row: ChoiceRow, ratings: Scores) -> RatedChoice:
    return RatedChoice(row.id, text_digest(row.query), row.subset, row.correct, ratings)


def _record(row: ChoiceRow, ratings: Scores) -> dict[str, Any]:
    return {
        "line": row.line,
        "id": row.id,
        "group": row.subset,
        "query": row.query,
        "responses": row.responses,
        "correct": row.correct,
        "ratings": ratings,
    }


def _show(fields: ResultFields) -> None:
    for name, metrics in fields["groups"].items():
        print(f"{name:<24}{metrics['n']:>6}  {show_with_interval(metrics, 'accuracy')}")
    print(f"{'mean of subsets':<30}  {show_with_interval(fields['overall'], 'accuracy')}")
