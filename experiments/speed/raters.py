"""Client process of the comparison of judges: one of them rates all responses by an endpoint.

    python -m experiments.speed.raters NAME < WORK

WORK is a `RatingWork` as JSON, and the output a `RatedRows`. The Python that runs this needs only
the packages of that judge, so it may be one of another environment.

A judge is an async context manager that is opened with the work. It yields a function that rates
rows and returns, for each row in order, what it read, or the exception that it raised.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.speed.group_judges import ENDPOINT_KEY, its_hub_model

TIMEOUT_S = 3600.0
"""Timeout of a request where a judge takes one. It is longer than any request of the studies."""
CRITERION = "The response answers the query correctly and helps the user."
"""What judges that need a criterion are asked."""
CHOICES = ["1", "2", "3", "4", "5"]
"""Verdicts on the criterion, the worst first."""
GRADES = {"C": 1.0, "P": 0.5, "I": 0.0}
"""Numbers of inspect_ai's grades."""
Row = tuple[str, str]
"""Query and response."""
Reading = tuple[float | None, float | None]
"""Rating, and the expected rating if log-probabilities were requested. None: not given."""
RateRows = Callable[[Sequence[Row]], Awaitable[Sequence[Reading | BaseException]]]
"""Function that rates rows, in order."""
_RATING = re.compile(r"Rating: \[\[(\d+)\]\]")


@dataclass(frozen=True, slots=True)
class RatingWork:
    """Work of a judge."""

    address: str
    """Base URL of the endpoint, whose model is named `judge`."""
    rows: list[Row]
    """Queries and responses to rate."""
    warm_up: list[Row]
    """Rows that are rated before the time is taken."""
    in_flight: int
    """Maximum number of requests in flight."""
    max_tokens: int
    """Longest answer to a request, in tokens."""
    top: int = 0
    """Alternatives requested for each token; 0 for no log-probabilities."""
    judge: dict[str, Any] = field(default_factory=dict)
    """Keys of this package's judge config that differ from those of an endpoint."""


@dataclass(frozen=True, slots=True)
class RatedRows:
    """Result of one judge."""

    readings: list[Reading]
    """What it read from each row."""
    errors: dict[str, int]
    """Exceptions that its calls raised, by type."""
    usage: dict[str, float] | None
    """Tokens of the judgements where the judge itself tells them."""
    cpu_s: float
    """User and system time of this process for all rows."""
    wall_s: float
    """Wall time for all rows."""
    start_cpu_s: float
    """Processor time before them."""


def one_by_one(
    rate: Callable[[str, str], Awaitable[Reading]], in_flight: int
) -> Callable[[Sequence[Row]], Awaitable[Sequence[Reading | BaseException]]]:
    """Return a function that rates rows by `rate`, `in_flight` of them at a time."""
    free = asyncio.Semaphore(in_flight)

    async def rate_row(query: str, response: str) -> Reading:
        async with free:
            return await rate(query, response)

    async def rate_rows(rows: Sequence[Row]) -> Sequence[Reading | BaseException]:
        return await asyncio.gather(*(rate_row(*row) for row in rows), return_exceptions=True)

    return rate_rows


USAGE = Counter[str]()
"""Tokens of this package's judgements, which it tells itself."""


@asynccontextmanager
async def rate_by_autoj(work: RatingWork) -> AsyncIterator[RateRows]:
    """Rate with this package as a script does: one judge, and one call for all rows."""
    from autoj_reward.client.session import open_judge
    from autoj_reward.config import JudgeConfig
    from autoj_reward.types import Candidate

    endpoint = {
        "kind": "openai",
        "base_url": work.address,
        "model": "judge",
        "distribution": work.top > 0,
    }
    both = {
        "format": "autoj-en",
        "max_tokens": work.max_tokens,
        "serve": {"max_ongoing": work.in_flight},
    }
    config = (endpoint if "model" not in work.judge else {}) | both | work.judge
    async with open_judge(JudgeConfig.model_validate(config)) as client:

        async def rate_rows(rows: Sequence[Row]) -> Sequence[Reading]:
            candidates = [Candidate(*row) for row in rows]
            judgements = await client.rate(candidates, view="expected" if work.top else "rating")
            for judgement in judgements:
                usage = asdict(judgement.usage)
                USAGE.update({key: n for key, n in usage.items() if key.startswith("tokens")})
            return [(j.rating, j.expected) if j.ok else (None, None) for j in judgements]

        yield rate_rows


