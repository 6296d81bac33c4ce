"""RewardModel: a judge as a reward for any trainer, callable from any thread or event loop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Literal, TypeVar, overload
from weakref import WeakSet

from autoj_reward.client.client import CLOSED, RewardClient
from autoj_reward.client.judging import describe_run
from autoj_reward.client.session import open_reward, require_one_judge
from autoj_reward.config import AUDIT, JUDGE, JudgeConfig, JudgedConfig, RewardConfig, View
from autoj_reward.errors import AutojError, ConfigError, EngineUnavailable
from autoj_reward.journal import Journal
from autoj_reward.judge.health import BOUNDS, CHECK_EVERY, JudgeHealth
from autoj_reward.logs import announce
from autoj_reward.models.views import resolve_view
from autoj_reward.processes import is_first_rank, of_first_rank
from autoj_reward.tracing import span
from autoj_reward.trainer.audit import Audit
from autoj_reward.trainer.groups import rate_groups
from autoj_reward.trainer.parts import AskPart, Parts, Reward, RewardFunction, reward_judges
from autoj_reward.trainer.prompts import ContextFields
from autoj_reward.trainer.shaping import (
    Budgets,
    FailureBudget,
    Fallback,
    Shaper,
    make_budgets,
    needs_groups,
    require_groups,
)
from autoj_reward.trainer.trl import GRPOReward, PartRewards, TRLReward
from autoj_reward.types import Candidate, Comparison, Judgement, Outcome, Pair, Verdict, group_key

LOG = logging.getLogger("autoj_reward.trainer")
RECENT = 4096
"""Limit on rewards kept for the next log entry."""
GRACE_S = 5.0
"""Seconds that other work on the judge's event loop has to end after the judge was closed."""
T = TypeVar("T")


