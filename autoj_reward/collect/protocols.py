"""What a row becomes: a training row in the published form, or the reason why it is set aside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from autoj_reward.collect.answers import Answer
from autoj_reward.collect.prompts import critique_prompt, merge_prompt, pairwise_prompt
from autoj_reward.collect.sources import Preference
from autoj_reward.collect.teacher import Teacher
from autoj_reward.collect.unify import (
    Reason,
    clean_critique,
    unify_comparison,
    unify_rating,
    unusable,
)
from autoj_reward.evaluate.labelled import LABELS, is_held_out, message_parts
from autoj_reward.formats.render import Prompt, render
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.io.checks import BadField
from autoj_reward.scenarios import Scenario
from autoj_reward.types import PAIRWISE, SINGLE, JudgeInput

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result:
    """One row's end. training: the row to train on; None if `reason` set it aside, with `answer`
    being what the teacher said last."""

    row: Preference
    training: dict[str, Any] | None = None
    reason: Reason | None = None
    answer: str = ""


Protocol = Callable[[Teacher, Preference, Scenario, JudgeFormat], Awaitable[dict[str, Any]]]
"""What a row's training row has besides scenario and source; raises _Aside for one of no use."""


class _Aside(Exception):
    """The row is of no use, for this reason."""

    def __init__(self, reason: Reason, answer: str = "") -> None:
        super().__init__(reason)
        self.reason, self.answer = reason, answer


async def judged(
    protocol: str, teacher: Teacher, row: Preference, scenario: Scenario, fmt: JudgeFormat
) -> Result:
    """Ask the questions of a protocol about a row."""
    try:
        found = await PROTOCOLS[protocol](teacher, row, scenario, fmt)
    except _Aside as aside:
        return Result(row, None, aside.reason, aside.answer)
    return Result(row, found | {"scenario": scenario.name, "source_dataset": row.source})


async def _compare(
    teacher: Teacher, row: Preference, scenario: Scenario, fmt: JudgeFormat
) -> dict[str, Any]:
    """One question; kept if the teacher decides as people did (paper, section 3.3, Pairwise)."""
    if row.label is None:
        raise _Aside(Reason.NO_LABEL)
    message = _message(PAIRWISE, row.query, row.responses, fmt)
    prompt = pairwise_prompt(row.query, row.responses, scenario)
    raw = await _ask(teacher, prompt, "pairwise", row, scenario)
    found = _usable(unify_comparison(raw, fmt), raw)
    if found.verdict is not row.label:
        raise _Aside(Reason.DISAGREES, raw)
    label = LABELS.index(found.verdict)
    return {
        "usrmsg": message,
        "target_output": found.text,
        "gt_label": label,
        "pred_label": label,
    }


async def _criticise(
    teacher: Teacher, row: Preference, scenario: Scenario, fmt: JudgeFormat
) -> dict[str, Any]:
    """Three questions: critiques with and without the criteria, then both combined and a rating
    (paper, section 3.3, Single-response)."""
    response = chosen_response(row)
    message = _message(SINGLE, row.query, (response,), fmt)
    prompts = {
        "critique_with_criteria": critique_prompt(row.query, response, scenario, True),
        "critique_without_criteria": critique_prompt(row.query, response, scenario, False),
    }
    asked = (_ask(teacher, prompt, stage, row, scenario) for stage, prompt in prompts.items())
    critiques = []
    for raw in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(raw, BaseException):
            raise raw
        critiques.append(_usable(clean_critique(raw, fmt), raw))
    first, second = critiques
    prompt = merge_prompt(row.query, response, (first, second))
    raw = await _ask(teacher, prompt, "merge", row, scenario)
    found = _usable(unify_rating(raw, fmt), raw)
    return {
        "usrmsg": message,
        "target_output": found.text,
        "pred_score": f"{found.rating:g}",
    }


def _usable(found: T | Reason, raw: str) -> T:
    """What was read in an answer; _Aside where it is a reason against it."""
    if isinstance(found, Reason):
        raise _Aside(found, raw)
    return found


PROTOCOLS: dict[str, Protocol] = {"pairwise": _compare, "single": _criticise}


def questions(protocol: str, row: Preference, scenario: Scenario) -> tuple[Prompt, ...]:
    """The prompts of a row for an estimate; critiques to merge stand in by their usual length."""
    if protocol == "pairwise":
        return (pairwise_prompt(row.query, row.responses, scenario),)
    response = chosen_response(row)
    usual = "word " * 200
    return (
        critique_prompt(row.query, response, scenario, True),
        critique_prompt(row.query, response, scenario, False),
        merge_prompt(row.query, response, (usual, usual)),
    )


def chosen_response(row: Preference) -> str:
    """Which response of a pair is criticised: drawn from its text, the same in every run."""
    return row.responses[is_held_out("\0".join(row.responses), 0.5)]


def _message(protocol: str, query: str, responses: tuple[str, ...], fmt: JudgeFormat) -> str:
    """The judge's input, if training could take it apart again."""
    item = JudgeInput(protocol, query, responses)
    text = render(item, fmt)[-1].text
    try:
        found = message_parts({"usrmsg": text}, "usrmsg", fmt, protocol)
    except BadField as why:
        raise _Aside(Reason.AMBIGUOUS, why.reason) from None
    if found != [query, *responses]:
        raise _Aside(Reason.AMBIGUOUS)
    return text


async def _ask(
    teacher: Teacher, prompt: Prompt, stage: str, row: Preference, scenario: Scenario
) -> str:
    """The text of a usable answer."""
    meta = {
        "protocol": stage,
        "scenario": scenario.name,
        "source_dataset": row.source,
        "file": row.file,
        "line": row.line,
    }
    answer: Answer | None = await teacher.ask(prompt, meta)
    if answer is None:
        raise _Aside(Reason.UNAVAILABLE)
    if answer.finish_reason == "rejected":
        raise _Aside(Reason.REJECTED, answer.text)
    if reason := unusable(answer.text, answer.finish_reason == "stop"):
        raise _Aside(reason, answer.text)
    return answer.text
