"""Agreement of several judges on the same pairs: `autoj evaluate kappa`.

With human labels, also how far the judges of a panel err together, and how often their majority is
right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from autoj_reward.data.labelled import LABELS
from autoj_reward.errors import InputError
from autoj_reward.evaluate.results import ROWS, load_result, load_rows, path_beside
from autoj_reward.evaluate.statistics import (
    Array,
    Draws,
    Indices,
    ResultFields,
    Statistic,
    cohen_kappa,
    correlation,
    pearson,
    share,
)
from autoj_reward.io.files import require_apart, write_json
from autoj_reward.types import Verdict

LABEL = "label"
"""Name of the human labels beside the judges in a result of `kappa`."""


def kappa(results: Sequence[str], stand_in: str | None, result: str) -> int:
    """Compute Cohen's kappa of every two judges, and of each judge with the human labels.

    With labels, also measure how far the errors of every two judges go together, the effective
    number of votes of all judges, and the agreement of their majority. results: result files of
    evaluations on the same pairs, at least two. stand_in: result file of a judge that votes where
    one of the panel failed. result: the file to write.
    Raises InputError if the results are not of the same rows, or for a stand-in without labels.
    """
    if len(results) < 2:
        raise InputError("--results: name two results or more, of different judges")
    read = [*results, *filter(None, [stand_in])]
    require_apart([*read, *(path_beside(path, ROWS) for path in read)], [result])
    verdicts, queries, labels = _read_results(read)
    labelled = any(label is not None for label in labels)
    if stand_in and not labelled:
        raise InputError(f"--stand-in: {results[0]} has no labels to measure the panel's vote by")
    substitute = verdicts.popitem()[1] if stand_in else None
    panel = list(zip(*verdicts.values(), strict=True))
    errors = {
        name: np.array([a != b for a, b in zip(own, labels, strict=True)], dtype=float)
        for name, own in (verdicts.items() if labelled else ())
    }
    if labelled:
        verdicts[LABEL] = labels
    rows = [
        {
            "first": one,
            "second": two,
            **_kappa(verdicts[one], verdicts[two], queries),
            **_error_correlation(errors.get(one), errors.get(two), queries),
        }
        for one, two in combinations(verdicts, 2)
    ]
    found: ResultFields = {"task": "kappa", "results": list(results), "agreement": rows}
    if errors:
        votes = effective_votes(list(errors.values()))
        found |= Draws().number("effective_votes", votes, queries)
        found["majority"] = _majority(panel, substitute, labels, queries)
    write_json(result, found)
    for row in rows:
        line = f"{row['first']} / {row['second']}: kappa {_shown(row['kappa'])}"
        line += f", same {row['same']:.2f} %"
        if "error_correlation" in row:
            line += f", error correlation {_shown(row['error_correlation'])}"
        print(line)
    if errors:
        print(f"effective votes of {len(errors)} judges: {_shown(found['effective_votes'])}")
        majority = found["majority"]
        line = f"majority of {len(errors)} judges: agreement {majority['agreement']:.2f} %"
        print(f"{line}, stand-in votes {majority['stand_in_votes']}")
    print(f"result: {result}")
    return 0


def majority_verdict(verdicts: Sequence[Hashable], substitute: Hashable = None) -> Hashable:
    """Return the verdict of the majority of a panel on one pair.

    It is a tie if no verdict has the most votes. An inconsistent verdict is no vote. substitute:
    the verdict that votes in place of each failed one; None leaves failed ones out. The panel has
    failed if nothing votes.
    """
    cast = [substitute if own == Verdict.FAILED else own for own in verdicts]
    votes = Counter(own for own in cast if own in LABELS).most_common(2)
    if not votes:
        return Verdict.FAILED
    split = len(votes) == 2 and votes[0][1] == votes[1][1]
    return Verdict.TIE if split else votes[0][0]


def _majority(
    panel: Sequence[Sequence[Hashable]],
    substitutes: Sequence[Hashable] | None,
    labels: Sequence[Hashable],
    queries: Sequence[str],
) -> ResultFields:
    """Return the agreement of the majority with the labels, and how often the stand-in voted.

    panel: the judges' verdicts on each row. substitutes: the stand-in's verdict on each row.
    """
    others = substitutes or [None] * len(panel)
    rows = zip(panel, others, labels, strict=True)
    hits = [majority_verdict(own, other) == label for own, other, label in rows]
    votes = sum(
        own.count(Verdict.FAILED)
        for own, other in zip(panel, others, strict=True)
        if other in LABELS
    )
    return {**Draws().percent("agreement", share(hits), queries), "stand_in_votes": votes}


def effective_votes(errors: Sequence[Array]) -> Statistic:
    """Return a statistic that computes the effective number of votes of a panel (Kish, 1965).

    It is k / (1 + (k - 1) r) for k judges and the mean correlation r of the errors of every two.
    So it is k if they err independently, 1 if they err on the same rows, and more than k if they
    err on different ones. errors: for each judge 1 where it is wrong, else 0, shape [rows]. The
    statistic is None if a judge is right, or wrong, on all rows.
    """

    def of(rows: Indices) -> float | None:
        found = [pearson(one[rows], two[rows]) for one, two in combinations(errors, 2)]
        known = [r for r in found if r is not None]
        if len(known) < len(found):
            return None
        design = 1 + (len(errors) - 1) * float(np.mean(known))
        return len(errors) / design if design > 1e-9 else None

    return of


def _error_correlation(
    first: Array | None, second: Array | None, queries: Sequence[str]
) -> ResultFields:
    """Return the correlation of two judges' errors with its interval; {} for the labels."""
    if first is None or second is None:
        return {}
    return Draws().number("error_correlation", correlation(pearson, first, second), queries)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _kappa(
    first: Sequence[Hashable], second: Sequence[Hashable], queries: Sequence[str]
) -> ResultFields:
    """Return the percentage of equal verdicts, and kappa, with their intervals.

    Inconsistent and failed count as categories of their own.
    """

    def statistic(rows: Indices) -> float | None:
        return cohen_kappa([first[i] for i in rows], [second[i] for i in rows])

    same = [a == b for a, b in zip(first, second, strict=True)]
    return {
        "n": len(same),
        **Draws().percent("same", share(same), queries),
        **Draws().number("kappa", statistic, queries),
    }


def _read_results(
    results: Sequence[str],
) -> tuple[dict[str, list[Hashable]], list[str], list[Hashable]]:
    """Return the verdicts by judge, the queries and the labels.

    Raises InputError unless all results are of the same rows.
    """
    found: dict[str, list[Hashable]] = {}
    first: list[ResultFields] = []
    for path in results:
        name, rows = f"{load_result(path)['name']} ({Path(path).stem})", load_rows(path)
        if not rows or "verdict" not in rows[0]:
            raise InputError(f"{path}: no verdicts on pairs beside it: evaluate pairs again")
        first = first or rows
        for number, (a, b) in enumerate(zip(first, rows, strict=False), 1):
            if any(a.get(key) != b.get(key) for key in ("query", "responses", "label")):
                raise InputError(f"{path}: row {number} is not that of {results[0]}: same data?")
        if len(rows) != len(first):
            raise InputError(f"{path}: {len(rows)} rows, and {results[0]} has {len(first)}")
        if name in found:
            raise InputError(f"{path}: a second result called {name}: rename the file")
        found[name] = [row["verdict"] for row in rows]
    return found, [row["query"] for row in first], [row.get("label") for row in first]
