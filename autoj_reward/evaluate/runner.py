"""Common loop of the evaluations: judge rows, record them, compute metrics, write the result file.

A `Task` defines one evaluation. Rows are judged as they are read, and written as they are judged.
Only the values that `Task.keep` returns stay in memory for the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field

from autoj_reward.config import Block, JudgeConfig, TieBreak, Tracker, View
from autoj_reward.config.load import read_config
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.results import ROWS, answerer_name, path_beside, write_result
from autoj_reward.evaluate.statistics import Draws, ResultFields
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import filling, require_apart
from autoj_reward.io.track import tracking
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.models.unused import asks_for_ratings, load_run

RowT = TypeVar("RowT")
AnswerT = TypeVar("AnswerT")
KeptT = TypeVar("KeptT")


UNRECORDED = {"judge", "judges", "grader", "journal", "track"}
"""Settings that a result file does not repeat, or that change no result."""


class MeasureConfig(Block):
    """Settings that all evaluations share. The command line names the files to measure on."""

    journal: Path | None = None
    """SQLite file of every judgement. null: a file beside the result."""
    sample: int | None = Field(None, ge=1)
    """Number of rows to measure, drawn with the seed. null: all rows."""
    bootstrap: int = Field(2000, ge=1)
    """Bootstrap resamples of each 95 % interval."""
    seed: int = 0
    """Seed of the sample, of random orders and of the bootstrap."""
    track: Tracker | None = None
    """Experiment tracker that gets the metrics at the end. null: none."""

    @property
    def draws(self) -> Draws:
        """Return the bootstrap settings of the intervals."""
        return Draws(self.bootstrap, self.seed)


class EvaluateConfig(MeasureConfig):
    """Settings of an evaluation of one judge."""

    judge: JudgeConfig = JudgeConfig()
    """The judge that is measured."""

    def judge_for(self, view: View, tie_break: Collection[TieBreak] = ()) -> JudgeSpec:
        """Resolve the judge, with the readings that the view and the tie-break rules need."""
        return judge_spec(self.judge).that_reads(view, "choose", tie_break)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Paths of the files that one run reads and writes."""

    sources: Mapping[str, str]
    """Files and folders that are read, by role."""
    result: str
    journal: Path

    def beside(self, ending: str) -> Path:
        """Return the path of a file beside the result, see `path_beside`."""
        return path_beside(self.result, ending)


ConfigT = TypeVar("ConfigT", bound=EvaluateConfig)


def read_judge_block(config: str | None, sets: Sequence[str]) -> dict[str, Any]:
    """Return the block of any run file that holds its judge: its block `reward`, or its top.

    The values are unchecked. Raises ConfigError if a running service judges, or if a judge stands
    in two places.
    """
    data = read_config(config, sets)
    block = data["reward"] if isinstance(data.get("reward"), dict) else data
    if block.get("service"):
        raise ConfigError(
            f"{config or 'the command line'}: reward.service names a running service, and this "
            "command opens the judge itself: set reward.service to null, and name the judge in "
            "reward.judge"
        )
    if block is not data and "judge" in data:
        raise ConfigError(
            f"{config or 'the command line'} has a judge at its top and a block reward: name the "
            "judge in reward.judge"
        )
    return block


def open_run(
    kind: type[ConfigT],
    config: str | None,
    sets: Sequence[str],
    strict: bool,
    result: str,
    compares: Callable[[ConfigT], bool] = asks_for_ratings,
    /,
    **sources: str | None,
) -> tuple[ConfigT, RunFiles]:
    """Read the config of an evaluation and resolve the paths of its files. Opens no data file.

    compares: as for `load_run`. sources: the other files that it reads, by role; None for one that
    is not given. Raises OutputError if the result or a file beside it is one of the files that are
    read.
    """
    checked = load_run(kind, config, sets, strict, compares)
    paths = {role: path for role, path in sources.items() if path is not None}
    files = RunFiles(paths, result, checked.journal or path_beside(result, ".journal.sqlite"))
    beside = (files.beside(ROWS), files.journal)
    require_apart([config, *paths.values()], [result, *beside])
    return checked, files


@dataclass(frozen=True, slots=True)
class Task(Generic[RowT, AnswerT, KeptT]):
    """Definition of one evaluation, from its rows to the table that it prints."""

    name: str
    """Name of the task in the result file. Results of one task are comparable."""
    config: EvaluateConfig
    files: RunFiles
    judges: Sequence[JudgeSpec | str]
    """The measured judge, then its grader, if any. A path stands for a file of answers."""
    answer: Callable[[Callable[[RowT, AnswerT], None]], ResultFields]
    """Calls its argument with every row and its answer, in input order. Returns further result
    fields, such as the cost."""
    keep: Callable[[RowT, AnswerT], KeptT]
    """Returns the values of a row and its answer that the metrics use, without texts."""
    metrics: Callable[[Sequence[KeptT]], ResultFields]
    """Returns the metrics of all rows."""
    show: Callable[[ResultFields], None]
    """Prints the result fields."""
    record: Callable[[RowT, AnswerT], dict[str, Any]] | None = None
    """Returns a line of the file of judged rows; None: write no such file."""


def run_task(task: Task[RowT, AnswerT, KeptT]) -> int:
    """Run an evaluation, write its files, and return the exit code 0.

    The result is locked for this process and these judges meanwhile, see `judged_by`. The file of
    judged rows appears complete, once all rows are measured without an error.
    """
    files, kept_rows = task.files, list[KeptT]()
    names, result = " and ".join(map(answerer_name, task.judges)), Path(task.files.result)
    tracked = tracking(task.config.track, f"{task.name} {files.result}", task.config)
    beside = (files.beside(ROWS),)
    claim = judged_by(
        names,
        result,
        result,
        command=f"autoj evaluate {task.name}",
        vote=task.config.judge.vote,
        files=beside,
    )
    with claim, tracked as reports:
        with filling(files.beside(ROWS)) if task.record else nullcontext() as rows:

            def keep_answer(row: RowT, answer: AnswerT) -> None:
                if rows and task.record:
                    rows.line(task.record(row, answer))
                kept_rows.append(task.keep(row, answer))

            answer_fields = task.answer(keep_answer)
            fields = task.metrics(kept_rows) | answer_fields
        settings = task.config.model_dump(mode="json", exclude=UNRECORDED)
        write_result(files.result, task.name, task.judges[:1], files.sources, settings, fields)
        reports.send(len(kept_rows), fields)
    task.show(fields)
    print(f"result: {files.result}")
    return 0
