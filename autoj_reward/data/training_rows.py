"""Training rows for judges, made from a teacher's answers about preferences.

Rows have the published form. An unusable preference is set aside with the reason. The teacher's
prompts (paper, Tables 8, 10, 11 and 12) keep untrusted text apart. Queries of the exam group get
the `_reasoning` variants, which ask for a solution of the teacher's own first; the paper describes
but does not print them, so their wording is this project's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from autoj_reward.data.labelled import LABELS, is_held_out, message_parts
from autoj_reward.data.preferences import Preference
from autoj_reward.data.teacher import Teacher
from autoj_reward.data.unify import (
    Reason,
    clean_critique,
    unify_comparison,
    unify_rating,
    unusable,
)
from autoj_reward.formats.criteria import Scenario, system_message
from autoj_reward.formats.render import Message, Part, RenderedPrompt, fill, render
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.io.checks import BadField
from autoj_reward.types import PAIRWISE, SINGLE, JudgeInput

T = TypeVar("T")
PROMPT_FILES = Path(__file__).parent / "prompts"
USUAL_CRITIQUE = "word " * 200
"""Placeholder for a critique in cost estimates."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """Result for one preference: its training row, or the reason why it has none."""

    row: Preference
    training: dict[str, Any] | None = None
    """The row to train on; None if `reason` set it aside."""
    reason: Reason | None = None
    answer: str = ""
    """The teacher's last answer about a row set aside."""


Questions = Callable[[Teacher, Preference, Scenario, JudgeFormat], Awaitable[dict[str, Any]]]
"""Queries the teacher about a row. Returns the training row without scenario and source."""


class _Aside(Exception):
    """Signals that a row is set aside, with the reason."""

    def __init__(self, reason: Reason, answer: str = "") -> None:
        super().__init__(reason)
        self.reason, self.answer = reason, answer


async def make_training_row(
    protocol: str, teacher: Teacher, row: Preference, scenario: Scenario, fmt: JudgeFormat
) -> RowResult:
    """Query the teacher about a row, as the protocol needs, and make the training row."""
    try:
        fields = await QUESTIONS[protocol](teacher, row, scenario, fmt)
    except _Aside as aside:
        return RowResult(row, None, aside.reason, aside.answer)
    return RowResult(row, fields | {"scenario": scenario.name, "source_dataset": row.source})


async def _compare(
    teacher: Teacher, row: Preference, scenario: Scenario, fmt: JudgeFormat
) -> dict[str, Any]:
    """Ask one question; keep the row if the teacher decides as people did (paper, section 3.3)."""
    if row.label is None:
        raise _Aside(Reason.NO_LABEL)
    message = _render_message(PAIRWISE, row.query, row.responses, fmt)
    prompt = pairwise_prompt(row.query, row.responses, scenario)
    raw = await _ask(teacher, prompt, "pairwise", row, scenario)
    comparison = _require_usable(unify_comparison(raw, fmt), raw)
    if comparison.verdict is not row.label:
        raise _Aside(Reason.DISAGREES, raw)
    label = LABELS.index(comparison.verdict)
    return {
        "usrmsg": message,
        "target_output": comparison.text,
        "gt_label": label,
        "pred_label": label,
    }


async def _criticise(
    teacher: Teacher, row: Preference, scenario: Scenario, fmt: JudgeFormat
) -> dict[str, Any]:
    """Ask for critiques with and without the criteria, then for both combined with a rating (paper,
    section 3.3)."""
    response = choose_response(row)
    message = _render_message(SINGLE, row.query, (response,), fmt)
    prompts = {
        "critique_with_criteria": critique_prompt(row.query, response, scenario, True),
        "critique_without_criteria": critique_prompt(row.query, response, scenario, False),
    }
    questions = (_ask(teacher, prompt, stage, row, scenario) for stage, prompt in prompts.items())
    critiques = []
    for raw in await asyncio.gather(*questions, return_exceptions=True):
        if isinstance(raw, BaseException):
            raise raw
        critiques.append(_require_usable(clean_critique(raw, fmt), raw))
    first, second = critiques
    prompt = merge_prompt(row.query, response, (first, second))
    raw = await _ask(teacher, prompt, "merge", row, scenario)
    merged = _require_usable(unify_rating(raw, fmt), raw)
    return {
        "usrmsg": message,
        "target_output": merged.text,
        "pred_score": f"{merged.rating:g}",
    }


