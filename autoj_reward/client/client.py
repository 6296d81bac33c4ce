"""RewardClient: limits concurrency, retries, coalesces equal inputs and records judgements.

Every candidate is answered exactly once, in order, whatever fails behind the backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from autoj_reward.client.backend import Backend
from autoj_reward.client.call import CLOSED, Call, CallSettings, Waiting
from autoj_reward.client.in_flight import Progress, Recorder, Slots
from autoj_reward.config import RelativeConfig, RubricConfig, View, Vote
from autoj_reward.conversation import Shows, context_of
from autoj_reward.errors import ConfigError, EngineUnavailable
from autoj_reward.journal import Journal
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.models.views import require_relative
from autoj_reward.questions.ask import Question
from autoj_reward.questions.choose import Choose
from autoj_reward.questions.compare import Compare, compare_all
from autoj_reward.questions.listwise import Listwise
from autoj_reward.questions.rate import Rate, rate_all
from autoj_reward.questions.relative import default_relative, rank_question
from autoj_reward.questions.rubric import ScoreRubric, rubric_question
from autoj_reward.questions.tournament import Tournament
from autoj_reward.types import (
    OF_DISTRIBUTION,
    Candidate,
    Comparison,
    JudgeInput,
    Judgement,
    Pair,
)

T = TypeVar("T")
ViewsCheck = Callable[[frozenset[View]], object]
"""Check on the views that a judge can give. Raises if a view that the caller needs is missing."""


def accept_any_views(views: frozenset[View]) -> None:
    """Accept any set of views."""


class RewardClient:
    """Rates candidates and compares pairs through a backend.

    critiques: critiques sampled for each candidate. vote: how their ratings make one.
    compares: whether the judge can break ties of ratings by comparing.
    max_in_flight: limit on judge inputs in flight. Each answer frees its slot at once, so a slow
        input keeps no replica waiting.
    deadline_s: seconds for one input, retries included, after which it is `unavailable`.
    chunk: limit on the inputs of one backend call. Inputs of one query share a call, also across
        callers, because they share the query's prefix in one replica.
    require: check on the judge's views, called before its first input; its exception ends the call.
    preferred: the view that the model's entry in `judges.yaml` names.
    scale: lowest and highest rating; None where the judge has no scale.
    tie: if set, the judge compares two responses by their ratings; see `Compare`.
    max_group: responses that one listwise judgement scores at most; None without a group protocol.
    max_items: rubric items of one judgement at most; None without a checklist protocol.
    shows: what the judge reads of a response of several turns; see `JudgeConfig.shows`.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        journal: Journal | None = None,
        critiques: int = 1,
        vote: Vote = "mean",
        compares: bool = True,
        max_in_flight: int = 256,
        deadline_s: float = 1800.0,
        chunk: int = 32,
        progress: Progress | None = None,
        require: ViewsCheck = accept_any_views,
        preferred: View | None = None,
        scale: tuple[float, float] | None = None,
        tie: float | None = None,
        max_group: int | None = None,
        max_items: int | None = None,
        shows: Shows | None = None,
    ) -> None:
        self.backend = backend
        self.preferred, self.scale, self.tie = preferred, scale, tie
        self.max_group, self.max_items, self.shows = max_group, max_items, shows
        self.max_in_flight = max_in_flight
        self.journal = journal
        self.critiques, self.vote = critiques, vote
        self.compares = compares
        self.chunk = min(chunk, max_in_flight)
        slots = Slots(max_in_flight)
        self._recorder = Recorder(journal, progress, slots)
        self._call_settings = CallSettings(backend, self._recorder, slots, deadline_s)
        self._pending: dict[JudgeInput, Waiting] = {}
        self._unsent: list[Waiting] = []
        self._calls: set[Call] = set()
        self._closed = False
        self._require = require
        self._views: dict[str, frozenset[View]] = {}
        self._finding: Mapping[str, Any] = {}
        self._contact_lock = asyncio.Lock()
        self._has_probabilities = False

    def use_spec(self, spec: JudgeSpec) -> None:
        """Ask this judge, and read its numbers, as its spec says. Limits in flight stay."""
        self.critiques = spec.critiques
        self.vote = spec.vote
        self.compares = spec.compares
        self.preferred = spec.preferred
        self.scale = spec.scale
        self.tie = spec.ratings_tie
        self.max_group = spec.max_group
        self.max_items = spec.max_items
        self.shows = spec.shows
        self._call_settings.deadline_s = spec.config.serve.deadline_s
        self._recorder.spending = spec.spending

    async def update(self, spec: JudgeSpec) -> None:
        """Replace the judge, as `Backend.update` does, and what this client knows of it."""
        await self.backend.update(spec)
        self.use_spec(spec)
        # A judge of the same name may give other views, for instance with another `distribution`.
        self._views.pop(self.backend.judge, None)

    async def __aenter__(self) -> RewardClient:
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
    def deadline_s(self) -> float:
        """Return the seconds for one input, retries included."""
        return self._call_settings.deadline_s

    @property
    def was_asked(self) -> bool:
        """Return whether the judge was contacted at all, if only to learn its views."""
        return self.backend.judge in self._views

    async def views(self) -> frozenset[View]:
        """Return the views, such as `rating` and `expected`, that the judge can give.

        An endpoint is probed once. Capabilities in the journal are used instead, whichever process
        probed them. Raises EngineUnavailable if the endpoint does not answer in time, ConfigError
        for an error that only the user can fix, and what `require` raises.
        """
        async with self._contact_lock:
            judge = self.backend.judge
            if judge not in self._views:
                recorded_finding = self.journal.finding(judge) if self.journal else {}
                views, finding = await self.backend.contact(recorded_finding)
                if self.journal and finding and not recorded_finding:
                    kept_finding = self.journal.keep_finding(judge, finding)
                    if kept_finding != finding:
                        views, finding = await self.backend.contact(kept_finding)
                self._require(views)
                self._views[judge], self._finding = views, finding
            return self._views[judge]

    async def finding(self) -> Mapping[str, Any]:
        """Return the endpoint's probed capabilities as JSON values, {} if there is no endpoint.
        Raises what `views` raises."""
        await self.views()
        return self._finding

    async def use_finding(self, finding: Mapping[str, Any]) -> None:
        """Use the endpoint capabilities that another process probed. Raises what `views` raises."""
        if await self.finding() == finding:
            return
        async with self._contact_lock:
            views, self._finding = await self.backend.contact(finding)
            self._views[self.backend.judge] = views

    def without_journal(self) -> RewardClient:
        """Return a further client of this judge that neither reads nor writes the journal.

        It has its own limit on inputs in flight. The judge must have been asked for its views.
        """
        unrecorded_client = RewardClient(
            self.backend,
            critiques=self.critiques,
            vote=self.vote,
            compares=self.compares,
            max_in_flight=self.max_in_flight,
            deadline_s=self.deadline_s,
            preferred=self.preferred,
            scale=self.scale,
            tie=self.tie,
            max_group=self.max_group,
            max_items=self.max_items,
            shows=self.shows,
        )
        unrecorded_client._views, unrecorded_client._finding = self._views, self._finding
        unrecorded_client._recorder.spending = self._recorder.spending
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
        shown_candidates = [candidate.for_judge(self.shows) for candidate in candidates]
        questions = [
            Rate(candidate, self.critiques, direct, view, self.vote)
            for candidate in shown_candidates
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
        """Compare pairs, or (query, first, second) triples.

        swap: judge each pair in both orders.
        """
        shown_pairs = [Pair(*pair).for_judge(self.shows) for pair in pairs]
        questions = [Compare(pair, swap, self.tie) for pair in shown_pairs]
        return await compare_all(questions, self.judge)

    def question_of_choice(self, candidates: Sequence[Candidate], **fields: Any) -> Choose:
        """Return the `Choose` question on these candidates.

        It takes critiques and comparisons as this client does. fields: the others of `Choose`.
        """
        return Choose(
            tuple(candidate.for_judge(self.shows) for candidate in candidates),
            critiques=self.critiques,
            vote=self.vote,
            compares=self.compares,
            tie=self.tie,
            **fields,
        )

    async def question_of_rank(
        self, candidates: Sequence[Candidate], relative: RelativeConfig | None = None
    ) -> Listwise | Tournament:
        """Return the question that ranks the responses of a group with this judge.

        relative: None stands for listwise if the judge's format has a group protocol, else for
        comparisons. Raises ConfigError if this judge cannot rank that way. The question itself
        raises InputError for a group that cannot be ranked.
        """
        relative = relative or default_relative(self.max_group)
        await self.require_relative(relative)
        shown_candidates = [candidate.for_judge(self.shows) for candidate in candidates]
        scale, tie = self.scale, self.tie
        return rank_question(
            shown_candidates, relative, max_group=self.max_group, scale=scale, tie=tie
        )

    async def require_relative(self, relative: RelativeConfig, key: str = "relative") -> None:
        """Raise ConfigError naming `key` if this judge cannot rank groups this way."""
        require_relative(relative, max_group=self.max_group, compares=self.compares, key=key)

    def question_of_rubric(self, candidate: Candidate, rubric_config: RubricConfig) -> ScoreRubric:
        """Return the question that scores a response by its rubric with this judge.

        The judge must have passed `JudgeSpec.require_rubric`. The question abstains without items.
        """
        return rubric_question(candidate, rubric_config, self)

    async def score_rubrics(
        self, candidates: Sequence[Candidate], rubric_config: RubricConfig
    ) -> list[Judgement]:
        """Return one judgement for each candidate, in order, whose rating is its rubric score."""
        questions = [self.question_of_rubric(candidate, rubric_config) for candidate in candidates]
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
        once the client is closed, and what `views` raises.
        """
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
        """Contact the judge unless its views are known. Raises EngineUnavailable once closed."""
        if not self._closed and self.backend.judge not in self._views:
            await self.views()
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
        """Return the inputs grouped by query and context, in lists of at most `chunk`.

        The inputs of a group share the judge's prompt up to the responses; those on the items of
        one rubric share it up to the items.
        """
        groups: dict[Hashable, list[Waiting]] = {}
        for waiting in waitings:
            context = context_of(waiting.item.context)
            shared_context = context.showing(context) if context.rubric else context
            groups.setdefault((waiting.item.query, shared_context), []).append(waiting)
        chunks = []
        for group in groups.values():
            for start in range(0, len(group), self.chunk):
                chunks.append(group[start : start + self.chunk])
        return chunks
