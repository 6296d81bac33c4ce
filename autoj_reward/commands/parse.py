"""`autoj parse`: what the parser reads, without running anything."""

from __future__ import annotations

import json

from autoj_reward.commands.flags import command, flag


@command(
    flag(
        "--input", required=True, metavar="FILE", dest="source", help="rows with `text`; - is stdin"
    ),
    flag("--format", default="autoj-en", metavar="NAME", dest="format_name", help="judge format"),
    flag("--pairwise", action="store_true", help="texts compare two responses"),
)
def parse(source: str, format_name: str, pairwise: bool) -> int:
    """Print what the parser reads in each judge text, a JSON line each, and a count at the end."""
    from collections import Counter

    from autoj_reward.io.rows import read_texts
    from autoj_reward.parse import ParsedRating, ParseFailure, parse_comparison, parse_rating
    from autoj_reward.prompts.format import load_format

    fmt = load_format(format_name)
    rows = read_texts(source, "text")
    outcomes: Counter[str] = Counter()
    for row in rows.rows:
        [text] = row.texts
        found = parse_comparison(text, fmt) if pairwise else parse_rating(text, fmt)
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
