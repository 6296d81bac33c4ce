"""`autoj parse`: what a judge is shown and what is read in its texts, without running anything."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from autoj_reward.cli.flags import command, flag

if TYPE_CHECKING:
    from autoj_reward.formats.schema import JudgeFormat
    from autoj_reward.types import JudgeInput


class Sample(NamedTuple):
    """A row: what the judge is asked, its text, or both."""

    line: int
    item: JudgeInput | None
    text: str | None


@command(
    flag(
        "--input",
        required=True,
        metavar="FILE",
        dest="source",
        help="rows with `text`, `query` and `response` (or `messages`), or both; - is stdin",
    ),
    flag("--format", default="autoj-en", metavar="NAME", dest="format_name", help="judge format"),
    flag("--pairwise", action="store_true", help="texts without a query compare two responses"),
    flag("--show", action="store_true", help="print what the judge is shown, too"),
)
def parse(source: str, format_name: str, pairwise: bool, show: bool) -> int:
    """Print what the parser reads in each judge text, a JSON line each, and a count at the end.

    A row with a query is read as the judge's own rows are: against what it was shown.
    """
    from collections import Counter

    from autoj_reward.formats.render import render
    from autoj_reward.formats.schema import load_format
    from autoj_reward.io.rows import read_rows

    fmt = load_format(format_name)
    rows = read_rows(source, lambda line, value: _sample(line, value, fmt), ())
    outcomes: Counter[str] = Counter()
    for row in rows.rows:
        if show and row.item:
            for message in render(row.item, fmt):
                print(f"--- line {row.line}, {message.role} ---\n{message.text}")
            print("---")
        record = {"line": row.line} | _read(row, fmt, pairwise)
        outcomes[str(record["outcome"])] += 1
        print(json.dumps(record))
    for bad in rows.bad:
        outcomes["bad row"] += 1
        print(json.dumps({"line": bad.line, "outcome": "bad row", "reason": str(bad)}))
    print(json.dumps({"summary": dict(outcomes)}))
    return 0


def _sample(line: int, value: Any, fmt: JudgeFormat) -> Sample:
    from autoj_reward.context import Asked
    from autoj_reward.io import checks as check
    from autoj_reward.io.rows import with_query
    from autoj_reward.types import PAIRWISE, SINGLE, JudgeInput

    fields = check.own_fields({"text": value} if isinstance(value, str) else value)
    pair = "response_1" in fields
    fields, turns = with_query(fields, rated=not pair)
    if "query" not in fields:
        return Sample(line, None, check.text(fields, "text"))
    names = ("response_1", "response_2") if pair else ("response",)
    protocol = PAIRWISE if pair else SINGLE
    needed = fmt.context(protocol)
    context = check.context(fields, [Asked(name, name, must) for name, must in needed.items()])
    query = check.text(fields, "query", blank=False)
    responses = tuple(check.text(fields, name) for name in names)
    text = check.text(fields, "text") if "text" in fields else None
    return Sample(line, JudgeInput(protocol, query, responses, context=context.after(turns)), text)


def _read(row: Sample, fmt: JudgeFormat, pairwise: bool) -> dict[str, object]:
    """What is read in a row's text; for a row without one, that it can be shown."""
    from autoj_reward.engine.base import Generation
    from autoj_reward.formats.protocols import read_slots
    from autoj_reward.formats.read import ParseFailure
    from autoj_reward.formats.render import flags
    from autoj_reward.judge.thinking import Spoken, read_past
    from autoj_reward.types import PAIRWISE, SINGLE

    seen: dict[str, object] = {}
    if row.item and (found := flags(row.item, fmt)):
        seen["flags"] = list(found)
    if row.text is None:
        return {"outcome": "shown"} | seen
    spoken = Spoken(Generation(row.text))
    if fmt.thinking:
        spoken = read_past(spoken.own, fmt.thinking, inside=False)
        seen |= {"thinking": spoken.thinking} if spoken.thinking else {}
    protocol = row.item.protocol if row.item else PAIRWISE if pairwise else SINGLE
    shown = (row.item.policy_texts, row.item.given_texts) if row.item else ()
    if protocol not in fmt.protocols:
        reason = f"format {fmt.name} has no {protocol} protocol"
        return {"outcome": "unparsable", "reason": reason} | seen
    record: dict[str, object] = {"outcome": "ok"}
    for name, read in read_slots(fmt.slots(protocol), spoken.text, *shown).items():
        if spoken.problem or isinstance(read, ParseFailure):
            reason = spoken.problem or getattr(read, "reason", "")
            return {"outcome": "unparsable", "reason": reason} | seen
        record["start"] = spoken.start + read.start
        record[name] = read.name if math.isnan(read.value) else read.value
    return record | seen
