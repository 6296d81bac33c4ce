"""Scenario groups by their published titles (paper, Table 1), from the package's registry."""

from __future__ import annotations

from autoj_reward.scenarios.registry import load_scenarios

_TITLES = {
    "summarization": "Summarization",
    "exam_questions": "Exam Questions",
    "code": "Code",
    "rewriting": "Rewriting",
    "creative_writing": "Creative Writing",
    "functional_writing": "Functional Writing",
    "general_communication": "General Communication",
    "nlp_tasks": "NLP Tasks",
}
_KNOWN = load_scenarios()

GROUPS: dict[str, tuple[str, ...]] = {
    title: tuple(s.name for s in _KNOWN if s.group == group) for group, title in _TITLES.items()
}
"""Group to scenarios. Table 6 leaves out `writing_email`; Table 1's figures need it where it is."""


def group_of(name: str) -> str | None:
    """The group of a scenario under any of its names; None if it is none of the 58."""
    return _TITLES[_KNOWN[name].group] if name in _KNOWN else None
