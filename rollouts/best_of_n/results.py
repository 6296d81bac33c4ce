"""Result of one query of a best-of-N job, and the result files, written while the job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from autoj_reward.io.files import OutputFile, filling, to_plain
from autoj_reward.io.rows import QueryRow
from autoj_reward.questions.choose import Shortlist
from autoj_reward.questions.panel import member_ratings
from autoj_reward.questions.rank import Ranking
from autoj_reward.questions.rubric import RubricScore
from autoj_reward.types import RATING, Candidate, Judgement, Outcome, Selection
from autoj_reward.watch.statistics import VIEWS, CandidateResult, result_of

RESULTS = ("selections.jsonl", "judgements.jsonl")
"""Names of the result files."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Candidates of one query, their judgements, and the choice among them."""

    row: QueryRow
    candidates: tuple[Candidate, ...]
    judgements: tuple[Judgement, ...]
    """One judgement for each candidate, in the same order."""
    selection: Selection
    shortlist: Shortlist | None = None
    """The candidates that got critiques; None if all did."""
    ranking: Ranking | None = None
    """Relative judgement of the candidates; None if each was judged alone."""
    rubrics: tuple[RubricScore, ...] = ()
    """Rubric score of each candidate; empty without rubrics."""
    results: tuple[CandidateResult, ...] = field(init=False, repr=False, compare=False)
    """Numbers of each candidate, read from its judgement once for all files and statistics.

    Candidates that a shortlist left out have the number that it was made from, as `direct`.
    """

    def __post_init__(self) -> None:
        results = [result_of(judgement) for judgement in self.judgements]
        if self.shortlist:
            for place, direct in enumerate(self.shortlist.direct):
                if self.judgements[place].outcome is Outcome.ABANDONED:
                    values = dict(zip(VIEWS, results[place].values, strict=True))
                    values["direct"] = direct
                    results[place] = results[place]._replace(values=tuple(values.values()))
        object.__setattr__(self, "results", tuple(results))
        if len(self.candidates) != len(self.judgements):
            raise ValueError(
                f"{len(self.candidates)} candidates with {len(self.judgements)} judgements"
            )
        if not 0 <= self.selection.index < len(self.candidates):
            raise ValueError(f"chosen {self.selection.index} of {len(self.candidates)} candidates")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments alone: `results` follow from them."""
        return GroupResult, tuple(
            getattr(self, argument.name) for argument in fields(self) if argument.init
        )

    @property
    def chosen(self) -> Judgement:
        """Return the judgement of the chosen candidate."""
        return self.judgements[self.selection.index]

    def values(self, view: str) -> tuple[float, ...]:
        """Return the view's numbers of the candidates, without missing ones."""
        place = VIEWS.index(view)
        numbers = (result.values[place] for result in self.results)
        return tuple(value for value in numbers if value is not None)

    def curve_values(self, view: str) -> tuple[float, ...]:
        """Return the numbers of the best-of-N curve.

        There are none if only the candidates of a shortlist have one: they are no random sample.
        """
        return () if self.shortlist and view != "direct" else self.values(view)


def selection_record(group: GroupResult) -> dict[str, Any]:
    """Return a query's row of `selections.jsonl`; ratings are null where the judgement failed."""
    chosen, index = group.chosen, group.selection.index
    numbers = group.results[index].values
    return (
        {
            "line": group.row.line,
            "query": group.row.prompt.text,
            "index": index,
            "response": group.candidates[index].response.record(),
            "critique": chosen.critique,
            **dict(zip(VIEWS, numbers, strict=True)),
            "forced": chosen.forced,
            "outcome": chosen.outcome.value,
            "rule": group.selection.rule,
            "tied": list(group.selection.tied),
            "ratings": [result.values[0] for result in group.results],
            "extra": to_plain(group.row.extra),
        }
        | (group.row.prompt.record() if group.row.prompt.turns else {})
        | ({"shortlist": list(group.shortlist.places)} if group.shortlist else {})
        | ({"relative": group.ranking.record()} if group.ranking else {})
    )


def judgement_records(group: GroupResult) -> list[dict[str, Any]]:
    """Return the rows of `judgements.jsonl` for one query, one for each candidate."""
    rows = [_make_judgement_record(group, index) for index in range(len(group.candidates))]
    if group.shortlist:
        for index, row in enumerate(rows):
            row["shortlisted"] = index in group.shortlist.places
    for row, score in zip(rows, group.rubrics, strict=False):
        row["rubric"] = score.record()
    return rows


def _make_judgement_record(group: GroupResult, index: int) -> dict[str, Any]:
    candidate, judgement = group.candidates[index], group.judgements[index]
    result, rating = group.results[index], judgement.reading(RATING)
    distribution = rating.distribution if rating else None
    panel = member_ratings(judgement)
    return (
        {
            "line": group.row.line,
            "index": index,
            "response": candidate.response.record(),
            "policy_logprob": candidate.policy_logprob,
            "outcome": judgement.outcome.value,
            "reason": judgement.reason,
            **dict(zip(VIEWS, result.values, strict=True)),
            "outside": rating.outside if rating else None,
            "distribution": None if distribution is None else dict(distribution),
            "forced": result.forced,
            "critique": judgement.critique,
            "flags": list(judgement.flags),
            "tokens_in": judgement.usage.tokens_in,
            "tokens_cached": judgement.usage.tokens_cached,
            "tokens_out": judgement.usage.tokens_out,
            "latency_s": judgement.usage.latency_s,
            "queued_s": judgement.usage.queued_s,
            "judge": judgement.judge,
        }
        | ({"panel": panel} if panel else {})
        | ({"thinking": judgement.thinking} if judgement.thinking else {})
    )


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """Open files of `RESULTS`. Calling it adds the result of a query to both."""

    selection: OutputFile
    judgement: OutputFile

    def __call__(self, group: GroupResult) -> None:
        self.selection.line(selection_record(group))
        for record in judgement_records(group):
            self.judgement.line(record)


@contextmanager
def open_result_files(folder: Path) -> Iterator[ResultFiles]:
    """Open the result files of a folder; add queries in input order.

    The files appear complete when the block ends without an error.
    """
    with (
        filling(folder / RESULTS[0]) as selection,
        filling(folder / RESULTS[1]) as judgement,
    ):
        yield ResultFiles(selection, judgement)


@contextmanager
def open_joined_results(folder: Path) -> Iterator[Callable[[Path], None]]:
    """Open the result files of a folder, and yield a function that appends those of a part.

    The files appear complete when the block ends without an error.
    """
    with ExitStack() as stack:
        files = [(name, stack.enter_context(filling(folder / name))) for name in RESULTS]

        def add(part: Path) -> None:
            for name, whole in files:
                with (part / name).open("rb") as source:
                    while data := source.read(2**20):
                        whole.add(data)

        yield add
