"""Log-probabilities in either layout, and whether an endpoint continues a message."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autoj_reward.config import JudgeConfig
from autoj_reward.engine.answers import read_next_tokens, read_tokens, read_top_logprobs
from autoj_reward.engine.openai import CUT_OFF
from autoj_reward.errors import ModelError
from autoj_reward.formats.render import Message, Part
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.types import Candidate
from tests.engine.dialects import GOOD_TEXT
from tests.engine.test_distributions import AFTER_1, NEXT, list_alternatives, open_client
from tests.engine.test_openai_engine import Answer, Endpoint, chat
from tests.tokenizers import CHATML, qwen

TABLE = {"7": 0.5, "1": 0.25}
CHAT_LAYOUT = {
    "content": [{"token": "7", "logprob": -0.7, "top_logprobs": list_alternatives(TABLE)}]
}
OLD_LAYOUT = {
    "tokens": ["7"],
    "token_logprobs": [-0.7],
    "top_logprobs": [{token: math.log(p) for token, p in TABLE.items()}],
    "text_offset": [0],
}
LAYOUTS = pytest.mark.parametrize("logprobs", [CHAT_LAYOUT, OLD_LAYOUT], ids=["chat", "old"])


def answer_of(logprobs: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": "7"}, "text": "7", "logprobs": logprobs}]}


@LAYOUTS
def test_log_probabilities_are_read_in_either_layout(logprobs: Any) -> None:
    answer = answer_of(logprobs)
    top, _ = read_top_logprobs(answer, 0.0)
    assert top == pytest.approx({token: math.log(p) for token, p in TABLE.items()})
    [(text, alternatives)], _ = read_next_tokens(answer, 0.0)
    [token] = read_tokens(answer["choices"][0])
    assert (text, token.text) == (b"7", b"7")
    assert alternatives == token.alternatives()
    assert dict(alternatives)[b"1"] == pytest.approx(math.log(0.25))


def test_tokens_with_ids_are_named_as_vllm_names_ids() -> None:
    """llama.cpp's completions tell ids beside texts."""
    entries = [{"id": 3, "token": " 7", "logprob": -0.5}, {"id": 4, "token": "7", "logprob": -1.5}]
    logprobs = {"content": [entries[0] | {"top_logprobs": entries}]}
    assert read_top_logprobs(answer_of(logprobs), 0.0)[0] == {
        "token_id:3": -0.5,
        "token_id:4": -1.5,
    }


@pytest.mark.parametrize(
    "logprobs",
    [None, {}, [], "none", {"content": None}, {"content": []}, {"top_logprobs": [None]}, 3],
    ids=repr,
)
def test_an_answer_without_log_probabilities_has_none(logprobs: Any) -> None:
    answer = answer_of(logprobs)
    assert read_top_logprobs(answer, 0.0)[0] is None
    assert read_tokens(answer["choices"][0]) == ()


def test_a_probability_of_zero_is_null_in_json() -> None:
    token: dict[str, Any] = {"token": "7", "logprob": None, "top_logprobs": []}
    logprobs = {"content": [token]}
    assert read_top_logprobs(answer_of(logprobs), 0.0)[0] == {"7": -math.inf}


