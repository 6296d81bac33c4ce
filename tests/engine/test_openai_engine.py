from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.config import JudgeConfig
from autoj_reward.engine.base import Sampling
from autoj_reward.engine.endpoint import TEST_MESSAGES
from autoj_reward.engine.openai import OpenAIEngine
from autoj_reward.errors import ConfigError, EngineUnavailable, InputRejected
from autoj_reward.formats.render import Message, Part
from autoj_reward.formats.schema import load_format
from autoj_reward.judge.generative import GenerativeJudge
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.types import JudgeInput, Outcome, Usage, Verdict
from tests.judgements import reading
from tests.processes import wait_until
from tests.tokenizers import qwen

Answer = tuple[int, Any, dict[str, str]]
"""Status, body (text or something for JSON) and headers."""
KEY = "sk-very-secret-1234567890"
SAMPLING = Sampling(16, 0.5, 0.9, seed=3)
ITEM = JudgeInput("single", "q", ("r",))


class Endpoint:
    """Server on 127.0.0.1 that gives scripted answers and records its requests."""

    greets = False
    """Whether it answers a client's first request by itself, without recording it."""

    def __init__(self) -> None:
        self.answer: Callable[[str, dict[str, Any]], Answer] = lambda path, body: chat("hello")
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.models: Callable[[], Answer] = lambda: (404, "", {})
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                body = json.loads(self.rfile.read(size))
                if endpoint.greets and body.get("messages") == TEST_MESSAGES:
                    status, answer, headers = chat("OK")
                else:
                    endpoint.requests.append((self.path, body, dict(self.headers.items())))
                    status, answer, headers = endpoint.answer(self.path, body)
                self.reply(status, answer, headers)

            def do_GET(self) -> None:
                self.reply(*endpoint.models())

            def reply(self, status: int, answer: Any, headers: dict[str, str]) -> None:
                data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # a connection more than wait there is tried again in a second

        self._server_kind, self._handler = Server, Handler
        self.listen(0)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def listen(self, port: int) -> None:
        """Serve on a port; 0 means any free one."""
        self.server = self._server_kind(("127.0.0.1", port), self._handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Stop the server: later requests are refused."""
        self.server.shutdown()
        self.server.server_close()

    def script(self, *answers: Answer) -> None:
        """Give these answers in turn, repeating the last one."""
        remaining = list(answers)
        self.answer = lambda path, body: remaining.pop(0) if len(remaining) > 1 else remaining[0]


def chat(*texts: str, **extra: Any) -> Answer:
    choices = [{"message": {"content": t}, "finish_reason": "stop"} for t in texts]
    return 200, {"choices": choices} | extra, {}


def completion(text: str, top: dict[str, float] | None = None) -> Answer:
    logprobs = None if top is None else {"top_logprobs": [top]}
    return 200, {"choices": [{"text": text, "finish_reason": "stop", "logprobs": logprobs}]}, {}


def config(endpoint: Endpoint, **more: Any) -> JudgeConfig:
    return JudgeConfig(kind="openai", model="served", base_url=endpoint.url, **more)


def make_engine(judge_config: JudgeConfig, *marks: str) -> OpenAIEngine:
    return OpenAIEngine(
        judge_config,
        "chat",
        marks,
        at_once=256,
        deadline_s=judge_config.serve.deadline_s,
        first_pause_s=0.01,
    )


@asynccontextmanager
async def start_engine(judge_config: JudgeConfig) -> AsyncIterator[OpenAIEngine]:
    engine = make_engine(judge_config)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def prompt(text: str) -> tuple[Message, ...]:
    parts = (Part("Rate <s>: "), Part(text, trusted=False, response=True))
    return (Message("system", (Part("Be fair."),)), Message("user", parts))


async def ask(engine: OpenAIEngine, text: str = "hi", sampling: Sampling = SAMPLING) -> list[Any]:
    return list(await engine.generate(await engine.prepare(prompt(text), 16, "truncate"), sampling))


async def test_chat_sends_messages_and_reads_the_answer(endpoint: Endpoint) -> None:
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    endpoint.script(chat("one", "two", usage=usage))
    async with start_engine(config(endpoint)) as engine:
        first, second = await ask(engine)
    assert (first.text, second.text, first.finished) == ("one", "two", True)
    tokens = first.usage.tokens_in, first.usage.tokens_cached, first.usage.tokens_out
    assert tokens == (10, 2, 4)
    [(path, body, headers)] = endpoint.requests
    assert path == "/v1/chat/completions"
    assert body.pop("messages") == [
        {"role": "system", "content": "Be fair."},
        {"role": "user", "content": "Rate <s>: hi"},
    ]
    assert body == {
        "model": "served", "max_tokens": 16, "temperature": 0.5, "top_p": 0.9, "seed": 3,
    }  # fmt: skip
    assert "Authorization" not in headers


async def test_a_frequency_penalty_is_sent_where_there_is_one(endpoint: Endpoint) -> None:
    async with start_engine(config(endpoint)) as engine:
        await ask(engine, sampling=replace(SAMPLING, frequency_penalty=0.5))
    [(_, body, _)] = endpoint.requests
    assert body["frequency_penalty"] == 0.5


@pytest.mark.parametrize(
    ("text", "sent_text"),
    [
        ("a</s>b", "a<\u200b/s>b"),
        ("<|im_end|>", "<\u200b|im_end|>"),
        ("[/INST] x", "[\u200b/INST] x"),
        ("plain < text", "plain < text"),
    ],
)
async def test_chat_breaks_up_control_tokens_in_untrusted_text_only(
    endpoint: Endpoint, text: str, sent_text: str
) -> None:
    async with start_engine(config(endpoint)) as engine:
        await ask(engine, text)
    assert endpoint.requests[0][1]["messages"][1]["content"] == "Rate <s>: " + sent_text


async def test_an_answer_cut_by_the_limit_is_unfinished(endpoint: Endpoint) -> None:
    endpoint.script(
        (200, {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}, {})
    )
    async with start_engine(config(endpoint)) as engine:
        [generation] = await ask(engine)
    assert (generation.text, generation.finished) == ("", False)
    assert generation.usage.latency_s >= 0 and generation.usage.tokens_in == 0


async def test_an_endpoint_that_was_not_asked_what_it_can_tells_no_distribution(
    endpoint: Endpoint,
) -> None:
    endpoint.script(chat("Good.\nRating: [[7]]"))
    judge_config = config(endpoint)
    async with start_engine(judge_config) as engine:
        judge = GenerativeJudge(judge_config, load_format("autoj-en"), engine, "j")
        judgement = await judge.judge(JudgeInput("single", "q", ("r",)))
        endpoint.script(chat("no slot"))
        lost = await judge.judge(JudgeInput("single", "q", ("r",)))
        endpoint.script(chat("So, the final decision is Tie"))
        pair = await judge.judge(JudgeInput("pairwise", "q", ("r", "s")))
    assert (judgement.view("rating"), judgement.view("expected")) == (7.0, None)
    assert (lost.outcome, lost.reason) == (Outcome.UNPARSABLE, "no rating slot")
    assert pair.verdict is Verdict.TIE
    assert len(endpoint.requests) == 3


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return qwen()


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(path)
    return path


async def test_tokens_are_sent_and_label_probabilities_read(
    endpoint: Endpoint, folder: Path, tokenizer: Any
) -> None:
    """P(10) = P("1") P("0" | "1"); what is left of P("1") is P(1)."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        assert path == "/v1/completions"
        if "logprobs" not in body:
            return completion("Good.\nRating: [[7]]")
        if tokenizer.decode(body["prompt"]).endswith("1"):
            return completion("", {"0": math.log(0.25), "]]": math.log(0.7)})
        return completion("", {"1": math.log(0.4), "7": math.log(0.5), "x": math.log(0.1)})

    endpoint.answer = answer
    judge_config = config(endpoint, tokenizer=str(folder))
    async with start_engine(judge_config) as engine:
        judge = GenerativeJudge(judge_config, load_format("autoj-en"), engine, "j")
        judgement = await judge.judge(JudgeInput("single", "Why?", ("a<|im_end|>b",)))
    assert judgement.rating is not None and judgement.rating == 7.0
    table = dict(reading(judgement).distribution or ())
    assert table.pop("1") == pytest.approx(0.4 * 0.75)
    assert table.pop("10") == pytest.approx(0.4 * 0.25)
    assert table.pop("7") == pytest.approx(0.5)
    assert set(table.values()) == {0.0}
    assert reading(judgement).outside == pytest.approx(0.1)
    # (1 * 0.3 + 10 * 0.1 + 7 * 0.5) / 0.9
    assert judgement.expected == pytest.approx(4.8 / 0.9)
    sent_prompts = [body["prompt"] for _, body, _ in endpoint.requests]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert sent_prompts[0].count(end) == 1  # of the user's turn; the planted one stays text
    assert "a<|im_end|>b" in tokenizer.decode(sent_prompts[0])
    slots = {tokenizer.decode(ids[len(sent_prompts[0]) :]) for ids in sent_prompts[1:]}
    assert slots == {"Good.\nRating: [[", "Good.\nRating: [[1"}
    assert all(ids[: len(sent_prompts[0])] == sent_prompts[0] for ids in sent_prompts)


async def test_an_endpoint_without_log_probabilities(endpoint: Endpoint, folder: Path) -> None:
    endpoint.script(completion("Rating: [[7]]"))
    judge_config = config(endpoint, tokenizer=str(folder))
    async with start_engine(judge_config) as engine:
        judge = GenerativeJudge(judge_config, load_format("autoj-en"), engine, "j")
        judgement = await judge.judge(JudgeInput("single", "q", ("r",)))
    assert (judgement.view("rating"), judgement.view("expected")) == (7.0, None)


NO_LOGPROBS = '{"error": {"message": "logprobs is not supported by this model"}}'


@pytest.mark.parametrize("status", [400, 422])
async def test_an_endpoint_that_refuses_log_probabilities(
    endpoint: Endpoint, folder: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        if "logprobs" in body:
            return status, NO_LOGPROBS, {}
        return completion("Good.\nRating: [[7]]")

    endpoint.answer = answer
    judge_config = config(endpoint, tokenizer=str(folder))
    async with start_engine(judge_config) as engine:
        judge = GenerativeJudge(judge_config, load_format("autoj-en"), engine, "j")
        items = [JudgeInput("single", "q", (response,)) for response in "abc"]
        with caplog.at_level(logging.WARNING, "autoj_reward"):
            judgements = [await judge.judge(item) for item in items]
        endpoint.script(completion("no slot"))
        lost = await judge.judge(items[0])
    assert [(j.outcome, j.view("rating"), j.view("expected")) for j in judgements] == [
        (Outcome.OK, 7.0, None)
    ] * 3
    assert {j.critique for j in judgements} == {"Good.\nRating: [[7]]"}
    assert (lost.outcome, lost.critique) == (Outcome.UNPARSABLE, "no slot")
    # Asked for at the first slot, two reads of which may be under way, and never again. The server
    # may note late what was called off.
    bodies = [body for _, body, _ in endpoint.requests]
    prompts = [body["prompt"] for body in bodies if "logprobs" in body]
    first = bodies[0]["prompt"]
    assert 1 <= len(prompts) <= 2 and all(ids[: len(first)] == first for ids in prompts)
    [warning] = [record.getMessage() for record in caplog.records]
    assert "left out" in warning


@pytest.mark.parametrize("critique", [True, False])
async def test_a_slot_that_is_refused_for_another_reason(
    endpoint: Endpoint, folder: Path, critique: bool
) -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        if "logprobs" in body and len(body["prompt"]) > 1:
            return 400, "context length exceeded", {}
        return completion("Rating: [[7]]")

    endpoint.answer = answer
    judge_config = config(endpoint, tokenizer=str(folder), critique=critique)
    async with start_engine(judge_config) as engine:
        judge = GenerativeJudge(judge_config, load_format("autoj-en"), engine, "j")
        judgement = await judge.judge(JudgeInput("single", "q", ("r",)))
        assert engine.abilities.slots
    if critique:
        assert (judgement.view("rating"), judgement.critique) == (7.0, "Rating: [[7]]")
    else:
        assert judgement.outcome is Outcome.INPUT_REJECTED


async def test_over_long_prompts_are_cut_or_rejected(endpoint: Endpoint, folder: Path) -> None:
    judge_config = config(endpoint, tokenizer=str(folder), max_model_len=128, max_tokens=16)
    async with start_engine(judge_config) as engine:
        cut = await engine.prepare(prompt("word " * 500), 16, "truncate")
        assert cut.truncated and 0 < len(cut.ids) <= 112
        with pytest.raises(InputRejected, match=r"max_model_len leaves 112 beside 16"):
            await engine.prepare(prompt("word " * 500), 16, "reject")
    assert endpoint.requests == []


def make_refusal(
    words: str, status: int, tiny_too: bool
) -> Callable[[str, dict[str, Any]], Answer]:
    """Return an answer function that refuses long inputs, or every request."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        tiny = body["messages"] == TEST_MESSAGES
        return chat("OK") if tiny and not tiny_too else (status, words, {})

    return answer


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refused_input_is_not_asked_again(endpoint: Endpoint, status: int) -> None:
    endpoint.answer = make_refusal("context length exceeded", status, tiny_too=False)
    async with start_engine(config(endpoint)) as engine:
        for _ in range(2):
            with pytest.raises(InputRejected, match=f"answered {status}: context length exceeded"):
                await ask(engine)
    # A request of two words settled that the parameters are good.
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize("words", ["max_tokens is too large: 16", "Bad request", ""])
async def test_a_refusal_of_anything_is_an_error_of_the_config(
    endpoint: Endpoint, words: str
) -> None:
    endpoint.answer = make_refusal(words, 400, tiny_too=True)
    async with start_engine(config(endpoint)) as engine:
        with pytest.raises(ConfigError, match=f"answered 400: {words}"):
            await ask(engine)


def refuse_parameters(*names: str) -> Callable[[str, dict[str, Any]], Answer]:
    """Return an answer function that refuses these parameters as unsupported."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        for name in names:
            if name in body:
                message = f"Unsupported parameter: '{name}' is not supported with this model."
                return 400, {"error": {"message": message, "param": name}}, {}
        return chat("Rating: [[7]]")

    return answer


async def test_a_parameter_that_is_not_known_is_replaced_or_left_out_once(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.answer = refuse_parameters("max_tokens", "temperature", "seed")
    async with start_engine(config(endpoint)) as engine:
        with caplog.at_level(logging.WARNING, "autoj_reward"):
            for _ in range(3):
                [generation] = await ask(engine)
    assert generation.text == "Rating: [[7]]"
    assert len(endpoint.requests) == 3 + 3
    body = endpoint.requests[-1][1]
    assert body["max_completion_tokens"] == 16
    assert not {"max_tokens", "temperature", "seed"} & body.keys()
    [warning] = [record.getMessage() for record in caplog.records]
    assert (
        "max_tokens is sent as max_completion_tokens, temperature is left out, seed is left out. "
        "Sampling cannot be fixed, so verdicts are not repeatable" in warning
    )


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "a valid one where api_key_env"),
        (402, "top it up"),
        (403, "check base_url, model and api_key_env"),
        (404, "check base_url, model and api_key_env"),
        (307, "check base_url, model and api_key_env"),
    ],
)
async def test_what_only_the_user_can_mend_stops_the_run_at_the_first_contact(
    endpoint: Endpoint, status: int, remedy: str
) -> None:
    endpoint.script((status, "no", {}))
    async with start_engine(config(endpoint)) as engine:
        with pytest.raises(ConfigError, match=f"answered {status}: no.*{remedy}"):
            await engine.contact(
                replace(SAMPLING, alternatives=False), {"top": 0, "goes_on": 0, "instead": {}}
            )
    # A router may find no route at first.
    assert len(endpoint.requests) == (3 if status == 404 else 1)


