"""A judge as a reward: `AsyncRewardModel` for code with an event loop, `RewardModel` for trainers.

`RewardModel` runs an `AsyncRewardModel` on an event loop in its own thread, so any thread or event
loop may call it. Each has three parts: `Judges` asks, `RewardRule` computes, and the model joins
them with reward functions and the audit.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, Self, TypeVar, overload
from weakref import WeakSet

from autoj_reward.client.call import CLOSED
from autoj_reward.client.client import JudgeClient
from autoj_reward.client.loop_thread import LoopThread
from autoj_reward.client.session import require_one_judge
from autoj_reward.config import AUDIT, JUDGE, JudgeConfig, RewardConfig
from autoj_reward.errors import ConfigError, EngineUnavailable
from autoj_reward.logs import announce
from autoj_reward.processes import is_first_rank
from autoj_reward.tracing import span
from autoj_reward.trainer.audit import Audit
from autoj_reward.trainer.judges import Judges
from autoj_reward.trainer.parts import AskPart, Reward, RewardFunction, reward_judges
from autoj_reward.trainer.prompts import ContextFields
from autoj_reward.trainer.rule import RewardRule
from autoj_reward.trainer.shaping import Budgets, needs_groups, require_groups
from autoj_reward.trainer.trl import GRPOReward, PartRewards, TRLReward
from autoj_reward.types import Candidate, Comparison, Judgement, Outcome, Pair, Verdict, group_key

GRACE_S = 5.0
"""Seconds that other work on the judge's event loop has to end after the judge was closed."""
T = TypeVar("T")


