"""A judge for jobs: with a progress bar, and one log line on the judge that the run uses."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from autoj_reward.client.client import JudgeClient, ViewsCheck, accept_any_views
from autoj_reward.client.in_flight import Progress
from autoj_reward.client.session import open_judge
from autoj_reward.config import Scoring, View
from autoj_reward.journal import Journal
from autoj_reward.logs import announce
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.ask import Ask
from autoj_reward.types import JudgeInput, Judgement, Outcome

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster

SCORED_BY = {
    "listwise": "groups ranked by listwise judgements",
    "comparisons": "groups ranked by comparisons",
    "items": "rubrics scored item by item",
    "checklist": "rubrics scored by checklists",
    "overall": "rubrics scored by overall ratings",
}
"""Ways of scoring in place of a view, in words."""
RANKED_BY = ("listwise", "comparisons")
"""Those that score a group."""
FIRST = 32
"""Judgements after which a job logs its judge and view. A shorter job logs them at its end."""


def value_name(scored_by: str | None) -> str:
    """Return the name of a candidate's number. scored_by: key of SCORED_BY; None for ratings."""
    if scored_by is None:
        return "rating"
    return "score" if scored_by in RANKED_BY else "rubric score"


def bar_position() -> int | None:
    """Return the `position` of a tqdm bar that may stand beside another one.

    In a log file all bars share a line: tqdm would write control codes to move between lines.
    """
    return None if sys.stderr.isatty() else 0


@contextmanager
def progress_bar(total: int | None, label: str = "judging") -> Iterator[Progress]:
    """Yield a callback that advances a progress bar by one judgement.

    total: expected judgements, those from the journal included; None if unknown. It may differ from
    the number of judgements, and the bar is full when the block ends without an error.
    """
    with tqdm(total=total, desc=label, unit="judgement", position=bar_position()) as bar:

        def advance(_judgement: Judgement, _reused: bool) -> None:
            if bar.total is not None:
                bar.total = max(bar.total, bar.n + 1)
            bar.update()

        yield advance
        bar.total = bar.n
        bar.refresh()


