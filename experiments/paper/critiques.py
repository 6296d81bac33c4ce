"""Win rate of a judge's critiques against reference critiques (Eval-C).

    python -m experiments.paper eval-c --data C.jsonl --json OUT

A grader reads the judge's critique and a reference critique of the same response, in an order drawn
by the seed, and says which is better (paper, section 6.2 and Table 15). The judge's critiques are
kept in a temporary file until the grader reads them.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import model_validator

from autoj_reward.client.in_flight import as_one
from autoj_reward.config import JudgeConfig
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.ask import JudgementCost, ask_each, require_protocol
from autoj_reward.evaluate.rows import (
    NAMING,
    Fields,
    MeasuredRows,
    by_group,
    group,
    measured,
    read_answers,
    strictly,
)
from autoj_reward.evaluate.runner import EvaluateConfig, RunFiles, Task, open_run, run_task
from autoj_reward.evaluate.statistics import Draws, ResultFields, percentage, share
from autoj_reward.formats.read import ParseFailure
from autoj_reward.formats.schema import load_format, parse_comparison
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, text
from autoj_reward.io.files import Spool, text_digest
from autoj_reward.io.splits import RowSplit
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.compare import Compare
from autoj_reward.questions.rate import Rate
from autoj_reward.types import Candidate, Judgement, Pair, Verdict

VOTE_NAMES = {Verdict.FIRST: "win", Verdict.TIE: "tie", Verdict.SECOND: "lose"}
"""Result field for each verdict, from the side of the measured judge: its critique is FIRST."""


class CritiquesConfig(EvaluateConfig):
    """Settings of Eval-C."""

    grader: JudgeConfig = JudgeConfig(format="critique-grader", critique=False)
    """The judge that compares two critiques. `format` is its prompt, and cannot be `auto`."""
    reference: str = "chatgpt"
    """Author of the reference critiques, as the data names it. The published figures are against
    ChatGPT's, which the authors released as a file of their own; see `--reference`."""
    split: RowSplit | None = None
    """Rows of the data that are measured, drawn by a hash. null measures all."""

    @model_validator(mode="after")
    def _require_format(self) -> CritiquesConfig:
        if self.grader.format == "auto":
            raise ValueError("grader.format is auto: name it, for example critique-grader")
        return self


@dataclass(frozen=True, slots=True)
class CritiqueCase:
    """One row of Eval-C: a response to criticise, and critiques of it by others."""

    line: int
    query: str
    response: str
    group: str
    critiques: dict[str, str]
    """Critiques that the row contains, by author."""
    fields: Fields
    """Fields that identify the row, to check files of answers against."""


@dataclass(frozen=True, slots=True)
class Match:
    """Comparison of the judge's critique of a response with the reference critique."""

    case: CritiqueCase
    critiques: Sequence[str]
    """The judge's critique, then the reference; empty if the votes come from a file."""
    exchanged: bool
    """Whether the grader sees the reference first."""

    def question(self, tie: float | None) -> Compare | None:
        """Return the grader's comparison; None if the judge wrote no critique.

        tie: threshold of ratings, as for `Compare`.
        """
        judge_critique, reference = self.critiques
        shown_critiques = (
            (reference, judge_critique) if self.exchanged else (judge_critique, reference)
        )
        pair = graded_pair(self.case, *shown_critiques)
        return Compare(pair, swap=False, tie=tie) if judge_critique.strip() else None

    def verdict(self, graded: Verdict | None) -> Verdict:
        """Convert the grader's verdict so that FIRST is the judge's critique; None gives FAILED."""
        verdict = graded or Verdict.FAILED
        return verdict.swapped() if self.exchanged else verdict


@dataclass(frozen=True, slots=True)
class Vote:
    """A grader's verdict on one row, without the texts."""

    query: bytes
    """Digest of the query."""
    group: str
    verdict: Verdict
    """FIRST if the judge's critique is better than the reference."""
    exchanged: bool
    """Whether the grader saw the reference first."""


MatchDone = Callable[[Match, Verdict], None]
"""Callback that gets each match with its verdict, in input order."""
Graded = tuple[Verdict, Sequence[Judgement]]
"""Verdict on a match, FIRST being the judge's critique, and the grader's judgements behind it."""


