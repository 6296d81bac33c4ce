"""Formats of known judges: published prompts byte for byte, and the outputs of each judge."""

from __future__ import annotations

import builtins
import hashlib
import io
import os
import re
from pathlib import Path

import pytest

from autoj_reward.formats.read import ParseFailure
from autoj_reward.formats.render import answered_prompt, render
from autoj_reward.formats.schema import (
    FORMATS,
    JudgeFormat,
    ScalarFormat,
    format_names,
    load_any_format,
    load_format,
    parse_comparison,
    parse_rating,
)
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models import known_models
from autoj_reward.rubric_items import RubricItem
from autoj_reward.types import CHECKLIST, SINGLE, JudgeInput, Verdict
from tests.judgements import asked

GOLDEN = Path(__file__).parents[1] / "golden"


def read_digests(name: str) -> dict[str, str]:
    """Return SHA-256 by file name, from a file in the form of sha256sum."""
    lines = (GOLDEN / name).read_text(encoding="utf-8").splitlines()
    return {file_name: digest for digest, file_name in map(str.split, lines)}


PUBLISHED = read_digests("shelf.sha256")
"""Template files as taken from the source that their format.yaml names."""
FILLED = read_digests("shelf_filled.sha256")
"""Published templates filled with the texts below, where ours leaves out what an input lacks:
the format, then `reference` for one with a reference answer and `pair` for two responses."""


@pytest.mark.parametrize("path", PUBLISHED)
def test_templates_are_the_published_bytes(path: str) -> None:
    assert hashlib.sha256((FORMATS / path).read_bytes()).hexdigest() == PUBLISHED[path]


GRADES = [f"Score {n}: d{n}" for n in range(1, 6)]
RUBRICS = {
    "prometheus2": {"rubric": "\n".join(["[Good?]", *GRADES])},
    "selene": {"rubric": "\n".join(["[Good?]", *GRADES])},
    "selene-binary": {"rubric": "[Good?]\nYes: y\nNo: n"},
    "flow-judge": {"rubric": "\n".join(f"- {grade}" for grade in GRADES), "criteria": "Good?"},
}


@pytest.mark.parametrize("case", FILLED)
def test_a_filled_template_is_the_published_text(case: str) -> None:
    name, *kind = case.split("+")
    context = RUBRICS.get(name, {}) | ({"reference": "It is so."} if "reference" in kind else {})
    responses = ("Because.", "So.") if "pair" in kind else ("Because.",)
    message = render(asked("Why?", responses, context=context), load_format(name))[-1]
    assert hashlib.sha256(message.text.encode()).hexdigest() == FILLED[case]


NAMED = {path.split("/")[0] for path in PUBLISHED} | {case.split("+")[0] for case in FILLED}


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_published_format_names_its_source(name: str) -> None:
    head = (FORMATS / name / "format.yaml").read_text(encoding="utf-8").partition("name:")[0]
    source = "".join(line.lstrip("# ") + " " for line in head.splitlines())
    assert re.search(r"[\w.-]+/[\w.-]+, [\w./{},-]+, commit [0-9a-f]{40}\b", source), source


GENERATIVE = [n for n in format_names() if isinstance(load_any_format(n), JudgeFormat)]
PAIR = JudgeInput("pairwise", "Why?", ("Because.", "So."))
RENDERED = {
    "skywork-critic": "[User Question]\nWhy?\n\n[The Start of Assistant A's Answer]\nBecause.\n"
    "[The End of Assistant A's Answer]\n\n[The Start of Assistant B's Answer]\nSo.\n"
    "[The End of Assistant B's Answer]\n",
    "self-taught-evaluator": "[User Question]\nWhy?\n\n[The Start of Assistant A's Answer]\n"
    "Because.\n[The End of Assistant A's Answer]\n\n[The Start of Assistant B's Answer]\nSo.\n"
    "[The End of Assistant B's Answer]\n",
    "compassjudger": "[Dialogue Begin]\nUser: Why?\nAssistant A: Because.\nAssistant B: So.\n"
    "[Dialogue End]\nIf you believe Assistant A performed better, please output A directly.\n",
    "rise-judge": "问题：Why?\n回答A：Because.\n回答B：So.\n\n如果你认为回答A更好",
    "con-j": '例如{"原因": "你的解释", "更好的回答": 1}。以下是问题和候选回答的内容：\n'
    "    \n问题：Why?\n回答1：Because.\n回答2：So.",
    "rm-r1": "[Client Question]\nWhy?\n\n[The Start of Chatbot A's Response]\nBecause.\n"
    "[The End of Chatbot A's Response]\n\n[The Start of Chatbot B's Response]\nSo.\n"
    "[The End of Chatbot B's Response]",
    "rm-r1-reasoning": "displayed below. \n\n[Client Question]\nWhy?\n\n"
    "[The Start of Chatbot A's Response]\nBecause.\n[The End of Chatbot A's Response]\n\n",
    "offsetbias": "# Instruction:\nWhy?\n# Output (a):\nBecause.\n# Output (b):\nSo.\n# Which is",
}


