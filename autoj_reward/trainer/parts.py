"""The parts of a reward, judges and functions, and how they are combined into one number."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from autoj_reward.client.in_flight import Slots
from autoj_reward.config import AUDIT, JUDGE, RewardConfig, View
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat
from autoj_reward.models.calibration import JudgeCalibration, load_calibration
from autoj_reward.models.price import limit_spending
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.types import Candidate, Judgement, Outcome

if TYPE_CHECKING:
    from autoj_reward.client.client import JudgeClient
    from autoj_reward.trainer.prompts import ContextFields
    from autoj_reward.trainer.shaping import Budgets

LOG = logging.getLogger("autoj_reward.trainer")
T = TypeVar("T")
MAX_THREADS = 32
"""Limit on threads that run one function at a time. Calls that were given up are not counted."""
AskPart = Callable[[Sequence[Candidate]], Awaitable[Sequence[Judgement | None]]]
"""Function that asks a part. None means that the part does not apply to the candidate; that is no
failure."""
Returned = tuple[Any, BaseException | None]
"""A function's value, and the exception that it raised."""


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One part of a reward."""

    format: JudgeFormat | ScalarFormat | None
    """Format of a judge or scalar model. None for a function, and for a judge of whole groups or of
    rubrics: they give numbers of 0 to 1."""
    view: View = "rating"
    """The number of the judgement that counts."""
    weight: float = 1.0
    """Weight in the mean."""
    range: tuple[float, float] | None = None
    """The two values that are mapped to 0 and 1; None for the part's own scale."""
    calibration: JudgeCalibration | None = None
    """Map of the view's number to labels; the part's unit and scale are then theirs."""

    def value(self, judgement: Judgement | None) -> float | None:
        """Return the part's calibrated number in its own unit; None if it abstains.

        A missing number of a response with a planted verdict (text that imitates the judge's)
        counts as the lowest one; see `Judgement.spoiled`.
        """
        if judgement is None:
            return None
        number = judgement.view(self.view)
        if number is None:
            return self._lowest if judgement.spoiled() else None
        return self.calibration.label(number) if self.calibration else number

    @property
    def worst(self) -> float | None:
        """The number of its scale that counts least; None for a scalar model, which has no
        bounds."""
        if self.calibration:
            low, high = self.calibration.scale
        elif isinstance(self.format, JudgeFormat):
            low, high = self.format.scale.low, self.format.scale.high
        elif self.format:
            return None
        else:
            low, high = 0.0, 1.0
        return float(min(low, high, key=self.share))

    @property
    def _lowest(self) -> float:
        """Lowest number of a judge, in its own unit."""
        if self.calibration:
            return self.calibration.scale[0]
        return float(self.format.scale.low) if isinstance(self.format, JudgeFormat) else 0.0

    def share(self, value: float) -> float:
        """Map a value to 0..1 by `range`, else by the part's scale. `range` also maps values
        outside it."""
        if self.range:
            nothing, all_of_it = self.range
            return (value - nothing) / (all_of_it - nothing)
        if self.calibration:
            return self.calibration.share(value)
        return self.format.share(value) if self.format else value

    @property
    def middle(self) -> float:
        """Return the middle of the part's scale, which stands in for a missing value."""
        if self.range:
            return sum(self.range) / 2
        if self.calibration:
            return sum(self.calibration.scale) / 2
        return self.format.neutral if self.format else 0.5


def reward_judges(config: RewardConfig) -> dict[str, JudgeSpec]:
    """Return the judges of a reward and its audit by their name, with the main judge first.

    Each reads what its view needs. Raises ConfigError or FormatError for a config that cannot be
    resolved.
    """
    specs = {}
    own_judges = {
        f"{config.key_of(name)}.judge": judged.judge
        for name, judged in config.judged.items()
        if not judged.service
    }
    served = len(own_judges) < len(config.judged)
    spending = limit_spending(config.max_usd, own_judges, served)
    for name, judged_config in config.judged.items():
        spec = judge_spec(judged_config.judge)
        if not (judged_config.scoring or spec.rates):
            raise ConfigError(_explain_missing_ratings(spec, config.key_of(name)))
        if judged_config.scoring:
            specs[name] = spec.that_scores(judged_config.scoring, f"{config.key_of(name)}.")
        else:
            specs[name] = spec.that_reads(judged_config.view, "reward")
        specs[name] = replace(
            specs[name], spending=spending, judges_unanswered=config.no_answer == "judge"
        )
    return specs


