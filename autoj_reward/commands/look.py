"""`autoj parse`, `autoj models` and `autoj scenarios`: look without running anything."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from autoj_reward.io.rows import read_texts
from autoj_reward.models import BUILT_IN, known_models
from autoj_reward.parse import ParsedRating, ParseFailure, parse_comparison, parse_rating
from autoj_reward.prompts.format import load_format
from autoj_reward.scenarios import load_scenarios, system_message


def parse(source: str, format_name: str, pairwise: bool) -> int:
    """Print what the parser reads in each judge text, a JSON line each, and a count at the end."""
    fmt = load_format(format_name)
    rows = read_texts(source)
    outcomes: Counter[str] = Counter()
    for row in rows.rows:
        found = parse_comparison(row.text, fmt) if pairwise else parse_rating(row.text, fmt)
        record: dict[str, object] = {"line": row.line}
        if isinstance(found, ParseFailure):
            record |= {"outcome": "unparsable", "reason": found.reason}
        else:
            record |= {"outcome": "ok", "start": found.start}
            if isinstance(found, ParsedRating):
                record["rating"] = found.value
            else:
                record["verdict"] = found.verdict.value
        outcomes[str(record["outcome"])] += 1
        print(json.dumps(record))
    for bad in rows.bad:
        outcomes["bad row"] += 1
        print(json.dumps({"line": bad.line, "outcome": "bad row", "reason": str(bad)}))
    print(json.dumps({"summary": dict(outcomes)}))
    return 0


def models(prepare: bool) -> int:
    """List the models known by name; with prepare, build the built-in ones first."""
    if prepare:
        from autoj_reward.models.built_in import build

        for name in BUILT_IN:
            print(f"{name}: {build(name)}")
        return 0
    width = max(map(len, known_models()))
    for known in known_models().values():
        print(f"{known.name:{width}}  {known.format:12} {known.wrapper:8} {known.about}")
    return 0


def scenarios(show: str | None, folder: str | None) -> int:
    """List scenarios with group, criteria and description; or print one's system message."""
    known = load_scenarios(Path(folder) if folder else None)
    if show is not None:
        print(system_message(known[show]))
        return 0
    width = max(map(len, known.names))
    for scenario in known:
        count = len(scenario.criteria)
        print(f"{scenario.name:{width}}  {scenario.group:21} {count:2}  {scenario.description}")
    return 0
