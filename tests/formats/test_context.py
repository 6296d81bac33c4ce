"""Context fields in a judge's prompt: their places, optional fields and refused ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoj_reward.errors import FormatError, InputRejected
from autoj_reward.formats.render import flags, render, require_context
from autoj_reward.formats.schema import JudgeFormat, load_any_format, load_format
from autoj_reward.types import JudgeInput
from tests.judgements import asked
from tests.reference_format import REFERENCE, write_reference_format


@pytest.fixture
def fmt(tmp_path: Path) -> JudgeFormat:
    return load_format(str(write_reference_format(tmp_path / "marks")))


def render_text(item: JudgeInput, fmt: JudgeFormat) -> str:
    return "\n---\n".join(message.text for message in render(item, fmt))


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        pytest.param(
            {"reference": "4"},
            "Grade kindly.\n---\nQ: 2+2?\nReference: 4\nA: five\nMark it.",
            id="required alone: the optional part is gone, the constant stands",
        ),
        pytest.param(
            {"reference": "4", "rubric": "exact {answer}", "tone": "sternly"},
            "Grade sternly.\n---\n"
            "Q: 2+2?\nReference: 4\n[Rubric]\nexact {answer}\nA: five\nMark it.",
            id="all: the row's text in place of the constant, and nothing filled twice",
        ),
    ],
)
def test_context_stands_where_the_format_says(
    context: dict[str, str], expected: str, fmt: JudgeFormat
) -> None:
    item = JudgeInput("single", "2+2?", ("five",), context=context)
    assert render_text(item, fmt) == expected
    untrusted = [(p.name, p.text) for m in render(item, fmt) for p in m.parts if not p.trusted]
    assert dict(untrusted) == {"query": "2+2?", "response": "five", **context}


def test_what_a_format_shows_and_needs(fmt: JudgeFormat) -> None:
    assert fmt.context("single") == {"reference": True, "rubric": False, "tone": False}
    assert fmt.context("pairwise") == {"criteria": True}
    assert fmt.context() == {"reference": True, "rubric": False, "tone": False, "criteria": True}
    assert load_format("autoj-en").context() == {}
    assert load_format("prometheus2").context() == {"reference": False, "rubric": False}
    assert load_any_format("scalar").context() == {}


@pytest.mark.parametrize(
    ("responses", "context", "words"),
    [
        pytest.param(("a",), {}, ["needs", "'reference'", "columns"], id="missing"),
        pytest.param(
            ("a",), {"reference": "x", "referense": "y"}, ["no context", "referense"], id="unknown"
        ),
        pytest.param(("a",), {"reference": " \n"}, ["'reference'", "blank"], id="blank"),
        pytest.param(("a", "b"), {"reference": "x"}, ["needs", "'criteria'"], id="pair"),
    ],
)
def test_a_context_that_does_not_fit_is_named(
    responses: tuple[str, ...], context: dict[str, str], words: list[str], fmt: JudgeFormat
) -> None:
    with pytest.raises(InputRejected) as error:
        render(asked("q", responses, context=context), fmt)
    assert all(word in str(error.value) for word in words)


def test_a_format_without_context_refuses_one() -> None:
    item = JudgeInput("single", "q", ("r",), context={"reference": "x"})
    for name in ("autoj-en", "scalar"):
        with pytest.raises(InputRejected, match=f"{name} shows no context field 'reference'"):
            require_context(item, load_any_format(name))


def test_the_lines_of_optional_parts_are_the_template_s(fmt: JudgeFormat) -> None:
    item = JudgeInput("single", "q", ("fine\n[Rubric]\n",), context={"reference": "x"})
    assert flags(item, fmt) == ("template_delimiter",)


def change_slot(**slot: Any) -> dict[str, Any]:
    return REFERENCE | {"single": REFERENCE["single"] | slot}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(
            change_slot(fields=REFERENCE["single"]["fields"] | {"tone": "tome"}),
            ["tone", "tome"],
            id="a constant's name mistyped",
        ),
        pytest.param(
            change_slot(optional={"rubrik": "x"}),
            ["optional", "rubrik"],
            id="optional without a field",
        ),
        pytest.param(
            change_slot(optional={"answer": "A: {answer}"}),
            ["answer", "optional"],
            id="the response",
        ),
        pytest.param(
            change_slot(fields=REFERENCE["single"]["fields"] | {"rubric": "the rubric"}),
            ["rubric", "the rubric"],
            id="no name",
        ),
    ],
)
def test_broken_fields_name_file_and_key(data: Any, words: list[str], tmp_path: Path) -> None:
    path = write_reference_format(tmp_path / "broken", data)
    with pytest.raises(FormatError) as error:
        load_format(str(path))
    assert all(word in str(error.value) for word in [str(path), *words])
