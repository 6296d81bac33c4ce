"""`Judge` and `AsyncJudge`: the Python API of a judge, for scripts and for code with an event loop.

`Judge` runs an `AsyncJudge` on an event loop in its own thread, so it works in notebooks too.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, Self, TypeVar

from autoj_reward.client.call import CLOSED
from autoj_reward.client.client import JudgeClient
from autoj_reward.client.loop_thread import LoopThread
from autoj_reward.client.session import open_judge, open_service
from autoj_reward.config import JudgeConfig, RelativeConfig, RubricConfig, ServiceConfig, View
from autoj_reward.conversation import EMPTY_CONTEXT, Prompt, Response
from autoj_reward.errors import EngineUnavailable
from autoj_reward.journal import Journal
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.ask import Question
from autoj_reward.questions.choose import Choice, choice_question
from autoj_reward.questions.rank import Ranking
from autoj_reward.questions.relative import rank_question
from autoj_reward.questions.rubric import RubricScore, rubric_question
from autoj_reward.rubric_items import RubricItem, read_items
from autoj_reward.types import Candidate, Comparison, Judgement, Pair

T = TypeVar("T")


class AsyncJudge:
    """A judge for code with an event loop. It starts with `async with` and stops at its end.

    judge: name of a model, or a judge config.
    journal: SQLite file of every judgement, which later runs reuse; None keeps none.

    >>> async with AsyncJudge("GAIR/autoj-13b") as judge:
    ...     found = await judge.rate("Why is the sky blue?", "It scatters light.")
    """

    def __init__(
        self, judge: str | JudgeConfig = "default", *, journal: str | Path | None = None
    ) -> None:
        config = judge if isinstance(judge, JudgeConfig) else JudgeConfig(model=judge)
        self._config = config
        self._service: ServiceConfig | None = None
        self._journal = None if journal is None else Path(journal)
        self._stack: AsyncExitStack | None = None
        self._client: JudgeClient | None = None

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        token_env: str = "AUTOJ_TOKEN",
        judge: JudgeConfig | None = None,
        journal: str | Path | None = None,
    ) -> Self:
        """Return a judge that uses a running service instead of starting a model.

        token_env: environment variable that holds the service's bearer token.
        judge: judge config, needed where the service's format differs from the default judge's.
        journal: SQLite file of every judgement; None keeps none.
        """
        instance = cls(judge or JudgeConfig(), journal=journal)
        instance._service = ServiceConfig(address=address, token_env=token_env)
        return instance

    async def __aenter__(self) -> Self:
        """Open the judge. Raises an AutojError that says what to do."""
        async with AsyncExitStack() as stack:
            journal = None
            if self._journal is not None:
                journal = stack.enter_context(closing(Journal(self._journal)))
            if self._service:
                opening = open_service(self._service, self._config, journal=journal)
            else:
                opening = open_judge(self._config, journal=journal)
            self._client = await stack.enter_async_context(opening)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        stack, self._stack, self._client = self._stack, None, None
        if stack:
            await stack.aclose()

    @property
    def client(self) -> JudgeClient:
        """Return the client of the open judge. Raises EngineUnavailable while it is not open."""
        if self._client is None:
            raise EngineUnavailable(CLOSED)
        return self._client

    async def rate(
        self,
        query: Prompt | str,
        response: Response | str,
        *,
        context: Mapping[str, str] = EMPTY_CONTEXT,
        view: View | None = None,
    ) -> Judgement:
        """Rate one response. A judgement that fails abstains, with its outcome and reason.

        context: named texts that the judge's format shows, such as a reference answer.
        view: the number that the caller needs; a judgement without it abstains.
        """
        [judgement] = await self.rate_all([Candidate(query, response, context=context)], view=view)
        return judgement

    async def rate_all(
        self, candidates: Sequence[Candidate], *, view: View | None = None
    ) -> list[Judgement]:
        """Rate many responses concurrently. Returns one judgement for each candidate, in order."""
        return await self.client.rate(candidates, view=view)

    async def compare(
        self,
        query: Prompt | str,
        first: Response | str,
        second: Response | str,
        *,
        context: Mapping[str, str] = EMPTY_CONTEXT,
        swap: bool = True,
    ) -> Comparison:
        """Compare two responses, in both orders unless `swap` is False.

        context: named texts that the judge's format shows, such as a reference answer.
        """
        [comparison] = await self.client.compare([Pair(query, first, second, context)], swap=swap)
        return comparison

    async def choose(
        self,
        query: Prompt | str,
        responses: Sequence[Response | str],
        *,
        context: Mapping[str, str] = EMPTY_CONTEXT,
    ) -> Choice:
        """Choose the best of several responses, with a best-of-N job's default tie-break rules.

        context: named texts that the judge's format shows, such as a reference answer.
        """
        client = self.client
        facts = await client.contact()
        view = resolve_view("auto", "choose", facts.preferred, facts.views)
        candidates = [Candidate(query, text, context=context) for text in responses]
        question = choice_question(candidates, facts, client.asks, view=view)
        return await question.answer(client.judge)

    async def rank(
        self,
        query: Prompt | str,
        responses: Sequence[Response | str],
        *,
        context: Mapping[str, str] = EMPTY_CONTEXT,
        relative: RelativeConfig | None = None,
    ) -> Ranking:
        """Judge several responses together, and return a score for each.

        relative: how; None stands for listwise if the judge's format has a group protocol, else for
        comparisons. Raises ConfigError if this judge cannot rank that way, InputError for fewer
        than two responses.
        """
        candidates = [Candidate(query, text, context=context) for text in responses]
        client = self.client
        question = rank_question(candidates, client.facts, client.asks, relative)
        return await question.answer(client.judge)

    async def score_rubric(
        self,
        query: Prompt | str,
        response: Response | str,
        rubric: Sequence[Any],
        *,
        context: Mapping[str, str] = EMPTY_CONTEXT,
        how: RubricConfig | None = None,
    ) -> RubricScore:
        """Score one response by rubric items, and return the score and the verdict on each item.

        rubric: the items; each is a text, a mapping with `criterion` and `points`, or a RubricItem.
        how: None judges one item at a time if the judge's format takes one, else all together.
        Raises BadRubric, an InputError, for malformed items. Raises ConfigError if this judge
        cannot score that way.
        """
        items = read_items(
            [item.record() if isinstance(item, RubricItem) else item for item in rubric]
        )
        client = self.client
        candidate = Candidate(query, response, context=context, rubric=items)
        question = rubric_question(candidate, client.facts, client.asks, how)
        return await question.answer(client.judge)

    async def answer(self, questions: Sequence[Question[T]]) -> list[T]:
        """Answer questions of any kind concurrently; return the answers in order."""
        return await self.client.answer(questions)


class Judge:
    """A judge for code without an event loop: `AsyncJudge` with blocking methods.

    Methods may be called from any thread.

    >>> with Judge("GAIR/autoj-13b") as judge:
    ...     print(judge.rate("Why is the sky blue?", "It scatters light.").rating)
    """

    def __init__(
        self, judge: str | JudgeConfig = "default", *, journal: str | Path | None = None
    ) -> None:
        self._judge = AsyncJudge(judge, journal=journal)
        self._loop: LoopThread | None = None

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        token_env: str = "AUTOJ_TOKEN",
        judge: JudgeConfig | None = None,
        journal: str | Path | None = None,
    ) -> Self:
        """Return a judge that uses a running service; see `AsyncJudge.connect`."""
        instance = cls()
        instance._judge = AsyncJudge.connect(
            address, token_env=token_env, judge=judge, journal=journal
        )
        return instance

    def __enter__(self) -> Self:
        """Open the judge. Raises an AutojError that says what to do."""
        self._loop = LoopThread("autoj-judge")
        try:
            self._loop.wait(self._judge.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._wait(self._judge.__aexit__(*exception))
        finally:
            self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop:
            loop.stop()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise EngineUnavailable(CLOSED)
        return self._loop.wait(work)

    def rate(
        self,
        query: Prompt | str,
        response: Response | str,
        *,
        context: Mapping[str, str] = EMPTY_CONTEXT,
        view: View | None = None,
    ) -> Judgement:
        """Rate one response; see `AsyncJudge.rate`."""
        return self._wait(self._judge.rate(query, response, context=context, view=view))

    def rate_all(
        self, candidates: Sequence[Candidate], *, view: View | None = None
    ) -> list[Judgement]:
        """Rate many responses concurrently. Returns one judgement for each candidate, in order."""
        return self._wait(self._judge.rate_all(candidates, view=view))

    def compare(
        self,
        query: Prompt | str,
        first: Response | str,
        second: Response | str,
        *,
        context: Mapping[str, str] = EMPTY_CONTEXT,
        swap: bool = True,
    ) -> Comparison:
        """Compare two responses; see `AsyncJudge.compare`."""
        return self._wait(self._judge.compare(query, first, second, context=context, swap=swap))

    def choose(
        self,
        query: Prompt | str,
        responses: Sequence[Response | str],
        *,
        context: Mapping[str, str] = EMPTY_CONTEXT,
    ) -> Choice:
        """Choose the best of several responses; see `AsyncJudge.choose`."""
        return self._wait(self._judge.choose(query, responses, context=context))

    def rank(
        self,
        query: Prompt | str,
        responses: Sequence[Response | str],
        *,
        context: Mapping[str, str] = EMPTY_CONTEXT,
        relative: RelativeConfig | None = None,
    ) -> Ranking:
        """Judge several responses together; see `AsyncJudge.rank`."""
        return self._wait(self._judge.rank(query, responses, context=context, relative=relative))

    def score_rubric(
        self,
        query: Prompt | str,
        response: Response | str,
        rubric: Sequence[Any],
        *,
        context: Mapping[str, str] = EMPTY_CONTEXT,
        how: RubricConfig | None = None,
    ) -> RubricScore:
        """Score one response by rubric items; see `AsyncJudge.score_rubric`."""
        work = self._judge.score_rubric(query, response, rubric, context=context, how=how)
        return self._wait(work)

    def answer(self, questions: Sequence[Question[T]]) -> list[T]:
        """Answer questions of any kind concurrently; return the answers in order."""
        return self._wait(self._judge.answer(questions))
