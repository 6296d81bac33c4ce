"""Rating distributions from several kinds of chat endpoints, without a tokenizer."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.client.client import JudgeClient
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig
from autoj_reward.engine.alternatives import read_labels, read_written_slot
from autoj_reward.engine.answers import read_tokens
from autoj_reward.engine.base import WrittenToken
from autoj_reward.engine.endpoint import TEST_MESSAGES
from autoj_reward.errors import ConfigError, EngineUnavailable
from autoj_reward.journal import Journal
from autoj_reward.models.views import VIEWS
from autoj_reward.types import Candidate, Judgement, Outcome, Usage
from tests.engine.test_openai_engine import Answer, Endpoint
from tests.judgements import reading

WHY = Candidate("Why?", "Because.")
NEXT = {"7": 0.5, "1": 0.25, "8": 0.2}
"""What may follow `Rating: [[`, a digit a token."""
AFTER_1 = {"0": 0.4, "]]": 0.6}
AFTER: dict[str, list[tuple[str, dict[str, float]]]] = {
    "[[1": [("]]", AFTER_1)],
    "[[7": [("]]", {"]]": 0.9})],
    "[[": [("7", {})],
    'rating": 1': [("}", {"0": 0.4, "}": 0.6})],
    'rating":': [("7", {})],
    "decision is": [(" Response", {" Response": 0.6, " Tie": 0.3})],
    "C,": [(" D", {" D": 0.9})],
    "Response": [(" ", {" ": 0.9, ".": 0.1}), ("1", {"1": 0.75, "2": 0.25})],
}
"""What an endpoint that goes on with a message writes after these ends of it, a digit a token."""
TEXT = ("Good", ".\n", "Rating", ":", " [[", "7", "]]")


def list_alternatives(table: dict[str, float]) -> list[dict[str, Any]]:
    return [{"token": t, "logprob": math.log(p)} for t, p in table.items()]


class Dialect(Endpoint):
    """Chat endpoint with configurable capabilities."""

    def __init__(
        self,
        goes_on: bool = False,
        most: int | None = 20,
        silent: bool = False,
        written: tuple[str, ...] = TEXT,
    ) -> None:
        """Start the endpoint.

        goes_on: whether it continues an assistant's message. most: maximum log-probabilities that
        it accepts; None: it refuses them. silent: whether it accepts the parameter but returns
        none. written: the tokens of its critiques, with 7 in place of the rating.
        """
        super().__init__()
        self.goes_on, self.most, self.silent, self.written = goes_on, most, silent, written
        self.answer = self.answered

    def ratings(self, body: dict[str, Any]) -> dict[str, float]:
        """Return the probabilities after `Rating: [[`; the likeliest is written."""
        return NEXT

    def answered(self, path: str, body: dict[str, Any]) -> Answer:
        assert path == "/v1/chat/completions"
        top = body.get("top_logprobs")
        if top is not None and self.most is None:
            words = "You are not allowed to request logprobs from this model"
            return 400, {"error": {"message": words, "param": "logprobs"}}, {}
        if top is not None and top > (self.most or 0):
            return 400, {"error": {"message": f"top_logprobs must be at most {self.most}"}}, {}
        last = body["messages"][-1]
        begun = self.goes_on and body.get("continue_final_message")
        written = [(t, {t: 0.9}) for t in self.written]
        if begun:
            [written, *_] = [
                pieces for end, pieces in AFTER.items() if last["content"].endswith(end)
            ]
            written = written[: body["max_tokens"]]
        table = self.ratings(body)
        rating = max(table, key=lambda digit: table[digit])
        written = [(rating, table) if t == "7" else (t, probs) for t, probs in written]
        tokens = [token for token, _ in written]
        entries = [
            {
                "token": token,
                "logprob": -0.5,
                "bytes": list(token.encode()),
                "top_logprobs": list_alternatives(table),
            }
            for token, table in written
        ]
        size = sum(len(m["content"].split()) for m in body["messages"]) + (0 if begun else 4)
        choice = {
            "message": {"content": "".join(tokens)},
            "finish_reason": "stop",
            "logprobs": {"content": entries} if top and not self.silent else None,
        }
        usage = {"prompt_tokens": size, "completion_tokens": len(tokens)}
        return 200, {"choices": [choice], "usage": usage}, {}


@asynccontextmanager
async def open_client(
    endpoint: Endpoint, journal: Path | None = None, **more: Any
) -> AsyncIterator[JudgeClient]:
    store = Journal(journal) if journal else None
    settings = {"kind": "openai", "model": "served", "base_url": endpoint.url, "start_s": 60}
    settings |= {"format": "autoj-en"} | more
    config = JudgeConfig.model_validate(settings)
    async with open_judge(config, journal=store) as client:
        yield client
    if store:
        store.close()


async def rate_once(endpoint: Endpoint, **more: Any) -> Judgement:
    async with open_client(endpoint, **more) as client:
        [judgement] = await client.rate([WHY])
    return judgement


async def test_a_second_request_reads_the_slot_where_the_endpoint_goes_on(
    speaking: Callable[..., Dialect],
) -> None:
    """P(10) = P("1") P("0" | "1"); what is left of P("1") is P(1)."""
    endpoint = speaking(goes_on=True)
    async with open_client(endpoint) as client:
        assert (await client.contact()).views == VIEWS
        [judgement] = await client.rate([WHY], view="direct")
    assert judgement.rating is not None and judgement.view("rating") == 7
    table = dict(reading(judgement).distribution or ())
    assert table["10"] == pytest.approx(0.25 * 0.4) and table["1"] == pytest.approx(0.25 * 0.6)
    assert table["7"] == pytest.approx(0.5) and reading(judgement).unknown == 0
    assert reading(judgement).outside == pytest.approx(0.05)
    mean = (7 * 0.5 + 8 * 0.2 + 0.15 + 10 * 0.1) / 0.95
    assert judgement.view("expected") == pytest.approx(mean)
    assert judgement.view("direct") == pytest.approx(mean)
    openings = [
        body["messages"][-1]["content"]
        for _, body, _ in endpoint.requests
        if body.get("continue_final_message") and body["messages"][0]["content"] != "Say OK."
    ]
    assert {"Good.\nRating: [[", "Good.\nRating: [[1", "Rating: [["} <= set(openings)
    assert all("logprobs" in b for _, b, _ in endpoint.requests if b["max_tokens"] == 1)


@pytest.mark.parametrize(
    ("written", "settings", "count"),
    [
        pytest.param(TEXT, {}, 3, id="written"),
        pytest.param(TEXT, {"direct": True}, 6, id="written and direct"),
        pytest.param(("No verdict.",), {}, 4, id="forced"),
        pytest.param(("No verdict.",), {"direct": True}, 7, id="forced and direct"),
        pytest.param(("",), {"direct": True}, 4, id="nothing written, and direct"),
        pytest.param(TEXT, {"critique": False}, 3, id="direct alone"),
    ],
)
async def test_no_request_is_sent_twice_within_a_judgement(
    speaking: Callable[..., Dialect],
    written: tuple[str, ...],
    settings: dict[str, Any],
    count: int,
) -> None:
    endpoint = speaking(goes_on=True, written=written)
    async with open_client(endpoint, format="autoj-en", **settings) as client:
        await client.contact()
        contact_count = len(endpoint.requests)
        [judgement] = await client.rate([WHY])
    assert judgement.ok and judgement.expected is not None
    requests = [json.dumps(body) for _, body, _ in endpoint.requests[contact_count:]]
    assert len(set(requests)) == len(requests) == count


async def test_equal_rows_of_an_endpoint_are_judged_once(
    speaking: Callable[..., Dialect],
) -> None:
    """Also where they come together, before the first contact."""
    endpoint = speaking(most=None)
    async with asyncio.timeout(60), open_client(endpoint) as client:
        [first], [second] = await asyncio.gather(client.rate([WHY]), client.rate([WHY]))
    assert first == second and first.rating == 7
    critiques = [b for _, b, _ in endpoint.requests if b["messages"] != TEST_MESSAGES]
    assert len(critiques) == 1


async def test_what_a_judge_quotes_is_no_control_token_at_the_slot(
    speaking: Callable[..., Dialect],
) -> None:
    written = ("It says <|im_end|>", ".\nRating: [[", "7", "]]")
    endpoint = speaking(goes_on=True, written=written)
    await rate_once(endpoint)
    begun = [b["messages"][-1]["content"] for _, b, _ in endpoint.requests[-2:]]
    assert all("<\u200b|im_end|>" in content for content in begun)


async def test_a_forced_slot_is_read_where_the_endpoint_goes_on(
    speaking: Callable[..., Dialect],
) -> None:
    judgement = await rate_once(speaking(goes_on=True, written=("No verdict.",)))
    assert (judgement.view("rating"), judgement.forced) == (7, True)


async def test_white_space_within_a_label_is_written_by_the_judge(
    speaking: Callable[..., Dialect],
) -> None:
    """Chat templates strip white space at the end of a message, so what follows it cannot be
    requested."""
    endpoint = speaking(goes_on=True, written=("No verdict.",))
    async with open_client(endpoint) as client:
        [comparison] = await client.compare([("Why?", "Because.", "So.")], swap=False)
    [order] = comparison.orders
    assert order.forced and dict(order.confidence or ()) == pytest.approx(
        {"first": 0.6 * 0.9 * 0.75, "second": 0.6 * 0.9 * 0.25, "tie": 0.3}
    )


async def test_alternatives_of_the_written_tokens_are_asked_for_where_they_count(
    speaking: Callable[..., Dialect],
) -> None:
    """P("1") belongs to 1 or to 10; without more information it is unknown, not guessed."""
    endpoint = speaking()
    without = await rate_once(endpoint)
    assert (without.view("rating"), without.view("expected")) == (7, None)
    assert "logprobs" not in endpoint.requests[-1][1]
    judgement = await rate_once(endpoint, distribution=True)
    assert judgement.rating is not None and reading(judgement).unknown == pytest.approx(0.25)
    table = dict(reading(judgement).distribution or ())
    assert (table["1"], table["10"]) == (0, 0) and table["8"] == pytest.approx(0.2)
    assert judgement.view("expected") == pytest.approx((7 * 0.5 + 8 * 0.2) / 0.7)
    assert reading(judgement).outside == pytest.approx(0.3)


JSON_TEXT = ('{"', "critique", '":', ' "', "Good", '.",', ' "', "final", "_rating", '":', " ", "7")


@pytest.mark.parametrize("goes_on", [False, True])
async def test_the_number_in_a_field_of_json_has_its_distribution(
    speaking: Callable[..., Dialect], goes_on: bool
) -> None:
    endpoint = speaking(goes_on=goes_on, written=(*JSON_TEXT, "}"))
    judgement = await rate_once(endpoint, format="json", distribution=True)
    assert judgement.rating == 7
    table = dict(reading(judgement).distribution or ())
    assert (table["7"], table["8"]) == pytest.approx((0.5, 0.2))
    schemas = ["response_format" in body for _, body, _ in endpoint.requests]
    begun = [bool(body.get("continue_final_message")) for _, body, _ in endpoint.requests]
    # A request for the token after a begun text has no schema, which would ask for a new object.
    assert schemas[0] and not any(s and b for s, b in zip(schemas, begun, strict=True))
    kind = next(body for _, body, _ in endpoint.requests if "response_format" in body)
    assert kind["response_format"]["json_schema"]["strict"] is True


async def test_an_endpoint_without_schemas_is_read_all_the_same(
    speaking: Callable[..., Dialect],
) -> None:
    endpoint = speaking(written=(*JSON_TEXT, "}", "\n", "I hope that helps."))
    answer = endpoint.answer

    def refuse(path: str, body: dict[str, Any]) -> Answer:
        if "response_format" in body:
            return 400, {"error": {"message": "response_format is not supported"}}, {}
        return answer(path, body)

    endpoint.answer = refuse
    judgement = await rate_once(endpoint, format="json")
    assert judgement.rating == 7
    assert ["response_format" in body for _, body, _ in endpoint.requests].count(True) == 1


async def test_an_endpoint_that_takes_fewer_alternatives_is_asked_for_fewer(
    speaking: Callable[..., Dialect],
) -> None:
    endpoint = speaking(most=5)
    judgement = await rate_once(endpoint, distribution=True)
    assert judgement.view("expected") is not None
    assert endpoint.requests[-1][1]["top_logprobs"] == 5


@pytest.mark.parametrize("kind", [{"most": None}, {"silent": True}], ids=["refuses", "null"])
async def test_an_endpoint_without_log_probabilities_rates_and_refuses_other_views(
    speaking: Callable[..., Dialect], kind: dict[str, Any]
) -> None:
    endpoint = speaking(**kind)
    async with open_client(endpoint, distribution=True) as client:
        assert (await client.contact()).views == {"rating"}
        [judgement] = await client.rate([WHY], view="rating")
    assert (judgement.view("rating"), judgement.view("expected")) == (7, None)
    assert "logprobs" not in endpoint.requests[-1][1]


async def test_probabilities_that_stay_away_at_the_first_answer_end_the_run(
    speaking: Callable[..., Dialect],
) -> None:
    endpoint = speaking()
    async with open_client(endpoint, distribution=True) as client:
        assert "expected" in (await client.contact()).views
        endpoint.silent = True
        with pytest.raises(ConfigError, match=r"set view .* to rating"):
            await client.rate([WHY], view="expected")
        endpoint.silent = False
        [judgement] = await client.rate([WHY], view="expected")
        assert judgement.ok
        endpoint.silent = True
        [lost] = await client.rate([Candidate("Why?", "So.")], view="expected")
    assert (lost.outcome, lost.view("rating")) == (Outcome.NO_NUMBER, None)


async def test_alternatives_count_at_the_verdict_alone_once_an_endpoint_has_told_them(
    speaking: Callable[..., Dialect],
) -> None:
    endpoint, spoiled = speaking(), list[str]()

    def spoil_answer(path: str, body: dict[str, Any]) -> Answer:
        status, answer, headers = endpoint.answered(path, body)
        for entry in answer["choices"][0]["logprobs"]["content"]:
            if entry["token"] in spoiled:
                entry["top_logprobs"][0]["logprob"] = 0.5
        return status, answer, headers

    endpoint.answer = spoil_answer
    async with open_client(endpoint, distribution=True) as client:
        [before] = await client.rate([WHY])
        spoiled.append("Good")
        [judgement] = await client.rate([Candidate("Why?", "So.")])
        assert judgement.rating == before.rating
        spoiled.append("7")
        [lost] = await client.rate([Candidate("Why?", "It is.")])
    assert lost.outcome == Outcome.UNAVAILABLE and "0.5 is no log-probability" in lost.reason
    spoiled[:] = ["Good"]
    async with open_client(endpoint, distribution=True, start_s=0.2) as client:
        with pytest.raises(EngineUnavailable, match="no completion"):
            await client.rate([WHY])


async def test_what_an_endpoint_can_is_found_out_once_and_kept(
    speaking: Callable[..., Dialect], tmp_path: Path
) -> None:
    endpoint, journal = speaking(goes_on=True), tmp_path / "j.sqlite"
    async with open_client(endpoint, journal) as client:
        await client.rate([WHY])
        assert client.facts.distributions == "requests of a token or two at the slot"
    first = len(endpoint.requests)
    async with open_client(endpoint, journal) as client:  # all is on record: nobody is asked
        await client.rate([WHY])
    assert len(endpoint.requests) == first
    async with open_client(endpoint, journal) as client:
        await client.rate([Candidate("Why?", "So.")])
    again = [body for _, body, _ in endpoint.requests[first:]]
    assert sum(body["messages"][0]["content"] == "Say OK." for body in again) == 1


async def test_a_judgement_on_record_without_the_number_is_asked_for_again(
    speaking: Callable[..., Dialect], tmp_path: Path
) -> None:
    endpoint, journal = speaking(), tmp_path / "j.sqlite"
    async with open_client(endpoint, journal) as client:
        [before] = await client.rate([WHY])
    assert before.view("expected") is None
    async with open_client(endpoint, journal, distribution=True) as client:
        [judgement] = await client.rate([WHY], view="expected")
    assert judgement.view("expected") is not None
    request_count = len(endpoint.requests)
    async with open_client(endpoint, journal, distribution=True) as client:
        assert await client.rate([WHY], view="expected") == [judgement]
    assert len(endpoint.requests) == request_count


async def test_an_endpoint_that_is_down_for_a_while_costs_nothing(
    speaking: Callable[..., Dialect], tmp_path: Path
) -> None:
    endpoint = speaking(goes_on=True)
    back, first_refusal = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def refuse_until_back(path: str, body: dict[str, Any]) -> Answer:
        loop.call_soon_threadsafe(first_refusal.set)
        return (503, "down", {}) if not back.is_set() else endpoint.answered(path, body)

    async with open_client(endpoint, tmp_path / "j.sqlite") as client:
        await client.contact()
        endpoint.answer = refuse_until_back
        candidates = [Candidate("Why?", f"Because {n}.") for n in range(20)]
        rating = asyncio.create_task(client.rate(candidates))
        await first_refusal.wait()
        assert not rating.done()
        back.set()
        judgements = await rating
    assert all(judgement.ok for judgement in judgements)


async def test_a_wrong_port_is_an_error_at_once(speaking: Callable[..., Dialect]) -> None:
    closed = Endpoint()
    closed.close()
    checked = JudgeConfig(kind="openai", model="m", base_url=closed.url, start_s=0.2)
    async with open_judge(checked) as client:
        with pytest.raises(EngineUnavailable, match=r"within 0.2 s.*correct base_url"):
            await client.rate([WHY])


LABELS = tuple(str(n) for n in range(1, 11))


def write_tokens(*pieces: str | tuple[str, dict[str, float]]) -> tuple[WrittenToken, ...]:
    """Return written tokens as read from an answer; a plain text is its own only alternative."""
    tables = [piece if isinstance(piece, tuple) else (piece, {piece: 0.9}) for piece in pieces]
    content = [{"token": text, "top_logprobs": list_alternatives(table)} for text, table in tables]
    return read_tokens({"logprobs": {"content": content}})


@pytest.mark.parametrize(
    ("written", "probs", "unknown"),
    [
        pytest.param(("[[", ("7", {"7": 0.6, "10": 0.3, "1": 0.1})), (0.1, 0.6, 0.3), 0, id="10"),
        pytest.param(
            ("[[", ("1", {"7": 0.2, "1": 0.8}), ("]]", {"]]": 0.75, "0": 0.25})),
            (0.6, 0.2, 0.2), 0, id="1 was written",
        ),
        pytest.param(
            ("[[", ("1", {"7": 0.2, "1": 0.8}), ("0", {"]]": 0.75, "0": 0.25})),
            (0.6, 0.2, 0.2), 0, id="10 was written in two tokens",
        ),
        pytest.param(
            ("[[", ("1", {"7": 0.2, "1": 0.8}), ("]]", {"]]": 0.5, "0": 0.25, "2": 0.25})),
            (0.6, 0.2, 0.2), 0, id="12 is no label",
        ),
        pytest.param((("[[7", {"[[7": 0.6, "[[8": 0.2, "[[": 0.1}),), (0, 0.6, 0), 0.1, id="head"),
        pytest.param(
            ("[[", ("7]]", {"7]]": 0.6, "1]]": 0.2, "75": 0.1})), (0.2, 0.6, 0), 0, id="tail"
        ),
        pytest.param(("[[", (" 7", {" 7": 0.6, "7": 0.2, " ": 0.1})), (0, 0.8, 0), 0.1, id="space"),
    ],
)  # fmt: skip
async def test_labels_in_the_tokens_of_any_tokenizer(
    written: Any, probs: tuple[float, ...], unknown: float
) -> None:
    """Check the probabilities of 1, 7 and 10."""
    written_tokens = write_tokens("Rating", ": ", *written, "." if written[-1][0] == "0" else "]]")
    text = b"".join(token.text for token in written_tokens).decode().strip()
    at = len(text[: text.index("[[") + 2])
    at += len(text[at:]) - len(text[at:].lstrip())
    label_probs = await read_labels(LABELS, read_written_slot(written_tokens, text, at))
    assert label_probs is not None
    table = dict(label_probs.probs)
    assert [table[n] for n in ("1", "7", "10")] == pytest.approx(list(probs))
    assert label_probs.unknown == pytest.approx(unknown)


@pytest.mark.parametrize(
    ("first", "next_digit", "probs"),
    [
        pytest.param({"7": 0.8, "1": 0.2}, {"]]": 0.75, ".": 0.25}, (0.6, 0.08), id="digits"),
        pytest.param({"7": 0.8, "10": 0.1}, {"]]": 0.75, ".": 0.25}, (0.6, 0.08), id="10 is one"),
        pytest.param({"7": 0.8}, {"]]": 0.6, ".": 0.25, "3": 0.15}, (0.6, 0.08), id="73"),
    ],
)
async def test_a_half_point_is_told_apart_from_the_number_that_it_begins_like(
    first: dict[str, float], next_digit: dict[str, float], probs: tuple[float, float]
) -> None:
    """P(7.5) = P("7") P("." | "7") P("5" | "7."), and P(7) is P("7") without "7."."""
    written_tokens = write_tokens(
        "[[", ("7", first), (".", next_digit), ("5", {"5": 0.4, "]]": 0.3}), "]]"
    )
    label_probs = await read_labels(
        (*LABELS, "7.5"), read_written_slot(written_tokens, "[[7.5]]", 2)
    )
    assert label_probs is not None
    table = dict(label_probs.probs)
    assert (table["7"], table["7.5"]) == pytest.approx(probs)
    assert table["10"] == pytest.approx(first.get("10", 0))
    assert label_probs.unknown == pytest.approx(first.get("1", 0))


async def test_white_space_of_its_own_before_a_label_is_read_past() -> None:
    """Tokenizers that split digits make a separate token of the space before one."""
    tables = {
        "": {" ": 0.8, "7": 0.1, "\n": 0.00005},
        " ": {"7": 0.5, "1": 0.4, " ": 0.1},
        "1": {"0": 0.25, ".": 0.75},
    }

    async def read_next(text: str) -> tuple[Any, Usage]:
        table = tables[text]
        return tuple((token.encode(), math.log(p)) for token, p in table.items()), Usage()

    label_probs = await read_labels(LABELS, read_next)
    assert label_probs is not None
    table = dict(label_probs.probs)
    assert [table[n] for n in ("1", "7", "10")] == pytest.approx([0.24, 0.5, 0.08])
    assert label_probs.unknown == pytest.approx(0.08 + 0.00005)


async def test_a_token_without_text_ends_no_reading() -> None:
    """Endpoints represent the end of a text by such a token."""
    written_tokens = write_tokens(
        "[[", ("1", {"1": 0.8}), ("0", {"": 0.5, "0": 0.25, "]]": 0.25}), "]]"
    )
    label_probs = await read_labels(LABELS, read_written_slot(written_tokens, "[[10]]", 2))
    assert label_probs is not None
    table = dict(label_probs.probs)
    assert (table["1"], table["10"]) == pytest.approx((0.6, 0.2))


async def test_tokens_that_say_something_else_than_the_text_tell_nothing() -> None:
    written_tokens = write_tokens("Rating: [[", "7", "]]")
    assert await read_labels(LABELS, read_written_slot(written_tokens, "Rated [[7]]", 8)) is None
