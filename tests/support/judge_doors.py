"""The product's doors to a judge, and stand-ins for all that a judge runs on.

Each function of `DOORS` asks a judge at one entry point and returns the answer there. No model, Ray
or foreign endpoint runs. The stand-ins for vLLM, transformers and an endpoint answer with a digest
of everything that they were given, so a config key that reaches them changes the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import re
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
import ray
import ray.serve
import yaml
from pydantic import ValidationError

from autoj_reward.cli import judging
from autoj_reward.client import session
from autoj_reward.client.client import ClientLimits
from autoj_reward.config import JudgeConfig, PolicyConfig, RewardConfig
from autoj_reward.conversation import Prompt, Response
from autoj_reward.engine import classifier, endpoint, vllm
from autoj_reward.engine.openai import BEGUN, OpenAIEngine
from autoj_reward.errors import AutojError
from autoj_reward.formats.schema import FORMATS
from autoj_reward.io.track import tracking
from autoj_reward.journal import Journal
from autoj_reward.models.device import Device
from autoj_reward.models.unused import check_run
from autoj_reward.replicas import cluster, deployments
from autoj_reward.service.serve import EdgeConfig, listen, open_edge
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate, Judgement, Usage
from rollouts.best_of_n import job
from rollouts.best_of_n.sampling import Sampler
from tests.reference_format import REFERENCE, write_reference_format
from tests.tokenizers import llama3, qwen

REFUSED = "refused"
"""First word of an answer that is an error."""
TOKEN = "secret"
H100 = Device("cuda", 79.6, (9, 0))
QUERY = "Write an email to my landlord."
TURNS: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": "Let me look it up.",
        "tool_calls": [{"function": {"name": "find", "arguments": "{}"}}],
    },
    {"role": "tool", "content": "Seven rivers."},
    {"role": "assistant", "content": "There are seven."},
]
SHORT = {"max_model_len": 1500, "max_tokens": 100}
"""Lengths of judges and policies, so that a text that is too long is soon read."""
WORD = "response "
"""One token of the tokenizers here."""
LENGTHS = (9, 240, 1600)
"""Words of the responses. With the lengths of `SHORT` only the last one is too long."""
LONG_QUERY = (WORD * 1400).strip()
"""With the lengths of `SHORT` it leaves a policy just enough room for its answer, in words."""
THOUGHT = "<think>Hm, seven?</think>Seven."
MARKED = "[[THINK]]Or six?[[/THINK]]Six."
DRAWN, LINKED = (
    [{"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    for url in ("data:image/png;base64,AAAA", "https://example.org/a.png")
)
"""Responses with a picture, and with the address of one."""
TEXTS = [THOUGHT, MARKED, *((WORD * words).strip() for words in LENGTHS)]
RESPONSES: list[Any] = [*TEXTS, TURNS, DRAWN, LINKED]
WORDLESS = "often without a verdict"
"""Model whose answers seldom have a verdict."""
MARKED_ONCE = "starts slowly"
"""Model whose endpoint refuses the first request."""


def digest(given: Any) -> str:
    return hashlib.sha256(repr(given).encode()).hexdigest()


def number(given: Any) -> float:
    """Return a number from 0 to 1 that tells what was given."""
    return int(digest(given)[:12], 16) / 16**12


def write_answer(given: Any, prompt: str) -> str:
    """Write a judge's text in Auto-J's format that tells what was given."""
    told = f"Good for {digest(given)[:12]}."
    if "final decision" in prompt:
        winner = 1 + int(number(given) < 0.5)
        return f"{told} So, the final decision is Response {winner}"
    return f"{told}\nRating: [[{1 + int(9 * number(given))}]]"


class AnsweringServer:
    """OpenAI-compatible server on 127.0.0.1 whose answers tell the request and its headers."""

    def __init__(self) -> None:
        self.slow_to_start = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # One packet for an answer: a second would wait for the first's acknowledgement.
            wbufsize = -1

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                headers = {
                    name: value
                    for name, value in self.headers.items()
                    if name.lower() not in TRANSPORT_HEADERS
                }
                status, answer = outer.answer(self.path, body, headers)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                """Log nothing."""

        class Server(ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(
        self, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> tuple[int, dict[str, Any]]:
        """Answer like vLLM's server: it continues a message and returns log-probabilities."""
        if body.get("model") == MARKED_ONCE and self.slow_to_start:
            self.slow_to_start = False
            return 503, {"error": {"message": "loading"}}
        given = path, sorted(body.items()), sorted(headers.items())
        text = write_answer(given, repr(body.get("messages", "")))
        if body.get("model") == WORDLESS and number(given) > 0.3:
            text = "It depends."
        usage = {"prompt_tokens": 10 if body.get("continue_final_message") else 20}
        digits = {str(digit): -1 - 5 * number((given, digit)) for digit in range(10)}
        if "prompt" in body:
            logprobs = {"top_logprobs": [digits]} if "logprobs" in body else None
            completion = {"text": text, "finish_reason": "stop", "logprobs": logprobs}
            return 200, {"choices": [completion], "usage": usage}
        if body.get("max_tokens", 99) <= 2:
            text = "7"
        if body["messages"][-1] == BEGUN:
            text = " D"
        choice: dict[str, Any] = {"message": {"content": text}, "finish_reason": "stop"}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": list_tokens(text, digits)}
        return 200, {"choices": [choice], "usage": usage}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def list_tokens(text: str, digits: dict[str, float]) -> list[dict[str, Any]]:
    """Return a text's tokens as an endpoint does, each number with the digits' probabilities."""
    tokens = []
    for piece in re.findall(r"\d+| ?[^\W\d]+|\W", text):
        logprobs = digits if piece.isdigit() else {piece: -0.1}
        top = [{"token": token, "logprob": logprob} for token, logprob in logprobs.items()]
        tokens.append({"token": piece, "logprob": -0.1, "top_logprobs": top})
    return tokens