@pytest.mark.parametrize("name", RENDERED)
def test_where_the_texts_of_a_pair_stand(name: str) -> None:
    *system, user = render(PAIR, load_format(name))
    assert RENDERED[name] in user.text
    assert [m.role for m in system] == (
        ["system"] if name in ("rm-r1", "self-taught-evaluator") else []
    )


@pytest.mark.parametrize(
    ("name", "text", "verdict"),
    [
        pytest.param("skywork-critic", "[[A]]", "first", id="skywork"),
        pytest.param("skywork-critic", "[[C]]", None, id="skywork no tie"),
        pytest.param("self-taught-evaluator", "B is.\n\n[[B]]", "second", id="self-taught"),
        pytest.param(
            "self-taught-evaluator", 'My verdict is "[[A]]".', "first", id="self-taught quoted"
        ),
        pytest.param("compassjudger", "B", "second", id="compass"),
        pytest.param("compassjudger", " A\n", "first", id="compass space"),
        pytest.param("compassjudger", "A good answer", None, id="compass prose"),
        pytest.param("rise-judge", "分析。\n[[B]]", "second", id="rise"),
        pytest.param("con-j", '{"原因": "更准确", "更好的回答": 1}', "first", id="con-j"),
        pytest.param("con-j", '```json\n{"原因": "短", "更好的回答":2}\n```', "second", id="fence"),
        pytest.param("con-j", '{"原因": "1", "更好的回答": 3}', None, id="con-j other"),
        pytest.param("rm-r1", "<eval>x</eval>\n\n<answer>[[A]]</answer>", "first", id="rm-r1"),
        pytest.param("rm-r1", "<answer>[[A/B]]</answer>", None, id="rm-r1 list"),
        pytest.param("rm-r1", "<answer>[[B]]", None, id="rm-r1 not closed"),
        pytest.param("rm-r1-reasoning", "So.\n<answer>[[B]]</answer>", "second", id="reasoning"),
        pytest.param("offsetbias", "Output (b)", "second", id="offsetbias"),
        pytest.param("offsetbias", " Output (a).", "first", id="offsetbias full stop"),
        pytest.param("offsetbias", "Output (a)\n", "first", id="offsetbias line"),
        pytest.param("offsetbias", "Output (c)", None, id="offsetbias other"),
        pytest.param("offsetbias", "Output (a) is worse than Output (b)", None, id="worse"),
        pytest.param("offsetbias", "Output (a) and (b) differ", None, id="offsetbias prose"),
        pytest.param("selene", "**Reasoning:** x\n\n**Result:** B", "second", id="selene"),
        pytest.param("judgelm", "8 7\nThe first is better.", "first", id="judgelm"),
        pytest.param("judgelm", " 6.5, 7.5", "second", id="judgelm halves"),
        pytest.param("judgelm", "9 9\n", "tie", id="judgelm tie"),
        pytest.param("judgelm", "9 11\n", None, id="judgelm off the scale"),
        pytest.param("judgelm", "9 out of 10", None, id="judgelm prose"),
    ],
)
def test_what_a_judge_of_pairs_says(name: str, text: str, verdict: str | None) -> None:
    for shown_texts in ((), ("Why?", "Because.", "So.")):
        outcome = parse_comparison(text, load_format(name), shown_texts)
        parsed_verdict = None if isinstance(outcome, ParseFailure) else outcome.verdict
        assert parsed_verdict == (Verdict(verdict) if verdict else None)


