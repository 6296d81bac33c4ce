"""JudgeClient: limits concurrency, retries, coalesces equal inputs and records judgements.

Every candidate is answered exactly once, in order, whatever fails behind the backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from autoj_reward.client.backend import Backend
from autoj_reward.client.call import CLOSED, Call, CallSettings, Waiting
from autoj_reward.client.in_flight import Progress, Recorder, Slots
from autoj_reward.config import RubricConfig, View
from autoj_reward.errors import ConfigError, EngineUnavailable
from autoj_reward.journal import Journal
from autoj_reward.models.facts import Asks, JudgeFacts
from autoj_reward.models.price import Spending
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.questions.ask import Question
from autoj_reward.questions.compare import compare_all, comparison_question
from autoj_reward.questions.rate import rate_all, rating_question
from autoj_reward.questions.rubric import rubric_question
from autoj_reward.types import (
    OF_DISTRIBUTION,
    Candidate,
    Comparison,
    JudgeInput,
    Judgement,
    Outcome,
    Pair,
)

T = TypeVar("T")
ViewsCheck = Callable[[frozenset[View]], object]
"""Check on the views that a judge can give. Raises if a view that the caller needs is missing."""


def accept_any_views(views: frozenset[View]) -> None:
    """Accept any set of views."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits on what a client asks at a time."""

    max_in_flight: int = 256
    """Judge inputs in flight. Each answer frees its slot at once, so a slow input keeps no replica
    waiting."""
    deadline_s: float = 1800.0
    """Seconds for one input, retries included, after which it is `unavailable`."""
    chunk: int = 32
    """Inputs of one backend call. Inputs of one query share a call, also across callers, because
    they share the query's prefix in one replica."""
    spending: Spending | None = None
    """Dollars that the run may spend. The clients of one run share it."""