class RewardModel:
    """Rates and compares for trainers, counts failures and shapes rewards.

    Attributes: `judges`, the judges of parts and audit, the main one first; `parts`, the reward
    parts and their scales; `clients`, of the open judges by the same names; `waited_s`, seconds
    that trainers have waited for the judge; `health`, of the judge over its last judgements;
    `audit`, None without `reward.audit`. Alarms of health and audit are logged as warnings.

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
        self._reset()
        MODELS.add(self)

    def _reset(self) -> None:
        config = self.config
        self._budgets: Budgets = make_budgets(config, FailureBudget)
        self._shape = Shaper(config.shaping)
        self.judges = reward_judges(config)
        self.parts = Parts(config, self.judges)
        self.fields = ContextFields(config, self.judges)
        self._functions: dict[str, AskPart] = {
            name: RewardFunction(name, part.function, config.judge.serve.deadline_s).rate
            for name, part in config.parts.items()
            if part.function
        }
        self._fallback = Fallback(config.failures, self._shape.neutral(self.parts.middle))
        self._recent: deque[tuple[Candidate, Reward]] = deque(maxlen=RECENT)
        self.waited_s = 0.0
        self.health = JudgeHealth()
        self.audit = None
        if config.audit:
            calibration = self.parts.calibrations.get(AUDIT)
            self.audit = Audit(config.audit, self.judges[AUDIT], calibration)
        self._alarms: tuple[str, ...] = ()
        self._unchecked = 0
        self._lock = threading.Lock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.clients: dict[str, RewardClient] = {}
        self._ask_by_part: dict[str, AskPart] = {}
        self._views: dict[str, frozenset[View]] = {}
        self._judges_announced = False
        self._settling = asyncio.Lock()
        self._stack = AsyncExitStack()

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
        """Start the judge's replicas, or connect to the service.

        Raises ConfigError, ModelError, or EngineUnavailable naming the address. Each process of a
        training would start a judge, so replicas are refused there. Only rank 0 may start them, for
        a reward that it judges for all ranks.
        """
        with self._lock:
            self._closed = False
            self._start()

    def _start(self) -> asyncio.AbstractEventLoop:
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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run, args=(self._loop,), name="autoj-reward", daemon=True
        )
        self._thread.start()
        try:
            opening = asyncio.run_coroutine_threadsafe(self._open(), self._loop)
            self.clients = opening.result()
        except BaseException:
            self._stop()
            raise
        return self._loop

    def _forget_parent(self) -> None:
        """Drop the parent's judge in a forked process, where no thread runs its event loop."""
        was_open, closed = self._loop is not None, self._closed
        # The sockets are the parent's too: keep a reference, so that nothing closes them here.
        INHERITED.append(vars(self).copy())
        self._reset()
        self._closed, self._forked = closed, self._forked or was_open

    async def _open(self) -> dict[str, RewardClient]:
        config = self.config
        journal = Journal(config.journal, config.journal_max_gib) if config.journal else None
        if journal:
            self._stack.callback(journal.close)
        clients = {
            name: await self._stack.enter_async_context(
                open_reward(judge, config.judged[name].service, journal=journal, gpus=self._gpus)
            )
            for name, judge in self.judges.items()
        }
        for name, client in clients.items():  # raises before the training starts
            self._views[name] = await self._find_views(name, client)
        return clients

    async def _find_views(self, name: str, client: RewardClient) -> frozenset[View]:
        """Return the views of a judge. Raises ConfigError if it cannot do what the config wants of
        it."""
        views = await client.views()
        if relative := self.config.judged[name].relative:
            await client.require_relative(relative, f"{self.config.key_of(name)}.relative")
        self._resolve_view(name, client, views)
        return views

    async def replace_judge(self, config: RewardConfig) -> None:
        """Replace the main judge while it is asked. The config may differ in `judge` alone.

        Raises AutojError if the new judge cannot start, or cannot do what the config wants of it;
        the old one then stays.
        """
        client, old, new = self.clients[JUDGE], self.judges[JUDGE], reward_judges(config)[JUDGE]
        await client.update(new)
        try:
            views = await self._find_views(JUDGE, client)
        except AutojError:
            await client.update(old)
            raise
        self.config = config
        self.judges[JUDGE] = new
        self._views[JUDGE] = views
        async with self._settling:
            if self._ask_by_part:
                await self._use_views()

    def _resolve_view(self, name: str, client: RewardClient, views: frozenset[View]) -> View:
        judged_config = self.config.judged[name]
        if judged_config.scoring:  # a score is the rating of what stands for its judgement
            return "rating"
        key = f"{self.config.key_of(name)}.view"
        view = resolve_view(judged_config.view, "reward", client.preferred, views, key)
        if calibration := self.parts.calibrations.get(name):
            calibration_key, judge = f"{self.config.key_of(name)}.calibration", client.backend.judge
            calibration.require(calibration_key, judge, view, client.critiques, client.vote)
        return view

    async def _use_views(self) -> None:
        """Choose the view of each judge, once, at the first rewards. By then the ranks of a
        training can communicate: all use the views and endpoint capabilities of rank 0."""
        findings = {
            name: (sorted(views), dict(await self.clients[name].finding()))
            for name, views in self._views.items()
        }
        # A training may have several reward models; their judges may share a model.
        judges = {name: [spec.config.model, spec.format.name] for name, spec in self.judges.items()}
        key = f"autoj-reward-views {json.dumps(judges, sort_keys=True)}"
        agreed_findings = await asyncio.to_thread(of_first_rank, key, findings)
        views = {}
        for name, (view_names, finding) in agreed_findings.items():
            await self.clients[name].use_finding(finding)
            views[name] = self._resolve_view(name, self.clients[name], frozenset(view_names))
        self.parts.use_views(views)
        ask_by_judge = {
            name: _make_ask_part(self.clients[name], self.config.judged[name], view)
            for name, view in views.items()
        }
        if self.audit:
            main, ask_audit = self.clients[JUDGE].without_journal(), ask_by_judge.pop(AUDIT)
            ask_main = _make_ask_part(main, self.config, views[JUDGE])
            self.audit.use(
                partial(self._ask_part, AUDIT, ask_audit),
                views[AUDIT],
                self.parts.by_name[JUDGE],
                partial(self._ask_part, JUDGE, ask_main),
            )
        self._ask_by_part = ask_by_judge | self._functions

    def close(self) -> None:
        """Stop what this model started; it may be opened again. Calls in flight raise
        EngineUnavailable."""
        with self._lock:
            self._closed = True
            if self._loop is not None:
                self._stop()

    def _stop(self) -> None:
        assert self._loop is not None and self._thread is not None
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self.clients, self._loop, self._thread = {}, None, None
            self._ask_by_part, self._views, self._judges_announced = {}, {}, False
            self._stack = AsyncExitStack()

    async def _end(self) -> None:
        """Close the judge, and cancel other work on its event loop after GRACE_S."""
        if self.audit:
            await self.audit.close()
        await self._stack.aclose()
        open_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if open_tasks:  # the judge's calls end at once with their error; `run` may hold other work
            _, open_tasks = await asyncio.wait(open_tasks, timeout=GRACE_S)
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)

    def rewards_now(self, candidates: Sequence[Candidate]) -> list[Reward]:
        """Return one reward for each candidate; the blocking form of `rewards`."""
        return self._submit(self._rewards(candidates)).result()

    async def rewards(
        self, candidates: Sequence[Candidate], budgets: Budgets | None = None
    ) -> list[Reward]:
        """Return one reward for each candidate, in order. Failed judgements abstain.

        Candidates with the same `group_key` form a group. budgets: failure budgets of the calling
        run, if several share this model. Raises BudgetExceeded when too many judgements have
        failed, and AuditAlarm while an alarm of the audit is on that should stop the run.
        """
        return await asyncio.wrap_future(self._submit(self._rewards(candidates, budgets)))

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
        return self._fallback.fill([r.value for r in rewards], [group_key(c) for c in candidates])

    def run(self, work: Callable[[RewardClient], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start `work(main judge's client)` on the judge's event loop, and return its future."""

        async def run_work() -> T:
            return await work(self.clients[JUDGE])  # _submit has opened the judge

        return self._submit(run_work())

    def recent(self) -> list[tuple[Candidate, Reward]]:
        """Return the rewards since the last call, at most the newest RECENT, for a log."""
        return [self._recent.popleft() for _ in range(len(self._recent))]

    @property
    def fallbacks(self) -> int:
        """Return the number of fallbacks that `numbers` has returned in this run."""
        return self._fallback.used

    def compare_now(
        self, pairs: Sequence[Pair | tuple[str, str, str]], unusable: Sequence[str] = ()
    ) -> list[Comparison]:
        """Compare pairs, or (query, first, second) triples, in both orders.

        unusable: for each pair why it cannot be judged, "" if it can; empty if all can. Such a pair
        is a failed comparison. Raises BudgetExceeded, and ConfigError if the reward has several
        parts.
        """
        return self._submit(self._compare(pairs, unusable or [""] * len(pairs))).result()

    async def _rewards(
        self, candidates: Sequence[Candidate], budgets: Budgets | None = None
    ) -> list[Reward]:
        for name, judged_config in self.config.judged.items():
            if judged_config.relative:
                groups = [group_key(c) for c in candidates if c.group_size is None]
                require_groups(f"{self.config.key_of(name)}.relative", groups, "is set")
        start_s = time.monotonic()
        async with self._settling:
            if not self._ask_by_part:
                await self._use_views()
        with span("autoj.rewards", {"autoj.responses": len(candidates)}):
            results = await asyncio.gather(
                *(self._ask_part(name, ask, candidates) for name, ask in self._ask_by_part.items())
            )
        self.waited_s += time.monotonic() - start_s
        answers = dict(zip(self._ask_by_part, results, strict=True))
        self._announce_judges(answers)
        judgements = [judgement for judgement in answers[JUDGE] if judgement]
        self._watch(judgements, candidates)
        for name, budget in (budgets or self._budgets).items():
            budget.count([judgement for judgement in answers[name] if judgement])
        values = [
            self.parts.values({name: part_answers[n] for name, part_answers in answers.items()})
            for n in range(len(candidates))
        ]
        raw = [self.parts.reward(part_values) for part_values in values]
        shaped = self._shape(
            raw, [c.response for c in candidates], [group_key(c) for c in candidates]
        )
        if self.audit:
            self.audit.start(candidates, [part_values[JUDGE] for part_values in values])
        audit = self.audit.figures if self.audit else {}
        shown_values = [{} for _ in values] if self.parts.alone else values
        rewards = [
            Reward(*fields, audit)
            for fields in zip(judgements, raw, shaped, shown_values, strict=True)
        ]
        self._recent.extend(zip(candidates, rewards, strict=True))
        return rewards

    def used(self, answers: Mapping[str, Sequence[Judgement | None]] | None = None) -> list[str]:
        """Return a log line for each open judge: its name, view and distributions, and how its
        judgements in `answers` ended."""
        main_name = "" if self.parts.alone else JUDGE
        lines = []
        for name, client in self.clients.items():
            view = self._resolve_view(name, client, self._views[name])
            judgements = [judgement for judgement in (answers or {}).get(name, ()) if judgement]
            scoring = self.config.judged[name].scoring
            part = main_name if name == JUDGE else name
            lines.append(describe_run(client, view, judgements, part, scoring))
        return lines

    def _announce_judges(self, answers: Mapping[str, Sequence[Judgement | None]]) -> None:
        """Log the judges at the first rewards, on rank 0 of a training."""
        if self._judges_announced or not answers[JUDGE]:
            return
        self._judges_announced = True
        for line in self.used(answers) if is_first_rank() else ():
            announce(line)

    async def _ask_part(
        self, name: str, ask: AskPart, candidates: Sequence[Candidate]
    ) -> list[Judgement | None]:
        """Return a part's judgements in order. Unusable candidates are rejected without asking.

        A judgement beyond the limit of doubt of the part's calibration abstains.
        """
        usable = [c for c in candidates if not c.unusable]
        judgements = await ask(self.fields.for_part(name, usable))
        if calibration := self.parts.calibrations.get(name):
            judgements = [judgement and calibration.settle(judgement) for judgement in judgements]
        answers = iter(judgements)
        return [
            Judgement(Outcome.INPUT_REJECTED, reason=c.unusable) if c.unusable else next(answers)
            for c in candidates
        ]

    async def _compare(
        self, pairs: Sequence[Pair | tuple[str, str, str]], unusable: Sequence[str]
    ) -> list[Comparison]:
        if not self.parts.alone:
            raise ConfigError("only the judge compares, and parts stand beside it: rate instead")
        if self.audit:
            raise ConfigError(
                "reward.audit is for ratings, and these are comparisons: rate instead"
            )
        start_s = time.monotonic()
        with span("autoj.comparisons", {"autoj.pairs": len(pairs)}):
            answers = iter(
                await self.clients[JUDGE].compare(
                    [pair for pair, reason in zip(pairs, unusable, strict=True) if not reason]
                )
            )
        comparisons = []
        for reason in unusable:
            if reason:
                rejected = Judgement(Outcome.INPUT_REJECTED, reason=reason)
                comparisons.append(Comparison(Verdict.FAILED, (rejected, rejected), reason))
            else:
                comparisons.append(next(answers))
        self.waited_s += time.monotonic() - start_s
        self._budgets[JUDGE].count(
            [order for comparison in comparisons for order in comparison.orders]
        )
        return comparisons

    def _watch(self, judgements: Sequence[Judgement], candidates: Sequence[Candidate]) -> None:
        for judgement, candidate in zip(judgements, candidates, strict=True):
            self.health.observe(judgement, len(candidate.response))
        self._unchecked += len(judgements)
        if self._unchecked < CHECK_EVERY:
            return
        self._unchecked = 0
        alarms = self.health.alarms()
        for name in alarms:
            if name not in self._alarms:
                value = self.health.figures()[name]
                LOG.warning("judge health alarm: %s is %.3g, over %g", name, value, BOUNDS[name])
        self._alarms = alarms

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            with self._lock:
                if self._closed:
                    raise EngineUnavailable(CLOSED)
                return asyncio.run_coroutine_threadsafe(work, self._start())
        except BaseException:
            work.close()
            raise


def _make_ask_part(client: RewardClient, judged_config: JudgedConfig, view: View) -> AskPart:
    """Return the function that asks a judge of the reward about candidates."""
    if judged_config.relative:
        return partial(rate_groups, client, judged_config.relative)
    if judged_config.rubric:
        return partial(client.score_rubrics, rubric_config=judged_config.rubric)
    return partial(client.rate, view=view)


MODELS: WeakSet[RewardModel] = WeakSet()
"""Reward models of this process."""
INHERITED: list[object] = []
"""State of the parent's open models in a forked process. It is kept and never used."""


def _after_fork() -> None:
    for model in list(MODELS):
        model._forget_parent()


os.register_at_fork(after_in_child=_after_fork)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the event loop until it is stopped. asyncio also ends it when a task raises SystemExit or
    KeyboardInterrupt, as a reward function's task may. The caller that awaits that task gets the
    exception anyway, and other callers still need the loop."""
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            LOG.warning("a task on the judge's event loop raised %r", error)
        else:
            return
