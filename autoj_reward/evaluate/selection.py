"""Ratings as rewards (Eval-R): `autoj evaluate eval-r`.

The judge chooses among the first N candidates of each query, a grader grades the chosen; and the
judge's ratings correlate with the grades (paper, section 6.3 and Table 2). Equal ratings are broken
by the policy's log-probability, and beside that by the other rules, to see what they would choose.
With `budget` the configured rules choose as a best-of-N job on that budget does.
Ratings and choices wait for the grader on disk; what is kept of each row is a `Kept`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoj_reward.config import View
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.ask import ask_each, joint, rate_each, rated, require_protocol
from autoj_reward.evaluate.candidates import Candidates, Scores, read_candidates
from autoj_reward.evaluate.config import SelectionConfig, with_view_read
from autoj_reward.evaluate.intervals import Figures
from autoj_reward.evaluate.results import Cost, journal_path, require_own, save, writing_rows
from autoj_reward.evaluate.rows import Measured
from autoj_reward.evaluate.selection_figures import CONFIGURED, Chosen, Kept, Spent, figures
from autoj_reward.formats.schema import ScalarFormat
from autoj_reward.io.files import Spool, text_digest
from autoj_reward.judge.make import judge_name
from autoj_reward.models import critiques_of, format_of
from autoj_reward.models.unused import load_run
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.budget import require_cheap_pass, select_within
from autoj_reward.questions.choose import Compare, choose
from autoj_reward.questions.race import Ask
from autoj_reward.types import Candidate, Comparison, Contest, Judgement, Outcome

ALONE = ("policy_logprob", "expected_rating", "first")
"""Tie-breaks that are tried beside the config's own, each by itself; `pairwise` if that has it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The ratings of a row's candidates that some N considers, and who is chosen among them."""

    ratings: Sequence[Judgement]
    chosen: Chosen
    spent: Spent = field(default_factory=dict)

    def wanted(self, config: SelectionConfig) -> Sequence[int]:
        """Places of the candidates to be graded: what any rule chose, or all that some N has."""
        if config.grade == "all":
            return range(max(config.sizes))
        return sorted({s.index for by_size in self.chosen.values() for s in by_size.values()})


def eval_r(
    data: str,
    scores: str | None,
    grades: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
    strict: bool,
) -> int:
    """Best-of-N by a judge's ratings, graded, and the correlation of ratings with grades."""
    checked = load_run(SelectionConfig, config, sets, strict)
    require_own(result, checked, config, data)
    checked = with_view_read(checked)
    rows = read_candidates(data, max(checked.sizes)).drawn(checked.sample, checked.seed)
    for name, role in ((scores, "--scores"), (grades, "--grades")):
        _require_scores(rows, name, role, data)
    _require_protocols(checked, scores, grades)
    judge, grader, kept = Cost(), Cost(), list[Kept]()
    with writing_rows(result, scores or checked.judge, grades or checked.grader) as file:

        def done(row: Candidates, found: Judged, values: Scores) -> None:
            file.line(_row(row, found, values))
            own = tuple(judgement.view(checked.view) for judgement in found.ratings)
            digest = text_digest(row.query)
            kept.append(Kept(row.base, digest, own, values, found.chosen, found.spent))

        judged = by_scores(rows, scores, checked) if scores else rate(rows, checked, result, judge)
        if grades:
            for row, found in zip(rows, judged, strict=True):
                done(row, found, row.scores[grades])
        else:
            grade(rows, judged, checked, result, grader, done)
        content = figures(kept, checked.draws)
    content["grader"] = grades or judge_name(checked.grader)
    content["cost"] = {"judge": judge.figures(), "grader": grader.figures()}
    save(result, "eval-r", checked, scores or checked.judge, {"data": data}, content)
    _tell(content)
    print(f"result: {result}")
    return 0


def rate(
    rows: Measured[Candidates], config: SelectionConfig, result: str, cost: Cost
) -> Spool[Judged]:
    """The judge's rating of every candidate that some N considers, and whom it chooses."""
    found, k = Spool[Judged](), critiques_of(config.judge)
    most = max(config.sizes)

    async def one(ask: Ask, row: Candidates) -> Judged:
        if config.budget is not None:
            return await choose_within(ask, row, config, config.budget)

        async def compare(pairs: Sequence[Contest]) -> list[Comparison]:
            return [joint(await ask(pair.inputs())) for pair in pairs]

        candidates = [Candidate(row.query, response) for response in row.responses[:most]]
        ratings = await rated(ask, candidates, k, config.view)
        return Judged(ratings, await choose_among(row, ratings, config, compare))

    def told(judged: Judged) -> None:
        cost.add(judged.ratings)
        found.add(judged)

    journal, each = journal_path(config, result), k * most
    label, total = "rating candidates", each * len(rows)

    def require(views: frozenset[View]) -> None:
        require_cheap_pass(views)
        resolve_view(config.view, "choose", None, views)

    # On a budget critiques and cheap readings are asked for apart: no view is that of both.
    view, own = (config.view, None) if config.budget is None else (None, require)
    ask_each(config.judge, journal, rows, one, told, label, total, lambda row: each, view, own)
    return found


