"""Prompts rendered by chat templates, parsed back into what the user says."""

from __future__ import annotations

import unicodedata

import pytest

from autoj_reward.trainer.openrlhf import split
from autoj_reward.trainer.prompts import prompt_turns, query_text, strip_end_token, strip_prompt
from tests.growth import require_linear

SEVERAL = "User: Hi\n\nAssistant: Yes?\n\nUser: Why?"
PROMPTS = {
    "chatml": (
        "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
        "<|im_start|>assistant\n",
        "Why?",
    ),
    "chatml that thinks": (
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "Why?",
    ),
    "chatml, turns": (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        SEVERAL,
    ),
    "llama 2": (
        "<s>[INST] <<SYS>>\nYou are kind.\n<</SYS>>\n\nWhy? [/INST]",
        "Why?",
    ),
    "llama 2, turns": ("<s>[INST] Hi [/INST] Yes? </s><s>[INST] Why? [/INST]", SEVERAL),
    "llama 3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou are kind.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "Why?",
    ),
    "llama 3, turns": (
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        SEVERAL,
    ),
    "mistral": ("<s>[INST] Hi [/INST] Yes?</s>[INST] Why? [/INST]", SEVERAL),
    "mistral, system": (
        "<s>[SYSTEM_PROMPT]You are kind.[/SYSTEM_PROMPT][INST]Why?[/INST]",
        "Why?",
    ),
    "gemma": ("<bos><start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n", "Why?"),
    "plain": ("Human: Why?\nAssistant:", "Human: Why?\nAssistant:"),
    "plain with marks": ("What does </s> or [INST] mean?", "What does </s> or [INST] mean?"),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_the_query_is_the_users_words(case: str) -> None:
    prompt, query = PROMPTS[case]
    assert query_text(prompt_turns(prompt)) == query


ENDS = {
    "chatml": ("good<|im_end|>", "good"),
    "one alone": ("good</s></s>", "good</s>"),
    "inside": ("a <s>[INST] b [/INST] </s> c<|eot_id|>", "a <s>[INST] b [/INST] </s> c"),
    "none": ("cut <|im_end|> of", "cut <|im_end|> of"),
    "nothing else": ("<|im_end|>", ""),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_response_loses_its_end_of_turn_alone(case: str) -> None:
    response, stripped = ENDS[case]
    assert strip_end_token(response) == stripped
    for prompt, _ in PROMPTS.values():
        assert split(prompt + response, prompt).response.text == stripped


def test_a_prompt_that_decoding_has_changed() -> None:
    assert strip_prompt("<s>  [INST] Why? [/INST] <s> good", "<s>[INST] Why? [/INST]") == (
        "<s> good"
    )
    cut = "so long?<|im_end|>\n<|im_start|>assistant\ngood"
    prompt = "<|im_start|>user\nwhy is this so long?<|im_end|>\n<|im_start|>assistant\n"
    assert strip_prompt(cut, prompt) == "good"
    assert strip_prompt("", "Why?") == "" and strip_prompt("good", "") == "good"


NFD = unicodedata.normalize("NFD", "Où est l'été à Đà Nẵng ?")
HEAD = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "query", [NFD, "\u212b and \ufb01ne", "a\u0301\u0323 b", "\u1112\u1161\u11ab"], ids=ascii
)
def test_a_prompt_in_another_normalisation(query: str) -> None:
    """Qwen's tokenizer decodes to NFC, whatever the input's normalisation is."""
    prompt = HEAD.format(query)
    text = unicodedata.normalize("NFC", prompt)
    assert text != prompt
    assert strip_prompt(text + "e\u0301 good", prompt) == "e\u0301 good"
    assert strip_prompt(text[20:] + "good", prompt) == "good"


def test_a_text_that_does_not_open_with_its_prompt_is_unusable() -> None:
    prompt = HEAD.format("Why?")
    assert strip_prompt("something else", prompt) is None
    assert strip_prompt("\n<|im_start|>", prompt) is None  # a few characters may be chance
    assert "does not open with its prompt" in split("something else", prompt).unusable
    assert not split(prompt + "good", prompt).unusable


@pytest.mark.parametrize(
    "unit",
    ["a\u0301\u0316", "<|im_start|>", "<|im_start|>user\n", "[INST]", "[INST]<<SYS>>[/INST]", "a "],
)
def test_untrusted_text_costs_linear_time(unit: str) -> None:
    def parse_text(text: str) -> None:
        prompt_turns(text + "[/INST]")
        strip_prompt("b" + text, text)

    require_linear(parse_text, lambda size: unit * (size // len(unit)), 25_000)