def _explain_missing_ratings(spec: JudgeSpec, key: str) -> str:
    """Return the error of a judge that rates no response alone, and is to. key: of its block."""
    ways = []
    if spec.facts.max_group:
        ways.append(f"set {key}.relative.by to listwise")
    if spec.facts.compares:
        ways.append(f"set {key}.relative.by to comparisons")
    if spec.facts.max_items:
        ways.append(f"set {key}.rubric.by to items")
    ways.append(f"set {key}.judge.format to one that rates, such as general")
    return (
        f"{key}.judge.format is {spec.format.name}, which rates no response alone: "
        f"{', or '.join(ways)}"
    )


class Parts:
    """The parts of a reward by name, with the main judge first.

    A judge alone rewards in its own unit. With several parts, each is mapped to 0..1, and the
    reward is their weighted mean, their median or their minimum. A part that abstains is left out,
    and the weights of the others are scaled up.

    Attributes: `by_name`, the parts; `calibrations`, those of parts and audit by name.
    """

    def __init__(self, config: RewardConfig, judges: Mapping[str, JudgeSpec]) -> None:
        """judges: the judges of the config, as `reward_judges` returns them.

        Raises ConfigError for a calibration that cannot be read, or that abstains more often than
        the failure budget allows.
        """
        self._reduce = config.reduce
        self._gives_lowest = config.no_answer == "lowest"
        main_format = None if config.scoring else judges[JUDGE].format
        self.calibrations = {
            name: load_calibration(judged_config.calibration)
            for name, judged_config in config.judged.items()
            if judged_config.calibration
        }
        for name, calibration in self.calibrations.items():
            _require_budget(config, name, calibration)
        self.by_name = {JUDGE: RewardPart(main_format, calibration=self.calibrations.get(JUDGE))}
        for name, part in config.parts.items():
            fmt = None if part.function or part.scoring else judges[name].format
            self.by_name[name] = RewardPart(
                fmt,
                weight=part.weight,
                range=part.range,
                calibration=self.calibrations.get(name),
            )
        self.alone = len(self.by_name) == 1

    def use_views(self, views: Mapping[str, View]) -> None:
        """Set the view of each part, by name. Functions have one number and no view."""
        self.by_name |= {
            name: replace(part, view=views[name])
            for name, part in self.by_name.items()
            if name in views
        }

    def values(self, answers: Mapping[str, Judgement | None]) -> dict[str, float | None]:
        """Return each part's number for one response, in its own unit."""
        values = {name: part.value(answers[name]) for name, part in self.by_name.items()}
        if self._gives_lowest:
            for name, judgement in answers.items():
                if judgement and judgement.outcome is Outcome.NO_ANSWER and name in values:
                    values[name] = self.by_name[name].worst
        return values

    def reward(self, values: Mapping[str, float | None]) -> float | None:
        """Combine the parts' values into one reward before shaping; None if every part abstains."""
        if self.alone:
            return values[JUDGE]
        weighted_shares = [
            (part.weight, part.share(value))
            for name, part in self.by_name.items()
            if (value := values[name]) is not None
        ]
        if not weighted_shares:
            return None
        if self._reduce == "min":
            return min(share for _, share in weighted_shares)
        if self._reduce == "median":
            return median(share for _, share in weighted_shares)
        return sum(w * share for w, share in weighted_shares) / sum(w for w, _ in weighted_shares)

    @property
    def worst(self) -> float | None:
        """Return the lowest reward before shaping; None on a scale without bounds."""
        return self.by_name[JUDGE].worst if self.alone else 0.0

    @property
    def middle(self) -> float:
        """Return the middle of the reward's scale, which stands in for a missing reward."""
        return self.by_name[JUDGE].middle if self.alone else 0.5

    def share(self, reward: float) -> float:
        """Map a reward before shaping to 0..1."""
        return self.by_name[JUDGE].share(reward) if self.alone else min(1.0, max(0.0, reward))


def _require_budget(config: RewardConfig, name: str, calibration: JudgeCalibration) -> None:
    """Raise ConfigError if a calibration abstains too often for the failure budget of its part."""
    rule = calibration.abstain
    if rule is None or name == AUDIT:  # failures of the audit judge spend no budget
        return
    failures = config.parts[name].failures if name in config.parts else config.failures
    if rule.abstains >= failures.budget:
        key = config.key_of(name) if name in config.parts else "reward"
        raise ConfigError(
            f"{key}.calibration abstains on {rule.abstains:.0%} of its labels, and "
            f"{key}.failures.budget is {failures.budget:g}: abstentions count as failures, so set "
            "the budget well above that share"
        )