def _require_usable(parsed: T | Reason, raw: str) -> T:
    """Return the parsed answer, or raise _Aside if it is a reason to reject it."""
    if isinstance(parsed, Reason):
        raise _Aside(parsed, raw)
    return parsed


QUESTIONS: dict[str, Questions] = {"pairwise": _compare, "single": _criticise}


def estimated_questions(
    protocol: str, row: Preference, scenario: Scenario
) -> tuple[RenderedPrompt, ...]:
    """Return a row's prompts for a cost estimate, with placeholder critiques of usual length."""
    if protocol == "pairwise":
        return (pairwise_prompt(row.query, row.responses, scenario),)
    response = choose_response(row)
    return (
        critique_prompt(row.query, response, scenario, True),
        critique_prompt(row.query, response, scenario, False),
        merge_prompt(row.query, response, (USUAL_CRITIQUE, USUAL_CRITIQUE)),
    )


def choose_response(row: Preference) -> str:
    """Return the response of a pair to criticise. A hash of the texts draws it, so runs agree."""
    return row.responses[is_held_out("\0".join(row.responses), 0.5)]


def _render_message(protocol: str, query: str, responses: tuple[str, ...], fmt: JudgeFormat) -> str:
    """Return the judge's rendered input. Raises _Aside if it cannot be split again."""
    item = JudgeInput(protocol, query, responses)
    text = render(item, fmt)[-1].text
    try:
        parts = message_parts({"usrmsg": text}, "usrmsg", fmt, protocol)
    except BadField as why:
        raise _Aside(Reason.AMBIGUOUS, why.reason) from None
    if parts != [query, *responses]:
        raise _Aside(Reason.AMBIGUOUS)
    return text


async def _ask(
    teacher: Teacher, prompt: RenderedPrompt, stage: str, row: Preference, scenario: Scenario
) -> str:
    """Return the text of a usable answer."""
    meta = {
        "protocol": stage,
        "scenario": scenario.name,
        "source_dataset": row.source,
        "file": row.file,
        "line": row.line,
    }
    answer = await teacher.ask(prompt, meta)
    if answer is None:
        raise _Aside(Reason.UNAVAILABLE)
    if answer.finish_reason == "rejected":
        raise _Aside(Reason.REJECTED, answer.text)
    if reason := unusable(answer.text, answer.finish_reason == "stop"):
        raise _Aside(reason, answer.text)
    return answer.text


def pairwise_prompt(query: str, responses: tuple[str, str], scenario: Scenario) -> RenderedPrompt:
    """Return the prompt that compares two responses by the scenario's criteria (Table 10)."""
    values = {"query": _make_text_part(query)}
    values |= {
        name: _make_response_part(text, name)
        for name, text in zip(("response_1", "response_2"), responses, strict=True)
    }
    return _build_prompt(_choose_variant("pairwise", scenario), values, scenario)


def critique_prompt(
    query: str, response: str, scenario: Scenario, criteria: bool
) -> RenderedPrompt:
    """Return the prompt for a critique of one response, with or without criteria (Table 11)."""
    values = {
        "query": _make_text_part(query),
        "response": _make_response_part(response, "response"),
    }
    return _build_prompt(
        _choose_variant("critique", scenario), values, scenario if criteria else None
    )


def merge_prompt(query: str, response: str, critiques: tuple[str, str]) -> RenderedPrompt:
    """Return the prompt that combines two critiques and asks for a rating (Table 12)."""
    first, second = map(_make_text_part, critiques)
    values = {
        "query": _make_text_part(query),
        "response": _make_response_part(response, "response"),
    }
    return _build_prompt("merge", values | {"critique_1": first, "critique_2": second}, None)


def _choose_variant(name: str, scenario: Scenario) -> str:
    return f"{name}_reasoning" if scenario.needs_reasoning else name


def _build_prompt(name: str, values: dict[str, Part], scenario: Scenario | None) -> RenderedPrompt:
    placed = {place: (part,) for place, part in values.items()}
    user = Message("user", fill(_read_template(name), placed))
    if scenario is None:
        return (user,)
    return (Message("system", (Part(system_message(scenario)),)), user)


def _make_text_part(text: str) -> Part:
    return Part(text, trusted=False)


def _make_response_part(text: str, name: str) -> Part:
    return Part(text, trusted=False, response=True, name=name)


@cache
def _read_template(name: str) -> str:
    return (PROMPT_FILES / f"{name}.txt").read_text(encoding="utf-8")
