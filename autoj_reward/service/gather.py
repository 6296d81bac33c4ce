"""Groups whose responses arrive one by one: each is gathered, then judged together.

A group is judged once all its responses have arrived, or once the first caller that still waits has
waited long enough. What is missing by then is judged without, and the judgements are flagged. A
response that comes later is judged beside those that were. A group that failed fails its late
members at once, so that they neither wait again nor get a number.

Responses with the same text are copies while their callers wait. The text of a caller that has hung
up is taken over by the next caller that sends it, since that is a retry.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from autoj_reward.client.client import JudgeClient
from autoj_reward.client.sound import find_rejection_reason
from autoj_reward.config import RelativeConfig
from autoj_reward.conversation import Context, Prompt, Response, media_of
from autoj_reward.errors import AutojError, ConfigError, InputError
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.listwise import Listwise
from autoj_reward.questions.rank import Ranking
from autoj_reward.questions.relative import rank_question, show_member
from autoj_reward.questions.tournament import Tournament
from autoj_reward.service.metrics import Metrics
from autoj_reward.types import Candidate, Judgement, Outcome, Usage

WAIT_SHARE = 0.5
"""Share of a request's deadline that it waits for the rest of its group. The judge has the rest."""
LEAST_MEMBERS = 2
"""Responses without which a group fails."""
KEPT_S = 1800.0
"""Seconds that a group is remembered after its last caller has gone."""
MAX_IDLE = 4096
"""Limit on remembered groups that nobody waits for. The ones idle for longest are forgotten."""
MAX_CHARACTERS = 2**26
"""Limit on the characters of all groups, from which idle ones are forgotten too."""
PARTIAL_FLAG, LATE_FLAG = "partial_group", "late_member"
"""Flags of a judgement: its group was judged without some members; it arrived after that."""
MIXED = "its group has another query, context or size: give each group an id of its own"
Later = Callable[[float, Callable[[], object]], "Timer"]
"""Function that calls another one after some seconds, as an event loop's `call_later`."""


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not make the call."""


@dataclass(frozen=True, slots=True)
class GroupName:
    """Key of a group. Requests with the same key send members of one group."""

    run: str
    """Name of the caller's run; "" without one."""
    group_id: str
    relative: str
    """How it is judged, as JSON: the parts of one reward may judge a group in several ways."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the responses of a group must have in common."""

    prompt: Prompt
    context: Context
    size: int
    """Number of responses in the whole group."""


@dataclass(slots=True)
class _Member:
    candidate: Candidate
    waited_for: bool = True


@dataclass(slots=True)
class _JudgedGroup:
    """The judgement of a group."""

    judgements: dict[Response, Judgement]
    """Judgement of each member by its response."""
    question: Listwise | Tournament | None = None
    """The question that judged the group; None if the group failed."""
    ranking: Ranking | None = None
    failure: Judgement | None = None
    """Judgement of every late member of a group that failed."""