TRANSPORT_HEADERS = {"host", "content-length", "accept", "accept-encoding", "user-agent"}


class AnsweringLlm:
    """vLLM's engine, whose outputs tell its arguments, the prompt and the sampling."""

    def __init__(self, arguments: dict[str, Any], tokenizer: Any) -> None:
        self._arguments = sorted(arguments.items(), key=repr)
        self._tokenizer = tokenizer

    def get_tokenizer(self) -> Any:
        return self._tokenizer

    async def generate(
        self, prompt: dict[str, Any], params: SimpleNamespace, name: str
    ) -> AsyncIterator[SimpleNamespace]:
        await _let_deadlines_pass()
        ids = prompt["prompt_token_ids"]
        given = self._arguments, ids, repr(params)
        logprobs = {
            token: SimpleNamespace(logprob=-1 - 5 * number((given, token)))
            for token in getattr(params, "logprob_token_ids", ())
        }
        text = write_answer(given, self._tokenizer.decode(ids))
        output = SimpleNamespace(
            text=text,
            token_ids=tuple(self._tokenizer.encode(text, add_special_tokens=False)),
            finish_reason="stop",
            cumulative_logprob=-number(given),
            logprobs=[logprobs],
        )
        yield SimpleNamespace(outputs=[output], num_cached_tokens=0)

    async def encode(
        self, prompt: dict[str, Any], params: Any, name: str
    ) -> AsyncIterator[SimpleNamespace]:
        await _let_deadlines_pass()
        given = self._arguments, prompt["prompt_token_ids"], repr(params)
        yield SimpleNamespace(outputs=SimpleNamespace(data=[number(given)]), num_cached_tokens=0)

    async def check_health(self) -> None:
        """It always runs."""

    def shutdown(self) -> None:
        """There is nothing to stop."""


async def _let_deadlines_pass() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class ReplicaHandle:
    """Serve's handle of a deployment, whose one replica runs in the caller's event loop."""

    deployment_id = None

    def __init__(self, kind: Any, made_of: Any) -> None:
        self._kind = kind
        self._made_of = made_of
        self._replica: Any = None
        self.stream = SimpleNamespace(remote=self._stream)

    def options(self, **options: Any) -> ReplicaHandle:
        return self

    def _stream(self, *arguments: Any) -> Stream:
        return Stream(self._ask(*arguments))

    async def _ask(self, *arguments: Any) -> AsyncIterator[Any]:
        if self._replica is None:
            replica = object.__new__(self._kind)
            await self._kind.__init__(replica, self._made_of)
            self._replica = replica
        async for batch in self._replica.stream(*arguments):
            yield batch


class Stream:
    """What a handle's call returns."""

    def __init__(self, answers: AsyncIterator[Any]) -> None:
        self._answers = answers

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._answers

    def cancel(self) -> None:
        """Do nothing: the caller's event loop ends the replica's work."""


