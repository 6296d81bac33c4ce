"""The stages of a best-of-N job, on all rows of its input or on a shard of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from autoj_reward.client.client import RewardClient
from autoj_reward.client.in_flight import Progress, in_order
from autoj_reward.client.judging import FirstJudgements
from autoj_reward.client.session import open_judge
from autoj_reward.config import BestOfNConfig, View
from autoj_reward.conversation import ContextColumn
from autoj_reward.io.rows import LeftOut, QueryRow, Stream, queries
from autoj_reward.journal import Journal, Sampled
from autoj_reward.logs import announce
from autoj_reward.models import context_asked
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.budget import require_cheap_pass, select_within
from autoj_reward.questions.choose import choose
from autoj_reward.replicas.replica import policy_name
from autoj_reward.types import Asking, BadRow, Candidate
from rollouts.best_of_n.group import GroupResult
from rollouts.best_of_n.sampler import on_record, sample_missing

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster

Group = tuple[QueryRow, tuple[Candidate, ...]]


def rows_of(config: BestOfNConfig) -> Stream[QueryRow]:
    """The rows of the input, with the context that the judge's format asks for."""
    return queries(config.input, asked(config), answered=config.policy is None)


def asked(config: BestOfNConfig) -> tuple[ContextColumn, ...]:
    """The context of rating, and of the comparisons that break ties."""
    compares = "pairwise" in config.tie_break
    return context_asked(config.judge, config.columns, None if compares else "single")


async def sample(
    config: BestOfNConfig,
    rows: Stream[QueryRow],
    journal: Journal,
    cluster: Cluster | None,
    progress: Callable[[Sampled], None],
) -> dict[Asking, str]:
    """Have the policy answer what has no responses; queries without an answer, and why."""
    if config.policy is None:
        return {}
    wanted = (row.asked for row in rows.usable() if row.responses is None)
    return await sample_missing(wanted, config.policy, journal, progress, cluster)


def grouped(
    config: BestOfNConfig,
    rows: Stream[QueryRow],
    journal: Journal,
    unanswered: Mapping[Asking, str],
    left_out: LeftOut,
) -> Iterator[Group]:
    """Every query with its candidates. One that the policy gave no answer is left out."""
    policy = policy_name(config.policy) if config.policy else None
    for row in rows.usable():
        responses: Sequence[str] | None = row.responses
        logprobs: Sequence[float | None] | None = row.logprobs
        if responses is None and policy:
            if (sampled := journal.get_samples(policy, on_record(row.asked))) is None:
                why = unanswered.get(row.asked, "not there when the policy was asked")
                left_out.add(BadRow(rows.name, row.line, "query", why))
                continue
            responses, logprobs = sampled.responses, sampled.logprobs
        given = responses or ()
        pairs = zip(given, logprobs or (None,) * len(given), strict=True)
        name = str(row.line)
        yield row, tuple(Candidate(row.query, r, lp, name, row.context) for r, lp in pairs)


async def judge(
    config: BestOfNConfig,
    groups: Iterator[Group],
    journal: Journal,
    cluster: Cluster | None,
    progress: Progress,
    add: Callable[[GroupResult], None],
    say: Callable[[str], object] = announce,
) -> None:
    """Judge every query's candidates and choose one; `add` gets them in their order, and `say` once
    a line on what is used."""
    first = next(groups, None)
    if first is None:  # nothing is started for none
        return

    def require(views: frozenset[View]) -> None:
        if config.budget is not None:
            require_cheap_pass(views)
        resolve_view(config.view, "choose", None, views)

    async with open_judge(
        config.judge, journal=journal, progress=progress, cluster=cluster, require=require
    ) as reward:
        judged = FirstJudgements(reward, _view(config), say)

        async def one(group: Group) -> GroupResult:
            return await _select(config, reward, *group)

        def done(group: GroupResult) -> None:
            judged.add(group.own)
            add(group)

        await in_order(chain([first], groups), one, done, size=lambda group: len(group[1]))
        judged.end()


async def _select(
    config: BestOfNConfig, reward: RewardClient, row: QueryRow, candidates: tuple[Candidate, ...]
) -> GroupResult:
    if config.budget is not None:
        found = await select_within(
            candidates,
            reward.judge,
            share=config.budget,
            critiques=config.judge.critiques,
            view=_view(config),
            rules=config.tie_break,
            pairwise=reward.compares,
        )
        return GroupResult(
            row, candidates, found.judgements, found.selection, found.standings, found.spending
        )
    judgements = await reward.rate(candidates, view=_view(config))
    choice = await choose(
        candidates,
        judgements,
        view=_view(config),
        rules=config.tie_break,
        compare=reward.compare if reward.compares else None,
    )
    return GroupResult(row, candidates, tuple(judgements), choice)


def _view(config: BestOfNConfig) -> View:
    """The view of a config in which `auto` is resolved."""
    assert config.view != "auto"
    return config.view
