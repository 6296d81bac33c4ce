"""TRL: reward functions for GRPO, RLOO and online DPO.

    with RewardModel(config) as reward:
        trainer = GRPOTrainer(model, reward_funcs=reward.trl(), ...)

Prompts and completions may be plain or conversational. A failed judgement becomes None, which GRPO
and RLOO leave out of the group (TRL 1.6 and later). Trainers without async functions count None as
0, so the sync function returns the configured fallback. For online DPO, the trainer of
`autoj_reward.trainer.online_dpo` leaves out pairs that the judge does not decide. A run whose
failure budget is spent ends with BudgetExceeded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from autoj_reward.config import RewardConfig, ShapingConfig
from autoj_reward.errors import ConfigError
from autoj_reward.processes import on_first_rank, processes, ranks
from autoj_reward.trainer.parts import Reward, RewardSource
from autoj_reward.trainer.prompts import Turn, candidate
from autoj_reward.trainer.shaping import needs_groups
from autoj_reward.trainer.stats import batch_metrics, part_names, tag_metrics
from autoj_reward.types import Candidate, Comparison, Pair, Verdict, group_key

LogMetric = Callable[[str, float], None]
"""TRL's callback for a metric: name and value."""
LogExtra = Callable[[str, list[Any]], None]
"""TRL's callback for a column of the logged table: name and values."""
TRLReward = Callable[..., Awaitable[list[float | None]]]
"""An async reward function as TRL calls it, with `prompts`, `completions` and the dataset's columns
by name. Returns one number, or None, for each completion."""
OPEN_BATCHES = 8
"""Limit on batches that some part's function has not asked for yet."""
ROUNDS = 3
"""Rounds of judgements of one step at most: a rating takes two, and a group's comparisons one."""
R = TypeVar("R")


class BlockingRewards(RewardSource, Protocol):
    """Interface of RewardModel that these functions use. RewardModel's module imports this one."""

    def rewards_now(self, candidates: Sequence[Candidate]) -> list[Reward]: ...

    def compare_now(
        self, pairs: Sequence[Pair], unusable: Sequence[str] = ()
    ) -> list[Comparison]: ...


def rate_across_ranks(
    model: BlockingRewards,
    work: Callable[[list[Candidate]], list[R]],
    candidates: Sequence[Candidate],
) -> list[R]:
    """Return the results of `work` for this rank's candidates, computed on rank 0 with all ranks'.

    Every rank must call it. An AutojError of rank 0, such as BudgetExceeded, is raised on all
    ranks. A rank waits as long as rank 0 may take: the deadline of each round of judgements.
    """
    seconds = ROUNDS * max(
        judged_config.judge.serve.deadline_s for judged_config in model.config.judged.values()
    )
    return on_first_rank(work, candidates, seconds)


def make_candidates(
    model: BlockingRewards,
    prompts: Sequence[Turn],
    completions: Sequence[Turn],
    columns: Mapping[str, Any],
) -> list[Candidate]:
    """Return one candidate for each completion, with the context that the judge shows."""
    contexts = model.fields.of_columns(columns, len(completions))
    return [
        candidate(prompt, completion, context, "assistant")
        for prompt, completion, context in zip(prompts, completions, contexts, strict=True)
    ]