@pytest.mark.parametrize("path", ["", "/v1"])
async def test_a_404_suggests_v1_if_the_url_has_no_path(endpoint: Endpoint, path: str) -> None:
    endpoint.script((404, "no", {}))
    root = endpoint.url.removesuffix("/v1")
    asked = config(endpoint).model_copy(update={"base_url": root + path})
    async with start_engine(asked) as engine:
        with pytest.raises(ConfigError) as caught:
            await engine.contact(
                replace(SAMPLING, alternatives=False), {"top": 0, "goes_on": 0, "instead": {}}
            )
    assert (f"try base_url {root}/v1;" in str(caught.value)) is (not path)


async def test_retry_after_is_waited_for(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def record_wait(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", record_wait)
    endpoint.script((429, "slow down", {"Retry-After": "0.4"}), chat("done"))
    async with start_engine(config(endpoint)) as engine:
        [generation] = await ask(engine)
    assert 0.4 in waits
    assert generation.text == "done"
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize(("is_up", "longest"), [(False, 6.0), (True, 45.0)])
async def test_pauses_grow_less_while_nothing_answers_than_while_a_server_is_in_trouble(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, is_up: bool, longest: float
) -> None:
    pauses, at_once = list[float](), asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await at_once(0)
        if len(pauses) == 20:
            endpoint.answer = lambda path, body: chat("done")
            if not is_up:
                endpoint.listen(endpoint.server.server_port)

    endpoint.script((503, "", {}))
    if not is_up:
        endpoint.close()
    monkeypatch.setattr(asyncio, "sleep", pause)
    async with start_engine(config(endpoint)) as engine:
        [generation] = await ask(engine)
    assert generation.text == "done"
    assert len(pauses) == 20
    assert longest / 3 <= min(pauses[-5:]) < max(pauses) <= longest


@pytest.mark.parametrize("after", ["soon", "-5", ""])
async def test_a_strange_retry_after_is_no_obstacle(endpoint: Endpoint, after: str) -> None:
    endpoint.script((503, "", {"Retry-After": after}), chat("done"))
    async with start_engine(config(endpoint)) as engine:
        [generation] = await ask(engine)
    assert generation.text == "done"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param((200, "<html>", {}), "line 1 column 1 (char 0)): 200: <html>", id="no JSON"),
        pytest.param((200, {"choices": []}, {}), "(`choices` is empty)", id="no choices"),
        pytest.param((200, {"choices": [{}]}, {}), "(no `text`)", id="empty choice"),
        pytest.param((200, {"choices": [3]}, {}), "(a choice is a number, and no", id="number"),
        pytest.param(
            (200, {"choices": "abc"}, {}), "(`choices` is a string, and no", id="choices of text"
        ),
        pytest.param((200, [1], {}), "(a list in place of an object)", id="list"),
        pytest.param((200, "null", {}), "(null in place of an object)", id="null"),
        pytest.param(
            (200, {"error": {"message": "Upstream failed"}}, {}),
            '(an error with status 200): 200: {"error": {"message": "Upstream failed"}}',
            id="an error",
        ),
        pytest.param(
            (200, {"choices": [{"message": None}]}, {}), "(`message` is null", id="no message"
        ),
        pytest.param(
            (200, {"choices": [{"message": {"role": "assistant"}}]}, {}),
            "(no `content`)",
            id="no content",
        ),
        pytest.param(chat(3), "(`content` is a number", id="a number"),  # type: ignore[arg-type]
        pytest.param(chat("x" * 500, usage=[1]), "(`usage` is a list", id="usage is a list"),
    ],
)
async def test_an_answer_that_is_no_completion_is_asked_for_three_times_and_says_what_is_wrong(
    endpoint: Endpoint, answer: Answer, problem: str
) -> None:
    endpoint.script(answer)
    async with start_engine(config(endpoint)) as engine:
        fmt = load_format("autoj-en")
        judge = GenerativeJudge(config(endpoint), fmt, engine, "judge-1")
        replica = JudgeReplica(judge)
        [(_, judgement)] = [found async for found in replica.stream([ITEM])]
        assert problem in engine.problem
    assert judgement.outcome is Outcome.UNAVAILABLE
    assert "3 times an answer that is no completion" in judgement.reason
    assert problem in judgement.reason
    assert len(endpoint.requests) == 3