class AsyncRewardModel:
    """Rates and compares for code with an event loop, counts failures and shapes rewards.

    It starts with `async with` and stops at its end, and may be opened again.

    Attributes: `specs`, the judges of parts and audit, the main one first; `judges`, which asks
    them; `rule`, which computes; `parts`, the rule's parts; `fields`, the context that the judges
    show; `audit`, None without `reward.audit`; `waited_s`, seconds spent waiting for judges.
    """

    def __init__(self, config: RewardConfig, gpus: str | None = None) -> None:
        """gpus: GPUs for replicas that start with the judge; see `Judges`."""
        self.config = config
        self.specs = reward_judges(config)
        self.rule = RewardRule(config, self.specs)
        self.parts = self.rule.parts
        self.fields = ContextFields(config, self.specs)
        self.judges = Judges(config, self.specs, self.parts.calibrations, gpus)
        self.audit: Audit | None = None
        if config.audit:
            calibration = self.parts.calibrations.get(AUDIT)
            self.audit = Audit(config.audit, self.specs[AUDIT], calibration)
        self.waited_s = 0.0
        self._functions: dict[str, AskPart] = {}
        for name, part in config.parts.items():
            if part.function:
                function = RewardFunction(name, part.function, config.judge.serve.deadline_s)
                self._functions[name] = function.rate
        self._ask_by_part: dict[str, AskPart] = {}
        self._settling = asyncio.Lock()
        self._judges_announced = False

    async def __aenter__(self) -> Self:
        await self.judges.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self.audit:
            await self.audit.close()
        await self.judges.close()
        self._ask_by_part = {}
        self._judges_announced = False

    async def rewards(
        self, candidates: Sequence[Candidate], budgets: Budgets | None = None
    ) -> list[Reward]:
        """Return one reward for each candidate, in order; see `RewardModel.rewards`."""
        for name, judged in self.config.judged.items():
            if judged.relative:
                # A service knows the rest of a group whose size the candidate tells.
                groups = [group_key(c) for c in candidates if c.group_size is None]
                require_groups(f"{self.config.key_of(name)}.relative", groups, "is set")
        start_s = time.monotonic()
        async with self._settling:
            if not self._ask_by_part:
                await self._settle()
        with span("autoj.rewards", {"autoj.responses": len(candidates)}):
            answers = await self._ask_parts(candidates)
        self.waited_s += time.monotonic() - start_s
        self._announce_judges(answers)
        self.rule.count(candidates, answers, budgets)
        values = self.rule.values(answers)
        audit: Mapping[str, float] = {}
        if self.audit:
            numbers = [part_values[JUDGE] for part_values in values]
            for n, judgement in enumerate(answers[JUDGE]):
                if judgement and judgement.outcome is Outcome.NO_ANSWER:
                    numbers[n] = None  # the judge gave it no number
            self.audit.start(candidates, numbers)
            audit = self.audit.figures
        return self.rule.rewards(candidates, answers, values, audit)

    async def compare(
        self, pairs: Sequence[Pair | tuple[str, str, str]], unusable: Sequence[str] = ()
    ) -> list[Comparison]:
        """Compare pairs; see `RewardModel.compare_now`."""
        if not self.parts.alone:
            raise ConfigError("only the judge compares, and parts stand beside it: rate instead")
        if self.audit:
            raise ConfigError(
                "reward.audit is for ratings, and these are comparisons: rate instead"
            )
        start_s = time.monotonic()
        reasons = unusable or [""] * len(pairs)
        usable = [pair for pair, reason in zip(pairs, reasons, strict=True) if not reason]
        with span("autoj.comparisons", {"autoj.pairs": len(pairs)}):
            answers = iter(await self.judges.clients[JUDGE].compare(usable))
        comparisons = []
        for reason in reasons:
            if reason:
                rejected = Judgement(Outcome.INPUT_REJECTED, reason=reason)
                comparisons.append(Comparison(Verdict.FAILED, (rejected, rejected), reason))
            else:
                comparisons.append(next(answers))
        self.waited_s += time.monotonic() - start_s
        self.rule.count_comparisons(comparisons)
        return comparisons

    def numbers(self, rewards: Sequence[Reward], candidates: Sequence[Candidate]) -> list[float]:
        """Return the rewards' values, with fallbacks; see `RewardRule.numbers`."""
        return self.rule.numbers(rewards, candidates)

    def recent(self) -> list[tuple[Candidate, Reward]]:
        """Return the rewards since the last call, for a log; see `RewardRule.recent`."""
        return self.rule.recent()

    async def ask_judge(self, work: Callable[[JudgeClient], Awaitable[T]]) -> T:
        """Call a function with the main judge's client, and return its result."""
        return await work(self.judges.clients[JUDGE])

    async def replace_judge(self, config: RewardConfig) -> None:
        """Replace the main judge while it is asked. The config may differ in `judge` alone.

        Raises what `Judges.replace_main` raises; the old judge then stays.
        """
        await self.judges.replace_main(config)
        self.config = config
        async with self._settling:
            if self._ask_by_part:
                await self._settle()

    async def _settle(self) -> None:
        """Agree on the judges' views, and set how each part and the audit are asked."""
        await self.judges.agree()
        views = self.judges.views
        self.parts.use_views(views)
        asks = {name: self.judges.ask_part(name) for name in views}
        if self.audit:
            # The audit's own questions to the main judge leave no record, so that they change
            # no judgement that a later run reuses.
            unrecorded = self.judges.clients[JUDGE].without_journal()
            ask_main = self.judges.ask_part(JUDGE, unrecorded)
            self.audit.use(
                partial(self._ask, AUDIT, asks.pop(AUDIT)),
                views[AUDIT],
                self.parts.by_name[JUDGE],
                partial(self._ask, JUDGE, ask_main),
            )
        self._ask_by_part = asks | self._functions

    async def _ask_parts(
        self, candidates: Sequence[Candidate]
    ) -> dict[str, list[Judgement | None]]:
        """Return the judgements of each part in order, the main judge's first.

        A part with `when` is asked after the part that it waits for.
        """
        waiting = self.config.waiting
        names = [name for name in self._ask_by_part if name not in waiting]
        asked = [self._ask(name, self._ask_by_part[name], candidates) for name in names]
        answers = dict(zip(names, await asyncio.gather(*asked), strict=True))
        asked = [
            self._ask_where_needed(name, first, candidates, answers[first])
            for name, first in waiting.items()
        ]
        answers |= dict(zip(waiting, await asyncio.gather(*asked), strict=True))
        return {name: answers[name] for name in self._ask_by_part}

    async def _ask_where_needed(
        self,
        name: str,
        first: str,
        candidates: Sequence[Candidate],
        judgements: Sequence[Judgement | None],
    ) -> list[Judgement | None]:
        """Return a part's judgements in order, None where the part before it has a number.

        judgements: of that part, `first`. A response without an answer always reaches the part,
        which asks no judge about it: its reward is that of such responses, whatever `first` says.
        """
        spec = self.specs.get(name)  # None for a function
        needed = []
        for n, judgement in enumerate(judgements):
            is_unanswered = spec and candidates[n].for_judge(spec.asks).response.unanswered
            if is_unanswered or self.parts.by_name[first].value(judgement) is None:
                needed.append(n)
        found = await self._ask(name, self._ask_by_part[name], [candidates[n] for n in needed])
        answers: list[Judgement | None] = [None] * len(candidates)
        for n, judgement in zip(needed, found, strict=True):
            answers[n] = judgement
        return answers

    async def _ask(
        self, name: str, ask: AskPart, candidates: Sequence[Candidate]
    ) -> list[Judgement | None]:
        """Return a part's judgements in order. Unusable candidates are rejected without asking.

        A judgement beyond the limit of doubt of the part's calibration abstains.
        """
        usable = [candidate for candidate in candidates if not candidate.unusable]
        judgements = await ask(self.fields.for_part(name, usable))
        calibration = self.parts.calibrations.get(name)
        if calibration:
            judgements = [judgement and calibration.settle(judgement) for judgement in judgements]
        answers = iter(judgements)
        settled: list[Judgement | None] = []
        for candidate in candidates:
            if candidate.unusable:
                settled.append(Judgement(Outcome.INPUT_REJECTED, reason=candidate.unusable))
            else:
                settled.append(next(answers))
        return settled

    def _announce_judges(self, answers: Mapping[str, Sequence[Judgement | None]]) -> None:
        """Log the judges at the first rewards, on rank 0 of a training."""
        if self._judges_announced or not answers[JUDGE]:
            return
        self._judges_announced = True
        if is_first_rank():
            for line in self.judges.describe(answers):
                announce(line)


