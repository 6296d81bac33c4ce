"""Training rows for judges, made from a teacher's answers about preferences.

Rows of judgements have the published form, and pairs that the teacher writes the package's own. An
unusable preference is set aside with the reason. The teacher's prompts (paper, Tables 8, 10, 11 and
12) keep untrusted text apart. Queries of the exam group get the `_reasoning` variants, which ask
for a solution of the teacher's own first; the paper describes but does not print them, so their
wording is this project's, as is that of `alter`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from autoj_reward.data.filters import normalize
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
from autoj_reward.formats.render import (
    Message,
    Part,
    RenderedPrompt,
    fill,
    render,
    user_prompt,
)
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.io.checks import BadField
from autoj_reward.io.layouts import PAIR, PROMPT
from autoj_reward.thinking import find_block
from autoj_reward.types import PAIRWISE, SINGLE, JudgeInput, Verdict

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


@dataclass(frozen=True, slots=True)
class RowTask:
    """A row that the teacher is asked about."""

    teacher: Teacher
    row: Preference
    scenario: Scenario
    fmt: JudgeFormat
    """Judge format of the training rows."""
    seed: int
    """Draws the order of the responses that the teacher writes."""

    async def ask(self, prompt: RenderedPrompt, stage: str) -> str:
        """Return the text of a usable answer, without thinking. Raises _Aside for another one."""
        meta = {
            "protocol": stage,
            "scenario": self.scenario.name,
            "source_dataset": self.row.source,
            "file": self.row.file,
            "line": self.row.line,
        }
        answer = await self.teacher.ask(prompt, meta)
        if answer is None:
            raise _Aside(Reason.UNAVAILABLE)
        if answer.finish_reason == "rejected":
            raise _Aside(Reason.REJECTED, answer.text)
        thinking = find_block(answer.text)
        text = answer.text[thinking.end :] if thinking else answer.text
        if reason := unusable(text, answer.finish_reason == "stop"):
            raise _Aside(reason, answer.text)
        return text

    async def ask_all(self, prompts: Mapping[str, RenderedPrompt]) -> list[str]:
        """Return the usable answers to independent prompts, by stage, once none is in flight."""
        questions = (self.ask(prompt, stage) for stage, prompt in prompts.items())
        answers: list[str] = []
        for answer in await asyncio.gather(*questions, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
        return answers


class _Aside(Exception):
    """Signals that a row is set aside, with the reason."""

    def __init__(self, reason: Reason, answer: str = "") -> None:
        super().__init__(reason)
        self.reason, self.answer = reason, answer


async def make_training_row(
    protocol: str,
    teacher: Teacher,
    row: Preference,
    scenario: Scenario,
    fmt: JudgeFormat,
    seed: int,
) -> RowResult:
    """Query the teacher about a row, as the protocol needs, and make the training row."""
    try:
        fields = await PROTOCOLS[protocol].ask(RowTask(teacher, row, scenario, fmt, seed))
    except _Aside as aside:
        return RowResult(row, None, aside.reason, aside.answer)
    return RowResult(row, fields | {"scenario": scenario.name, "source_dataset": row.source})


async def _compare(task: RowTask) -> dict[str, Any]:
    """Ask one question; keep the row if the teacher decides as people did (paper, section 3.3)."""
    row = task.row
    if row.label is None:
        raise _Aside(Reason.NO_LABEL)
    message = _render_message(PAIRWISE, row.query, row.responses, task.fmt)
    raw = await task.ask(pairwise_prompt(row.query, row.responses, task.scenario), "pairwise")
    comparison = _require_usable(unify_comparison(raw, task.fmt), raw)
    if comparison.verdict is not row.label:
        raise _Aside(Reason.DISAGREES, raw)
    label = LABELS.index(comparison.verdict)
    return {
        "usrmsg": message,
        "target_output": comparison.text,
        "gt_label": label,
        "pred_label": label,
    }


async def _criticise(task: RowTask) -> dict[str, Any]:
    """Ask for critiques with and without the criteria, then for both combined with a rating (paper,
    section 3.3)."""
    query = task.row.query
    response = choose_response(task.row)
    message = _render_message(SINGLE, query, (response,), task.fmt)
    answers = await task.ask_all(
        {
            "critique_with_criteria": critique_prompt(query, response, task.scenario, True),
            "critique_without_criteria": critique_prompt(query, response, task.scenario, False),
        }
    )
    first, second = (_require_usable(clean_critique(raw, task.fmt), raw) for raw in answers)
    raw = await task.ask(merge_prompt(query, response, (first, second)), "merge")
    merged = _require_usable(unify_rating(raw, task.fmt), raw)
    return {
        "usrmsg": message,
        "target_output": merged.text,
        "pred_score": f"{merged.rating:g}",
    }


async def _alter(task: RowTask) -> dict[str, Any]:
    """Let the teacher answer the query, and an instruction near it (J1, arXiv 2505.10320).

    The response to the altered instruction is the worse one for the query.
    """
    query = task.row.query
    altered = (await task.ask(alter_prompt(query), "altered_query")).strip()
    # One that holds the whole query asks for it too: it adds to it, or repeats the prompt.
    if normalize(query) in normalize(altered):
        raise _Aside(Reason.UNALTERED, altered)
    answers = await task.ask_all(
        {"response": user_prompt(query), "altered_response": user_prompt(altered)}
    )
    better, worse = (answer.strip() for answer in answers)
    if normalize(better) == normalize(worse):
        raise _Aside(Reason.EQUAL, better)
    # The seed keeps this draw apart from that of validation rows, which hashes the query alone.
    is_swapped = is_held_out(f"{task.seed}\0{query}", 0.5)
    first, second = (worse, better) if is_swapped else (better, worse)
    return {
        "query": query,
        "response_1": first,
        "response_2": second,
        "label": LABELS.index(Verdict.SECOND if is_swapped else Verdict.FIRST),
        "altered_query": altered,
    }


def _require_usable(parsed: T | Reason, raw: str) -> T:
    """Return the parsed answer, or raise _Aside if it is a reason to reject it."""
    if isinstance(parsed, Reason):
        raise _Aside(parsed, raw)
    return parsed


def _compare_prompts(row: Preference, scenario: Scenario) -> tuple[RenderedPrompt, ...]:
    return (pairwise_prompt(row.query, row.responses, scenario),)


def _criticise_prompts(row: Preference, scenario: Scenario) -> tuple[RenderedPrompt, ...]:
    response = choose_response(row)
    return (
        critique_prompt(row.query, response, scenario, True),
        critique_prompt(row.query, response, scenario, False),
        merge_prompt(row.query, response, (USUAL_CRITIQUE, USUAL_CRITIQUE)),
    )


def _alter_prompts(row: Preference, _scenario: Scenario) -> tuple[RenderedPrompt, ...]:
    # An altered instruction is about as long as the query.
    return (alter_prompt(row.query), user_prompt(row.query), user_prompt(row.query))


@dataclass(frozen=True, slots=True)
class RowProtocol:
    """How a protocol of `autoj collect` makes a training row."""

    ask: Callable[[RowTask], Awaitable[dict[str, Any]]]
    """Queries the teacher about a row. Returns the training row without scenario and source."""
    estimate: Callable[[Preference, Scenario], tuple[RenderedPrompt, ...]]
    """Returns a row's prompts for a cost estimate, with placeholders of usual length."""
    usual_tokens: tuple[int, ...]
    """Usual length of each answer, for cost estimates."""
    label: str = ""
    """Field of the training row's label; empty if it has a rating."""
    reads: str = PAIR
    """What is read of a source's rows: PAIR, or PROMPT for queries alone."""


PROTOCOLS = {
    # A guess, not measured on the released comparisons.
    "pairwise": RowProtocol(_compare, _compare_prompts, (400,), label="gt_label"),
    # Means of Auto-J's released critiques at 4 characters a token.
    "single": RowProtocol(_criticise, _criticise_prompts, (280, 210, 400)),
    # A guess.
    "altered": RowProtocol(_alter, _alter_prompts, (60, 400, 400), label="label", reads=PROMPT),
}
"""The protocols by name."""


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


def alter_prompt(query: str) -> RenderedPrompt:
    """Return the prompt for an instruction that is near the query and asks for something else."""
    return _build_prompt("alter", {"query": _make_text_part(query)}, None)


def pairwise_prompt(query: str, responses: tuple[str, ...], scenario: Scenario) -> RenderedPrompt:
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