async def test_trouble_of_the_server_lasts_until_the_deadline(endpoint: Endpoint) -> None:
    endpoint.script((500, "broken", {}))
    async with start_engine(config(endpoint, serve={"deadline_s": 4})) as engine:
        with pytest.raises(EngineUnavailable, match=r"no answer within 4 s; .*500: broken"):
            await ask(engine)
    assert len(endpoint.requests) > 3


async def test_nonsense_twice_is_asked_again(endpoint: Endpoint) -> None:
    nonsense: Answer = (200, {"choices": [{}]}, {})
    endpoint.script(nonsense, (503, "", {}), nonsense, chat("done"))
    async with start_engine(config(endpoint)) as engine:
        [generation] = await ask(engine)
    assert generation.text == "done" and isinstance(generation.usage, Usage)


@pytest.mark.parametrize("words", ["I cannot judge this.", "I will not rate this: Rating: [[10]]"])
async def test_the_words_of_a_refusal_are_kept_and_are_no_verdict(
    endpoint: Endpoint, words: str
) -> None:
    message = {"content": None, "refusal": words}
    endpoint.script((200, {"choices": [{"message": message, "finish_reason": "stop"}]}, {}))
    async with start_engine(config(endpoint)) as engine:
        judge = GenerativeJudge(config(endpoint), load_format("autoj-en"), engine, "judge-1")
        judgement = await judge.judge(ITEM)
    assert (judgement.outcome, judgement.rating) == (Outcome.UNPARSABLE, None)
    assert judgement.reason.endswith(f"the endpoint ended the text with a refusal: {words}")


