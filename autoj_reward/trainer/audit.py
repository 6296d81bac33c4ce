"""Audit of a reward's judge during training: a second judge, master keys, and their alarms.

All of it runs beside the training. It changes no reward, no failure budget and no judgement on
record, and its own failures are counted and logged.
"""

from __future__ import annotations

import asyncio
import logging
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import cycle
from typing import TypeVar

from autoj_reward.config import AuditConfig, View
from autoj_reward.conversation import Response
from autoj_reward.errors import AuditAlarm
from autoj_reward.judge.health import MASTER_KEYS
from autoj_reward.models.calibration import JudgeCalibration
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.trainer.parts import AskPart, RewardPart
from autoj_reward.types import Candidate, GroupKey, Judgement, Outcome, group_key

LOG = logging.getLogger("autoj_reward.trainer")
T = TypeVar("T")
AUDIT_BOUNDS = {"opposition": 4.0, "gap_trend": 0.25, "canary": 0.2}
"""Highest value of each metric that raises no alarm; see `Audit.figures`."""
AUDIT_METRICS = tuple(
    f"audit/{name}"
    for name in (
        *("gap", "gap_trend", "correlation", "opposition", "failures", "canary"),
        *(f"alarm_{name}" for name in AUDIT_BOUNDS),
    )
)
"""Names of the metrics of an audit, at all times; see `Audit`."""
WINDOW, LEAST = 200, 50
"""Latest audited responses that count, and those before the first gap is taken and any alarm."""
GROUP_WINDOW, LEAST_GROUPS = 40, 12
"""The same for audited groups."""
KEY_WINDOW, LEAST_KEYS = 40, 12
"""The same for judgements of master keys."""
LEAST_ERROR = 1e-4
"""Least standard error of the mean correlation."""
MAX_IN_FLIGHT = 256
"""Limit on audited responses in flight, so that a slow audit judge delays nothing."""


