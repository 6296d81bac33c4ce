"""Teacher model: sends each question once, records the answers and stays within a budget.

The answer log is JSON lines; an answer is on disk before it is used. A line holds the fields of
the authors' released critiques (`output`, `cost`, `finish_reason`, `meta`) besides the key of the
question and the tokens. `finish_reason` is `stop`, `length`, or `rejected` for a question that the
teacher cannot accept.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from pydantic import Field

from autoj_reward.config import Block, PricedConfig
from autoj_reward.engine.base import Engine, Sampling
from autoj_reward.errors import (
    AutojError,
    ConfigError,
    EngineUnavailable,
    InputRejected,
    JournalError,
)
from autoj_reward.formats.render import RenderedPrompt
from autoj_reward.io.files import text_digest
from autoj_reward.judge.make import make_engine
from autoj_reward.models import resolve
from autoj_reward.models.price import Price, find_price
from autoj_reward.types import Usage

QUESTION_S = 600.0
"""Deadline of a question at an endpoint in seconds, retries included."""
CHARS_PER_TOKEN = 4
"""Characters per token of English text, for budgets and estimates."""


class TeacherConfig(PricedConfig):
    """A model that writes judgements, responses or rubrics: an endpoint, a model on this machine,
    or a script."""

    removed_keys: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("price_in", "price_out"), "write price: {in: USD, out: USD}"
    )

    max_tokens: int = Field(1024, ge=1)
    """Tokens of one answer, at most."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: probability mass of the tokens considered."""
    seed: int = 0
    """Sampling seed."""
    concurrency: int = Field(8, ge=1)
    """Questions in flight."""
    patience: int = Field(20, ge=1)
    """Unanswered questions in a row after which the run stops. Each was retried for ten minutes."""


class TeacherBudget(Block):
    """Limit on the total tokens of all runs into one output; null for no limit.

    A question is sent only if its longest answer still fits. The limits hold as far as the endpoint
    bills what it reports.
    """

    removed_keys: ClassVar[Mapping[str, str]] = {"usd": "max_usd stands beside it"}

    tokens: int | None = Field(None, ge=0)
    """Input and output tokens together."""


@dataclass(frozen=True, slots=True)
class TeacherCost:
    """Cost in tokens and US dollars. Tokens are estimated where the endpoint reports none."""

    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0

    def __add__(self, other: TeacherCost) -> TeacherCost:
        return TeacherCost(
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.usd + other.usd,
        )

    def __neg__(self) -> TeacherCost:
        return TeacherCost(-self.tokens_in, -self.tokens_out, -self.usd)

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


@dataclass(frozen=True, slots=True)
class Answer:
    """A teacher's answer with its cost."""

    text: str
    finish_reason: str
    """`stop`, `length` or `rejected`."""
    cost: TeacherCost = TeacherCost()


