"""A judge format that shows context, as several test files need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

REFERENCE: dict[str, Any] = {
    "name": "marks",
    "scale": {"low": 1, "high": 10},
    "constants": {"tone": "kindly"},
    "single": {
        "system": "system.txt",
        "template": "one.txt",
        "fields": {
            "ask": "query",
            "reference": "reference",
            "rubric": "rubric",
            "answer": "response",
            "tone": "tone",
        },
        "optional": {"rubric": "[Rubric]\n{rubric}\n"},
        "open": r"Rating: \[\[",
        "close": r"\]\]",
        "force": "\nRating: [[",
    },
    "pairwise": {
        "template": "two.txt",
        "fields": {"ask": "query", "c": "criteria", "a": "response_1", "b": "response_2"},
        "open": "the final decision is ",
        "labels": {"first": ["Response 1"], "second": ["Response 2"], "tie": ["Tie"]},
        "force": "\nSo, the final decision is ",
    },
}
"""The single protocol needs a reference and may show a rubric and a tone; a pair needs criteria."""
SYSTEM = "Grade {tone}."
ONE = "Q: {ask}\nReference: {reference}\n{rubric}A: {answer}\nMark it."
TWO = "Q: {ask}\nBy: {c}\n1: {a}\n2: {b}\n"


def write_reference_format(folder: Path, data: dict[str, Any] = REFERENCE) -> Path:
    """The path of its format.yaml."""
    folder.mkdir()
    for name, text in (("system.txt", SYSTEM), ("one.txt", ONE), ("two.txt", TWO)):
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / "format.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path