async def test_refusals_that_come_together_are_settled_by_one_test(endpoint: Endpoint) -> None:
    endpoint.answer = make_refusal("context length exceeded", 400, tiny_too=False)
    async with start_engine(config(endpoint)) as engine:
        asked = [ask(engine, f"hi {n}") for n in range(8)]
        found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in found] == [InputRejected] * 8
    assert len(endpoint.requests) == 8 + 1


async def test_a_parameter_that_several_requests_learn_of_is_replaced_once(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """A refusal that comes after another request's names what is no longer sent."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if "max_tokens" not in body:
            return chat("done")
        both_sent.wait(30)
        words = "'max_tokens' is not supported. Use 'max_completion_tokens' instead."
        return 400, {"error": {"message": words, "param": "max_tokens"}}, {}

    both_sent = threading.Barrier(2)
    endpoint.answer = answer
    async with start_engine(config(endpoint)) as engine:
        with caplog.at_level(logging.WARNING, "autoj_reward"):
            found = await asyncio.gather(ask(engine, "a"), ask(engine, "b"))
    assert [generation.text for [generation] in found] == ["done", "done"]
    assert endpoint.requests[-1][1]["max_completion_tokens"] == 16
    assert len(caplog.records) == 1


async def test_nobody_listens() -> None:
    closed = Endpoint()
    closed.close()
    async with start_engine(config(closed, start_s=0.2)) as engine:
        with pytest.raises(EngineUnavailable, match=r"Cannot connect.*start_s is how long to wait"):
            await engine.contact(SAMPLING, {})


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x/v1", "http://", "http://a:b/", "x"])
async def test_a_base_url_that_is_none(url: str) -> None:
    engine = make_engine(JudgeConfig(kind="openai", base_url=url))
    with pytest.raises(ConfigError, match="base_url"):
        await engine.start()


async def test_the_key_is_sent_and_its_white_space_not(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOJ_TEST_KEY", KEY + "\n")
    async with start_engine(config(endpoint, api_key_env="AUTOJ_TEST_KEY")) as engine:
        await ask(engine)
    assert endpoint.requests[0][2]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [400, 401, 500, 200])
async def test_the_key_is_never_in_a_message(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("AUTOJ_TEST_KEY", KEY)
    endpoint.script((status, f"what is {KEY} " + "x" * 100, {}))
    async with start_engine(config(endpoint, api_key_env="AUTOJ_TEST_KEY")) as engine:
        call = asyncio.create_task(ask(engine))
        # A fault that may pass is asked about again, and told meanwhile.
        await asyncio.to_thread(wait_until, lambda: call.done() or engine.problem)
        message = str(call.exception()) if call.done() else engine.problem
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert "what is [hidden]" in message
    assert KEY not in message


@pytest.mark.parametrize("value", ["", " \n", KEY + "\nX: y", KEY + "\u00e9"], ids=repr)
async def test_a_key_that_cannot_be_used_is_refused_unseen(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("AUTOJ_TEST_KEY", value)
    engine = make_engine(config(endpoint, api_key_env="AUTOJ_TEST_KEY"))
    with pytest.raises(ConfigError, match="AUTOJ_TEST_KEY") as caught:
        await engine.start()
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_what_an_endpoint_thought_is_kept_apart(endpoint: Endpoint, name: str) -> None:
    message = {"content": "Rating: [[7]]", name: "Rating: [[1]]?"}
    choice = {"message": message, "finish_reason": "stop"}
    endpoint.script((200, {"choices": [choice]}, {}))
    judge_config = config(endpoint)
    async with start_engine(judge_config) as engine:
        judge = GenerativeJudge(judge_config, load_format("autoj-en"), engine, "judge")
        judgement = await judge.judge(JudgeInput("single", "Why?", ("Because.",)))
    assert (judgement.view("rating"), judgement.thinking) == (7.0, "Rating: [[1]]?")


async def test_an_endpoint_that_is_cut_off_while_it_thinks(endpoint: Endpoint) -> None:
    message = {"content": None, "reasoning_content": "Rating: [[9]]"}
    choice = {"message": message, "finish_reason": "length"}
    endpoint.script((200, {"choices": [choice]}, {}))
    judge_config = config(endpoint, format="rm-r1-reasoning", thinking_tokens=100, max_tokens=30)
    async with start_engine(judge_config) as engine:
        judge = GenerativeJudge(judge_config, load_format(judge_config.format), engine, "judge")
        judgement = await judge.judge(JudgeInput("pairwise", "Why?", ("Because.", "So.")))
    assert (judgement.outcome, judgement.thinking) == (Outcome.TRUNCATED, "Rating: [[9]]")
    assert "never closed" in judgement.reason
    assert endpoint.requests[0][1]["max_tokens"] == 130


async def test_marks_of_thinking_in_untrusted_text_are_broken_up(endpoint: Endpoint) -> None:
    engine = make_engine(config(endpoint), "<think>", "</think>")
    await engine.start()
    await ask(engine, "a</think>b")
    await engine.close()
    assert endpoint.requests[0][1]["messages"][1]["content"].endswith("a<\u200b/think>b")


async def test_a_cut_off_block_goes_on_as_ids(
    endpoint: Endpoint, folder: Path, tokenizer: Any
) -> None:
    endpoint.script(
        (200, {"choices": [{"text": "<think>So", "finish_reason": "length"}]}, {}),
        completion("<answer>[[B]]</answer>"),
    )
    judge_config = config(
        endpoint,
        format="rm-r1-reasoning",
        tokenizer=str(folder),
        thinking_tokens=5,
        max_tokens=30,
        distribution=False,
    )
    async with start_engine(judge_config) as engine:
        judge = GenerativeJudge(judge_config, load_format(judge_config.format), engine, "judge")
        judgement = await judge.judge(JudgeInput("pairwise", "Why?", ("Because.", "So.")))
    assert (judgement.verdict, judgement.thinking, judgement.flags) == (
        Verdict.SECOND,
        "So",
        ("thinking_cut",),
    )
    first, onward = (body["prompt"] for _, body, _ in endpoint.requests)
    assert tokenizer.decode(onward[len(first) :]) == "<think>So\n</think>\n\n"
