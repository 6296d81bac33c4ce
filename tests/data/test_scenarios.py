from __future__ import annotations

from typing import Any

import pytest

from autoj_reward.data.scenarios import GenerativeClassifier, cut_query, read_scenario
from autoj_reward.engine.base import Generation, Prepared, Sampling
from autoj_reward.errors import InputRejected
from autoj_reward.formats.criteria import load_scenarios
from autoj_reward.formats.render import RenderedPrompt

KNOWN = load_scenarios()


class Says:
    """An engine with one answer."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.prompts: list[str] = []

    async def prepare(self, prompt: RenderedPrompt, max_tokens: int, over_long: str) -> Prepared:
        assert (max_tokens, over_long) == (30, "reject")
        if "too long" in prompt[0].text:
            raise InputRejected("too long")
        return Prepared(prompt)

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
        assert sampling == Sampling(30)
        self.prompts.append(prepared.prompt[0].text)
        return [Generation(self.text)]


async def test_a_model_is_asked_with_the_published_prompt(smollm2: Any) -> None:
    engine: Any = Says("code_generation\nand more")
    classifier = GenerativeClassifier(engine, smollm2, KNOWN)
    assert await classifier.classify(["Sort {input}.", "too long"]) == ["code_generation", None]
    assert engine.prompts == [
        "Identify the scenario for the user's query, output 'default' if you are uncertain.\n"
        "Query:\nSort {input}.\nScenario:\n"
    ]


@pytest.mark.parametrize(
    ("text", "scenario"),
    [
        ("default", "others"),
        (" value_judgement\n", "value_judgment"),
        ("Others", "others"),
        ("'planning'", "planning"),
        ("I think planning", None),
        ("", None),
    ],
)
def test_answers_of_the_model(text: str, scenario: str | None) -> None:
    assert read_scenario(text, KNOWN) == scenario


def test_long_queries_keep_999_and_1000_tokens(smollm2: Any) -> None:
    def spell_tokens(n: int) -> str:
        return " ".join(["a"] * n)

    assert cut_query(spell_tokens(1998), smollm2) == spell_tokens(1998)
    short_query = cut_query(spell_tokens(1999), smollm2)
    head, tail = short_query.split("...")
    assert (len(head.split()), len(tail.split())) == (999, 1000)
    assert cut_query("</s> <|im_end|>", smollm2) == "</s> <|im_end|>"