@asynccontextmanager
async def rate_in_plain_loop(work: RatingWork) -> AsyncIterator[RateRows]:
    """Rate with OpenAI's client in the shortest script: prompt, request and regular expression."""
    from openai import AsyncOpenAI

    from autoj_reward.formats.schema import load_format

    fmt = load_format("autoj-en")
    template = fmt.texts[fmt.protocol("single").template]
    options: dict[str, Any] = {"logprobs": True, "top_logprobs": work.top} if work.top else {}
    # The default connect timeout of 5 s can pass while the busy loop reads earlier answers.
    opening = AsyncOpenAI(base_url=work.address, api_key=ENDPOINT_KEY, timeout=TIMEOUT_S)
    async with opening as client:

        async def rate(query: str, response: str) -> Reading:
            prompt = template.replace("{query}", query).replace("{response}", response)
            answer = await client.chat.completions.create(
                model="judge",
                messages=[{"role": "user", "content": prompt}],
                temperature=0.0,
                max_tokens=work.max_tokens,
                **options,
            )
            [choice] = answer.choices
            ratings = _RATING.findall(choice.message.content)
            if not ratings:
                return None, None
            return float(ratings[-1]), _read_expected(choice, ratings[-1]) if work.top else None

        yield one_by_one(rate, work.in_flight)


def _read_expected(choice: Any, rating: str) -> float:
    """Return the mean of the numbers among the alternatives at the rating's token.

    The rating is the last such token.
    """
    token = next(token for token in reversed(choice.logprobs.content) if token.token == rating)
    shares = [
        (int(t.token), math.exp(t.logprob)) for t in token.top_logprobs if t.token.isdecimal()
    ]
    return sum(n * p for n, p in shares) / sum(p for _, p in shares)


@asynccontextmanager
async def rate_by_openjudge(work: RatingWork) -> AsyncIterator[RateRows]:
    """Rate with OpenJudge's grader of relevance, from 1 to 5."""
    from openjudge.graders.common.relevance import RelevanceGrader
    from openjudge.graders.schema import GraderError
    from openjudge.models.openai_chat_model import OpenAIChatModel

    model = OpenAIChatModel(
        model="judge",
        api_key=ENDPOINT_KEY,
        base_url=work.address,
        timeout=TIMEOUT_S,
        temperature=0,
        max_tokens=work.max_tokens,
    )
    grader = RelevanceGrader(model=model)

    async def rate(query: str, response: str) -> Reading:
        grade = await grader.aevaluate(query=query, response=response)
        if isinstance(grade, GraderError):  # returned, not raised
            raise RuntimeError(grade.error)
        return grade.score, None

    yield one_by_one(rate, work.in_flight)


@asynccontextmanager
async def rate_by_its_hub(work: RatingWork) -> AsyncIterator[RateRows]:
    """Rate with its-hub's LLM judge, from 0 to 10."""
    from its_hub.api import ChatMessage
    from its_hub.core.reward_models.llm_judge import LLMJudge

    async with its_hub_model(work.address, work.max_tokens) as model:
        judge = LLMJudge(model)

        async def rate(query: str, response: str) -> Reading:
            turns = [("user", query), ("assistant", response)]
            messages = [ChatMessage(role=role, content=text) for role, text in turns]
            return float(await judge.ascore(messages)), None

        yield one_by_one(rate, work.in_flight)