class RewardModel:
    """Rates and compares for trainers, counts failures and shapes rewards.

    Attributes: `parts`, the reward parts and their scales; `fields`, the context that the judges
    show; `specs`, the judges of parts and audit, the main one first; `clients`, of the open judges
    by the same names; `health`, of the main judge over its last judgements; `audit`, None without
    `reward.audit`; `waited_s`, seconds that trainers have waited for the judge. Alarms of health
    and audit are logged as warnings.

    The judge opens at the first call (or by `open`). After `close`, calls raise EngineUnavailable
    until `open` is called again. All work runs on an event loop in its own thread, so any thread
    may call.

    A pickled copy carries the config only and opens its own judge where it is loaded; so does the
    copy in a forked process. Name a running service for both. A forked copy that would start
    replicas in addition to its parent's raises ConfigError.

    >>> with RewardModel("GAIR/autoj-13b") as reward:
    ...     [found] = reward.rewards_now([Candidate("Why is the sky blue?", "It scatters.")])
    """

    def __init__(self, reward: str | JudgeConfig | RewardConfig, gpus: str | None = None) -> None:
        """reward: model name, judge config, or whole reward config. gpus: GPUs for replicas that
        start with the judge, in the form of CUDA_VISIBLE_DEVICES; None: those of this process."""
        judge = JudgeConfig(model=reward) if isinstance(reward, str) else reward
        self.config = RewardConfig(judge=judge) if isinstance(judge, JudgeConfig) else judge
        self._gpus = gpus
        self._forked = False
        self._closed = False
        self._reset()
        MODELS.add(self)

    def _reset(self) -> None:
        self._model = AsyncRewardModel(self.config, self._gpus)
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None
        self.parts = self._model.parts
        self.fields = self._model.fields
        self.specs = self._model.specs
        self.health = self._model.rule.health
        self.audit = self._model.audit

    @property
    def clients(self) -> Mapping[str, JudgeClient]:
        """Return the clients of the open judges by name; empty while none is open."""
        return self._model.judges.clients

    @property
    def waited_s(self) -> float:
        """Return the seconds that trainers have waited for the judge."""
        return self._model.waited_s

    @property
    def fallbacks(self) -> int:
        """Return the number of fallbacks that `numbers` has returned in this run."""
        return self._model.rule.fallbacks

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        RewardModel.__init__(self, state["config"])

    def __enter__(self) -> RewardModel:
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def open(self) -> None:
        """Start the judge's replicas, or connect to the service. Raises ConfigError, ModelError, or
        EngineUnavailable naming the address."""
        with self._lock:
            self._closed = False
            self._start()

    def _start(self) -> LoopThread:
        """Open the judge if it is closed, and return its event loop."""
        if self._loop is not None:
            return self._loop
        if self._forked and any(judge.on_replicas for judge in self.config.started):
            raise ConfigError(
                "this process was forked from one whose judge runs on Ray, which it cannot ask: "
                "start the judge with `autoj serve` and name its address in reward.service, or ask "
                "it in the process that opened it"
            )
        for judge in self.config.started:
            # Rank 0 judges for all ranks where a reward needs whole groups.
            require_one_judge(judge, rank_0_may=needs_groups(self.config))
        loop = LoopThread("autoj-reward")
        try:
            loop.wait(self._model.__aenter__())
        except BaseException:
            loop.stop()
            raise
        self._loop = loop
        return loop

    def close(self) -> None:
        """Stop what this model started; it may be opened again. Calls in flight raise
        EngineUnavailable."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
            if loop is None:
                return
            try:
                loop.wait(self._end())
            finally:
                loop.stop()

    async def _end(self) -> None:
        """Close the judge, and leave GRACE_S to other work on its event loop."""
        await self._model.__aexit__()
        open_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if open_tasks:  # the judge's calls end at once with their error; `run` may hold other work
            await asyncio.wait(open_tasks, timeout=GRACE_S)

    def _forget_parent(self) -> None:
        """Drop the parent's judge in a forked process, where no thread runs its event loop."""
        was_open = self._loop is not None
        # The sockets are the parent's too: keep a reference, so that nothing closes them here.
        INHERITED.append(vars(self).copy())
        self._reset()
        self._forked = self._forked or was_open

    def rewards_now(self, candidates: Sequence[Candidate]) -> list[Reward]:
        """Return one reward for each candidate; the blocking form of `rewards`."""
        return self._submit(self._model.rewards(candidates)).result()

    async def rewards(
        self, candidates: Sequence[Candidate], budgets: Budgets | None = None
    ) -> list[Reward]:
        """Return one reward for each candidate, in order. Failed judgements abstain.

        Candidates with the same `group_key` form a group. budgets: failure budgets of the calling
        run, if several share this model. Raises BudgetExceeded when too many judgements have
        failed, and AuditAlarm while an alarm of the audit is on that should stop the run.
        """
        return await asyncio.wrap_future(self._submit(self._model.rewards(candidates, budgets)))

    @overload
    def trl(self) -> TRLReward: ...

    @overload
    def trl(self, parts: Literal[True]) -> list[TRLReward]: ...

    def trl(self, parts: bool = False) -> TRLReward | list[TRLReward]:
        """Return the reward function of TRL's GRPOTrainer and RLOOTrainer, `GRPOReward.judge`.

        It is async, and returns None for a judgement that abstains. With parts=True, return one
        function for each part of the reward, for a trainer that normalises several rewards apart
        (GDPO). They share the judgements of a batch; see `PartRewards`.

        >>> GRPOTrainer("Qwen/Qwen3-4B", reward_funcs=reward.trl(), ...)
        """
        return PartRewards(self).functions() if parts else GRPOReward(self).judge

    def numbers(self, rewards: Sequence[Reward], candidates: Sequence[Candidate]) -> list[float]:
        """Return the rewards' values, with the configured fallback where one abstains. Raises
        ConfigError if the fallback is `group` and a response is alone in its group."""
        return self._model.rule.numbers(rewards, candidates)

    def run(self, work: Callable[[JudgeClient], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start `work(main judge's client)` on the judge's event loop, and return its future."""

        return self._submit(self._model.ask_judge(work))

    async def ask_judge(self, work: Callable[[JudgeClient], Coroutine[Any, Any, T]]) -> T:
        """Call a function with the main judge's client on the judge's loop; return its result."""
        return await asyncio.wrap_future(self.run(work))

    def recent(self) -> list[tuple[Candidate, Reward]]:
        """Return the rewards since the last call, at most the newest RECENT, for a log."""
        return self._model.rule.recent()

    def compare_now(
        self, pairs: Sequence[Pair | tuple[str, str, str]], unusable: Sequence[str] = ()
    ) -> list[Comparison]:
        """Compare pairs, or (query, first, second) triples, in both orders.

        unusable: for each pair why it cannot be judged, "" if it can; empty if all can. Such a pair
        is a failed comparison. Raises BudgetExceeded, and ConfigError if the reward has several
        parts.
        """
        return self._submit(self._model.compare(pairs, unusable)).result()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            with self._lock:
                if self._closed:
                    raise EngineUnavailable(CLOSED)
                return self._start().submit(work)
        except BaseException:
            work.close()
            raise


MODELS: WeakSet[RewardModel] = WeakSet()
"""Reward models of this process."""
INHERITED: list[object] = []
"""State of the parent's open models in a forked process. It is kept and never used."""


def _after_fork() -> None:
    for model in list(MODELS):
        model._forget_parent()


os.register_at_fork(after_in_child=_after_fork)
