"""Ratings as rewards (Eval-R): `autoj evaluate eval-r`.

The judge chooses among the first N candidates of each query, a grader grades the chosen; and the
judge's ratings correlate with the grades (paper, section 6.3 and Table 2). Equal ratings are broken
by the policy's log-probability, and beside that by the other rules, to see what they would choose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from autoj_reward.client.client import RewardClient
from autoj_reward.client.judging import judging
from autoj_reward.config import load_config
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.ask import rate_all, require_protocol
from autoj_reward.evaluate.candidates import Candidates, Scores, read_candidates
from autoj_reward.evaluate.config import SelectionConfig
from autoj_reward.evaluate.intervals import Figures
from autoj_reward.evaluate.results import journal_path, judging_cost, save
from autoj_reward.evaluate.rows import drawn
from autoj_reward.evaluate.selection_figures import Chosen, figures
from autoj_reward.journal import Journal
from autoj_reward.judge.make import judge_name
from autoj_reward.select.choose import choose
from autoj_reward.types import Candidate, Judgement, Outcome, Rating, Selection

ALONE = ("policy_logprob", "expected_rating", "first")
"""Tie-breaks that are tried beside the config's own, each by itself; `pairwise` if that has it."""


def eval_r(
    data: str,
    scores: str | None,
    grades: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
) -> int:
    """Best-of-N by a judge's ratings, graded, and the correlation of ratings with grades."""
    checked = load_config(SelectionConfig, config, sets)
    rows = read_candidates(data, max(checked.sizes))
    rows = drawn(rows, checked.sample, checked.seed)
    for name, role in ((scores, "--scores"), (grades, "--grades")):
        _require_scores(rows, name, role, data)
    if scores is None:
        require_protocol(checked.judge, "single")
    if "pairwise" in checked.tie_break:
        if scores is not None:
            raise ConfigError("tie_break: pairwise asks the judge, and --scores asks nobody")
        require_protocol(checked.judge, "pairwise")
    if grades is None:
        require_protocol(checked.grader, "single")

    judged = (
        [_brought(row.scores[scores]) for row in rows] if scores else rate(rows, checked, result)
    )
    chosen = asyncio.run(choose_all(rows, judged, checked, result))
    graded: list[Judgement] = []
    if grades:
        values = [row.scores[grades] for row in rows]
    else:
        values, graded = grade(rows, chosen, checked, result)
    content = figures(rows, judged, chosen, values, checked.view, checked.draws)
    content["grader"] = grades or judge_name(checked.grader)
    spent = [] if scores else [judgement for row in judged for judgement in row]
    content["cost"] = {"judge": judging_cost(spent), "grader": judging_cost(graded)}
    kept = [_row(*row) for row in zip(rows, judged, chosen, values, strict=True)]
    save(result, "eval-r", checked, scores or checked.judge, {"data": data}, content, kept)
    _tell(content)
    print(f"result: {result}")
    return 0


def rate(
    rows: Sequence[Candidates], config: SelectionConfig, result: str
) -> list[tuple[Judgement, ...]]:
    """The judge's rating of every candidate that some N considers."""
    most = max(config.sizes)
    asked = [Candidate(row.query, response) for row in rows for response in row.responses[:most]]
    found = rate_all(config.judge, journal_path(config, result), asked, "rating candidates")
    return [tuple(found[n : n + most]) for n in range(0, len(found), most)]


async def choose_all(
    rows: Sequence[Candidates],
    judged: Sequence[Sequence[Judgement]],
    config: SelectionConfig,
    result: str,
) -> list[Chosen]:
    """Who is chosen from each row, by each tie-break and for each N."""
    rules = {"configured": tuple(config.tie_break)} | {rule: (rule, "first") for rule in ALONE}
    found: list[Chosen] = []
    async with AsyncExitStack() as stack:
        client: RewardClient | None = None
        if "pairwise" in config.tie_break:
            rules["pairwise"] = ("pairwise", "first")
            journal = Journal(journal_path(config, result))
            stack.callback(journal.close)
            client = await stack.enter_async_context(judging(config.judge, journal, 0, "ties"))
        for row, judgements in zip(rows, judged, strict=True):
            group = _Group(row, judgements, client, config.view)
            found.append(
                {
                    rule: {n: await group.best_of(n, order) for n in config.sizes}
                    for rule, order in rules.items()
                }
            )
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    """The candidates of one query with their ratings, and a client to compare equals with."""

    row: Candidates
    judgements: Sequence[Judgement]
    client: RewardClient | None
    view: str

    async def best_of(self, n: int, rules: tuple[str, ...]) -> Selection:
        logprobs = self.row.logprobs or (None,) * len(self.row.responses)
        candidates = [
            Candidate(self.row.query, response, logprob)
            for response, logprob in zip(self.row.responses[:n], logprobs[:n], strict=True)
        ]
        return await choose(
            candidates,
            self.judgements[:n],
            view=self.view,
            rules=rules,
            compare=self.client.compare if self.client else None,
        )


def grade(
    rows: Sequence[Candidates], chosen: Sequence[Chosen], config: SelectionConfig, result: str
) -> tuple[list[Scores], list[Judgement]]:
    """The grader's rating of what any rule chose, or of every candidate; None for the others."""
    wanted = [
        list(range(max(config.sizes)))
        if config.grade == "all"
        else sorted({s.index for by_size in own.values() for s in by_size.values()})
        for own in chosen
    ]
    asked = [
        Candidate(row.query, row.responses[i])
        for row, own in zip(rows, wanted, strict=True)
        for i in own
    ]
    found = rate_all(config.grader, journal_path(config, result), asked, "grading")
    answers = iter(found)
    values = []
    for row, own in zip(rows, wanted, strict=True):
        given = {i: next(answers).view("rating") for i in own}
        values.append(tuple(given.get(i) for i in range(len(row.responses))))
    return values, found


def _require_scores(rows: Sequence[Candidates], name: str | None, role: str, data: str) -> None:
    for row in rows if name else ():
        if name not in row.scores:
            known = ", ".join(row.scores) or "none"
            raise ConfigError(
                f"{data}:{row.line}: no scores by {name!r} for {row.base} (there: {known}): name "
                f"another with {role}"
            )


def _brought(scores: Scores) -> tuple[Judgement, ...]:
    """Scores of a file as judgements; a missing one abstains."""
    return tuple(
        Judgement(Outcome.UNPARSABLE, reason="no score in the file")
        if score is None
        else Judgement(Outcome.OK, rating=Rating(score, expected=score, direct=score))
        for score in scores
    )


def _row(
    row: Candidates, judged: Sequence[Judgement], chosen: Chosen, grades: Scores
) -> dict[str, Any]:
    return {
        "line": row.line,
        "group": row.group,
        "base": row.base,
        "query": row.query,
        "responses": row.responses,
        "ratings": [judgement.view("rating") for judgement in judged],
        "grades": grades,
        "critiques": [judgement.critique for judgement in judged],
        "chosen": {
            rule: {str(n): selection.index for n, selection in by_size.items()}
            for rule, by_size in chosen.items()
        },
    }


def _tell(content: Figures) -> None:
    for base, own in content["bases"].items():
        for n, best in own["best_of"].items():
            mean = "-" if best["grade"] is None else f"{best['grade']:.3f}"
            print(f"{base:<28}best of {n:>3}  mean grade {mean}")
    overall = content["overall"]
    shown = {name: overall[name] for name in ("pearson", "spearman")}
    said = [f"{name} {value:.3f}" for name, value in shown.items() if value is not None]
    print(f"{overall['n']} graded: {', '.join(said) or 'no correlation is defined'}")