class JudgeClient:
    """Rates candidates and compares pairs through a backend.

    asks: what this caller wants of the judge. What the judge can do are its `facts`.
    require: check on the judge's views, called before its first input; its exception ends the call.
    """

    def __init__(
        self,
        backend: Backend,
        asks: Asks | None = None,
        limits: ClientLimits | None = None,
        *,
        journal: Journal | None = None,
        progress: Progress | None = None,
        require: ViewsCheck = accept_any_views,
    ) -> None:
        self.backend = backend
        self.asks = asks or Asks()
        self.limits = limits = limits or ClientLimits()
        self.journal = journal
        self._chunk = min(limits.chunk, limits.max_in_flight)
        slots = Slots(limits.max_in_flight)
        self._recorder = Recorder(journal, progress, slots, limits.spending)
        self._call_settings = CallSettings(backend, self._recorder, slots, limits.deadline_s)
        self._pending: dict[JudgeInput, Waiting] = {}
        self._unsent: list[Waiting] = []
        self._calls: set[Call] = set()
        self._closed = False
        self._require = require
        # A service may take another judge at any time, so the contact is with a judge by name.
        self._contacted_judge: str | None = None
        self._finding: Mapping[str, Any] = {}
        self._contact_lock = asyncio.Lock()
        self._has_probabilities = False

    @property
    def facts(self) -> JudgeFacts:
        """Return what the judge can do. An endpoint's are complete after `contact`."""
        return self.backend.facts

    async def update(self, spec: JudgeSpec) -> None:
        """Replace the judge, its facts and what is asked of it. The limit in flight stays."""
        await self.backend.update(spec)
        self.asks = spec.asks
        self.limits = replace(self.limits, deadline_s=spec.config.serve.deadline_s)
        self._call_settings.deadline_s = self.limits.deadline_s
        # A judge of the same name may give other views, for instance with another `distribution`.
        self._contacted_judge = None

    async def __aenter__(self) -> JudgeClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all calls in flight with EngineUnavailable, and refuse later ones. The caller that
        opened the backend closes it."""
        self._closed = True
        tasks = [call.task for call in self._calls]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def was_asked(self) -> bool:
        """Return whether the judge was contacted at all, if only to learn its facts."""
        return self._contacted_judge is not None

    async def contact(self) -> JudgeFacts:
        """Return the judge's facts, after its first contact.

        An endpoint is probed once. Capabilities in the journal are used instead, whichever process
        probed them. Raises EngineUnavailable if the endpoint does not answer in time, ConfigError
        for an error that only the user can fix, and what `require` raises.
        """
        async with self._contact_lock:
            judge = self.backend.judge
            if judge != self._contacted_judge:
                recorded_finding = self.journal.finding(judge) if self.journal else {}
                finding = await self.backend.contact(recorded_finding)
                if self.journal and finding and not recorded_finding:
                    kept_finding = self.journal.keep_finding(judge, finding)
                    if kept_finding != finding:
                        finding = await self.backend.contact(kept_finding)
                self._require(self.facts.views)
                self._contacted_judge, self._finding = judge, finding
            return self.facts

    async def finding(self) -> Mapping[str, Any]:
        """Return the endpoint's probed capabilities as JSON values, {} if there is no endpoint.
        Raises what `contact` raises."""
        await self.contact()
        return self._finding

    async def use_finding(self, finding: Mapping[str, Any]) -> None:
        """Use the endpoint capabilities that another process probed. Raises what `contact`
        raises."""
        if await self.finding() == finding:
            return
        async with self._contact_lock:
            self._finding = await self.backend.contact(finding)

    def without_journal(self) -> JudgeClient:
        """Return a further client of this judge that neither reads nor writes the journal.

        It has its own limit on inputs in flight. The judge must have been contacted.
        """
        unrecorded_client = JudgeClient(self.backend, self.asks, self.limits)
        unrecorded_client._contacted_judge = self._contacted_judge
        unrecorded_client._finding = self._finding
        return unrecorded_client

    async def rate(
        self,
        candidates: Sequence[Candidate],
        *,
        direct: bool = False,
        view: View | None = None,
    ) -> list[Judgement]:
        """Return one judgement for each candidate, in order. Identical candidates are judged once.

        direct: read only the expected rating right after the prompt: one or two tokens per
        candidate. view: the number that the caller needs. A judgement without it abstains; one from
        the journal without it is judged again. Raises ConfigError if the view needs probabilities
        and the judge's first ratings come without them.
        """
        questions = [
            rating_question(candidate, self.asks, direct=direct, view=view)
            for candidate in candidates
        ]
        return await rate_all(questions, self.judge)

    def _require_probabilities(self, answers: Sequence[Judgement], view: View) -> None:
        """Raise ConfigError if neither these ratings nor any earlier one had probabilities."""
        lacking = [judgement.lacks(view) for judgement in answers if judgement.rating is not None]
        self._has_probabilities |= not all(lacking)
        if lacking and not self._has_probabilities:
            raise ConfigError(
                f"the view is {view}, and the judge's first ratings came without probabilities: "
                "set view (of a trainer: reward.view) to rating, or name an endpoint that tells "
                "log-probabilities"
            )

    async def compare(
        self, pairs: Sequence[Pair | tuple[str, str, str]], *, swap: bool = True
    ) -> list[Comparison]:
        """Compare pairs, or (prompt, first, second) triples.

        swap: judge each pair in both orders.
        """
        questions = [
            comparison_question(
                pair if isinstance(pair, Pair) else Pair(*pair), self.facts, self.asks, swap=swap
            )
            for pair in pairs
        ]
        return await compare_all(questions, self.judge)

    async def score_rubrics(
        self, candidates: Sequence[Candidate], rubric_config: RubricConfig
    ) -> list[Judgement]:
        """Return one judgement for each candidate, in order, whose rating is its rubric score."""
        questions = [
            rubric_question(candidate, self.facts, self.asks, rubric_config)
            for candidate in candidates
        ]
        return [score.as_judgement() for score in await self.answer(questions)]

    async def answer(self, questions: Sequence[Question[T]]) -> list[T]:
        """Answer questions of any kind concurrently, and return the answers in order.

        The first exception cancels the rest and is raised.
        """
        tasks = [asyncio.ensure_future(question.answer(self.judge)) for question in questions]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def judge(self, items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
        """Return one judgement for each input, in order.

        It comes from the journal, from a call in flight, or from a new call. view: a number that a
        judgement from the journal must have, if the judge gives it at all. Raises EngineUnavailable
        once the client is closed, and what `contact` raises.
        """
        rejections = {}
        for n, item in enumerate(items):
            # What is no text cannot be looked up, recorded or sent.
            if item.unreadable:
                rejections[n] = Judgement(
                    Outcome.INPUT_REJECTED, reason=item.unreadable, judge=self.backend.judge
                )
        if rejections:
            readable = [item for n, item in enumerate(items) if n not in rejections]
            judged = iter(await self.judge(readable, view) if readable else ())
            return [rejections.get(n) or next(judged) for n in range(len(items))]
        distinct_items = list(dict.fromkeys(items))
        answers = self.journal.get(self.backend.judge, distinct_items) if self.journal else {}
        if view and any(judgement.lacks(view) for judgement in answers.values()):
            answers = {
                item: judgement for item, judgement in answers.items() if not judgement.lacks(view)
            }
        for judgement in answers.values():
            self._recorder.tell(judgement, True)
        # Another round is needed only if another caller's call for some of them fails.
        while missing := [item for item in distinct_items if item not in answers]:
            # The first contact comes first: nothing may be awaited between looking for calls in
            # flight and entering new ones, or two callers ask for the same input.
            await self._require_contact()
            pending = {i: self._pending[i].future for i in missing if i in self._pending}
            new_items = [item for item in missing if item not in pending]
            if new_items:
                answers |= await self._ask_all(new_items)
            if pending:
                await asyncio.wait(pending.values())
            for item, future in pending.items():
                if not (future.cancelled() or future.exception()):
                    answers[item] = future.result()
        judgements = [answers[item] for item in items]
        if view in OF_DISTRIBUTION:
            self._require_probabilities(judgements, view)
        return judgements

    async def _require_contact(self) -> None:
        """Contact the judge unless that was done. Raises EngineUnavailable once closed."""
        if not self._closed and self.backend.judge != self._contacted_judge:
            await self.contact()
        if self._closed:
            raise EngineUnavailable(CLOSED)

    async def _ask_all(self, items: Sequence[JudgeInput]) -> dict[JudgeInput, Judgement]:
        """Enter inputs that are not in flight, and return their judgements."""
        loop = asyncio.get_running_loop()
        context = copy_context()
        waitings = [Waiting(item, loop.create_future(), context) for item in items]
        for waiting in waitings:
            self._pending[waiting.item] = waiting
        if not self._unsent:
            loop.call_soon(self._depart)
        self._unsent += waitings
        futures = [waiting.future for waiting in waitings]
        try:
            await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for waiting in waitings:
                del self._pending[waiting.item]
                waiting.future.cancel()
            calls = {waiting.call for waiting in waitings if waiting.call}
            for waiting in waitings:
                waiting.call = None  # no cycle may hold texts until the garbage collector runs
            await asyncio.gather(*(call.leave() for call in calls))
        for future in futures:
            if not future.cancelled() and (error := future.exception()):
                raise error
        return {waiting.item: waiting.future.result() for waiting in waitings}

    def _depart(self) -> None:
        """Start the calls for all inputs that callers requested in this turn of the event loop.

        Inputs of one query go together, also those of several callers.
        """
        unsent, self._unsent = self._unsent, []
        for group in self._group_inputs(w for w in unsent if not w.future.done()):
            if self._closed:
                for waiting in group:
                    waiting.fail(EngineUnavailable(CLOSED))
                continue
            call = Call(self._call_settings, group)
            self._calls.add(call)
            call.task.add_done_callback(partial(self._forget_call, call))

    def _forget_call(self, call: Call, _: asyncio.Task[None]) -> None:
        self._calls.discard(call)

    def _group_inputs(self, waitings: Iterable[Waiting]) -> list[list[Waiting]]:
        """Return the inputs grouped by prompt and context, in lists of at most `chunk`.

        The inputs of a group share the judge's prompt up to the responses; those on the items of
        one rubric share it up to the items.
        """
        groups: dict[Hashable, list[Waiting]] = {}
        for waiting in waitings:
            item = waiting.item
            groups.setdefault((item.prompt, item.context), []).append(waiting)
        chunks = []
        for group in groups.values():
            for start in range(0, len(group), self._chunk):
                chunks.append(group[start : start + self._chunk])
        return chunks