class StandIns:
    """Stand-ins for vLLM, Ray, models and an endpoint.

    `limits` lists what was asked of Ray, and the limits on time and on inputs in flight. No answer
    of a judge that answers at once tells them.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.limits: list[Any] = []
        self.server = AnsweringServer()
        self.tokenizer = qwen()
        self.tokenizer.chat_template += "{{ greeting }}"
        (folder / "key").write_text("sk-2\n", encoding="utf-8")
        self._replace_vllm(monkeypatch)
        self._replace_ray(monkeypatch)
        self._replace_models(monkeypatch)
        self._record_limits(monkeypatch)

    def _replace_vllm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def start(arguments: Any, stat_loggers: Any) -> AnsweringLlm:
            return AnsweringLlm(vars(arguments), self.tokenizer)

        names: dict[str, dict[str, Any]] = {
            "vllm": {"SamplingParams": SimpleNamespace, "PoolingParams": SimpleNamespace},
            "vllm.engine.arg_utils": {"AsyncEngineArgs": SimpleNamespace},
            "vllm.exceptions": {"VLLMValidationError": _VllmError},
            "vllm.sampling_params": {
                "RequestOutputKind": SimpleNamespace(FINAL_ONLY="final"),
                "StructuredOutputsParams": SimpleNamespace,
            },
            "vllm.v1.engine.async_llm": {"AsyncLLM": SimpleNamespace(from_engine_args=start)},
            "vllm.v1.engine.exceptions": {"EngineDeadError": _VllmError},
            "vllm.v1.metrics.loggers": {"PrometheusStatLogger": object},
        }
        for name, values in names.items():
            module = ModuleType(name)
            vars(module).update(values)
            monkeypatch.setitem(sys.modules, name, module)
        for name in ("vllm.engine", "vllm.v1", "vllm.v1.engine", "vllm.v1.metrics"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setattr(vllm, "require_fitting_builds", lambda: None)
        monkeypatch.setattr(vllm, "detect_device", lambda: H100)

    def _replace_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def run(application: Any, **place: Any) -> ReplicaHandle:
            bound = application._bound_deployment
            self.limits.append(
                (
                    "deployment",
                    bound.num_replicas,
                    bound.max_ongoing_requests,
                    bound.ray_actor_options,
                    bound._deployment_config.autoscaling_config,
                )
            )
            return ReplicaHandle(bound.func_or_class, *bound.init_args)

        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 8.0, "CPU": 64.0})
        monkeypatch.setattr(ray.serve, "run", run)
        monkeypatch.setattr(ray.serve, "delete", lambda name: None)
        monkeypatch.setattr(cluster.Cluster, "_detect_gpu", lambda self: H100)
        monkeypatch.setattr(deployments, "serve_on_loopback", lambda: None)
        monkeypatch.setattr(deployments, "keep_recording", contextlib.nullcontext)

    def _replace_models(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tokenizers = {"one": self.tokenizer, "two": llama3()}
        for name, tokenizer in tokenizers.items():
            tokenizer.save_pretrained(self.folder / name)

        def load_tokenizer(name: str, **options: Any) -> Any:
            return tokenizers.get(Path(name).name, self.tokenizer)

        def load_weights(name: str, **options: Any) -> Any:
            net = SimpleNamespace(given=(name, sorted(options.items(), key=repr)))
            return SimpleNamespace(eval=lambda: SimpleNamespace(to=lambda _: net), **vars(net))

        def score(net: Any, ids: Sequence[Sequence[int]], pad: int) -> list[float]:
            return [number((net.given, tuple(of_one))) for of_one in ids]

        weights = "transformers.AutoModelForSequenceClassification.from_pretrained"
        monkeypatch.setattr(weights, load_weights)
        monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", load_tokenizer)
        monkeypatch.setattr("autoj_reward.models.hub_commit", lambda *of: str(of))
        monkeypatch.setattr(classifier, "require_fitting_builds", lambda: None)
        monkeypatch.setattr(classifier, "check_classifier", lambda *of: -1)
        monkeypatch.setattr(classifier, "scores", score)
        monkeypatch.setattr(vllm, "check_classifier", lambda *of: -1)

    def _record_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real_limits, real_limiter = ClientLimits, endpoint.RateLimiter

        def make_limits(in_flight: int, deadline_s: float, **others: Any) -> Any:
            self.limits.append(("in flight", in_flight))
            return real_limits(in_flight, deadline_s, **others)

        def make_limiter(*limits: float | None) -> Any:
            self.limits.append(("rate", limits))
            return real_limiter(*limits)

        monkeypatch.setattr(session, "ClientLimits", make_limits)
        monkeypatch.setattr(endpoint, "RateLimiter", make_limiter)
        # Each job would look through everything that the tests have imported.
        monkeypatch.setattr(job, "relaxed_gc", contextlib.nullcontext)
        # Rate limits and the pauses of retries cost no time.
        monkeypatch.setattr(endpoint, "MINUTE_S", 1e-6)
        pauses: dict[str, Any] = OpenAIEngine.__init__.__kwdefaults__ or {}
        monkeypatch.setitem(pauses, "first_pause_s", 1e-3)
        for module in (session, deployments):
            monkeypatch.setattr(module, "start_tracing", lambda: self.limits.append("tracing"))

    def close(self) -> None:
        self.server.close()

    def ask(self, door: Door, asked: Asked) -> list[Any]:
        """Return a door's answer and the limits that were set, or the error."""
        self.limits.clear()
        self.server.slow_to_start = True
        with contextlib.ExitStack() as stack:
            folder = self.folder / "run"
            folder.mkdir()
            stack.callback(shutil.rmtree, folder)
            try:
                answer = door(folder, asked)
            except (AutojError, ValidationError) as error:
                return [REFUSED, str(error)]
            except ExceptionGroup as group:
                errors, others = group.split(AutojError)
                if errors is None or others is not None:
                    raise
                return [REFUSED, str(errors.exceptions[0])]
        return [answer, sorted(self.limits, key=repr)]


