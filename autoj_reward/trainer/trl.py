"""TRL: reward functions for GRPO, RLOO and online DPO.

    with RewardModel(config) as reward:
        trainer = GRPOTrainer(model, reward_funcs=reward.trl(), ...)

Prompts and completions may be plain or conversational. A failed judgement becomes None, which GRPO
and RLOO leave out of the group (TRL 1.6 and later). For online DPO, the trainer of
`autoj_reward.trainer.online_dpo` leaves out pairs that the judge does not decide. A run whose
failure budget is spent ends with BudgetExceeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from autoj_reward.config import RewardConfig
from autoj_reward.errors import ConfigError
from autoj_reward.processes import on_first_rank, processes
from autoj_reward.trainer.parts import Reward
from autoj_reward.trainer.prompts import ContextFields, Turn, candidate, read_response
from autoj_reward.trainer.shaping import needs_groups
from autoj_reward.trainer.stats import batch_metrics
from autoj_reward.types import Candidate, Comparison, Pair, Verdict, group_key

LogMetric = Callable[[str, float], None]
"""TRL's callback for a metric: name and value."""
LogExtra = Callable[[str, list[Any]], None]
"""TRL's callback for a column of the logged table: name and values."""
TRLReward = Callable[..., Awaitable[list[float | None]]]
"""An async reward function as TRL calls it, with `prompts`, `completions` and the dataset's columns
by name. Returns one number, or None, for each completion."""


class RewardSource(Protocol):
    """Interface of RewardModel that these functions use. RewardModel's module imports this one."""

    config: RewardConfig
    fields: ContextFields

    async def rewards(self, candidates: Sequence[Candidate]) -> list[Reward]: ...

    def rewards_now(self, candidates: Sequence[Candidate]) -> list[Reward]: ...

    def compare_now(self, pairs: Sequence[Pair]) -> list[Comparison]: ...


def rewards_across_ranks(model: RewardSource, asked: Sequence[Candidate]) -> list[Reward]:
    """Return the rewards of this rank's candidates, judged on rank 0 with those of all ranks.

    Every rank must call it. An AutojError of rank 0, such as BudgetExceeded, is raised on all
    ranks. A rank waits as long as rank 0 may take: the deadline of each round of judgements.
    """
    how = [own.relative for own in model.config.judged.values()]
    rounds = 2 + max((own.rounds for own in how if own), default=0)
    seconds = rounds * max(own.judge.serve.deadline_s for own in model.config.judged.values())
    return on_first_rank(lambda every: model.rewards_now(every), asked, seconds)


def candidates(
    model: RewardSource,
    prompts: Sequence[Turn],
    completions: Sequence[Turn],
    columns: Mapping[str, Any],
) -> list[Candidate]:
    """Return one candidate for each completion, with the context that the judge shows."""
    contexts = model.fields.of_columns(columns, len(completions))
    return [
        candidate(prompt, read_response(completion, "assistant"), context)
        for prompt, completion, context in zip(prompts, completions, contexts, strict=True)
    ]


class GRPOReward:
    """Reward functions for GRPOTrainer and RLOOTrainer.

    Pass `judge`, or `judge_sync` to a trainer that takes no async functions. The judge's context
    fields are read from columns of the dataset.

    If the reward needs whole groups and the training has several ranks, which may split a group,
    rank 0 gathers the step's responses, judges them, and scatters the rewards.
    """

    def __init__(self, model: RewardSource) -> None:
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
        asked = candidates(self.model, prompts, completions, columns)
        if self._gathers:
            rewards = await asyncio.to_thread(rewards_across_ranks, self.model, asked)
        else:
            rewards = await self.model.rewards(asked)
        return _logged(rewards, asked, log_metric, log_extra)

    def judge_sync(
        self,
        prompts: Sequence[Turn],
        completions: Sequence[Turn],
        log_metric: LogMetric | None = None,
        log_extra: LogExtra | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return the rewards as `judge` does, for trainers without an event loop."""
        asked = candidates(self.model, prompts, completions, columns)
        if self._gathers:
            return _logged(rewards_across_ranks(self.model, asked), asked, log_metric, log_extra)
        return _logged(self.model.rewards_now(asked), asked, log_metric, log_extra)


def _logged(
    rewards: Sequence[Reward],
    asked: Sequence[Candidate],
    log_metric: LogMetric | None,
    log_extra: LogExtra | None,
) -> list[float | None]:
    """Log metrics and columns, and return the rewards' values.

    Every call logs the same names, because TRL gathers them across ranks.
    """
    if not rewards:
        return []
    if log_metric:
        for name, value in batch_metrics(rewards, asked).items():
            log_metric(name, value)
    if log_extra:
        log_extra("judge_outcome", [r.judgement.outcome.value for r in rewards])
        log_extra("judge_raw", [r.raw for r in rewards])
        log_extra("judge_critique", [r.judgement.critique for r in rewards])
        for name in rewards[0].parts:
            log_extra(f"part_{name}", [r.parts[name] for r in rewards])
    return [reward.value for reward in rewards]


class OnlineDPOReward:
    """Reward functions for online DPO, which passes all first completions, then all second.

    `judge` rates each completion alone. A pair is undecided if the rewards are equal or one failed.
    `compare` compares the pair in both orders: 1 for the better completion and 0 for the worse. A
    pair is undecided if it is a tie, if the orders disagree, or if one failed. Both completions of
    an undecided pair get the same number, or None after a failure.

    TRL's own trainer takes the first of two equal rewards as the better one. So both functions
    raise ConfigError unless the trainer says that it leaves such pairs out.
    """

    def __init__(self, model: RewardSource) -> None:
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
        first, second = _pairs(self.model, prompts, completions, columns)
        values = [found.value for found in self.model.rewards_now([*first, *second])]
        pairs = list(zip(values[: len(first)], values[len(first) :], strict=True))
        known = [(a, b) if a is not None and b is not None else (None, None) for a, b in pairs]
        return [a for a, _ in known] + [b for _, b in known]

    def compare(
        self,
        prompts: Sequence[Turn],
        completions: Sequence[Turn],
        ties_left_out: bool = False,
        **columns: Any,
    ) -> list[float | None]:
        """Return 1, 0.5, 0 or None for all first completions, then for all second."""
        _require_ties_left_out(ties_left_out)
        first, second = _pairs(self.model, prompts, completions, columns)
        pairs = [Pair.of(a, b) for a, b in zip(first, second, strict=True)]
        found = self.model.compare_now(pairs)
        scores = [SCORES.get(comparison.verdict) for comparison in found]
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


def _pairs(
    model: RewardSource,
    prompts: Sequence[Turn],
    completions: Sequence[Turn],
    columns: Mapping[str, Any],
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the first candidates and the second ones, in the order of the prompts.

    Raises ValueError if the completions are not pairs of the same prompts.
    """
    asked = candidates(model, prompts, completions, columns)
    half, rest = divmod(len(asked), 2)
    first, second = asked[:half], asked[half:]
    if rest or any(group_key(a) != group_key(b) for a, b in zip(first, second, strict=True)):
        raise ValueError(
            "online DPO gives two completions of each prompt, all first ones before all second"
        )
    return first, second