class AnswerLog:
    """Append-only file of answers for one process. A last line cut off by a kill is dropped."""

    def __init__(self, path: Path) -> None:
        """Open the log and read its answers. Raises JournalError for a bad or unwritable file."""
        self.path = path
        self.spent = TeacherCost()
        """Total cost of all answers in the file."""
        self._answers: dict[str, Answer] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            end = self._load() if path.exists() else 0
            self._file = path.open("ab")
            self._file.truncate(end)
        except OSError as error:
            raise JournalError(f"{path}: cannot be opened: {error.strerror}") from error

    def get(self, key: str) -> Answer | None:
        """Return the recorded answer to a question, None if there is none."""
        return self._answers.get(key)

    def put(self, key: str, answer: Answer, meta: dict[str, Any]) -> None:
        """Store an answer. It is on disk when this returns."""
        record = {
            "key": key,
            "output": answer.text,
            "cost": answer.cost.usd,
            "finish_reason": answer.finish_reason,
            "tokens_in": answer.cost.tokens_in,
            "tokens_out": answer.cost.tokens_out,
            "meta": meta,
            "at": time.time(),
        }
        try:
            self._file.write(json.dumps(record).encode("ascii") + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise JournalError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._keep(key, answer)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _keep(self, key: str, answer: Answer) -> None:
        self._answers[key] = answer
        self.spent += answer.cost

    def _load(self) -> int:
        """Read the recorded answers and return the end of the last whole line, in bytes."""
        end = 0
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break
            try:
                r = json.loads(line)
                cost = TeacherCost(r["tokens_in"], r["tokens_out"], r["cost"])
                self._keep(r["key"], Answer(r["output"], r["finish_reason"], cost))
            except (ValueError, KeyError, TypeError) as error:
                raise JournalError(
                    f"{self.path}:{number}: not a recorded answer: {error!r}; name another output, "
                    "or move the file away"
                ) from error
            end += len(line)
        return end


def compute_question_key(teacher: str, prompt: RenderedPrompt) -> str:
    """Return the SHA-256 of teacher and prompt in hex, the key of an answer in the log."""
    text = json.dumps([teacher, *([m.role, m.text] for m in prompt)], ensure_ascii=False)
    return text_digest(text).hex()


class OutOfBudget(Exception):
    """Signal that the next question could exceed the budget. The run ends normally."""


def estimate_tokens(prompt: RenderedPrompt) -> int:
    """Estimate the input tokens of a prompt from its length, chat template included."""
    return sum(len(m.text) // CHARS_PER_TOKEN + 8 for m in prompt)


def price_tokens(
    price: Price | None, tokens_in: int, tokens_out: int, cached: int = 0
) -> TeacherCost:
    """Return the cost of these tokens at a price. cached: those from the provider's cache."""
    usage = Usage(tokens_in, cached, tokens_out)
    return TeacherCost(tokens_in, tokens_out, price.usd(usage) if price else 0.0)


def estimated_cost(
    config: TeacherConfig, prompts: Iterable[RenderedPrompt], tokens_out: int
) -> dict[str, Any]:
    """Estimate the number of questions and their cost. Recorded answers are not subtracted.

    tokens_out: usual length of all answers together. `usd_longest` assumes that every answer has
    max_tokens tokens.
    """
    sizes = [estimate_tokens(prompt) for prompt in prompts]
    price = find_price(config)
    likely = price_tokens(price, sum(sizes), tokens_out)
    longest = price_tokens(price, sum(sizes), len(sizes) * config.max_tokens)
    return {"questions": len(sizes), **asdict(likely), "usd_longest": longest.usd}


def cost_line(case: str, figures: Mapping[str, Any]) -> str:
    """Return one line of a dry run: a case with its counts and dollars."""
    texts = (f"{k} {v:,.2f}" if k[:3] == "usd" else f"{k} {v:,}" for k, v in figures.items())
    return f"{case}: {', '.join(texts)}"


class Teacher:
    """Engine with an answer log: at most `concurrency` questions in flight, each sent once."""

    def __init__(
        self,
        config: TeacherConfig,
        engine: Engine,
        log: AnswerLog,
        budget: TeacherBudget,
        json_schema: str | None = None,
        max_usd: float | None = None,
    ) -> None:
        """Create the teacher. The engine starts with the first question that the log lacks.

        json_schema: schema of all answers, as for `Sampling`. max_usd: limit on the cost of all
        runs into one output; None for no limit.
        """
        self._config, self._engine, self._log = config, engine, log
        self._limits = (max_usd, budget.tokens)
        self._price = find_price(config)
        self._sampling = Sampling(
            config.max_tokens,
            config.temperature,
            config.top_p,
            config.seed,
            json_schema=json_schema,
        )
        self._name = describe_teacher(config) + (f":{json_schema}" if json_schema else "")
        self._gate = asyncio.Semaphore(config.concurrency)
        self._locks = WeakValueDictionary[str, asyncio.Lock]()
        self._reserved = TeacherCost()
        self._unanswered = 0
        self._contact, self._met = asyncio.Lock(), False
        self._no_contact: AutojError | None = None
        self.started = False
        """Whether the engine runs, and must be closed."""
        self.asked = 0
        """Number of questions sent in this run, without those answered from the log."""

    async def ask(self, prompt: RenderedPrompt, meta: dict[str, Any]) -> Answer | None:
        """Return the answer, from the log if it is there; None if the engine was unavailable.

        meta: stored with the answer. Raises OutOfBudget before a question that could exceed the
        budget. Raises EngineUnavailable if the endpoint does not answer within `start_s` at the
        start, or `patience` questions in a row stay unanswered. Raises ConfigError if the endpoint
        refuses the configuration.
        """
        key = compute_question_key(self._name, prompt)
        if recorded_answer := self._log.get(key):
            return recorded_answer
        await self._meet()
        # Equal questions wait for the first one's answer.
        async with self._locks.setdefault(key, asyncio.Lock()), self._gate:
            if recorded_answer := self._log.get(key):
                return recorded_answer
            worst = price_tokens(self._price, estimate_tokens(prompt), self._config.max_tokens)
            self._reserve(worst)
            try:
                answer = await self._send(prompt)
            except EngineUnavailable:
                self._unanswered += 1
                if self._unanswered >= self._config.patience:
                    raise
                return None
            finally:
                self._reserved += -worst
            self._unanswered = 0
            self._log.put(key, answer, meta)
            return answer

    async def _meet(self) -> None:
        """Start the engine once, before the first question. Check that an endpoint answers, and
        which parameters it accepts. A failure is every question's."""
        async with self._contact:
            if self._no_contact:
                raise self._no_contact
            if self._met:
                return
            try:
                await self._engine.start()
                self.started = True
                await self._engine.contact(self._sampling, {})
            except AutojError as error:
                self._no_contact = error
                raise
            self._met = True

    async def _send(self, prompt: RenderedPrompt) -> Answer:
        config = self._config
        self.asked += 1
        try:
            prepared = await self._engine.prepare(prompt, config.max_tokens, "reject")
            [generation] = await self._engine.generate(prepared, self._sampling)
        except InputRejected as error:
            return Answer(str(error), "rejected")
        tokens_in = generation.usage.tokens_in or estimate_tokens(prompt)
        tokens_out = generation.usage.tokens_out or -(-len(generation.text) // CHARS_PER_TOKEN)
        reason = "stop" if generation.finished else "length"
        cost = price_tokens(self._price, tokens_in, tokens_out, generation.usage.tokens_cached)
        return Answer(generation.text, reason, cost)

    def _reserve(self, worst: TeacherCost) -> None:
        total = self._log.spent + self._reserved + worst
        for limit, amount in zip(self._limits, (total.usd, total.tokens), strict=True):
            if limit is not None and amount > limit:
                raise OutOfBudget
        self._reserved += worst


def describe_teacher(config: TeacherConfig) -> str:
    """Return the model's identity and every setting that can change an answer, as one string."""
    # A header counts by its name: its value may be a secret, which this text would show.
    more = {
        "extra_body": config.extra_body,
        "extra_headers": sorted(config.extra_headers),
        "chat_template_kwargs": config.chat_template_kwargs,
    }
    set_fields = {name: value for name, value in more.items() if value}
    further = f":{json.dumps(set_fields, sort_keys=True)}" if set_fields else ""
    answer_settings = {
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "script",
        "max_model_len",
        "revision",
    }
    return f"{resolve(config).identity}:{config.model_dump_json(include=answer_settings)}{further}"


def _make_teacher_engine(config: TeacherConfig) -> Engine:
    if config.kind != "openai":
        return make_engine(config, resolve(config), "chat")
    from autoj_reward.engine.openai import OpenAIEngine

    return OpenAIEngine(
        config,
        "chat",
        at_once=config.concurrency,
        deadline_s=QUESTION_S,
        asks_logprobs=False,
    )


@asynccontextmanager
async def open_teacher(
    config: TeacherConfig,
    log: AnswerLog,
    budget: TeacherBudget,
    json_schema: str | None = None,
    max_usd: float | None = None,
) -> AsyncIterator[Teacher]:
    """Yield a teacher, and close its engine at the end if it was started.

    json_schema, max_usd: as for `Teacher`. Raises ConfigError for a limit without a price.
    """
    if max_usd is not None and config.price is None:
        raise ConfigError(
            f"max_usd is {max_usd:g}, which needs a price: set price of {config.model}"
        )
    engine = _make_teacher_engine(config)
    teacher = Teacher(config, engine, log, budget, json_schema, max_usd)
    try:
        yield teacher
    finally:
        if teacher.started:
            await engine.close()