def eval_c(
    data: str,
    critiques: str | None,
    reference: str | None,
    votes: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
    strict: bool,
) -> int:
    """Measure how often a judge's critiques win, tie and lose, overall and by group.

    critiques, reference: files of the judge's and the reference critiques, in place of critiques
    that the judge writes and those of the data. votes: file of a grader's answers; no judge runs.
    """
    sources = {"data": data, "critiques": critiques, "reference": reference, "votes": votes}
    checked, files = open_run(CritiquesConfig, config, sets, strict, result, **sources)
    if votes is None:
        judge, grader = judge_spec(checked.judge), judge_spec(checked.grader)
        judges = [critiques or judge, grader]
        answer = _make_grading_answer(checked, files, judge, grader)
    else:
        if critiques is not None or reference is not None:
            raise ConfigError("--votes counts votes alone: drop --critiques and --reference")
        if checked.sample is not None:
            raise ConfigError("sample: votes from a file are counted on all rows; drop it")
        judges, answer = [votes], _make_counting_answer(checked, data, votes)
    return run_task(
        Task(
            "eval-c",
            checked,
            files,
            judges,
            answer=answer,
            keep=_keep,
            metrics=partial(compute_vote_shares, draws=checked.draws),
            show=_show,
            record=_record,
        )
    )


def _make_counting_answer(
    config: CritiquesConfig, data: str, votes: str
) -> Callable[[MatchDone], ResultFields]:
    """Return the `answer` of a task that reads the votes from a file."""
    cases = read_cases(data, config.split)
    recorded_votes = read_votes(votes, data, cases)

    def count(on_answer: MatchDone) -> ResultFields:
        for case, (graded, exchanged) in zip(cases, recorded_votes, strict=True):
            match = Match(case, (), exchanged)
            on_answer(match, match.verdict(graded))
        return {}

    return count


def _make_grading_answer(
    config: CritiquesConfig, files: RunFiles, judge: JudgeSpec, grader: JudgeSpec
) -> Callable[[MatchDone], ResultFields]:
    """Return the `answer` of a task that runs the grader on the judge's critiques.

    The judge writes the critiques first, unless a file contains them.
    """
    data, critiques = files.sources["data"], files.sources.get("critiques")
    all_cases, sample = read_cases(data, config.split), (config.sample, config.seed)
    references = read_references(
        all_cases, files.sources.get("reference"), config.reference, data
    ).drawn(*sample)
    file_critiques = (
        read_critiques(critiques, data, all_cases).drawn(*sample) if critiques else None
    )
    if file_critiques is None:
        require_protocol(judge, "single")
        if not judge.config.critique:
            raise ConfigError("judge.critique is false: such a judge writes no critique to compare")
    require_protocol(grader, "pairwise")
    tie = grader.facts.tie
    cases = all_cases.drawn(*sample)

    def answer(on_answer: MatchDone) -> ResultFields:
        writing_cost, journal, written_critiques = JudgementCost(), files.journal, Spool[str]()
        if file_critiques is None:
            writing_cost = ask_each(
                judge,
                journal,
                cases,
                _criticise,
                on_answer=lambda _case, critique: written_critiques.add(critique),
                label="writing critiques",
                size=as_one,
            )

        def build_matches() -> Iterator[Match]:
            for case, judge_critique, reference in zip(
                cases, file_critiques or written_critiques, references, strict=True
            ):
                yield Match(case, (judge_critique, reference), is_exchanged(case, config.seed))

        grading_cost = ask_each(
            grader,
            journal,
            MeasuredRows(build_matches, range(len(cases))),
            _make_grading_question(tie),
            on_answer,
            "comparing critiques",
            size=lambda match: question.most_inputs if (question := match.question(tie)) else 0,
        )
        return {
            "grader": grader.name,
            "cost": {"judge": writing_cost.fields(), "grader": grading_cost.fields()},
        }

    return answer


def read_cases(source: str, split: RowSplit | None = None) -> MeasuredRows[CritiqueCase]:
    """Return the rows of an Eval-C file, or those of a split.

    Raises InputError that names every bad row.
    """

    def build(line: int, row: Fields) -> CritiqueCase:
        critiques = row.get("critiques", {})
        if not isinstance(critiques, dict) or not all(
            isinstance(c, str) for c in critiques.values()
        ):
            raise BadField("critiques", f"not texts by name: {check.show(critiques)}")
        identifying_fields = {key: value for key, value in row.items() if key in NAMING}
        query = text(row, "prompt", blank=False)
        return CritiqueCase(
            line, query, text(row, "response"), group(row), critiques, identifying_fields
        )

    return measured(strictly(source, build).within(split))


def read_critiques(source: str, data: str, cases: MeasuredRows[CritiqueCase]) -> MeasuredRows[str]:
    """Read critiques in the paper's released form: rows of `{"output": TEXT}`, in data order.

    data, cases: path and rows of the data that the critiques are of. Raises InputError as
    `read_answers` does.
    """
    return read_answers(source, data, (c.fields for c in cases), lambda row: text(row, "output"))