class _VllmError(Exception):
    """Stands for vLLM's errors; nothing raises it."""


@dataclass(frozen=True)
class Asked:
    """Config with which a door is asked."""

    judge: dict[str, Any]
    """The judge; at `sample_policy`, the policy."""
    service: str = ""
    """Address of a running service that answers in the judge's place; "" for none."""


Door = Callable[[Path, Asked], Any]


def ask_trainer(folder: Path, asked: Asked) -> Any:
    """Ask as a trainer does: for rewards, for comparisons as online DPO, and as TRL's GRPO."""
    data: dict[str, Any] = {"judge": asked.judge, "failures": {"budget": 1.0}}
    if asked.service:
        data["service"] = {"address": asked.service}
    config = RewardConfig.model_validate(data)
    candidates = [
        Candidate(QUERY, response if isinstance(response, str) else Response.of(response))
        for response in RESPONSES
    ]
    with RewardModel(config) as model:
        rewards = model.rewards_now(candidates)
        compares = model.clients["judge"].backend.facts.compares
        comparisons = model.compare_now([(QUERY, "Because.", "It is so.")]) if compares else []

        async def ask_as_trl() -> list[float | None]:
            return await model.trl()(prompts=[QUERY], completions=["Because."])

        values = asyncio.run(ask_as_trl())
    return [
        values,
        [(reward.value, without_name(reward.judgement)) for reward in rewards],
        [(c.verdict, [without_name(j) for j in c.orders]) for c in comparisons],
    ]


def without_name(judgement: Judgement) -> Judgement:
    """Return a judgement without its tokens and the judge's name, which tells the config."""
    return replace(judgement, judge="", usage=Usage(usd=judgement.usage.usd))


def ask_score(folder: Path, asked: Asked) -> Any:
    """Run `autoj score`."""
    rows = [{"query": QUERY, "response": response} for response in RESPONSES]
    return run_on_rows(judging.score, folder, asked, rows)


def ask_compare(folder: Path, asked: Asked) -> Any:
    """Run `autoj compare`."""
    first, *others = RESPONSES
    rows = [{"query": QUERY, "response_1": first, "response_2": other} for other in others]
    return run_on_rows(judging.compare, folder, asked, rows)


def run_on_rows(command: Any, folder: Path, asked: Asked, rows: list[Any]) -> Any:
    write_rows(folder / "rows.jsonl", rows)
    write_run(folder, {"judge": asked.judge})
    files = str(folder / "rows.jsonl"), str(folder / "out.jsonl"), str(folder / "run.yaml")
    with silence():
        command.run(*files, sets=[], strict=False, layout=None)
    return [read_answers(folder / "out.jsonl"), read_cost(folder / "out.jsonl.summary.json")]


def ask_best_of_n(folder: Path, asked: Asked) -> Any:
    """Run `autoj best-of-n`."""
    write_rows(folder / "rows.jsonl", [{"query": QUERY, "responses": RESPONSES}])
    output = folder / "out"
    data = {"judge": asked.judge, "input": str(folder / "rows.jsonl"), "output": str(output)}
    write_run(folder, data)
    with silence():
        job.main(str(folder / "run.yaml"))
    names = ("selections.jsonl", "judgements.jsonl")
    return [read_answers(output / name) for name in names] + [read_cost(output / "summary.json")]


