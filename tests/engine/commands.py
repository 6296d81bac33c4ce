"""The commands of a user on eight rows each, with a real server as the judge."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autoj_reward.cli import main as cli

QUERY = "Tell me something about a flower."
TEXTS = (
    "A rose is red, and it smells sweet.",
    "An oak is a tree.",
    "banana banana banana",
    "Tulips come from Central Asia.",
    "I do not know.",
    "Daisies are white with a yellow heart.",
    "The sky is blue.",
    "Sunflowers turn to the sun.",
)
PAIRS = tuple(zip(TEXTS, (*TEXTS[1:], TEXTS[0]), strict=True))
LOW, HIGH = 1, 10
"""Scale of the formats that servers are asked with."""
VERDICTS = {"first", "second", "tie", "inconsistent"}


def check_score(row: Mapping[str, Any]) -> None:
    assert LOW <= row["rating"] <= HIGH
    for view in ("expected", "pessimistic"):
        assert row[view] is None or LOW <= row[view] <= HIGH


def check_comparison(row: Mapping[str, Any]) -> None:
    assert row["verdict"] in VERDICTS
    assert len(row["orders"]) == 2
    assert all(order["verdict"] in VERDICTS for order in row["orders"])


def check_ranking(row: Mapping[str, Any]) -> None:
    assert len(row["scores"]) == 2
    assert all(0 <= score <= 1 for score in row["scores"])
    assert row["scores"][row["best"]] == max(row["scores"])


def check_selection(row: Mapping[str, Any]) -> None:
    check_score(row)
    assert all(LOW <= rating <= HIGH for rating in row["ratings"])
    assert row["response"] in TEXTS


CHECKS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "score": check_score,
    "compare": check_comparison,
    "rank": check_ranking,
    "best-of-n": check_selection,
}
"""Commands, each with a check of one of its results."""


def make_rows(command: str) -> list[dict[str, Any]]:
    if command == "score":
        return [{"query": QUERY, "response": text} for text in TEXTS]
    if command == "compare":
        return [{"query": QUERY, "response_1": a, "response_2": b} for a, b in PAIRS]
    return [{"query": f"{number}. {QUERY}", "responses": p} for number, p in enumerate(PAIRS)]


def run_command(command: str, judge: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Run a command on eight rows with this judge, and return its results.

    folder: an empty folder.
    """
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in make_rows(command)))
    config = folder / "config.yaml"
    output = folder / "out"
    if command == "best-of-n":
        # Comparisons are what the others do: ties go to the first response here.
        job = {"input": str(source), "output": str(output), "judge": judge, "tie_break": ["first"]}
        config.write_text(json.dumps(job))
        assert cli.main([command, "--config", str(config)]) == 0
        output = output / "selections.jsonl"
    else:
        config.write_text(json.dumps({"judge": judge}))
        paths = ["--input", str(source), "--output", str(output), "--config", str(config)]
        assert cli.main([command, *paths]) == 0
    return [json.loads(line) for line in output.read_text().splitlines()]


def check_command(
    command: str, judge: Mapping[str, Any], folder: Path, read_stderr: Callable[[], str], about: str
) -> None:
    """Run a command, and check that it judges all rows and says how.

    about: what is said on stderr about the judge's format and distributions, as a pattern.
    """
    rows = run_command(command, judge, folder)
    said = read_stderr()
    assert len(rows) == len(TEXTS), said
    for row in rows:
        assert row["outcome"] == "ok", row
        CHECKS[command](row)
    assert re.search(rf"judge {about}; (\d+) of \1 judgements ok", said), said
