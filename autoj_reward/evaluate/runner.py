"""The loop of every evaluation: answers to rows, a record of each row, metrics, the result file.

A `Task` says what one evaluation does in this loop. Rows are judged as they are read and written as
they are judged; only what `Task.keep` returns is held for the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from pydantic import Field

from autoj_reward.config import Block, JudgeConfig, TieBreak, View
from autoj_reward.evaluate.results import PLOT, ROWS, answerer_name, path_beside, write_result
from autoj_reward.evaluate.statistics import Draws, ResultFields
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import filling, require_apart, write_text
from autoj_reward.models.unused import load_run
from autoj_reward.models.views import with_readings

RowT = TypeVar("RowT")
AnswerT = TypeVar("AnswerT")
KeptT = TypeVar("KeptT")


class EvaluateConfig(Block):
    """Config keys of every evaluation. The files that are measured come by flag."""

    judge: JudgeConfig = JudgeConfig()
    """The judge that is measured."""
    journal: Path | None = None
    """SQLite file of every judgement; null: beside the result."""
    sample: int | None = Field(None, ge=1)
    """Measure only so many rows, drawn with the seed; null: all."""
    bootstrap: int = Field(2000, ge=1)
    """Resamples of each 95 % interval."""
    seed: int = 0
    """Seed of everything that is drawn."""

    @property
    def draws(self) -> Draws:
        """How intervals are drawn."""
        return Draws(self.bootstrap, self.seed)

    def journal_path(self, result: str) -> Path:
        """Return the journal that the config names, else the one beside the result."""
        return self.journal or path_beside(result, ".journal.sqlite")

    def rating_by(self, view: View, tie_break: Collection[TieBreak] = ()) -> Self:
        """Return the config with a judge that reads what a view, and rules among equals, need."""
        judge = with_readings(self.judge, view, "choose", tie_break)
        return self.model_copy(update={"judge": judge})


ConfigT = TypeVar("ConfigT", bound=EvaluateConfig)


def load_evaluation(
    kind: type[ConfigT],
    config: str | None,
    sets: Sequence[str],
    strict: bool,
    result: str,
    *sources: str | None,
) -> ConfigT:
    """Read the config of an evaluation; sources: the other files that it reads.

    Raises OutputError, and opens nothing, if the result or a file beside it is one of the files
    that are read.
    """
    checked = load_run(kind, config, sets, strict)
    endings = (path_beside(result, ending) for ending in (ROWS, PLOT))
    require_apart([config, *sources], [result, *endings, checked.journal_path(result)])
    return checked


@dataclass(frozen=True, slots=True)
class Task(Generic[RowT, AnswerT, KeptT]):
    """One evaluation, from its rows to the table that it prints."""

    name: str
    """The task of the result; results of one task are compared."""
    config: EvaluateConfig
    result: str
    """Path of the result file."""
    judges: Sequence[JudgeConfig | str]
    """The judge that is measured, then its grader, if any; a path stands for a file of answers."""
    sources: Mapping[str, str]
    """Files or folders that are read, by role."""
    answer: Callable[[Callable[[RowT, AnswerT], None]], ResultFields]
    """Passes every row and its answer on, in the order of the rows; returns result fields of its
    own, such as the cost."""
    keep: Callable[[RowT, AnswerT], KeptT]
    """Returns what the metrics need of a row and its answer: no text."""
    metrics: Callable[[Sequence[KeptT]], ResultFields]
    """Returns the result fields of all rows."""
    show: Callable[[ResultFields], None]
    """Prints the result fields."""
    record: Callable[[RowT, AnswerT], dict[str, Any]] | None = None
    """Returns a line of the file of judged rows; None: there is no such file."""
    plot: Callable[[ResultFields], str] | None = None
    """Returns an SVG of the result fields; None: there is no plot."""


def run_task(task: Task[RowT, AnswerT, KeptT]) -> int:
    """Run an evaluation, and return its exit code.

    The result is held for this process and these judges meanwhile, see `judged_by`. The file of
    judged rows is there, whole, once all rows are measured without an error.
    """
    result, kept = Path(task.result), list[KeptT]()
    names = " and ".join(map(answerer_name, task.judges))
    rows_path = path_beside(task.result, ROWS)
    with judged_by(names, result, result):
        with filling(rows_path) if task.record else nullcontext() as file:

            def done(row: RowT, answer: AnswerT) -> None:
                if file and task.record:
                    file.line(task.record(row, answer))
                kept.append(task.keep(row, answer))

            own = task.answer(done)
            fields = task.metrics(kept) | own
        written = f"result: {task.result}"
        if task.plot:
            plot_path = path_beside(task.result, PLOT)
            write_text(plot_path, task.plot(fields))
            written += f", plot: {plot_path}"
        settings = task.config.model_dump(mode="json", exclude={"judge", "grader", "journal"})
        write_result(task.result, task.name, task.judges[0], task.sources, settings, fields)
    task.show(fields)
    print(written)
    return 0
