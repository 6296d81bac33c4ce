"""The messages that a teacher reads (paper, Tables 8, 10, 11 and 12), untrusted text kept apart.

Queries of the exam group get the `_reasoning` variants, which ask for a solution of the teacher's
own first; the paper describes but does not print them, so their wording is this project's.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from autoj_reward.formats.render import Message, Part, Prompt, fill
from autoj_reward.scenarios import Scenario, system_message

FOLDER = Path(__file__).parent / "prompts"


def pairwise_prompt(query: str, responses: tuple[str, str], scenario: Scenario) -> Prompt:
    """Compare two responses by the scenario's criteria (Table 10)."""
    first, second = map(_response, responses)
    values = {"query": _text(query), "response_1": first, "response_2": second}
    return _prompt(_variant("pairwise", scenario), values, scenario)


def critique_prompt(query: str, response: str, scenario: Scenario, criteria: bool) -> Prompt:
    """Criticise one response, with or without the criteria (Table 11)."""
    values = {"query": _text(query), "response": _response(response)}
    return _prompt(_variant("critique", scenario), values, scenario if criteria else None)


def merge_prompt(query: str, response: str, critiques: tuple[str, str]) -> Prompt:
    """Combine two critiques and rate (Table 12)."""
    first, second = map(_text, critiques)
    values = {"query": _text(query), "response": _response(response)}
    return _prompt("merge", values | {"critique_1": first, "critique_2": second}, None)


def _variant(name: str, scenario: Scenario) -> str:
    return f"{name}_reasoning" if scenario.needs_reasoning else name


def _prompt(name: str, values: dict[str, Part], scenario: Scenario | None) -> Prompt:
    placed = {place: (part,) for place, part in values.items()}
    user = Message("user", fill(_template(name), placed))
    if scenario is None:
        return (user,)
    return (Message("system", (Part(system_message(scenario)),)), user)


def _text(text: str) -> Part:
    return Part(text, trusted=False)


def _response(text: str) -> Part:
    return Part(text, trusted=False, response=True)


@cache
def _template(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