@pytest.mark.parametrize(
    ("name", "text", "rating"),
    [
        pytest.param("prometheus2", "Fine. [RESULT] 4", 4, id="prometheus"),
        pytest.param("selene", "**Reasoning:** fine\n\n**Result:** 4", 4, id="selene"),
        pytest.param("selene", "**Reasoning:** fine\n\n**Result:** 6", None, id="selene off"),
        pytest.param("selene-binary", "**Reasoning:** x\n\n**Result:** Yes", 1, id="yes"),
        pytest.param("selene-binary", "**Result:** **no**", 0, id="no"),
        pytest.param("selene-binary", "**Result:** Maybe", None, id="maybe"),
        pytest.param(
            "flow-judge", "<feedback>\nx\n</feedback>\n\n<score>\n3\n</score>", 3, id="flow"
        ),
        pytest.param("flow-judge", "<score>3", None, id="flow not closed"),
        pytest.param("judgelm", "7.5\nThe second is good.", 7.5, id="judgelm"),
        pytest.param("judgelm", "A good answer: 7", None, id="judgelm prose"),
        pytest.param("equivalence", "It says 4.\n\nVerdict: correct", 1, id="equal"),
        pytest.param("equivalence", "No.\nVerdict: **incorrect**.", 0, id="not equal"),
        pytest.param("equivalence", "The verdict is correct.", 1, id="in a sentence"),
        pytest.param("equivalence", "It is correct.", None, id="no verdict"),
        pytest.param("rubric", "Good.\n\nScore: 4/5", 4, id="rubric"),
        pytest.param("rubric", "Good.\nScore: 0", None, id="rubric off"),
        pytest.param("rubric-binary", "Bad.\n**Score:** 0", 0, id="rubric 0"),
    ],
)
def test_what_a_judge_of_one_response_says(name: str, text: str, rating: float | None) -> None:
    for shown_texts in ((), ("Why?", "Because.")):
        outcome = parse_rating(text, load_format(name), shown_texts)
        assert (None if isinstance(outcome, ParseFailure) else outcome.value) == rating


@pytest.mark.parametrize("name", GENERATIVE)
def test_forcing_a_verdict_opens_its_slot(name: str) -> None:
    fmt = load_format(name)
    for slot in (protocol_slot for name in fmt.protocols for protocol_slot in fmt.slots(name)):
        text = slot.force.lstrip() if slot.comes_first else f"Well.{slot.force}"
        ends = [m.end() for m in slot.open_re.finditer(text)]
        assert slot.comes_first or (ends and text[ends[-1] :].strip('" ') == "")


@pytest.mark.parametrize("name", format_names())
def test_rendering_a_row_reads_no_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = load_any_format(name)
    protocol = SINGLE if isinstance(fmt, ScalarFormat) else next(iter(fmt.protocols))
    context = dict.fromkeys(fmt.context(protocol), "It is so.")
    texts = ("Because.",) * (1 if protocol in (SINGLE, CHECKLIST) else 2)
    rubric = (RubricItem("Is short"),) if protocol == CHECKLIST else ()
    item = JudgeInput(protocol, "Why?", texts, context=context, items=rubric)
    for module in (builtins, io, os):
        monkeypatch.setattr(module, "open", lambda *_, **__: pytest.fail("a file is opened"))
    for _ in range(2):
        if isinstance(fmt, ScalarFormat):
            answered_prompt(item.prompt.text, item.responses[0], fmt)
        else:
            render(item, fmt)


def test_deberta_reads_a_pair_as_its_tokenizer_joins_one() -> None:
    from transformers import DebertaV2Tokenizer

    pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "▁", *(chr(n) for n in range(33, 127)), "▁the"]
    tokenizer = DebertaV2Tokenizer(vocab=[(piece, -float(len(piece))) for piece in pieces])
    fmt = load_any_format("deberta-reward")
    assert isinstance(fmt, ScalarFormat)
    tokens = PromptTokenizer(tokenizer, fmt.wrapper)
    for query, response in (("the why?", "because"), (" a  b\nc ", "  the\n")):
        expected_ids = tokenizer(query, response)["input_ids"]
        assert tokens.ids(answered_prompt(query, response, fmt)) == expected_ids
    planted = tokens.ids(answered_prompt("a", "b [SEP] c", fmt))
    assert planted.count(tokenizer.sep_token_id) == 2


@pytest.mark.parametrize("name", known_models())
def test_a_model_that_is_listed_has_its_format(name: str) -> None:
    assert load_any_format(known_models()[name].format).name == known_models()[name].format