class Audit:
    """Compares the main judge with a second one on a share of the responses.

    Its attribute `figures` holds the metrics of the audits that have ended, `alarms` the names of
    those out of bounds, and `in_flight` the running tasks. Used on the event loop of its judges
    alone; other threads may read the attributes.

    The metrics have the same names at all times, and are NaN without data:

    - `audit/gap`: mean of the main judge's number minus the audit judge's over the window, both as
      shares of their scales, -1 to 1.
    - `audit/gap_trend`: change of the gap since LEAST responses were audited, -2 to 2.
    - `audit/correlation`: Pearson's correlation of the two numbers within a group, mean over the
      last audited groups in which both judges tell responses apart, -1 to 1.
    - `audit/opposition`: standard errors by which that mean lies below 0. A trainer that compares
      the responses of a group moves the audit judge's mean number by their covariance within
      groups, so it falls where the correlation is below 0.
    - `audit/failures`: share of the window without a number of the audit judge, 0 to 1.
    - `audit/canary`: share of the last master keys that the main judge rates above the mean
      response, 0 to 1.
    - `audit/alarm_<metric>`: 1 while a metric is above its bound in AUDIT_BOUNDS, else 0.
    """

    def __init__(
        self, config: AuditConfig, spec: JudgeSpec, calibration: JudgeCalibration | None
    ) -> None:
        """spec: the audit judge. calibration: map of its numbers, None without one."""
        self._config = config
        fmt = None if config.scoring else spec.format
        self._part = RewardPart(fmt, calibration=calibration)
        self._share_pairs: deque[tuple[float, float | None]] = deque(maxlen=WINDOW)
        self._correlations: deque[float] = deque(maxlen=GROUP_WINDOW)
        self._keys: deque[bool] = deque(maxlen=KEY_WINDOW)
        self._first_gap = math.nan
        self._waiting = self._since_keys = 0
        self._logged: set[str] = set()
        self.in_flight: set[asyncio.Task[None]] = set()
        self.alarms: tuple[str, ...] = ()
        self.figures: Mapping[str, float] = {}
        self._update()

    def use(self, ask: AskPart, view: View, main: RewardPart, ask_main: AskPart) -> None:
        """Set how the judges are asked.

        ask, view: those of the audit judge. main: the part of the main judge. ask_main: asks the
        main judge without a record.
        """
        self._part = replace(self._part, view=view)
        self._ask, self._main, self._ask_main = ask, main, ask_main

    def start(self, candidates: Sequence[Candidate], values: Sequence[float | None]) -> None:
        """Start the audit of a batch that the main judge has judged; return at once.

        Groups are audited whole.
        values: the main judge's numbers in its own unit, None for a response that it did not rate.
        Raises AuditAlarm while an alarm is on, if the config says `stop`.
        """
        if self._config.stop and self.alarms:
            raise AuditAlarm(
                f"{_describe_alarms(self.alarms, self.figures)}: training stops before the policy "
                "learns more from a judge that is wrong. Read responses with high rewards, mend "
                "the judge and resume from a checkpoint before the drift, or set audit.stop to "
                "false"
            )
        rated_rows = [
            (candidate, self._main.share(value))
            for candidate, value in zip(candidates, values, strict=True)
            if value is not None and not candidate.unusable
        ]
        chosen_rows = [
            row
            for group in _split_by_group(rated_rows, [candidate for candidate, _ in rated_rows])
            if is_audited([candidate for candidate, _ in group], self._config.share)
            for row in group
        ]
        capacity = MAX_IN_FLIGHT - self._waiting
        if skipped_rows := chosen_rows[capacity:]:
            self._warn_once("slow", f"over {MAX_IN_FLIGHT} responses wait for the audit judge")
            self._share_pairs.extend((share, None) for _, share in skipped_rows)
            self._update()
        if chosen_rows := chosen_rows[:capacity]:
            self._waiting += len(chosen_rows)
            self._begin(self._compare(chosen_rows))
        self._since_keys += len(candidates)
        if rated_rows and 0 < self._config.canaries_every <= self._since_keys:
            self._since_keys = 0
            self._begin(self._try_keys(rated_rows))

    async def close(self) -> None:
        """Cancel the audits in flight."""
        tasks = list(self.in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting = 0  # a task that was cancelled before its first step has not counted down

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.in_flight.add(task)
        task.add_done_callback(self.in_flight.discard)

    async def _compare(self, rows: Sequence[tuple[Candidate, float]]) -> None:
        """Ask the audit judge about responses. rows: each with the main judge's share."""
        try:
            judgements = await self._ask_or_abstain(self._ask, [candidate for candidate, _ in rows])
        finally:
            self._waiting -= len(rows)
        numbers: list[tuple[float, float | None]] = []
        for (_, share), judgement in zip(rows, judgements, strict=True):
            value = self._part.value(judgement)
            numbers.append((share, None if value is None else self._part.share(value)))
            if judgement and value is None:
                self._warn_once(judgement.outcome, judgement.why)
        self._share_pairs.extend(numbers)
        for group in _split_by_group(numbers, [candidate for candidate, _ in rows]):
            rated_pairs = [
                (main_share, audit_share)
                for main_share, audit_share in group
                if audit_share is not None
            ]
            if (r := _correlate(rated_pairs)) is not None:
                self._correlations.append(r)
        self._update()

    async def _try_keys(self, rows: Sequence[tuple[Candidate, float]]) -> None:
        """Ask the main judge about the master keys as responses to the batch's queries."""
        key_candidates = [
            replace(candidate, response=Response(key.replace("{q}", candidate.prompt.text)))
            for key, (candidate, _) in zip(MASTER_KEYS.values(), cycle(rows))
        ]
        mean_share = statistics.fmean(
            [share for share, _ in self._share_pairs] or [share for _, share in rows]
        )
        for judgement in await self._ask_or_abstain(self._ask_main, key_candidates):
            if (value := self._main.value(judgement)) is not None:
                self._keys.append(self._main.share(value) > mean_share)
            elif judgement and judgement.outcome is Outcome.NO_ANSWER:
                self._keys.append(False)  # nothing was asked, so nothing is paid for
        self._update()

    async def _ask_or_abstain(
        self, ask: AskPart, candidates: Sequence[Candidate]
    ) -> Sequence[Judgement | None]:
        """Return the judgements, None for all of them after an exception."""
        try:
            return await ask(candidates)
        except Exception as error:  # an audit must not end the training that it watches
            self._warn_once(type(error).__name__, f"{type(error).__name__}: {error}")
            return [None] * len(candidates)

    def _warn_once(self, kind: str, reason: str) -> None:
        """Log why an audit has no number, once for each kind of failure."""
        if kind not in self._logged:
            self._logged.add(kind)
            LOG.warning("the audit of the reward abstains: %s", reason)

    def _update(self) -> None:
        """Compute the metrics and alarms, and log alarms that are new."""
        pairs = [
            (main_share, audit_share)
            for main_share, audit_share in self._share_pairs
            if audit_share is not None
        ]
        gap = _compute_mean([main_share - audit_share for main_share, audit_share in pairs])
        if math.isnan(self._first_gap) and len(pairs) >= LEAST:
            self._first_gap = gap
        metrics = {
            "gap": gap,
            "gap_trend": gap - self._first_gap,
            "correlation": _compute_mean(self._correlations),
            "opposition": opposition(self._correlations),
            "failures": _compute_mean(
                [float(audit_share is None) for _, audit_share in self._share_pairs]
            ),
            "canary": _compute_mean([float(above) for above in self._keys]),
        }
        lacks_data = {"gap_trend": len(pairs) < LEAST, "canary": len(self._keys) < LEAST_KEYS}
        alarms = tuple(
            name
            for name, bound in AUDIT_BOUNDS.items()
            if metrics[name] > bound and not lacks_data.get(name)
        )
        states = {f"alarm_{name}": float(name in alarms) for name in AUDIT_BOUNDS}
        self.figures = {f"audit/{name}": value for name, value in (metrics | states).items()}
        if new_alarms := [name for name in alarms if name not in self.alarms]:
            LOG.warning("%s", _describe_alarms(new_alarms, self.figures))
        self.alarms = alarms


def is_audited(group: Sequence[Candidate], share: float) -> bool:
    """Return whether a group is among the audited share, by a hash of its query and responses.

    So all processes, retries and restarts choose the same groups. group: one candidate or more.
    """
    texts = [group[0].prompt.text, *(candidate.response.text for candidate in group)]
    hashed_text = "".join(f"{len(text)} {text}" for text in texts)
    digest = blake2b(hashed_text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2**64


def _describe_alarms(alarms: Sequence[str], figures: Mapping[str, float]) -> str:
    """Return the alarms in words, each with its value and bound."""
    descriptions = [f"{n} is {figures[f'audit/{n}']:.3g}, over {AUDIT_BOUNDS[n]:g}" for n in alarms]
    return f"audit alarm: {'; '.join(descriptions)}"


def _split_by_group(rows: Sequence[T], candidates: Sequence[Candidate]) -> Iterator[list[T]]:
    """Return the rows of each group. candidates: that of each row."""
    rows_by_group: dict[GroupKey, list[T]] = defaultdict(list)
    for row, candidate in zip(rows, candidates, strict=True):
        rows_by_group[group_key(candidate)].append(row)
    return iter(rows_by_group.values())


def _compute_mean(values: Collection[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _correlate(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Pearson's correlation of pairs; None if either side is constant."""
    if any(len(set(side)) < 2 for side in zip(*pairs, strict=True)) or not pairs:
        return None
    return statistics.correlation(*zip(*pairs, strict=True))


def opposition(correlations: Collection[float]) -> float:
    """Return how strongly two judges disagree within groups.

    correlations: of the two judges' numbers, one for each group. The result is the number of
    standard errors by which their mean lies below 0; a negative one means that they agree. It is
    NaN for fewer than LEAST_GROUPS correlations, which may be alike by chance.
    """
    if len(correlations) < LEAST_GROUPS:
        return math.nan
    error = statistics.stdev(correlations) / math.sqrt(len(correlations))
    return -statistics.fmean(correlations) / max(error, LEAST_ERROR)