def by_scores(rows: Measured[Candidates], name: str, config: SelectionConfig) -> Spool[Judged]:
    """The same by scores that the rows bring."""
    found = Spool[Judged]()

    async def every() -> None:
        for row in rows:
            ratings = _brought(row.scores[name])
            found.add(Judged(ratings, await choose_among(row, ratings, config)))

    asyncio.run(every())
    return found


async def choose_among(
    row: Candidates,
    judgements: Sequence[Judgement],
    config: SelectionConfig,
    compare: Compare | None = None,
) -> Chosen:
    """Who is chosen from a row, by each tie-break and for each N."""
    rules = {CONFIGURED: tuple(config.tie_break)} | {rule: (rule, "first") for rule in ALONE}
    if "pairwise" in config.tie_break:
        rules["pairwise"] = ("pairwise", "first")
    candidates = _candidates(row)
    return {
        rule: {
            n: await choose(
                candidates[:n], judgements[:n], view=config.view, rules=order, compare=compare
            )
            for n in config.sizes
        }
        for rule, order in rules.items()
    }


async def choose_within(ask: Ask, row: Candidates, config: SelectionConfig, share: float) -> Judged:
    """The choice for each N on a budget of its own, and the ratings that the largest N paid for."""
    candidates = _candidates(row)
    found = {
        n: await select_within(
            candidates[:n],
            ask,
            share=share,
            critiques=critiques_of(config.judge),
            view=config.view,
            rules=config.tie_break,
            pairwise="pairwise" in config.tie_break,
        )
        for n in config.sizes
    }
    return Judged(
        found[max(config.sizes)].judgements,
        {CONFIGURED: {n: own.selection for n, own in found.items()}},
        {n: (own.spending.usage.tokens_out, own.spending.full_tokens) for n, own in found.items()},
    )


def _candidates(row: Candidates) -> list[Candidate]:
    logprobs = row.logprobs or (None,) * len(row.responses)
    return [
        Candidate(row.query, response, logprob)
        for response, logprob in zip(row.responses, logprobs, strict=True)
    ]


def grade(
    rows: Measured[Candidates],
    judged: Spool[Judged],
    config: SelectionConfig,
    result: str,
    cost: Cost,
    done: Callable[[Candidates, Judged, Scores], None],
) -> None:
    """The grader's rating of what any rule chose, or of every candidate; None for the others."""

    def told(item: tuple[Candidates, Judged], found: list[Judgement]) -> None:
        row, own = item
        cost.add(found)
        places = own.wanted(config)
        given = {i: j.view("rating") for i, j in zip(places, found, strict=True)}
        done(row, own, tuple(given.get(i) for i in range(len(row.responses))))

    asked = (
        ((row, own), [Candidate(row.query, row.responses[i]) for i in own.wanted(config)])
        for row, own in zip(rows, judged, strict=True)
    )
    total = sum(len(own.wanted(config)) for own in judged)
    journal = journal_path(config, result)
    rate_each(config.grader, journal, asked, told, "grading", total, "rating")


def _require_protocols(config: SelectionConfig, scores: str | None, grades: str | None) -> None:
    if config.budget is not None and (scores or isinstance(format_of(config.judge), ScalarFormat)):
        raise ConfigError("budget saves critiques, and nobody writes any here: leave it out")
    if scores is None:
        require_protocol(config.judge, "single")
    if "pairwise" in config.tie_break:
        if scores is not None:
            raise ConfigError("tie_break: pairwise asks the judge, and --scores asks nobody")
        require_protocol(config.judge, "pairwise")
    if grades is None:
        require_protocol(config.grader, "single")


def _require_scores(rows: Iterable[Candidates], name: str | None, role: str, data: str) -> None:
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
        else Judgement.of_score(score)
        for score in scores
    )


def _row(row: Candidates, judged: Judged, grades: Scores) -> dict[str, Any]:
    return {
        "line": row.line,
        "group": row.group,
        "base": row.base,
        "query": row.query,
        "responses": row.responses,
        "ratings": [judgement.view("rating") for judgement in judged.ratings],
        "grades": grades,
        "critiques": [judgement.critique for judgement in judged.ratings],
        "chosen": {
            rule: {str(n): selection.index for n, selection in by_size.items()}
            for rule, by_size in judged.chosen.items()
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
