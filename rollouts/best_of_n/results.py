"""The result files of a best-of-N job, written while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from autoj_reward.config import BestOfNConfig
from autoj_reward.io.files import write_json, write_text, writing_jsonl
from autoj_reward.io.plain import to_json
from rollouts.best_of_n.group import GroupResult
from rollouts.best_of_n.plots import line_plot
from rollouts.best_of_n.records import judgement_records, selection_record
from rollouts.best_of_n.report import render_report
from rollouts.best_of_n.sample import Sample
from rollouts.best_of_n.so_far import RESULTS, Checkpoint, SoFar
from rollouts.best_of_n.summary import Summary


@contextmanager
def writing(
    folder: Path, so_far: SoFar, checkpoint: Checkpoint
) -> Iterator[Callable[[GroupResult], None]]:
    """What takes the queries that are to come, in their order. selections.jsonl and
    judgements.jsonl are there, each whole, once the block has ended without an error."""
    try:
        with (
            writing_jsonl(folder / RESULTS[0], so_far.sizes[0]) as selection,
            writing_jsonl(folder / RESULTS[1], so_far.sizes[1]) as judgement,
        ):

            def add(group: GroupResult) -> None:
                selection(selection_record(group))
                for record in judgement_records(group):
                    judgement(record)
                so_far.add(group)
                if checkpoint.due:
                    so_far.sizes = selection.size(), judgement.size()
                    checkpoint.write(so_far)

            yield add
    finally:
        checkpoint.remove()


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
