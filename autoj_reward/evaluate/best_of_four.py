"""The best among several, RewardBench 2's form: `autoj evaluate best-of-four`.

Rows of `prompt`, `chosen` and `rejected` (lists of responses), `subset` and `id`. Each response is
rated alone. In the subset Ties several responses are correct, and what counts is that they all
stand above the wrong ones, by more than they differ among themselves (arXiv 2506.01937).
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
from autoj_reward.evaluate.statistics import Draws, Indices, ResultFields, Scores, share
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, text
from autoj_reward.io.files import text_digest
from autoj_reward.io.rows import Stream
from autoj_reward.types import Candidate

TIES = "Ties"
TIES_ID = re.compile(r"(ref|tied):(\w+)")


class BestOfFourConfig(EvaluateConfig):
    """Config of the evaluation on RewardBench 2."""

    view: View = "expected"
    """The number that ranks the responses."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column of the data by context field of the judge's format, where it has another name."""


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """Responses to one query, the correct ones first. context: for a judge that shows it."""

    line: int
    id: str | int | None
    query: str
    subset: str
    responses: tuple[str, ...]
    correct: int
    context: Context = EMPTY_CONTEXT


@dataclass(frozen=True, slots=True)
class RatedChoice:
    """Ratings of the responses of a row, the correct ones first, with its id and subset. query:
    digest of the query."""

    id: str | int | None
    query: bytes
    subset: str
    correct: int
    ratings: Scores


@dataclass(frozen=True, slots=True)
class Spread:
    """Order of the responses of one row in Ties: whether every correct response stands above every
    wrong one; how far the correct ones lie apart; how far the lowest of them lies above the highest
    wrong one."""

    accurate: bool
    among_correct: float
    above_wrong: float


def best_of_four(
    data: str, result: str, config: str | None, sets: Sequence[str], strict: bool
) -> int:
    """Measure accuracy by subset, and the mean over subsets."""
    checked, files = open_run(BestOfFourConfig, config, sets, strict, result, data=data)
    judge = checked.judge_for(checked.view)
    require_protocol(judge, "single")
    wanted = judge.context_columns(checked.columns, "single")
    choices = measured(read_choices(data, wanted)).drawn(checked.sample, checked.seed)

    def candidates(row: ChoiceRow) -> list[Candidate]:
        return [Candidate(row.query, text, context=row.context) for text in row.responses]

    def answer(done: Callable[[ChoiceRow, Scores], None]) -> ResultFields:
        cost = rate_each(judge, files.journal, choices, candidates, done, "rating", checked.view)
        return {"cost": cost.fields()}

    return run_task(
        Task(
            "best-of-four",
            checked,
            files,
            judges=[judge],
            answer=answer,
            keep=_keep,
            metrics=partial(subset_metrics, draws=checked.draws),
            show=_show,
            record=_record,
        )
    )


def read_choices(source: str, asked: Sequence[ContextColumn] = ()) -> Stream[ChoiceRow]:
    """Return the rows of a file, bad ones named."""
    seen = Unique()

    def build(line: int, row: Fields) -> ChoiceRow:
        seen.check(line, "id", name := row_id(row, "id"))
        subset = text(row, "subset", blank=False)
        if subset == TIES and not TIES_ID.fullmatch(str(name)):
            raise BadField("id", f"{check.show(name)} in {TIES}: write ref:NUMBER or tied:NUMBER")
        right, wrong = text_list(row, "chosen"), text_list(row, "rejected")
        query = text(row, "prompt", blank=False)
        known = check.context(row, asked)
        return ChoiceRow(line, name, query, subset, (*right, *wrong), len(right), known)

    return strictly(source, build)


def credit(ratings: Scores, correct: int) -> float:
    """Return 1 if a correct response alone is rated highest, its share among equals, else 0. A
    response without a rating is never the highest."""
    known = [rating for rating in ratings if rating is not None]
    if not known:
        return 0.0
    best = [i for i, rating in enumerate(ratings) if rating == max(known)]
    return sum(i < correct for i in best) / len(best)


def spread_of(ratings: Scores, correct: int) -> Spread | None:
    """Measure the order of a row of Ties; None if a response has no rating."""
    known = [rating for rating in ratings if rating is not None]
    if len(known) < len(ratings):
        return None
    right, wrong = known[:correct], known[correct:]
    above = min(right) - max(wrong)
    return Spread(above > 0, max(right) - min(right), above)


def ties_score(pairs: Sequence[tuple[Spread | None, Spread | None]]) -> float | None:
    """Score Ties as RewardBench 2 does, at most 1.01, from (one correct answer, several) pairs.

    Three tenths each for the accuracy on either side; a fifth each for a distance from the wrong
    answers that exceeds the differences among the correct ones, on the right side alone and on
    both; and a hundredth for by how much. A row that is not wholly rated is wrong throughout.
    """
    if not pairs:
        return None
    one = [bool(ref and ref.accurate) for ref, _ in pairs]
    several = [bool(tied and tied.accurate) for _, tied in pairs]
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
        apart = tied.among_correct
        ratio = least / apart if apart else np.copysign(np.inf, least) if least else 0.0
        margin.append(float(np.tanh(ratio - 1)))
    means = [float(np.mean(x)) for x in (one, several, preferred, hard, margin)]
    return float(np.dot((0.3, 0.3, 0.2, 0.2, 0.01), means))


def subset_metrics(rows: Sequence[RatedChoice], draws: Draws) -> ResultFields:
    """Return the accuracy of every subset in percent, and the mean over subsets."""
    names = list(dict.fromkeys(row.subset for row in rows))
    groups: ResultFields = {}
    for name in names:
        own = [row for row in rows if row.subset == name]
        abstained = sum(rating is None for row in own for rating in row.ratings)
        groups[name] = {"n": len(own), "abstained": abstained}
        if name == TIES:
            groups[name] |= _ties(own, draws)
        else:
            credits = [credit(row.ratings, row.correct) for row in own]
            groups[name] |= draws.percent("accuracy", share(credits), [row.query for row in own])
    known = [g["accuracy"] for g in groups.values() if g["accuracy"] is not None]
    mean = round(float(np.mean(known)), 2) if known else None
    return {"overall": {"n": len(rows), "accuracy": mean}, "groups": groups}


def _ties(rows: Sequence[RatedChoice], draws: Draws) -> ResultFields:
    sides: dict[str, dict[str, Spread | None]] = {"ref": {}, "tied": {}}
    for row in rows:
        if match := TIES_ID.fullmatch(str(row.id)):
            sides[match[1]][match[2]] = spread_of(row.ratings, row.correct)
    both = [name for name in sides["ref"] if name in sides["tied"]]
    pairs = [(sides["ref"][name], sides["tied"][name]) for name in both]

    def statistic(picked: Indices) -> float | None:
        return ties_score([pairs[i] for i in picked])

    return {"pairs": len(pairs)} | draws.percent("accuracy", statistic, both)


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
    for name, own in fields["groups"].items():
        print(f"{name:<24}{own['n']:>6}{_shown(own['accuracy'])}")
    print(f"{'mean of subsets':<30}{_shown(fields['overall']['accuracy'])}")


def _shown(accuracy: float | None) -> str:
    return f"{'-':>9}" if accuracy is None else f"{accuracy:>9.2f}"