@dataclass(frozen=True, slots=True)
class Reward:
    """Reward of one candidate. Its numbers are None if the judgement failed or all parts abstain. A
    failed judgement of a response that imitates a verdict earns the lowest rating instead."""

    judgement: Judgement
    """Judgement of the main judge; where it was not asked, that of the part named by `when`."""
    raw: float | None
    """The judgement's view, calibrated, or the combined parts, before shaping."""
    value: float | None
    """The reward after shaping."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """Each part's number in its own unit, None where it abstains; empty for a judge alone."""
    thinking_characters: int = 0
    """Length of the response's thinking, as its marks tell it."""
    audit: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Metrics of the audit when the reward was given, see `Audit`; empty without one."""
    asked: bool = True
    """Whether the main judge was asked: not where the part named by `when` has a number."""


class RewardSource(Protocol):
    """Interface of a reward model, asynchronous or for any thread, that adapters use."""

    config: RewardConfig
    specs: dict[str, JudgeSpec]
    fields: ContextFields
    parts: Parts

    async def rewards(
        self, candidates: Sequence[Candidate], budgets: Budgets | None = None
    ) -> list[Reward]: ...

    def numbers(
        self, rewards: Sequence[Reward], candidates: Sequence[Candidate]
    ) -> list[float]: ...

    def recent(self) -> list[tuple[Candidate, Reward]]: ...

    async def ask_judge(self, work: Callable[[JudgeClient], Coroutine[Any, Any, T]]) -> T: ...


class RewardFunction:
    """A reward part that calls `module:function` with one Candidate at a time.

    The function may be async; otherwise it runs in threads. deadline_s: seconds that a call may
    run, not counting its wait for a thread. A longer call is given up: its thread goes on, but
    blocks neither other calls nor the exit of the process. Raises ConfigError if the function
    cannot be loaded.
    """

    def __init__(self, part: str, import_path: str, deadline_s: float) -> None:
        self._part, self._deadline_s = part, deadline_s
        self._function = _load_function(part, import_path)
        self._threads = Slots(MAX_THREADS)
        self._logged: set[type[BaseException]] = set()

    async def rate(self, candidates: Sequence[Candidate]) -> list[Judgement | None]:
        """Return the function's number for each candidate as a judgement.

        None means that the function returned None, so does not apply. An exception, `SystemExit`
        included, and a value that is no finite number become a failed judgement with the reason.
        """
        return list(
            await asyncio.gather(*(self._rate_candidate(candidate) for candidate in candidates))
        )

    async def _rate_candidate(self, candidate: Candidate) -> Judgement | None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(None) as limit:
                value, error = await self._run_in_thread(candidate, limit)
                if error:
                    raise error
                if inspect.isawaitable(value):
                    value = await value
            return None if value is None else Judgement.of_score(_to_finite_number(value))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                raise  # the caller was cancelled; the function may raise CancelledError itself
            if isinstance(error, TimeoutError) and limit.expired():
                reason = f"no answer within {self._deadline_s:g} s"
                return Judgement(Outcome.UNAVAILABLE, reason=reason)
            if type(error) not in self._logged:
                self._logged.add(type(error))
                LOG.warning("reward part %s abstains", self._part, exc_info=error)
            return Judgement(Outcome.UNPARSABLE, reason=f"{type(error).__name__}: {error}")

    async def _run_in_thread(self, candidate: Candidate, limit: asyncio.Timeout) -> Returned:
        """Run the function in a daemon thread of its own; return its value and its exception.

        The deadline starts with the thread. Python waits at exit for the threads of an executor,
        which a hung function would prevent. The exception is returned because a future cannot hold
        a StopIteration.
        """
        loop = asyncio.get_running_loop()
        result_future: asyncio.Future[Returned] = loop.create_future()

        def settle(result: Returned) -> None:
            if not result_future.done():
                result_future.set_result(result)

        def run() -> None:
            result: Returned
            try:
                result = self._function(candidate), None
            except BaseException as error:
                result = None, error
            with suppress(RuntimeError):  # the call was given up, and the loop is closed
                loop.call_soon_threadsafe(settle, result)

        await self._threads.take(1)
        try:
            limit.reschedule(loop.time() + self._deadline_s)
            threading.Thread(target=run, name=f"autoj-part-{self._part}", daemon=True).start()
            return await result_future
        finally:
            self._threads.give(1)


def _to_finite_number(value: Any) -> float:
    """Return a function's value as a float.

    Raises ValueError or TypeError if it is no finite number.
    """
    number = float(value) if not isinstance(value, str | bytes) else float("nan")
    if not -float("inf") < number < float("inf"):
        raise ValueError(f"it returned {value!r:.80}: return a finite number, or None")
    return number


def _load_function(part: str, import_path: str) -> Callable[[Candidate], Any]:
    module, _, name = import_path.partition(":")
    try:
        function = getattr(import_module(module), name)
    except Exception as error:
        raise ConfigError(
            f"parts.{part}.function: {import_path} cannot be loaded: {type(error).__name__}: "
            f"{error}; name module:function, and put the module's folder on PYTHONPATH"
        ) from error
    if not callable(function):
        raise ConfigError(f"parts.{part}.function: {import_path} is {function!r:.80}, no function")
    return function  # type: ignore[no-any-return]
