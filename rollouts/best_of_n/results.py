"""The result files of a best-of-N job, written while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from autoj_reward.config import BestOfNConfig
from autoj_reward.io.files import write_json, write_text, writing, writing_jsonl
from autoj_reward.io.plain import to_json
from rollouts.best_of_n.group import GroupResult
from rollouts.best_of_n.plots import line_plot
from rollouts.best_of_n.records import judgement_records, selection_record
from rollouts.best_of_n.report import render_report
from rollouts.best_of_n.sample import Sample
from rollouts.best_of_n.summary import Summary

RESULTS = ("selections.jsonl", "judgements.jsonl")


@contextmanager
def recording(folder: Path) -> Iterator[Callable[[GroupResult], None]]:
    """What takes the queries in their order. selections.jsonl and judgements.jsonl are there, each
    whole, once the block has ended without an error."""
    selections, judgements = (folder / name for name in RESULTS)
    with writing_jsonl(selections) as selection, writing_jsonl(judgements) as judgement:

        def add(group: GroupResult) -> None:
            selection(selection_record(group))
            for record in judgement_records(group):
                judgement(record)

        yield add


@contextmanager
def joining(folder: Path) -> Iterator[Callable[[Path], None]]:
    """What takes the folders of parts in their order; else as `recording`."""
    with ExitStack() as stack:
        files = [(name, stack.enter_context(writing(folder / name))) for name in RESULTS]

        def add(part: Path) -> None:
            for name, write in files:
                with (part / name).open("rb") as source:
                    while data := source.read(2**20):
                        write(data)

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
