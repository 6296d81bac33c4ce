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
    show_with_interval,
)
from autoj_reward.io.claims import judged_by
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
    paths = [*results, *filter(None, [stand_in])]
    require_apart([*paths, *(path_beside(path, ROWS) for path in paths)], [result])
    verdicts, queries, labels = _read_results(paths)
    labelled = any(label is not None for label in labels)
    if stand_in and not labelled:
        raise InputError(f"--stand-in: {results[0]} has no labels to measure the panel's vote by")
    substitute = verdicts.popitem()[1] if stand_in else None
    panel = list(zip(*verdicts.values(), strict=True))
    errors = {
        name: np.array([a != b for a, b in zip(judge_verdicts, labels, strict=True)], dtype=float)
        for name, judge_verdicts in (verdicts.items() if labelled else ())
    }
    if labelled:
        verdicts[LABEL] = labels
    rows = [
        {
            "first": first,
            "second": second,
            **_compute_kappa(verdicts[first], verdicts[second], queries),
            **_correlate_errors(errors.get(first), errors.get(second), queries),
        }
        for first, second in combinations(verdicts, 2)
    ]
    fields: ResultFields = {"task": "kappa", "results": list(results), "agreement": rows}
    if errors:
        votes = effective_votes(list(errors.values()))
        fields |= Draws().number("effective_votes", votes, queries)
        fields["majority"] = _measure_majority(panel, substitute, labels, queries)
    with judged_by("", Path(result), Path(result), command="autoj evaluate kappa"):
        write_json(result, fields)
    for row in rows:
        line = f"{row['first']} / {row['second']}: kappa {show_with_interval(row, 'kappa', 3)}"
        line += f", same {show_with_interval(row, 'same')} %"
        if "error_correlation" in row:
            line += f", error correlation {show_with_interval(row, 'error_correlation', 3)}"
        print(line)
    if errors:
        effective = show_with_interval(fields, "effective_votes", 3)
        print(f"effective votes of {len(errors)} judges: {effective}")
        majority = fields["majority"]
        agreement = show_with_interval(majority, "agreement")
        line = f"majority of {len(errors)} judges: agreement {agreement} %"
        print(f"{line}, stand-in votes {majority['stand_in_votes']}")
    print(f"result: {result}")
    return 0


def find_majority_verdict(verdicts: Sequence[Hashable], substitute: Hashable = None) -> Hashable:
    """Return the verdict of the majority of a panel on one pair.

    It is a tie if no verdict has the most votes. An inconsistent verdict is no vote. substitute:
    the verdict that votes in place of each failed one; None leaves failed ones out. The panel has
    failed if nothing votes.
    """
    cast = [substitute if verdict == Verdict.FAILED else verdict for verdict in verdicts]
    votes = Counter(verdict for verdict in cast if verdict in LABELS).most_common(2)
    if not votes:
        return Verdict.FAILED
    split = len(votes) == 2 and votes[0][1] == votes[1][1]
    return Verdict.TIE if split else votes[0][0]


def _measure_majority(
    panel: Sequence[Sequence[Hashable]],
    substitutes: Sequence[Hashable] | None,
    labels: Sequence[Hashable],
    queries: Sequence[str],
) -> ResultFields:
    """Return the agreement of the majority with the labels, and how often the stand-in voted.

    panel: the judges' verdicts on each row. substitutes: the stand-in's verdict on each row.
    """
    row_substitutes = substitutes or [None] * len(panel)
    rows = zip(panel, row_substitutes, labels, strict=True)
    hits = [
        find_majority_verdict(row_verdicts, substitute) == label
        for row_verdicts, substitute, label in rows
    ]
    votes = sum(
        row_verdicts.count(Verdict.FAILED)
        for row_verdicts, substitute in zip(panel, row_substitutes, strict=True)
        if substitute in LABELS
    )
    return {**Draws().percent("agreement", share(hits), queries), "stand_in_votes": votes}


def effective_votes(errors: Sequence[Array]) -> Statistic:
    """Return a statistic that computes the effective number of votes of a panel (Kish, 1965).

    It is k / (1 + (k - 1) r) for k judges and the mean correlation r of the errors of every two.
    So it is k if they err independently, 1 if they err on the same rows, and more than k if they
    err on different ones. errors: for each judge 1 where it is wrong, else 0, shape [rows]. The
    statistic is None if a judge is right, or wrong, on all rows.
    """

    def compute_votes(rows: Indices) -> float | None:
        correlations = [
            pearson(first[rows], second[rows]) for first, second in combinations(errors, 2)
        ]
        defined = [r for r in correlations if r is not None]
        if len(defined) < len(correlations):
            return None
        design = 1 + (len(errors) - 1) * float(np.mean(defined))
        return len(errors) / design if design > 1e-9 else None

    return compute_votes


def _correlate_errors(
    first: Array | None, second: Array | None, queries: Sequence[str]
) -> ResultFields:
    """Return the correlation of two judges' errors with its interval; {} for the labels."""
    if first is None or second is None:
        return {}
    return Draws().number("error_correlation", correlation(pearson, first, second), queries)


def _compute_kappa(
    first: Sequence[Hashable], second: Sequence[Hashable], queries: Sequence[str]
) -> ResultFields:
    """Return the percentage of equal verdicts, and kappa, with their intervals.

    Inconsistent and failed count as categories of their own.
    """

    def compute_statistic(rows: Indices) -> float | None:
        return cohen_kappa([first[i] for i in rows], [second[i] for i in rows])

    same = [a == b for a, b in zip(first, second, strict=True)]
    return {
        "n": len(same),
        **Draws().percent("same", share(same), queries),
        **Draws().number("kappa", compute_statistic, queries),
    }


def _read_results(
    results: Sequence[str],
) -> tuple[dict[str, list[Hashable]], list[str], list[Hashable]]:
    """Return the verdicts by judge, the queries and the labels.

    Raises InputError unless all results are of the same rows.
    """
    verdicts: dict[str, list[Hashable]] = {}
    first_rows: list[ResultFields] = []
    for path in results:
        name, rows = f"{load_result(path)['name']} ({Path(path).stem})", load_rows(path)
        if not rows or "verdict" not in rows[0]:
            raise InputError(f"{path}: no verdicts on pairs beside it: evaluate pairs again")
        first_rows = first_rows or rows
        for number, (a, b) in enumerate(zip(first_rows, rows, strict=False), 1):
            if any(a.get(key) != b.get(key) for key in ("query", "responses", "label")):
                raise InputError(f"{path}: row {number} is not that of {results[0]}: same data?")
        if len(rows) != len(first_rows):
            raise InputError(f"{path}: {len(rows)} rows, and {results[0]} has {len(first_rows)}")
        if name in verdicts:
            raise InputError(f"{path}: a second result called {name}: rename the file")
        verdicts[name] = [row["verdict"] for row in rows]
    return verdicts, [row["query"] for row in first_rows], [row.get("label") for row in first_rows]
