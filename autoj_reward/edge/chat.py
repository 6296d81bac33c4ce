"""`POST /v1/chat/completions`, for programs that ask a chat model for a verdict in their own words.

What is read is the pairwise prompt of RewardBench's generative runner, which is MT-Bench's: a
question and the answers of assistants A and B. The judge compares them in its own form and both
orders, and what it says is answered in that program's form: its critique, then [[A]] or [[B]].
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence

from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel

from autoj_reward.conversation import content_text
from autoj_reward.edge.bodies import Text, Turns
from autoj_reward.types import Comparison, Contest, Usage, Verdict

MARKS = (
    "[User Question]\n",
    "\n\n[The Start of Assistant A's Answer]\n",
    "\n[The End of Assistant A's Answer]\n\n[The Start of Assistant B's Answer]\n",
    "\n[The End of Assistant B's Answer]",
)
"""What stands before, between and after the question and the two answers."""
LETTERS = {Verdict.FIRST: "[[A]]", Verdict.SECOND: "[[B]]"}
Compare = Callable[[Sequence[Contest]], Awaitable[list[Comparison]]]


class Chat(BaseModel):
    """The body. What else a caller sends, such as a temperature, is the judge's own affair: there
    is one choice, and no stream."""

    model: Text = ""
    messages: Turns


def add_route(app: FastAPI, judge: Callable[[], str], compare: Compare) -> None:
    """The route on a service. judge: its fingerprint, for the answer's `system_fingerprint`. 422
    for a conversation that ends in no such prompt."""

    @app.post(
        "/v1/chat/completions",
        response_class=Response,
        responses={200: {"content": {"application/json": {}}}},
    )
    async def complete(body: Chat) -> Response:
        """A verdict in the form of OpenAI's chat completions."""
        asked = split(content_text(body.messages[-1].model_dump()))
        if asked is None:
            raise HTTPException(
                422,
                "the last message is no pairwise prompt of RewardBench's: ask /v1/compare or "
                "/v1/score in their own form (docs/service.md)",
            )
        if isinstance(asked, str):
            return _answer(asked, Usage(), body.model, judge())
        [found] = await compare([asked])
        usage = sum((order.usage for order in found.orders), Usage())
        return _answer(told(found), usage, body.model, judge())


def split(prompt: str) -> Contest | str | None:
    """Question, answer A and answer B of a prompt; None of any other text. A text that says what is
    wrong where a mark stands in an answer, too: nobody can tell then who said what. Linear time."""
    if not (prompt.startswith(MARKS[0]) and prompt.endswith(MARKS[-1])):
        return None
    counts = [prompt.count(mark) for mark in MARKS]
    if 0 in counts:
        return None
    if counts != [1] * len(MARKS):
        return "No verdict: a mark that parts question and answers stands inside of them, too."
    question, rest = prompt.removeprefix(MARKS[0]).removesuffix(MARKS[-1]).split(MARKS[1])
    if MARKS[2] not in rest:
        return None
    first, second = rest.split(MARKS[2])
    return Contest(question, first, second)


def told(found: Comparison) -> str:
    """The critique of the first order with the one verdict that a reader can find, at its end; why
    there is none where the orders disagree, the responses tie or the judge has failed."""
    if found.verdict not in LETTERS:
        return f"No verdict: {found.verdict}. {_plain(found.reason)}".strip()
    return f"{_plain(found.orders[0].critique)}\n\n{LETTERS[found.verdict]}".strip()


def _plain(text: str) -> str:
    """A text of the judge's, which may quote a response, without marks of a verdict: RewardBench
    takes [[A]] for the verdict wherever it stands."""
    return re.sub(r"\[(?=\[)", "[ ", text)


def _answer(text: str, usage: Usage, model: str, judge: str) -> Response:
    total = usage.tokens_in + usage.tokens_out
    body = {
        "id": "chatcmpl-autoj",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": judge,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": usage.tokens_in,
            "completion_tokens": usage.tokens_out,
            "total_tokens": total,
        },
    }
    return Response(json.dumps(body), media_type="application/json")
