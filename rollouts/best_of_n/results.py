"""The result files of a best-of-N job, written while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from autoj_reward.config import BestOfNConfig
from autoj_reward.io.files import OutputFile, filling, to_json, write_json, write_text
from rollouts.best_of_n.group import GroupResult
from rollouts.best_of_n.plots import line_plot
from rollouts.best_of_n.records import judgement_records, selection_record
from rollouts.best_of_n.report import render_report
from rollouts.best_of_n.sample import Sample
from rollouts.best_of_n.summary import Figures, Summary

RESULTS = ("selections.jsonl", "judgements.jsonl")


@dataclass(slots=True)
class Gathered:
    """What is gathered of the queries whose results are written."""

    figures: Figures
    sample: Sample

    @property
    def queries(self) -> int:
        return self.sample.total

    def add(self, group: GroupResult) -> None:
        self.figures.add(group)
        self.sample.add(group)


@dataclass(frozen=True, slots=True)
class Record:
    """The two files of RESULTS, and what adds a query to them."""

    selection: OutputFile
    judgement: OutputFile

    def __call__(self, group: GroupResult) -> None:
        self.selection.line(selection_record(group))
        for record in judgement_records(group):
            self.judgement.line(record)


@contextmanager
def recording(folder: Path) -> Iterator[Record]:
    """What takes the queries that are to come, in their order. selections.jsonl and
    judgements.jsonl are there, each whole, once the block has ended without an error."""
    with (
        filling(folder / RESULTS[0]) as selection,
        filling(folder / RESULTS[1]) as judgement,
    ):
        yield Record(selection, judgement)


@contextmanager
def joining(folder: Path) -> Iterator[Callable[[Path], None]]:
    """What takes the folders of parts in their order; else as `recording`."""
    with ExitStack() as stack:
        files = [(name, stack.enter_context(filling(folder / name))) for name in RESULTS]

        def add(part: Path) -> None:
            for name, whole in files:
                with (part / name).open("rb") as source:
                    while data := source.read(2**20):
                        whole.add(data)

        yield add


def write_figures(config: BestOfNConfig, summary: Summary, sample: Sample) -> None:
    """summary.json, report.html and curve.svg."""
    folder = config.output
    write_json(folder / "summary.json", to_json(summary))
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    title = f"Best-of-N: {Path(config.input).name}"
    page = render_report(summary, sample.shown(), title=title, config_text=text)
    write_text(folder / "report.html", page)
    if summary.curve:
        name = f"mean {config.view} of the best of N"
        write_text(folder / "curve.svg", line_plot(summary.curve, name, (640, 320), alone=True))