class GRPOReward:
    """Reward functions for GRPOTrainer and RLOOTrainer.

    Pass `judge`, or `judge_sync` to a trainer that takes no async functions. The judge's context
    fields are read from columns of the dataset.

    If the reward needs whole groups and the training has several ranks, which may split a group,
    rank 0 gathers the step's responses, judges them, and scatters the rewards.
    """

    def __init__(self, model: BlockingRewards) -> None:
        self.model = model
        self._gathers = processes() > 1 and needs_groups(model.config)

    async def judge(
        self,
        prompts: Sequence[Turn],
        completions: Sequence[Turn],
        log_metric: LogMetric | None = None,
        log_extra: LogExtra | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return the shaped rewards in order; None for a judgement that abstains."""
        candidates = make_candidates(self.model, prompts, completions, columns)
        rewards = await self.rewards(candidates)
        _log(self.model.config, rewards, candidates, log_metric, log_extra)
        return [reward.value for reward in rewards]

    def judge_sync(
        self,
        prompts: Sequence[Turn],
        completions: Sequence[Turn],
        log_metric: LogMetric | None = None,
        log_extra: LogExtra | None = None,
        **columns: Any,
    ) -> list[float]:
        """Return the shaped rewards in order, for trainers without async functions.

        Such trainers count None as 0, so a judgement that abstains gets the configured fallback.
        """
        candidates = make_candidates(self.model, prompts, completions, columns)
        if self._gathers:
            results = rate_across_ranks(self.model, self._rate_with_numbers, candidates)
        else:
            results = self._rate_with_numbers(candidates)
        rewards = [reward for reward, _ in results]
        _log(self.model.config, rewards, candidates, log_metric, log_extra)
        return [number for _, number in results]

    async def rewards(self, candidates: Sequence[Candidate]) -> list[Reward]:
        """Return the rewards of this rank's candidates, in order."""
        if self._gathers:
            return await asyncio.to_thread(
                rate_across_ranks, self.model, self.model.rewards_now, list(candidates)
            )
        return await self.model.rewards(candidates)

    def _rate_with_numbers(self, candidates: list[Candidate]) -> list[tuple[Reward, float]]:
        rewards = self.model.rewards_now(candidates)
        return list(zip(rewards, self.model.numbers(rewards, candidates), strict=True))


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch that the functions of several parts ask for."""

    candidates: list[Candidate]
    rewards: asyncio.Future[list[Reward]]
    served_parts: set[str] = field(default_factory=set)
    """Names of the parts whose functions have asked for it."""


class PartRewards:
    """Reward functions for GRPOTrainer, one for each part of a reward.

    The functions of a batch share its judgements, whether the trainer calls them in turn or at the
    same time. They return each part's number as it counts in a combined reward: mapped to 0..1, and
    without its weight. Weights and normalisation are the trainer's. Raises ConfigError for a reward
    without parts, and for settings that only the combined reward has.
    """

    def __init__(self, model: BlockingRewards) -> None:
        _require_separate_parts(model.config)
        self.model = model
        self._judge = GRPOReward(model)
        self._batches: deque[_Batch] = deque(maxlen=OPEN_BATCHES)

    def functions(self) -> list[TRLReward]:
        """Return the functions, the main judge's first. A function's `__name__` is its part's."""
        return [self._make_function(name) for name in self.model.parts.by_name]

    def _make_function(self, name: str) -> TRLReward:
        async def rate_part(
            prompts: Sequence[Turn],
            completions: Sequence[Turn],
            log_metric: LogMetric | None = None,
            log_extra: LogExtra | None = None,
            **columns: Any,
        ) -> list[float | None]:
            """Return the part's numbers of 0 to 1, in order; None where it abstains."""
            candidates = make_candidates(self.model, prompts, completions, columns)
            batch, is_new = self._join_batch(name, candidates)
            # A caller that gives up must not cancel the judgements of the other parts.
            rewards = await asyncio.shield(batch.rewards)
            if is_new:  # TRL collects the logs of all functions in one table
                _log(self.model.config, rewards, candidates, log_metric, log_extra)
            part = self.model.parts.by_name[name]
            values = [reward.parts[name] for reward in rewards]
            return [None if value is None else part.share(value) for value in values]

        rate_part.__name__ = name
        return rate_part

    def _join_batch(self, name: str, candidates: list[Candidate]) -> tuple[_Batch, bool]:
        """Return the batch of these candidates that the part has not asked for yet, and whether it
        is new. A part that asks again, as for equal responses of a later step, gets a new one."""
        for batch in self._batches:
            if name not in batch.served_parts and batch.candidates == candidates:
                break
        else:
            batch = _Batch(candidates, asyncio.ensure_future(self._judge.rewards(candidates)))
            self._batches.append(batch)
        batch.served_parts.add(name)
        if len(batch.served_parts) == len(self.model.parts.by_name):
            self._batches.remove(batch)
        return batch, len(batch.served_parts) == 1


def _require_separate_parts(config: RewardConfig) -> None:
    """Raise ConfigError for a reward whose parts cannot be given to a trainer one by one."""
    if not config.parts:
        raise ConfigError(
            "parts=True gives a trainer one function for each part, and the reward is a judge "
            "alone: name others in reward.parts, or leave parts=True out"
        )
    weighed = [name for name, part in config.parts.items() if "weight" in part.model_fields_set]
    waiting = next(iter(config.waiting), None)
    if config.reduce != "mean":
        key = "reward.reduce"
    elif weighed:
        key = f"reward.parts.{weighed[0]}.weight"
    elif waiting:
        key = f"{config.key_of(waiting)}.when"
    elif config.shaping != ShapingConfig():
        key = "reward.shaping"
    else:
        return
    raise ConfigError(
        f"{key} applies to the combined reward, and with parts=True the trainer combines the "
        "parts: leave it out, and set weights in the trainer (TRL's reward_weights)"
    )


def _log(
    config: RewardConfig,
    rewards: Sequence[Reward],
    candidates: Sequence[Candidate],
    log_metric: LogMetric | None,
    log_extra: LogExtra | None,
) -> None:
    """Log the metrics and columns of a batch.

    TRL gathers both over ranks, name by name. So the names are the same in every call and on every
    rank, for a batch without rewards too.
    """
    if log_metric:
        figures = batch_metrics(rewards, candidates, config)
        if ranks() == 1:  # the rows of another rank may have other tags
            figures |= tag_metrics(rewards)
        for name, value in figures.items():
            log_metric(name, value)
    if log_extra:
        log_extra("judge_outcome", [r.judgement.outcome.value for r in rewards])
        log_extra("judge_raw", [r.raw for r in rewards])
        log_extra("judge_critique", [r.judgement.critique for r in rewards])
        for name in part_names(config):
            log_extra(f"part_{name}", [r.parts[name] for r in rewards])


class OnlineDPOReward:
    """Reward functions for online DPO, which passes all first completions, then all second.

    `judge` rates each completion alone. A pair is undecided if the rewards are equal or one failed.
    `compare` compares the pair in both orders: 1 for the better completion and 0 for the worse. A
    pair is undecided if it is a tie, if the orders disagree, or if one failed. Both completions of
    an undecided pair get the same number, or None after a failure.

    TRL's own trainer takes the first of two equal rewards as the better one. So both functions
    raise ConfigError unless the trainer says that it leaves such pairs out.
    """

    def __init__(self, model: BlockingRewards) -> None:
        self.model = model

    def judge(
        self,
        prompts: Sequence[Turn],
        completions: Sequence[Turn],
        ties_left_out: bool = False,
        **columns: Any,
    ) -> list[float | None]:
        """Return the rewards of all first completions, then of all second."""
        _require_ties_left_out(ties_left_out)
        first, second = _split_pairs(self.model, prompts, completions, columns)
        values = [reward.value for reward in self.model.rewards_now([*first, *second])]
        pairs = list(zip(values[: len(first)], values[len(first) :], strict=True))
        decided_pairs = [
            (a, b) if a is not None and b is not None else (None, None) for a, b in pairs
        ]
        return [a for a, _ in decided_pairs] + [b for _, b in decided_pairs]

    def compare(
        self,
        prompts: Sequence[Turn],
        completions: Sequence[Turn],
        ties_left_out: bool = False,
        **columns: Any,
    ) -> list[float | None]:
        """Return 1, 0.5, 0 or None for all first completions, then for all second."""
        _require_ties_left_out(ties_left_out)
        first, second = _split_pairs(self.model, prompts, completions, columns)
        pairs = [Pair.of(a, b) for a, b in zip(first, second, strict=True)]
        unusable = [a.unusable or b.unusable for a, b in zip(first, second, strict=True)]
        comparisons = self.model.compare_now(pairs, unusable)
        scores = [SCORES.get(comparison.verdict) for comparison in comparisons]
        return [*scores, *(None if score is None else 1 - score for score in scores)]


SCORES = {Verdict.FIRST: 1.0, Verdict.SECOND: 0.0, Verdict.TIE: 0.5, Verdict.INCONSISTENT: 0.5}
"""Score of the first completion by verdict."""


def _require_ties_left_out(left_out: bool) -> None:
    if not left_out:
        raise ConfigError(
            "TRL's own OnlineDPOTrainer trains on an undecided pair as if its first response had "
            "won: train with autoj_reward.trainer.online_dpo.DecidedPairsTrainer, which leaves "
            "such pairs out and takes the same arguments"
        )


def _split_pairs(
    model: BlockingRewards,
    prompts: Sequence[Turn],
    completions: Sequence[Turn],
    columns: Mapping[str, Any],
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the first candidates and the second ones, in the order of the prompts.

    Raises ValueError if the completions are not pairs of the same prompts.
    """
    candidates = make_candidates(model, prompts, completions, columns)
    half, remainder = divmod(len(candidates), 2)
    first, second = candidates[:half], candidates[half:]
    if remainder or any(group_key(a) != group_key(b) for a, b in zip(first, second, strict=True)):
        raise ValueError(
            "online DPO gives two completions of each prompt, all first ones before all second"
        )
    return first, second