def read_votes(
    source: str, data: str, cases: MeasuredRows[CritiqueCase]
) -> MeasuredRows[tuple[Verdict | None, bool]]:
    """Read a grader's answers in the paper's released form: (verdict, reference shown first).

    In the verdict, FIRST is the critique that the grader saw first. It is None if the first line of
    the answer does not name exactly one option. Rows have `output` and, if the reference was shown
    first, `meta.exchange` set to true. Raises InputError as `read_answers` does.
    """
    fmt = load_format("critique-grader")

    def build(row: Fields) -> tuple[Verdict | None, bool]:
        meta = row.get("meta", {})
        exchanged = meta.get("exchange", False) if isinstance(meta, dict) else None
        if not isinstance(exchanged, bool):
            raise BadField("meta", f"{check.show(meta)} has no exchange that is true or false")
        parsed = parse_comparison(text(row, "output"), fmt)
        return None if isinstance(parsed, ParseFailure) else parsed.verdict, exchanged

    return read_answers(source, data, (case.fields for case in cases), build)


def read_references(
    cases: MeasuredRows[CritiqueCase], source: str | None, author: str, data: str
) -> MeasuredRows[str]:
    """Return the reference critiques: those of the file `source`, or those in the data by `author`.

    Raises ConfigError if a row of the data has no critique by the author.
    """
    if source is not None:
        return read_critiques(source, data, cases)
    for case in cases:
        if author not in case.critiques:
            authors = ", ".join(case.critiques) or "none"
            raise ConfigError(
                f"{data}:{case.line}: no critique by {author!r} (there: {authors}): name a file "
                "with --reference, or another author as reference in the config"
            )
    return MeasuredRows(lambda: (case.critiques[author] for case in cases), range(len(cases)))


def graded_pair(case: CritiqueCase, first: str, second: str) -> Pair:
    """Return the pair of critiques that the grader compares.

    Its query contains the user's query and the response under critique.
    """
    query = f"{case.query}\n\n[The Assistant's Response]\n{case.response}"
    return Pair(query, first, second)


def is_exchanged(case: CritiqueCase, seed: int) -> bool:
    """Return whether the reference is shown first, drawn by the seed and the row's line number."""
    return random.Random(f"{seed} {case.line}").random() < 0.5


async def _criticise(ask: Ask, case: CritiqueCase) -> tuple[str, list[Judgement]]:
    judgement = await Rate(Candidate(case.query, case.response)).answer(ask)
    return judgement.critique, [judgement]


def _make_grading_question(tie: float | None) -> Callable[[Ask, Match], Awaitable[Graded]]:
    """Return a question that grades a match; one without a critique by the judge fails.

    tie: threshold of ratings, as for `Compare`.
    """

    async def grade(ask: Ask, match: Match) -> Graded:
        question = match.question(tie)
        if question is None:
            return match.verdict(None), ()
        [order] = (await question.answer(ask)).orders
        return match.verdict(order.verdict), (order,)

    return grade


def compute_vote_shares(rows: Sequence[Vote], draws: Draws) -> ResultFields:
    """Return the percentages of wins, ties and losses, overall and by group.

    `shown_first_wins` is the percentage of decided votes for the critique shown first; None if no
    vote is decided.
    """
    members = by_group([row.group for row in rows])
    shown_verdicts = [row.verdict.swapped() if row.exchanged else row.verdict for row in rows]
    decided = [verdict for verdict in shown_verdicts if verdict in (Verdict.FIRST, Verdict.SECOND)]
    first = decided.count(Verdict.FIRST)
    return {
        "overall": _compute_shares(rows, draws),
        "groups": {
            name: _compute_shares([rows[i] for i in indices], draws)
            for name, indices in members.items()
        },
        "shown_first_wins": percentage(first / len(decided)) if decided else None,
    }


def _compute_shares(rows: Sequence[Vote], draws: Draws) -> ResultFields:
    verdicts, queries = [row.verdict for row in rows], [row.query for row in rows]
    fields: ResultFields = {"n": len(verdicts), "failed": verdicts.count(Verdict.FAILED)}
    fields["votes"] = {name: verdicts.count(verdict) for verdict, name in VOTE_NAMES.items()}
    for verdict, name in VOTE_NAMES.items():
        fields |= draws.percent(name, share([v is verdict for v in verdicts]), queries)
    return fields


def _keep(match: Match, verdict: Verdict) -> Vote:
    return Vote(text_digest(match.case.query), match.case.group, verdict, match.exchanged)


def _record(match: Match, verdict: Verdict) -> dict[str, Any]:
    return {
        "line": match.case.line,
        "group": match.case.group,
        "query": match.case.query,
        "response": match.case.response,
        "responses": match.critiques,
        "verdict": verdict,
        "exchanged": match.exchanged,
    }


def _show(fields: ResultFields) -> None:
    print(f"{'group':<24}{'n':>6}{'win':>8}{'tie':>8}{'lose':>8}")
    for name, metrics in [*fields["groups"].items(), ("overall", fields["overall"])]:
        print(
            f"{name:<24}{metrics['n']:>6}{metrics['win']:>8.2f}{metrics['tie']:>8.2f}{metrics['lose']:>8.2f}"
        )
