"""Client process of the comparison of group judges: one of them judges groups by an endpoint.

    python -m experiments.speed.group_judges NAME < WORK

WORK is a `GroupWork` as JSON, and the output a `JudgedGroups`. The Python that runs this needs only
the packages of that judge, so it may be one of another environment.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

ENDPOINT_KEY = "none"
"""Key for an endpoint that asks for none."""
OPENJUDGE_PROMPT = """Decide which of two responses to one query is better overall.

Query: {query}

Response 1: {response_1}

Response 2: {response_2}

Give rank 1 to the better response and rank 2 to the other. Answer with JSON:
{{"rank": [<rank of response 1>, <rank of response 2>], "reason": "<short reason>"}}"""


@dataclass(frozen=True, slots=True)
class GroupWork:
    """Work of a judge."""

    address: str
    """Base URL of the endpoint, whose model is named `judge`."""
    tokenizer: str
    """Folder or hub id of the model's tokenizer."""
    groups: list[tuple[str, list[str]]]
    """Query and responses of each group."""
    max_tokens: int
    """Longest answer to a request, in tokens."""
    in_flight: int
    """Groups in flight."""


@dataclass(slots=True)
class JudgedGroups:
    """Result of one judge: the scores of all groups, its failures and its time."""

    scores: list[list[float | None]] = field(default_factory=list)
    """Scores of each group; None where the judge gives none."""
    failed: int = 0
    """Judge calls without a valid verdict."""
    invented: int = 0
    """Responses that got a number although no judgement of them is valid."""
    seconds: float = 0.0
    """Wall time of all groups, without imports."""


GroupScore = tuple[list[float | None], int, int]
"""Scores of a group, failed calls and invented numbers."""
ScoreGroup = Callable[[str, list[str]], Awaitable[GroupScore]]


async def score_groups(work: GroupWork, score: ScoreGroup) -> JudgedGroups:
    """Score all groups, `in_flight` of them at a time."""
    free, result = asyncio.Semaphore(work.in_flight), JudgedGroups()

    async def score_group(query: str, responses: list[str]) -> GroupScore:
        async with free:
            return await score(query, responses)

    started = time.perf_counter()
    scored_groups = await asyncio.gather(*(score_group(*group) for group in work.groups))
    result.seconds = time.perf_counter() - started
    for scores, failed, invented in scored_groups:
        result.scores.append(scores)
        result.failed += failed
        result.invented += invented
    return result


async def judge_by_autoj(
    work: GroupWork, judge: dict[str, Any], relative: dict[str, Any]
) -> JudgedGroups:
    """Score the groups by relative judging with this package, through the endpoint.

    judge: keys of a judge config beside the endpoint's. relative: how groups are judged, as in a
    run file.
    """
    from autoj_reward.client.session import open_judge
    from autoj_reward.config import JudgeConfig, RelativeConfig
    from autoj_reward.questions.relative import rank_question
    from autoj_reward.types import Candidate

    endpoint = {
        "kind": "openai",
        "base_url": work.address,
        "model": "judge",
        "tokenizer": work.tokenizer,
        "max_model_len": 2048,
        "max_tokens": work.max_tokens,
    }
    relative_config = RelativeConfig.model_validate(relative)
    async with open_judge(JudgeConfig.model_validate(endpoint | judge)) as client:

        async def score(query: str, responses: list[str]) -> GroupScore:
            group = [Candidate(query, text) for text in responses]
            question = rank_question(group, client.facts, client.asks, relative_config)
            ranking = await question.answer(client.judge)
            failed = sum(not judgement.ok for judgement in ranking.judgements)
            return list(ranking.scores), failed, 0

        return await score_groups(work, score)


