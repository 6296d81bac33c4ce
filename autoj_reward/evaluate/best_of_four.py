"""The best among several, RewardBench 2's form: `autoj evaluate best-of-four`.

Rows of `prompt`, `chosen` and `rejected` (lists of responses), `subset` and `id`. Each response is
rated alone. In the subset Ties several responses are correct, and what counts is that they all
stand above the wrong ones, by more than they differ among themselves (arXiv 2506.01937).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoj_reward.config import load_config
from autoj_reward.context import NOTHING, Asked, Context
from autoj_reward.evaluate.ask import rate_all, require_protocol
from autoj_reward.evaluate.config import BestOfFourConfig
from autoj_reward.evaluate.intervals import Draws, Figures, Indices, share
from autoj_reward.evaluate.results import journal_path, judging_cost, save
from autoj_reward.evaluate.rows import Fields, Unique, drawn, read_strict, row_id, texts
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, text
from autoj_reward.models import context_asked
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
class Spread:
    """Of one row in Ties: whether every correct response stands above every wrong one; how far the
    correct ones lie apart; how far the lowest of them lies above the highest wrong one."""

    accurate: bool
    among_correct: float
    above_wrong: float


def best_of_four(data: str, result: str, config: str | None, sets: Sequence[str]) -> int:
    """Accuracy by subset, and their mean."""
    checked = load_config(BestOfFourConfig, config, sets)
    require_protocol(checked.judge, "single")
    wanted = context_asked(checked.judge, checked.columns, "single")
    rows = drawn(read_choices(data, wanted), checked.sample, checked.seed)
    asked = [Candidate(r.query, text, context=r.context) for r in rows for text in r.responses]
    found = rate_all(checked.judge, journal_path(checked, result), asked, "rating")
    values = _by_row(rows, found, checked.view)
    content = figures(rows, values, checked.draws)
    content["cost"] = judging_cost(found)
    kept = [
        {
            "line": row.line,
            "id": row.id,
            "group": row.subset,
            "query": row.query,
            "responses": row.responses,
            "correct": row.correct,
            "ratings": own,
        }
        for row, own in zip(rows, values, strict=True)
    ]
    save(result, "best-of-four", checked, checked.judge, {"data": data}, content, kept)
    for name, own in content["groups"].items():
        print(f"{name:<24}{own['n']:>6}{own['accuracy']:>9.2f}")
    print(f"{'mean of subsets':<30}{content['overall']['accuracy']:>9.2f}\nresult: {result}")
    return 0


def read_choices(source: str, asked: Sequence[Asked] = ()) -> tuple[Choice, ...]:
    """The rows of a file; InputError names every bad one."""
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

    return read_strict(source, build)


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


def figures(rows: Sequence[Choice], values: Sequence[Values], intervals: Draws) -> Figures:
    """Accuracy of every subset in percent, and the mean over subsets."""
    names = list(dict.fromkeys(row.subset for row in rows))
    groups: Figures = {}
    for name in names:
        own = [i for i, row in enumerate(rows) if row.subset == name]
        abstained = sum(value is None for i in own for value in values[i])
        groups[name] = {"n": len(own), "abstained": abstained}
        if name == TIES:
            groups[name] |= _ties([rows[i] for i in own], [values[i] for i in own], intervals)
        else:
            credits = [credit(values[i], rows[i].correct) for i in own]
            groups[name] |= intervals.percent(
                "accuracy", share(credits), [rows[i].query for i in own]
            )
    known = [g["accuracy"] for g in groups.values() if g["accuracy"] is not None]
    mean = round(float(np.mean(known)), 2) if known else None
    return {"overall": {"n": len(rows), "accuracy": mean}, "groups": groups}


def _ties(rows: Sequence[Choice], values: Sequence[Values], intervals: Draws) -> Figures:
    sides: dict[str, dict[str, Spread | None]] = {"ref": {}, "tied": {}}
    for row, own in zip(rows, values, strict=True):
        if match := TIES_ID.fullmatch(str(row.id)):
            sides[match[1]][match[2]] = spread(own, row.correct)
    both = [name for name in sides["ref"] if name in sides["tied"]]
    pairs = [(sides["ref"][name], sides["tied"][name]) for name in both]

    def statistic(picked: Indices) -> float | None:
        return ties_score([pairs[i] for i in picked])

    return {"pairs": len(pairs)} | intervals.percent("accuracy", statistic, both)


def _by_row(rows: Sequence[Choice], found: Sequence[Judgement], view: str) -> list[list[Any]]:
    answers = iter(found)
    return [[next(answers).view(view) for _ in row.responses] for row in rows]
