"""A judge as jobs want it: with a progress bar, and one line on what the run uses of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from tqdm import tqdm

from autoj_reward.client.client import Require, RewardClient, no_requirement
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig, View
from autoj_reward.journal import Journal
from autoj_reward.logs import announce
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.ask import Ask
from autoj_reward.types import JudgeInput, Judgement, Outcome

FIRST = 32
"""Judgements after which a job says what it uses; one of fewer says it at its end."""


@asynccontextmanager
async def judging(
    judge: JudgeConfig | JudgeSpec,
    journal: Journal,
    total: int | None,
    label: str = "judging",
    require: Require = no_requirement,
) -> AsyncIterator[RewardClient]:
    """`open_judge` with a bar over `total` judgements, those from the journal included."""
    with tqdm(total=total, desc=label, unit="judgement") as bar:

        def progress(_judgement: Judgement, _reused: bool) -> None:
            bar.update()

        opened = open_judge(judge, journal=journal, progress=progress, require=require)
        async with opened as reward:
            yield reward


@asynccontextmanager
async def asking(
    spec: JudgeSpec,
    journal: Journal,
    total: int | None = None,
    label: str | None = None,
    view: View | None = None,
    require: Require | None = None,
) -> AsyncIterator[Ask]:
    """Yield a function that judges inputs, from the journal where they are on record.

    The judge starts with the first input that the journal lacks. After its first judgements,
    one line tells the user which judge and view are used.

    view: the number of a rating that the caller needs; None where it needs no particular one.
    Raises ConfigError before anything is judged if the judge cannot give it. require: replaces that
    check; called with the views that the judge gives, as `RewardClient` calls it.
    """
    said = label or f"judging: {spec.config.model}"
    given = partial(resolve_view, view, "choose", None) if view else no_requirement
    starting = asyncio.Lock()
    opened = list[tuple[RewardClient, FirstJudgements]]()

    async with AsyncExitStack() as stack:

        async def ask(items: Sequence[JudgeInput], wanted: View | None = view) -> list[Judgement]:
            async with starting:
                if not opened:
                    on_record = journal.get(spec.name, items)
                    kept = {i for i, own in on_record.items() if not (wanted and own.lacks(wanted))}
                    if kept >= set(items):
                        return [on_record[item] for item in items]
                    judge = judging(spec, journal, total, said, require or given)
                    reward = await stack.enter_async_context(judge)
                    opened.append((reward, FirstJudgements(reward, view)))
            reward, first = opened[0]
            found = await reward.judge(items, wanted)
            first.add(
                own.with_number(view) if view and own.rating is not None else own for own in found
            )
            return found

        yield ask
        for _, first in opened:
            first.end()


def used_line(
    client: RewardClient, view: str | None, judgements: Iterable[Judgement] = (), part: str = ""
) -> str:
    """Return what a run uses and how its judgements ended, without any secret.

    view: the number that counts, or how groups are ranked; None where verdicts do. part: name of a
    reward's part, if the reward has several.
    """
    backend = client.backend
    head = f"{part}: judge" if part else "judge"
    return (
        f"{head} {backend.judge} ({backend.place}), {f'view {view}' if view else 'verdicts'}, "
        f"distributions: {backend.distributions}; {_ended(Counter(j.outcome for j in judgements))}"
    )


def _ended(outcomes: Counter[Outcome]) -> str:
    """How judgements ended, those left aside that a budget gave up before they were made."""
    made = outcomes.total() - outcomes[Outcome.ABANDONED]
    if not made:
        return "no judgement so far"
    kinds = [
        (n, name) for name, n in outcomes.most_common() if name.value not in ("ok", "abandoned")
    ]
    failures = ", ".join(f"{n} {name.value}" for n, name in kinds)
    return f"{outcomes[Outcome.OK]} of {made} judgements ok" + (
        f" ({failures})" if failures else ""
    )


class FirstJudgements:
    """Says once what a job uses, when its first judgements are there.

    A job whose judge was not asked, since all is on record, says nothing.
    """

    def __init__(
        self, client: RewardClient, view: str | None, say: Callable[[str], object] = announce
    ) -> None:
        """say: called with the line."""
        self._client, self._view, self._say = client, view, say
        self._seen: list[Judgement] | None = []

    def add(self, judgements: Iterable[Judgement]) -> None:
        """Take note of judgements in which `no_number` is a failure like the others."""
        if self._seen is None:
            return
        self._seen += judgements
        if len(self._seen) >= FIRST:
            self.end()

    def end(self) -> None:
        """Say the line of a job that ends before it has so many judgements."""
        if self._seen and self._client.was_asked:
            self._say(used_line(self._client, self._view, self._seen))
            self._seen = None
