"""What a row becomes: a training row in the published form, or the reason why it is set aside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

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
from autoj_reward.io.checks import BadField
from autoj_reward.prompts.format import JudgeFormat
from autoj_reward.prompts.render import Prompt, render
from autoj_reward.scenarios import Scenario
from autoj_reward.types import JudgeInput


@dataclass(frozen=True, slots=True)
class Result:
    """One row's end. training: the row to train on; None if `reason` set it aside, with `answer`
    being what the teacher said last."""

    row: Preference
    training: dict[str, Any] | None = None
    reason: Reason | None = None
    answer: str = ""


Protocol = Callable[[Teacher, Preference, Scenario, JudgeFormat], Awaitable[Result]]


class _Aside(Exception):
    """The row is of no use, for this reason."""

    def __init__(self, reason: Reason, answer: str = "") -> None:
        super().__init__(reason)
        self.reason, self.answer = reason, answer


async def compare(
    teacher: Teacher, row: Preference, scenario: Scenario, fmt: JudgeFormat
) -> Result:
    """One question; kept if the teacher decides as people did (paper, section 3.3, Pairwise)."""
    try:
        if row.label is None:
            raise _Aside(Reason.NO_LABEL)
        message = _message(row.query, row.responses, fmt)
        prompt = pairwise_prompt(row.query, row.responses, scenario)
        raw = await _ask(teacher, prompt, "pairwise", row, scenario)
        found = unify_comparison(raw, fmt)
        if isinstance(found, Reason):
            raise _Aside(found, raw)
        if found.verdict is not row.label:
            raise _Aside(Reason.DISAGREES, raw)
    except _Aside as aside:
        return Result(row, None, aside.reason, aside.answer)
    label = LABELS.index(found.verdict)
    return Result(
        row,
        {
            "usrmsg": message,
            "target_output": found.text,
            "gt_label": label,
            "pred_label": label,
            "scenario": scenario.name,
            "source_dataset": row.source,
        },
    )


async def criticise(
    teacher: Teacher, row: Preference, scenario: Scenario, fmt: JudgeFormat
) -> Result:
    """Three questions: critiques with and without the criteria, then both combined and a rating
    (paper, section 3.3, Single-response)."""
    response = chosen_response(row)
    try:
        message = _message(row.query, (response,), fmt)
        prompts = [
            critique_prompt(row.query, response, scenario, with_criteria)
            for with_criteria in (True, False)
        ]
        answers = await asyncio.gather(
            _ask(teacher, prompts[0], "critique_with_criteria", row, scenario),
            _ask(teacher, prompts[1], "critique_without_criteria", row, scenario),
            return_exceptions=True,
        )
        critiques = []
        for raw in answers:
            if isinstance(raw, BaseException):
                raise raw
            critique = clean_critique(raw, fmt)
            if isinstance(critique, Reason):
                raise _Aside(critique, raw)
            critiques.append(critique)
        first, second = critiques
        prompt = merge_prompt(row.query, response, (first, second))
        raw = await _ask(teacher, prompt, "merge", row, scenario)
        found = unify_rating(raw, fmt)
        if isinstance(found, Reason):
            raise _Aside(found, raw)
    except _Aside as aside:
        return Result(row, None, aside.reason, aside.answer)
    return Result(
        row,
        {
            "usrmsg": message,
            "target_output": found.text,
            "pred_score": f"{found.rating:g}",
            "scenario": scenario.name,
            "source_dataset": row.source,
        },
    )


PROTOCOLS: dict[str, Protocol] = {"pairwise": compare, "single": criticise}


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


def _message(query: str, responses: tuple[str, ...], fmt: JudgeFormat) -> str:
    """The judge's input, if training could take it apart again."""
    item = JudgeInput(query, responses)
    text = render(item, fmt)[-1].text
    try:
        found = message_parts({"usrmsg": text}, "usrmsg", fmt, item.kind)
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