class Continuing(Endpoint):
    """llama.cpp's way: it continues an assistant's message whatever the parameters say, so that
    they make no difference to the number of prompt tokens. It repeats the message."""

    def __init__(self, goes_on: bool = True, counts: bool = True, strict: bool = False) -> None:
        super().__init__()
        self.goes_on, self.counts, self.strict = goes_on, counts, strict
        self.answer = self._continue

    def _continue(self, path: str, body: dict[str, Any]) -> Answer:
        last = body["messages"][-1]
        names = [
            name for name in ("continue_final_message", "add_generation_prompt") if name in body
        ]
        if self.strict and names:
            detail = [{"type": "extra_forbidden", "loc": ["body", name]} for name in names]
            return 422, {"detail": detail}, {}
        written = [("Good.\nRating: [[", {}), ("7", NEXT), ("]]", {})]
        begun = last["content"] if last["role"] == "assistant" and self.goes_on else ""
        if begun:
            table = {"[[": NEXT, "[[1": AFTER_1, "C,": {" D": 0.9}, "eph": {"ant": 0.6, ",": 0.2}}
            [next_tokens] = [t for end, t in table.items() if begun.endswith(end)]
            written = [(max(next_tokens, key=next_tokens.__getitem__), next_tokens)]
        elif last["role"] == "assistant":
            written = [(" D", {" D": 0.9}), (", E", {})]  # as a new message may begin
            if last == CUT_OFF:
                written = [("Elephant", {"Elephant": 0.7, "elephant": 0.2})]
        entries = [
            {"token": t, "logprob": -0.5, "top_logprobs": list_alternatives(table or {t: 0.9})}
            for t, table in written
        ]
        text = begun + "".join(token for token, _ in written)
        logprobs = {"content": entries} if body.get("logprobs") else None
        choice = {"message": {"content": text}, "finish_reason": "stop", "logprobs": logprobs}
        usage = {"prompt_tokens": 50, "completion_tokens": 3}
        return 200, {"choices": [choice]} | ({"usage": usage} if self.counts else {}), {}


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
async def test_whether_a_message_is_continued_is_told_by_its_text(
    goes_on: bool, strict: bool, counts: bool
) -> None:
    endpoint = Continuing(goes_on, counts, strict)
    async with open_client(endpoint) as client:
        facts = await client.contact()
        [judgement] = await client.rate([Candidate("Why?", "Because.")])
    endpoint.close()
    assert ("direct" in facts.views) == goes_on
    assert judgement.rating == 7
    assert (judgement.expected is not None) == goes_on


NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + CHATML
)


def test_a_local_template_that_refuses_a_system_message_gets_it_folded() -> None:
    tokenizer, plain = qwen(), qwen()
    tokenizer.chat_template = NO_SYSTEM
    prompt = (
        Message("system", (Part("Be fair."),)),
        Message("user", (Part("Rate: "), Part("a<|im_end|>b", trusted=False))),
    )
    folded = (Message("user", (Part("Be fair.\n\nRate: "), *prompt[1].parts[1:])),)
    ids = PromptTokenizer(tokenizer, "chat").ids(prompt)
    assert ids == PromptTokenizer(plain, "chat").ids(folded)
    tokenizer.chat_template = "{{ raise_exception('never') }}"
    with pytest.raises(ModelError, match="never"):
        PromptTokenizer(tokenizer, "chat").ids(prompt)


async def test_a_system_message_that_is_refused_is_folded_for_good(endpoint: Endpoint) -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        if any(message["role"] == "system" for message in body["messages"]):
            return 400, {"error": {"message": "System role not supported"}}, {}
        return chat(GOOD_TEXT)

    endpoint.answer = answer
    async with open_client(endpoint, format="general") as client:
        for response in ("Because.", "So."):
            [judgement] = await client.rate([Candidate("Why?", response)])
            assert judgement.rating == 7
    *_, refused, first, second = [body["messages"] for _, body, _ in endpoint.requests]
    assert [message["role"] for message in refused] == ["system", "user"]
    for [message] in (first, second):
        assert message["content"].startswith(f"{refused[0]['content']}\n\n[Question]\nWhy?")


def test_values_for_the_template_reach_it() -> None:
    tokenizer = qwen()
    tokenizer.chat_template = CHATML + "{% if enable_thinking is false %}<think></think>{% endif %}"
    prompt = (Message("user", (Part("Rate."),)),)
    on, off = (
        tokenizer.decode(PromptTokenizer(tokenizer, "chat", (), values).ids(prompt))
        for values in ({}, {"enable_thinking": False})
    )
    assert off == on + "<think></think>"


def test_a_chat_model_at_an_endpoint_gets_the_prompts_for_chat_models() -> None:
    from autoj_reward.models import format_and_wrapper

    endpoint = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}
    for model, fmt in (("gpt-5", "general"), ("GAIR/autoj-13b", "autoj-en")):
        assert format_and_wrapper(JudgeConfig(model=model, **endpoint))[0] == fmt
    named = JudgeConfig(model="gpt-5", format="listwise", **endpoint)
    assert format_and_wrapper(named)[0] == "listwise"
