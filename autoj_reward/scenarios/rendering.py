"""A scenario's criteria as a system message (paper, Tables 8 and 9)."""

from __future__ import annotations

from pathlib import Path

from autoj_reward.formats.schema import PLACEHOLDER
from autoj_reward.scenarios.criteria_file import CriterionKind
from autoj_reward.scenarios.registry import Scenario

TEMPLATE = (Path(__file__).parent / "system.txt").read_text(encoding="utf-8")
SPECIFIC = (
    "The following are the specific criteria for this type of query, focusing on the {} aspect:"
)
HEADINGS: dict[CriterionKind, str] = {
    "content": SPECIFIC.format("content"),
    "format": SPECIFIC.format("format"),
    "style": SPECIFIC.format("style"),
    "basic": "The following are the basic and general criteria:",
}
"""Aspects in their order; Table 9 shows no style, which stands with the other specific ones."""


def system_message(scenario: Scenario) -> str:
    """Description and numbered criteria: content, format, style, then the basic ones."""
    values = {"description": scenario.description, "criteria": criteria_text(scenario)}
    return PLACEHOLDER.sub(lambda m: values[m[1]], TEMPLATE)


def criteria_text(scenario: Scenario) -> str:
    """The criteria alone, one block an aspect; aspects without criteria are left out."""
    blocks = []
    for kind, heading in HEADINGS.items():
        chosen = [c for c in scenario.criteria if c.kind == kind]
        if chosen:
            lines = [f"{number}. {c.name}: {c.text}" for number, c in enumerate(chosen, 1)]
            blocks.append("\n\n".join([heading, *lines]))
    return "\n\n".join(blocks)