def ask_service(folder: Path, asked: Asked) -> Any:
    """Ask `autoj serve` at POST /v1/score and /v1/compare."""
    data = {"reward": {"judge": asked.judge, "failures": {"budget": 1.0}}}
    config = check_run(EdgeConfig, data, "serve.yaml")
    candidates = [{"query": QUERY, "response": response} for response in RESPONSES]
    pairs = [{"query": QUERY, "first": "Because.", "second": "It is so."}]
    questions = (("/v1/score", {"candidates": candidates}), ("/v1/compare", {"pairs": pairs}))
    with open_edge(config, TOKEN) as edge:

        async def ask(path: str, body: dict[str, Any]) -> Any:
            transport = httpx.ASGITransport(edge.app.guard)
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
                answer = await http.post(path, json=body, headers=headers, timeout=600)
                return clean(answer.json())

        return [edge.loop.wait(ask(path, body)) for path, body in questions]


def sample_policy(folder: Path, asked: Asked) -> Any:
    """Sample responses as a best-of-N job does."""
    config = PolicyConfig.model_validate(asked.judge)
    prompts = [Prompt(QUERY), Prompt(LONG_QUERY)]
    counts: list[int] = []
    with contextlib.closing(Journal(folder / "journal.sqlite")) as journal:
        sampler = Sampler(config, journal, cluster.Cluster(), counts.append)
        failed = asyncio.run(sampler.sample_all(prompts))
        samples = [sampler.recorded(prompt) for prompt in prompts]
    return [samples, failed, len(counts)]


# A trainer's door is asked with every kind of judge.
DOORS: dict[str, Door] = {
    "score": ask_score,
    "compare": ask_compare,
    "best-of-n": ask_best_of_n,
    "service": ask_service,
}


@contextlib.contextmanager
def run_service_of(url: str) -> Iterator[str]:
    """Serve the judge of an endpoint, whose critiques differ, and yield the service's address."""
    endpoint_keys = {"kind": "openai", "model": "served", "base_url": f"{url}/v1"}
    judge = JudgeConfig.model_validate(endpoint_keys | {"format": "autoj-en", "temperature": 0.7})
    config = EdgeConfig(reward=RewardConfig(judge=judge))
    with (
        listen("127.0.0.1", 0) as listening,
        tracking(None, "service", config) as reports,
        open_edge(config, TOKEN) as edge,
    ):
        port = listening.getsockname()[1]
        served = edge.loop.submit(edge.serve(listening, reports))
        yield f"http://127.0.0.1:{port}"
        edge.stop()
        served.result()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Drop what a command prints."""
    with contextlib.redirect_stderr(io.StringIO()) as log, contextlib.redirect_stdout(log):
        yield


def write_rows(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_run(folder: Path, data: dict[str, Any]) -> None:
    (folder / "run.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")


def read_answers(path: Path) -> list[Any]:
    return [clean(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def read_cost(path: Path) -> list[str]:
    """Return what a summary says of dollars."""
    return re.findall(r'"[^"]*usd[^"]*": [0-9.e-]+', path.read_text(encoding="utf-8"))


def clean(answer: Any) -> Any:
    """Leave out of an answer what tells the config or the time in place of the judge's output."""
    if isinstance(answer, dict):
        cost = {"usd": answer["usage"].get("usd")} if "usage" in answer else {}
        return cost | {name: clean(v) for name, v in answer.items() if name not in UNCOUNTED}
    if isinstance(answer, list):
        return [clean(value) for value in answer]
    return answer


UNCOUNTED = {"judge", "usage", "vote", "latency_s", "queued_s"}


def write_formats(folder: Path) -> dict[str, str]:
    """Write a format with a thinking block and one that needs criteria. Returns their paths."""
    thinks = folder / "thinks"
    shutil.copytree(FORMATS / "autoj-en", thinks)
    with (thinks / "format.yaml").open("a", encoding="utf-8") as file:
        file.write("thinking: {open: <think>, close: </think>}\n")
    fields = REFERENCE["single"]["fields"] | {"reference": "criteria"}
    shown = REFERENCE | {"single": REFERENCE["single"] | {"fields": fields}}
    return {
        "{thinks}": str(thinks),
        "{criteria}": str(write_reference_format(folder / "criteria", shown)),
    }
