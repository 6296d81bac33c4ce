"""What putting a judge's prompt together costs, for each format of the package.

    python -m experiments.speed.rendering --config configs/experiments/rendering.yaml

One row of a usual size, with every field that the format shows, is rendered `rows` times on one
core; then the same row as a conversation of seven turns. No tokenizer is asked. Results:
rendering.json, rendering.md.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from pydantic import Field
from tqdm import tqdm

from autoj_reward.context import Context
from autoj_reward.conversation import Turn
from autoj_reward.formats.render import answered_prompt, render
from autoj_reward.formats.schema import ScalarFormat, available, load_any_format
from autoj_reward.types import JudgeInput
from experiments.study import Study, StudyConfig, command
from experiments.tables import report, tabled

QUERY, RESPONSE, KNOWN = "Why is that? " * 20, "Because it is so. " * 20, "It is so. " * 20
SAID = [Turn(role, QUERY[:120]) for role in ("user", "assistant") * 3]
TALK = (*SAID, Turn("user", QUERY))


class RenderingConfig(StudyConfig):
    """rows: how often each format is rendered."""

    rows: int = Field(10_000, ge=1)


def item_of(name: str, turns: tuple[Turn, ...] = ()) -> JudgeInput:
    """An input of a format's first protocol, with all that it shows."""
    fmt = load_any_format(name)
    single = isinstance(fmt, ScalarFormat) or fmt.single is not None
    known = dict.fromkeys(fmt.context("single" if single else "pairwise"), KNOWN)
    return JudgeInput(QUERY, (RESPONSE,) * (1 if single else 2), context=Context(known, turns))


def seconds(name: str, rows: int, turns: tuple[Turn, ...] = ()) -> float:
    """Processor time of rendering so many rows."""
    fmt, item = load_any_format(name), item_of(name, turns)
    started = time.process_time()
    for _ in range(rows):
        if isinstance(fmt, ScalarFormat):
            answered_prompt(item.query, item.responses[0], fmt, item.turns)
        else:
            render(item, fmt)
    return time.process_time() - started


COLUMNS = {"format": "{format}", "seconds": "{query:.2f}", "of a conversation": "{talk:.2f}"}


def shown(found: dict[str, Any]) -> str:
    """The table in Markdown."""
    rows = tabled(found["figures"], COLUMNS)
    note = f"Processor time of {found['config']['rows']:,} rows on one core."
    return report("Rendering", found, [("Seconds by format", rows, note)])


def study(run: Study[RenderingConfig]) -> str:
    """Measure and write."""
    rows = run.config.rows
    figures = [
        {"format": name, "query": seconds(name, rows), "talk": seconds(name, rows, TALK)}
        for name in tqdm(available(), desc="formats")
    ]
    return run.write("rendering", {"figures": figures}, shown)


main = command(RenderingConfig, study)

if __name__ == "__main__":
    sys.exit(main())