async def judge_by_openjudge(work: GroupWork, debiased: bool) -> JudgedGroups:
    """Judge with OpenJudge's tournament.

    It has no prompt of its own. A call that raises is given to it as a `GraderError`, which it
    skips; without that, one such call would lose the whole group.
    """
    from openjudge.evaluation_strategy import GRPOTournamentEvaluationStrategy
    from openjudge.graders.llm_grader import LLMGrader
    from openjudge.graders.schema import GraderError, GraderMode
    from openjudge.models.openai_chat_model import OpenAIChatModel

    model = OpenAIChatModel(
        model="judge",
        api_key=ENDPOINT_KEY,
        base_url=work.address,
        timeout=3600,
        temperature=0,
        max_tokens=work.max_tokens,
    )
    grader = LLMGrader(
        model=model, name="pair", mode=GraderMode.LISTWISE, template=OPENJUDGE_PROMPT
    )
    strategy = GRPOTournamentEvaluationStrategy(debiased=debiased)

    async def score(query: str, responses: list[str]) -> GroupScore:
        failures = list[Exception]()

        async def compare(**texts: str) -> Any:
            try:
                return await grader.aevaluate(**texts)
            except Exception as error:
                failures.append(error)
                return GraderError(name="pair", error=str(error))

        results = await strategy.execute(compare, query=query, responses=responses)
        invented = sum(result.metadata["valid_comparisons"] == 0 for result in results)
        for error in failures:
            print(f"{type(error).__name__}: {str(error)[:200]!r}", file=sys.stderr)
        return [result.score for result in results], len(failures), invented

    return await score_groups(work, score)


class _Fallbacks(logging.Handler):
    """Counts its-hub's warnings that it returns its fallback score."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.count += "fallback score" in message or "field invalid" in message
        print(message[:300].replace("\n", " "), file=sys.stderr)


def its_hub_model(address: str, max_tokens: int) -> Any:
    """Return its-hub's client of the endpoint, a context manager."""
    from its_hub.core.lms.openai_lm import OpenAICompatibleLanguageModel

    return OpenAICompatibleLanguageModel(
        endpoint=address,
        api_key=ENDPOINT_KEY,
        model_name="judge",
        temperature=0.0,
        max_completion_tokens=max_tokens,
    )


async def judge_by_its_hub(work: GroupWork) -> JudgedGroups:
    """Judge with its-hub's LLM judge, which scores each response alone, from 0 to 10.

    Failed are answers without a score, for which it returns a fallback score, and scores outside
    the scale, which it returns too.
    """
    from its_hub.api import ChatMessage
    from its_hub.core.reward_models.llm_judge import LLMJudge

    fallbacks = _Fallbacks()
    logging.getLogger().addHandler(fallbacks)
    async with its_hub_model(work.address, work.max_tokens) as model:
        judge = LLMJudge(model)

        async def score(query: str, responses: list[str]) -> GroupScore:
            question = ChatMessage(role="user", content=query)
            rows = [[question, ChatMessage(role="assistant", content=text)] for text in responses]
            scores = list(await judge.ascore(rows))
            outside = sum(not 0 <= value <= 10 for value in scores)
            return scores, outside, outside

        result = await score_groups(work, score)
    result.failed += fallbacks.count
    result.invented += fallbacks.count
    return result


BRIEF = {"format": "listwise-brief"}
SLOT = {"format": "general", "critique": False}
OURS = "autoj-reward"
JUDGES: dict[str, Callable[[GroupWork], Coroutine[Any, Any, JudgedGroups]]] = {
    f"{OURS}, listwise, 2 orders": partial(
        judge_by_autoj, judge=BRIEF, relative={"by": "listwise"}
    ),
    f"{OURS}, circular, 1 neighbour": partial(
        judge_by_autoj, judge=SLOT, relative={"by": "comparisons", "neighbours": 1}
    ),
    f"{OURS}, all pairs": partial(
        judge_by_autoj, judge=SLOT, relative={"by": "comparisons", "schedule": "all"}
    ),
    "OpenJudge tournament": partial(judge_by_openjudge, debiased=False),
    "OpenJudge tournament, debiased": partial(judge_by_openjudge, debiased=True),
    "its-hub LLM judge": judge_by_its_hub,
}
"""Judges by name."""


if __name__ == "__main__":
    group_work = GroupWork(**json.load(sys.stdin))
    judged_groups = asyncio.run(JUDGES[sys.argv[1]](group_work))
    print(json.dumps(asdict(judged_groups)))