@dataclass(slots=True, eq=False)
class _Group:
    terms: Terms
    relative: RelativeConfig | None
    members: list[_Member] = field(default_factory=list)
    waiting: int = 0
    """Number of callers that wait."""
    characters: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no further response can become a member."""
    task: asyncio.Task[_JudgedGroup] | None = None
    """The judging, once the group is closed."""
    late_tasks: dict[Response, asyncio.Task[Judgement]] = field(default_factory=dict)
    """The judging of each late member, by its response."""

    def admit(self, candidate: Candidate) -> _Member:
        """Add a member, or take over that of a caller with the same text that has hung up."""
        for member in self.members:
            if not member.waited_for and member.candidate.response == candidate.response:
                member.waited_for = True
                return member
        self.members.append(_Member(candidate))
        return self.members[-1]


class Gatherer:
    """Gathers groups, and judges each once. Use it in one event loop.

    ask: how the judge's inputs are judged. now: a clock in seconds. later: None for the event
    loop's `call_later`.
    """

    def __init__(
        self,
        client: JudgeClient,
        ask: Ask,
        metrics: Metrics,
        now: Callable[[], float] = time.monotonic,
        later: Later | None = None,
    ) -> None:
        self._client, self._ask, self._metrics, self._now = client, ask, metrics, now
        self._later = later or (lambda s, call: asyncio.get_running_loop().call_later(s, call))
        self._groups: dict[GroupName, _Group] = {}
        self._idle: OrderedDict[GroupName, float] = OrderedDict()
        self._characters = 0

    async def rate(
        self,
        candidate: Candidate,
        size: int,
        relative: RelativeConfig | None,
        wait_s: float,
        run: str = "",
    ) -> Judgement:
        """Return the judgement of one response, whose rating is its score in its group, 0 to 1.

        candidate: has the group's id. size: number of responses in the group, 2 or more. relative:
        how the group is judged; see `rank_question`. wait_s: seconds to wait for
        the other responses. run: name of the caller's run, to which the id belongs.
        """
        relative_json = "" if relative is None else relative.model_dump_json()
        name = GroupName(run, candidate.group_id or "", relative_json)
        terms = Terms(candidate.prompt, candidate.context, size)
        group = self._groups.get(name) or self._open(name, terms, relative)
        if group.terms != terms:
            self._metrics.count_member("refused")
            return Judgement(Outcome.INPUT_REJECTED, reason=MIXED)
        with self._join(name, group, candidate, wait_s):
            await group.closed.wait()
            assert group.task is not None
            judged_group = await asyncio.shield(group.task)  # goes on without callers that hang up
            judgement = judged_group.judgements.get(candidate.response) or judged_group.failure
            if judgement is None:
                judgement = await asyncio.shield(self._start_late(group, judged_group, candidate))
        self._metrics.count_member(_classify_answer(judgement))
        return judgement

    def _open(self, name: GroupName, terms: Terms, relative: RelativeConfig | None) -> _Group:
        self._forget()
        group = self._groups[name] = _Group(terms, relative)
        media = (found.part for found in media_of(terms.prompt.turns))
        self._count_characters(group, terms.prompt.text, *media, *terms.context.values())
        return group

    def _count_characters(self, group: _Group, *texts: str) -> None:
        characters = sum(map(len, texts))
        group.characters += characters
        self._characters += characters

    def _close(self, group: _Group) -> None:
        if not group.closed.is_set():
            group.task = asyncio.create_task(self._judge(group))
            group.closed.set()

    @contextmanager
    def _join(
        self, name: GroupName, group: _Group, candidate: Candidate, wait_s: float
    ) -> Iterator[None]:
        """Hold a place in the group while its caller waits. The group is closed when it is complete
        or the caller has waited `wait_s`."""
        member = None if group.closed.is_set() else group.admit(candidate)
        timer = self._later(wait_s, partial(self._close, group))
        group.waiting += 1
        media = (found.part for found in media_of(candidate.response.turns))
        self._count_characters(group, candidate.response.text, *media)
        self._idle.pop(name, None)
        if len(group.members) == group.terms.size:
            self._close(group)
        try:
            yield
        finally:
            timer.cancel()
            group.waiting -= 1
            if member is not None:
                member.waited_for = False
            if not group.waiting:
                self._idle[name] = self._now()

    def _forget(self) -> None:
        """Forget groups that nobody waits for, if they are old or too many."""
        while self._idle:
            name, since = next(iter(self._idle.items()))
            too_many = len(self._idle) > MAX_IDLE or self._characters > MAX_CHARACTERS
            if not too_many and self._now() - since <= KEPT_S:
                return
            del self._idle[name]
            group = self._groups.pop(name)
            self._characters -= group.characters
            for task in filter(None, (group.task, *group.late_tasks.values())):
                task.cancel()

    def _start_late(
        self, group: _Group, judged_group: _JudgedGroup, candidate: Candidate
    ) -> asyncio.Task[Judgement]:
        """Return the judging of a late member. Equal texts share one."""
        task = group.late_tasks.get(candidate.response)
        if task is None:
            task = asyncio.create_task(self._judge_late(judged_group, candidate))
            group.late_tasks[candidate.response] = task
        return task

    async def _judge(self, group: _Group) -> _JudgedGroup:
        judgements: dict[Response, Judgement] = {}
        candidates = []
        for candidate in [member.candidate for member in group.members]:
            if reason := find_rejection_reason((candidate.response.text,)):
                judgements[candidate.response] = Judgement(Outcome.INPUT_REJECTED, reason=reason)
            else:
                candidates.append(candidate)
        size = group.terms.size
        try:
            if len(candidates) < LEAST_MEMBERS:
                raise InputError(f"{len(candidates)} of {size} responses came in time")
            client = self._client
            question = rank_question(candidates, client.facts, client.asks, group.relative)
            ranking = await question.answer(self._ask)
        except AutojError as error:
            failure = _abstain(error, "its group failed")
            return _JudgedGroup(judgements, failure=failure)
        self._metrics.count_ranking(ranking, [candidate.response for candidate in candidates])
        flags = (PARTIAL_FLAG,) if len(candidates) < size else ()
        for candidate, judgement in zip(candidates, ranking.as_judgements(), strict=True):
            judgements[candidate.response] = replace(judgement, flags=(*judgement.flags, *flags))
        answered = [n for n in range(len(candidates)) if n not in ranking.unanswered]
        if answered and all(ranking.scores[n] is None for n in answered):
            first_judgement = judgements[candidates[answered[0]].response]
            failure = replace(
                first_judgement, reason=f"its group failed: {first_judgement.reason}", usage=Usage()
            )
            return _JudgedGroup(judgements, failure=failure)
        # Late members need its scores and comparisons, and no texts.
        return _JudgedGroup(
            judgements, question, replace(ranking, judgements=(), critiques=(), orders=())
        )

    async def _judge_late(self, judged_group: _JudgedGroup, candidate: Candidate) -> Judgement:
        """Judge a response beside members of its group that were judged."""
        if reason := find_rejection_reason((candidate.response.text,)):
            return Judgement(Outcome.INPUT_REJECTED, reason=reason)
        assert judged_group.question is not None and judged_group.ranking is not None
        shown_candidate = show_member(candidate, self._client.facts, self._client.asks)
        if reason := shown_candidate.response.unanswered:
            return Judgement(Outcome.NO_ANSWER, reason=reason, flags=(LATE_FLAG,))
        try:
            ranking = await judged_group.question.answer_late(
                judged_group.ranking, shown_candidate, self._ask
            )
        except AutojError as error:
            return _abstain(error, "it came after its group was judged")
        self._metrics.count_ranking(ranking, [candidate.response])
        judgement = ranking.as_judgements()[-1]
        return replace(judgement, usage=ranking.usage, flags=(*judgement.flags, LATE_FLAG))


def _classify_answer(judgement: Judgement) -> str:
    """Return how a member was answered, for the metrics."""
    if not judgement.ok:
        return "abstained"
    names = {LATE_FLAG: "late", PARTIAL_FLAG: "partial"}
    return next((name for flag, name in names.items() if flag in judgement.flags), "complete")


def _abstain(error: AutojError, situation: str) -> Judgement:
    is_input_error = isinstance(error, InputError | ConfigError)
    outcome = Outcome.INPUT_REJECTED if is_input_error else Outcome.UNAVAILABLE
    return Judgement(outcome, reason=f"{situation}: {error}")
