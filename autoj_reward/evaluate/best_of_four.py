"""The best among several, RewardBench 2's form: `autoj evaluate best-of-four`.

Rows of `prompt`, `chosen` and `rejected` (lists of responses), `subset` and `id`. Each response is
rated alone. In the subset Ties several responses are correct, and what counts is that they all
stand above the wrong ones, by more than they differ among themselves (arXiv 2506.01937). Rows are
judged and written as they are read; what is kept of each is a `Kept`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoj_reward.conversation import NOTHING, Context, ContextColumn
from autoj_reward.evaluate.ask import rate_each, require_protocol
from autoj_reward.evaluate.config import BestOfFourConfig, with_view_read
from autoj_reward.evaluate.intervals import Draws, Figures, Indices, share
from autoj_reward.evaluate.results import Cost, journal_path, require_own, save, writing_rows
from autoj_reward.evaluate.rows import Fields, Unique, measured, row_id, strictly, texts
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, text
from autoj_reward.io.files import text_digest
from autoj_reward.io.rows import Stream
from autoj_reward.models import context_asked
from autoj_reward.models.unused import load_run
from autoj_reward.types import Candidate, Judgement

TIES = "Ties"
TIES_ID = re.compile(r"(ref|tied):(\w+)")
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Choice:
    """Responses to one query, the correct ones first. context: for a judge that shows it."""

    line: int
    id: str | int | None
    query: str
    subset: str
    responses: tuple[str, ...]
    correct: int
    context: Context = NOTHING


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a row for the figures: no text. query: its digest. values: the rating of each
    response, the correct ones first; None where the judge abstained."""

    id: str | int | None
    query: bytes
    subset: str
    correct: int
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one row in Ties: whether every correct response stands above every wrong one; how far the
    correct ones lie apart; how far the lowest of them lies above the highest wrong one."""

    accurate: bool
    among_correct: float
    above_wrong: float


def best_of_four(
    data: str, result: str, config: str | None, sets: Sequence[str], strict: bool
) -> int:
    """Accuracy by subset, and their mean."""
    checked = load_run(BestOfFourConfig, config, sets, strict)
    require_own(result, checked, config, data)
    checked = with_view_read(checked)
    require_protocol(checked.judge, "single")
    wanted = context_asked(checked.judge, checked.columns, "single")
    choices = measured(read_choices(data, wanted)).drawn(checked.sample, checked.seed)
    rows: list[Kept] = []
    cost = Cost()
    with writing_rows(result, checked.judge) as file:

        def done(row: Choice, found: list[Judgement]) -> None:
            values = tuple(judgement.view(checked.view) for judgement in found)
            file.line(_row(row, values))
            cost.add(found)
            rows.append(Kept(row.id, text_digest(row.query), row.subset, row.correct, values))

        total = sum(len(row.responses) for row in choices)
        asked = ((row, _candidates(row)) for row in choices)
        journal, view = journal_path(checked, result), checked.view
        rate_each(checked.judge, journal, asked, done, "rating", total, view)
        content = figures(rows, checked.draws)
    content["cost"] = cost.figures()
    save(result, "best-of-four", checked, checked.judge, {"data": data}, content)
    for name, own in content["groups"].items():
        print(f"{name:<24}{own['n']:>6}{own['accuracy']:>9.2f}")
    print(f"{'mean of subsets':<30}{content['overall']['accuracy']:>9.2f}\nresult: {result}")
    return 0


def read_choices(source: str, asked: Sequence[ContextColumn] = ()) -> Stream[Choice]:
    """The rows of a file."""
    seen = Unique()

    def build(line: int, row: Fields) -> Choice:
        seen.check(line, "id", name := row_id(row, "id"))
        subset = text(row, "subset", blank=False)
        if subset == TIES and not TIES_ID.fullmatch(str(name)):
            raise BadField("id", f"{check.show(name)} in {TIES}: write ref:NUMBER or tied:NUMBER")
        right, wrong = texts(row, "chosen"), texts(row, "rejected")
        query = text(row, "prompt", blank=False)
        known = check.context(row, asked)
        return Choice(line, name, query, subset, (*right, *wrong), len(right), known)

    return strictly(source, build)


def credit(values: Values, correct: int) -> float:
    """1 if a correct response alone is rated highest, its share among equals, else 0. A response
    without a rating is never the highest."""
    known = [value for value in values if value is not None]
    if not known:
        return 0.0
    best = [i for i, value in enumerate(values) if value == max(known)]
    return sum(i < correct for i in best) / len(best)


def spread(values: Values, correct: int) -> Spread | None:
    """How a row of Ties is ordered; None if a response has no rating."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    right, wrong = known[:correct], known[correct:]
    above = min(right) - max(wrong)
    return Spread(above > 0, max(right) - min(right), above)


def ties_score(pairs: Sequence[tuple[Spread | None, Spread | None]]) -> float | None:
    """RewardBench 2's figure for Ties, at most 1.01, of (one correct answer, several) pairs.

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


def figures(rows: Sequence[Kept], intervals: Draws) -> Figures:
    """Accuracy of every subset in percent, and the mean over subsets."""
    names = list(dict.fromkeys(row.subset for row in rows))
    groups: Figures = {}
    for name in names:
        own = [row for row in rows if row.subset == name]
        abstained = sum(value is None for row in own for value in row.values)
        groups[name] = {"n": len(own), "abstained": abstained}
        if name == TIES:
            groups[name] |= _ties(own, intervals)
        else:
            credits = [credit(row.values, row.correct) for row in own]
            groups[name] |= intervals.percent(
                "accuracy", share(credits), [row.query for row in own]
            )
    known = [g["accuracy"] for g in groups.values() if g["accuracy"] is not None]
    mean = round(float(np.mean(known)), 2) if known else None
    return {"overall": {"n": len(rows), "accuracy": mean}, "groups": groups}


def _ties(rows: Sequence[Kept], intervals: Draws) -> Figures:
    sides: dict[str, dict[str, Spread | None]] = {"ref": {}, "tied": {}}
    for row in rows:
        if match := TIES_ID.fullmatch(str(row.id)):
            sides[match[1]][match[2]] = spread(row.values, row.correct)
    both = [name for name in sides["ref"] if name in sides["tied"]]
    pairs = [(sides["ref"][name], sides["tied"][name]) for name in both]

    def statistic(picked: Indices) -> float | None:
        return ties_score([pairs[i] for i in picked])

    return {"pairs": len(pairs)} | intervals.percent("accuracy", statistic, both)


def _candidates(row: Choice) -> list[Candidate]:
    return [Candidate(row.query, text, context=row.context) for text in row.responses]


def _row(row: Choice, values: Values) -> dict[str, Any]:
    return {
        "line": row.line,
        "id": row.id,
        "group": row.subset,
        "query": row.query,
        "responses": row.responses,
        "correct": row.correct,
        "ratings": values,
    }