@asynccontextmanager
async def open_ask(
    spec: JudgeSpec,
    journal: Journal,
    total: int | None = None,
    label: str | None = None,
    view: View | None = None,
    require: ViewsCheck | None = None,
    *,
    scoring: Scoring | None = None,
    progress: Progress | None = None,
    cluster: Cluster | None = None,
    say: Callable[[str], object] = announce,
    early: asyncio.Event | None = None,
) -> AsyncIterator[Ask]:
    """Yield a function that judges inputs, and takes those that are in the journal from there.

    The judge starts with the first input that the journal lacks. After its first judgements, one
    log line names the judge and what counts: the view, verdicts, or how groups or rubrics are
    scored.

    total, label: as for `progress_bar`.
    view: the number that the caller needs; None if it needs no particular one. Raises ConfigError
        before anything is judged if the judge does not give it.
    require: replaces that check; see `JudgeClient`.
    scoring: what scores in place of a view, for the log line; None if nothing does.
    progress: called with each judgement in place of a progress bar.
    cluster: as for `open_judge`.
    say: called with the log line.
    early: when it is set, the judge starts at once, before the first input.
    """
    title = label or f"judging: {spec.config.model}"
    accept_views = partial(resolve_view, view, "choose", None) if view else accept_any_views
    opening_tasks = list[asyncio.Task[tuple[JudgeClient, FirstJudgements]]]()

    async with AsyncExitStack() as stack:
        advance = progress or stack.enter_context(progress_bar(total, title))

        async def open_client() -> tuple[JudgeClient, FirstJudgements]:
            judge = open_judge(
                spec,
                journal=journal,
                progress=advance,
                require=require or accept_views,
                cluster=cluster,
            )
            reward = await stack.enter_async_context(judge)
            return reward, FirstJudgements(reward, view, scoring, say)

        def start() -> asyncio.Task[tuple[JudgeClient, FirstJudgements]]:
            if not opening_tasks:
                opening_tasks.append(asyncio.create_task(open_client()))
            return opening_tasks[0]

        async def start_early(due: asyncio.Event) -> None:
            await due.wait()
            start()

        stack.push_async_callback(_cancel, opening_tasks)
        waiting_tasks = [asyncio.create_task(start_early(early))] if early else []
        stack.push_async_callback(_cancel, waiting_tasks)

        async def ask(
            items: Sequence[JudgeInput], needed_view: View | None = view
        ) -> list[Judgement]:
            if not opening_tasks:
                on_record = journal.get(spec.name, items)
                reusable_items = {
                    i
                    for i, judgement in on_record.items()
                    if not (needed_view and judgement.lacks(needed_view))
                }
                if reusable_items >= set(items):
                    for item in dict.fromkeys(items):
                        advance(on_record[item], True)
                    return [on_record[item] for item in items]
            reward, first_judgements = await asyncio.shield(start())
            judgements = await reward.judge(items, needed_view)
            first_judgements.add(
                judgement.with_number(needed_view)
                if needed_view and judgement.rating is not None
                else judgement
                for judgement in judgements
            )
            return judgements

        yield ask
        for opening_task in opening_tasks:
            (await opening_task)[1].end()


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def describe_run(
    client: JudgeClient,
    view: str | None,
    judgements: Iterable[Judgement] = (),
    part: str = "",
    scoring: Scoring | None = None,
) -> str:
    """Return a log line: the judge, what counts, and how the judgements ended. It holds no secrets.

    view: the number that counts; None where verdicts count, or any number of a rating.
    part: name of the reward part, if the reward has several. scoring: what counts in place of a
    view, if anything does.
    """
    backend = client.backend
    judgements = list(judgements)
    usd = sum(judgement.usage.usd for judgement in judgements)
    cost = f", {usd:.4f} US dollars" if usd else ""
    head = f"{part}: judge" if part else "judge"
    if view:
        basis = f"view {view}"
    else:
        has_ratings = any(judgement.rating is not None for judgement in judgements)
        basis = "ratings" if has_ratings else "verdicts"
    if scoring:
        basis = SCORED_BY[scoring.by]
    return (
        f"{head} {backend.judge} ({backend.place}), {basis}, "
        f"distributions: {client.facts.distributions}; "
        f"{_describe_outcomes(Counter(j.outcome for j in judgements))}{cost}"
    )


def _describe_outcomes(outcomes: Counter[Outcome]) -> str:
    """Return in words how judgements ended. Abandoned ones are not counted."""
    total = outcomes.total() - outcomes[Outcome.ABANDONED]
    if not total:
        return "no judgement so far"
    kinds = [
        (n, name) for name, n in outcomes.most_common() if name.value not in ("ok", "abandoned")
    ]
    failures = ", ".join(f"{n} {name.value}" for n, name in kinds)
    return f"{outcomes[Outcome.OK]} of {total} judgements ok" + (
        f" ({failures})" if failures else ""
    )


class FirstJudgements:
    """Logs the judge and view of a job once, after its first judgements.

    Logs nothing if the judge was not contacted because the journal had every judgement.
    """

    def __init__(
        self,
        client: JudgeClient,
        view: str | None,
        scoring: Scoring | None = None,
        say: Callable[[str], object] = announce,
    ) -> None:
        """view, scoring: as for `describe_run`. say: called with the log line."""
        self._client, self._view, self._scoring, self._say = client, view, scoring, say
        self._judgements: list[Judgement] | None = []

    def add(self, judgements: Iterable[Judgement]) -> None:
        """Count judgements. Those that lack the needed number must have the outcome `no_number`."""
        if self._judgements is None:
            return
        self._judgements += judgements
        if len(self._judgements) >= FIRST:
            self.end()

    def end(self) -> None:
        """Log the line if a shorter job has not reached FIRST judgements."""
        if self._judgements and self._client.was_asked:
            self._say(
                describe_run(self._client, self._view, self._judgements, scoring=self._scoring)
            )
            self._judgements = None