@asynccontextmanager
async def rate_by_verifiers(work: RatingWork) -> AsyncIterator[RateRows]:
    """Rate with verifiers' rubric judge: one criterion with five choices, from 0 to 1."""
    from verifiers.v1.judges.rubric import RubricJudge, RubricJudgeConfig

    with tempfile.TemporaryDirectory() as folder:
        config = RubricJudgeConfig(
            path=_write_criterion(Path(folder, "criteria.json")),
            base_url=work.address,
            api_key_var="HOME",  # any variable that is set: the endpoint asks for no key
            model="judge",
            view="last_reply",
            sampling={"temperature": 0.0, "max_tokens": work.max_tokens},
        )
        judge = RubricJudge(config)

        async def rate(query: str, response: str) -> Reading:
            def ignore(*_: Any, **__: Any) -> None:
                pass

            trace = SimpleNamespace(
                last_reply=response, record_judge_call=ignore, record_metric=ignore
            )
            return await judge.score(SimpleNamespace(prompt_text=query), trace), None

        yield one_by_one(rate, work.in_flight)


def _write_criterion(path: Path) -> Path:
    criterion = {"name": "helpful", "text": CRITERION, "choices": CHOICES}
    path.write_text(json.dumps([criterion]), encoding="utf-8")
    return path


@asynccontextmanager
async def rate_by_inspect(work: RatingWork) -> AsyncIterator[RateRows]:
    """Grade with inspect_ai's `model_graded_qa`: correct 1, partial 0.5, incorrect 0."""
    from inspect_ai.model import ChatMessageUser, GenerateConfig, ModelOutput, get_model
    from inspect_ai.scorer import Target, model_graded_qa
    from inspect_ai.solver import TaskState

    options = GenerateConfig(
        temperature=0.0, max_tokens=work.max_tokens, max_connections=work.in_flight
    )
    model = get_model(
        "openai-api/peer/judge", base_url=work.address, api_key=ENDPOINT_KEY, config=options
    )
    grade = model_graded_qa(model=model, partial_credit=True)

    async def rate(query: str, response: str) -> Reading:
        state = TaskState(
            model="none/policy",
            sample_id=1,
            epoch=1,
            input=query,
            messages=[ChatMessageUser(content=query)],
            output=ModelOutput.from_content("policy", response),
        )
        return GRADES.get((await grade(state, Target(CRITERION))).value), None

    yield one_by_one(rate, work.in_flight)


RATERS: dict[str, Callable[[RatingWork], AbstractAsyncContextManager[RateRows]]] = {
    "autoj-reward": rate_by_autoj,
    "AsyncOpenAI": rate_in_plain_loop,
    "OpenJudge": rate_by_openjudge,
    "its-hub": rate_by_its_hub,
    "verifiers": rate_by_verifiers,
    "inspect_ai": rate_by_inspect,
}
"""Judges by name."""


async def rate_timed(name: str, work: RatingWork) -> RatedRows:
    """Let a judge do the work."""
    async with RATERS[name](work) as rate_rows:
        await rate_rows([(query, response) for query, response in work.warm_up])
        USAGE.clear()
        start_cpu_s, started = time.process_time(), time.perf_counter()
        answers = await rate_rows([(query, response) for query, response in work.rows])
        cpu_s, wall_s = time.process_time() - start_cpu_s, time.perf_counter() - started
    errors = Counter(
        type(answer).__name__ for answer in answers if isinstance(answer, BaseException)
    )
    readings = [(None, None) if isinstance(answer, BaseException) else answer for answer in answers]
    return RatedRows(readings, dict(errors), dict(USAGE) or None, cpu_s, wall_s, start_cpu_s)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # of the judges, for each call that fails
    rating_work = RatingWork(**json.load(sys.stdin))
    print(json.dumps(asdict(asyncio.run(rate_timed(sys.argv[1], rating_work)))))
