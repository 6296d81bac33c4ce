"""The shelf of judges: published wire formats byte for byte, and what each judge says read right."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest

from autoj_reward.parse import ParseFailure, parse_comparison, parse_rating
from autoj_reward.prompts.format import FORMATS, JudgeFormat, available, load_any_format, load_format
from autoj_reward.prompts.render import render
from autoj_reward.types import JudgeInput, Verdict

PUBLISHED = {
    "compassjudger/pairwise.txt": "6b8670a084897e5459f6b620a62e343dbcf255d07599d368d7cf9267bef930d0",
    "con-j/pairwise.txt": "69a3160a49e8d4c52d77c43ca50fa06a48f88a80dc1abd0a6d883a5ee7721bc1",
    "offsetbias/pairwise.txt": "f379392eda447328eafda32a87610138fb66a39981880ef15fcdac1131c40edb",
    "rise-judge/pairwise.txt": "3c6479d30ae905701929638a9740f21f00c1491b21cb1a9995798933d065577f",
    "rm-r1/pairwise.txt": "5fa3baf9813bdf0ed9b8601be6fe162ab82e37467e0843c32cfbc22792c65ac2",
    "rm-r1/pairwise_system.txt": "e0bf09a87f19837abf172278c348e8fc6ed36034f4f39b98191910533c3df3ed",
    "rm-r1-reasoning/pairwise.txt": "2a0d3caf562d59367bbbefb29c400438e0312def4fbb73fb2e70be8661ddd770",
    "self-taught-evaluator/pairwise.txt": "c518c7175aa1653b8983f1b46efd8f30f8663a373c388e71b4302dfd5caa08da",
    "self-taught-evaluator/pairwise_system.txt": "1f4ac6afd30a8bba4b8834650859303b5b60501bcf268b7589d520a118e1bbda",
    "skywork-critic/pairwise.txt": "1d8ecd80d62c7ecbba1cb8fef4212f6184bc231d6cb8a21407bbb749d26a5a56",
}
"""SHA-256 of each template file as taken from the source that its format.yaml names."""


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("path", PUBLISHED)
def test_templates_are_the_published_bytes(path: str) -> None:
    assert hashlib.sha256((FORMATS / path).read_bytes()).hexdigest() == PUBLISHED[path]


@pytest.mark.parametrize("name", sorted({path.split("/")[0] for path in PUBLISHED}))
def test_a_published_format_names_its_source(name: str) -> None:
    head = (FORMATS / name / "format.yaml").read_text(encoding="utf-8").partition("name:")[0]
    source = "".join(line.lstrip("# ") + " " for line in head.splitlines())
    assert "commit " in source and "/" in source
    assert len(source.partition("commit ")[2].split()[0].strip(".,")) == 40


PAIR = JudgeInput("Why?", ("Because.", "So."))
RENDERED = {
    "skywork-critic": "[User Question]\nWhy?\n\n[The Start of Assistant A's Answer]\nBecause.\n"
    "[The End of Assistant A's Answer]\n\n[The Start of Assistant B's Answer]\nSo.\n"
    "[The End of Assistant B's Answer]\n",
    "self-taught-evaluator": "[User Question]\nWhy?\n\n[The Start of Assistant A's Answer]\nBecause."
    "\n[The End of Assistant A's Answer]\n\n[The Start of Assistant B's Answer]\nSo.\n"
    "[The End of Assistant B's Answer]\n",
    "compassjudger": "[Dialogue Begin]\nUser: Why?\nAssistant A: Because.\nAssistant B: So.\n"
    "[Dialogue End]\nIf you believe Assistant A performed better, please output A directly.\n",
    "rise-judge": "问题：Why?\n回答A：Because.\n回答B：So.\n\n如果你认为回答A更好",
    "con-j": '例如{"原因": "你的解释", "更好的回答": 1}。以下是问题和候选回答的内容：\n    \n问题：Why?\n'
    "回答1：Because.\n回答2：So.",
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
        pytest.param("offsetbias", "Output (c)", None, id="offsetbias other"),
    ],
)
def test_what_a_judge_of_pairs_says(name: str, text: str, verdict: str | None) -> None:
    for shown in ((), ("Why?", "Because.", "So.")):
        parsed = parse_comparison(text, load_format(name), shown)
        found = None if isinstance(parsed, ParseFailure) else parsed.verdict
        assert found == (Verdict(verdict) if verdict else None)


@pytest.mark.parametrize("name", [n for n in available() if n != "scalar"])
def test_forcing_a_verdict_opens_its_slot(name: str) -> None:
    fmt = load_format(name)
    for slot in filter(None, (fmt.single, fmt.pairwise)):
        text = slot.force.lstrip() if slot.comes_first else f"Well.{slot.force}"
        found = [m.end() for m in slot.open_re.finditer(text)]
        assert slot.comes_first or found and text[found[-1] :].strip('" ') == ""


def test_rendering_ten_thousand_rows_takes_less_than_two_seconds() -> None:
    fmt: Any
    for name in available():
        fmt = load_any_format(name)
        if not isinstance(fmt, JudgeFormat):
            continue
        responses = ("Because it is so. " * 20,) * (1 if fmt.single else 2)
        item = JudgeInput("Why is that? " * 20, responses)
        started = time.process_time()
        for _ in range(1000):
            render(item, fmt)
        assert time.process_time() - started < 0.2, name
