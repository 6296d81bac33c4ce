"""A panel of judges for jobs: one question goes to all of them, and their vote comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from autoj_reward.client.in_flight import Progress
from autoj_reward.client.judging import open_ask
from autoj_reward.config import JUDGE, PanelJudge, PanelVote, View, ViewOrAuto
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.journal import Journal
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.panel import on_scale, vote_of_panel
from autoj_reward.types import SINGLE, JudgeInput, Judgement

OF_WRITTEN: tuple[View, ...] = ("expected", "pessimistic")
"""Views that a rating lacks for good if it came without them; `direct` is asked for apart."""


@dataclass(frozen=True, slots=True)
class Panel:
    """The judges of a panel, the main one first."""

    specs: Mapping[str, JudgeSpec]
    """Judges by name."""
    vote: PanelVote

    @property
    def main(self) -> JudgeSpec:
        """The judge whose scale the vote has, and that alone breaks ties by comparisons."""
        return self.specs[JUDGE]

    @property
    def name(self) -> str:
        """Name of the panel, as the judge of its results."""
        return f"{' and '.join(spec.name for spec in self.specs.values())} by {self.vote}"

    @asynccontextmanager
    async def open(
        self,
        main: AbstractAsyncContextManager[Ask],
        journal: Journal,
        view: View | None,
        progress: Progress | None = None,
    ) -> AsyncIterator[Ask]:
        """Open every judge of the panel, and yield a function that asks them.

        For inputs that rate a single response the function asks all judges and returns their vote.
        Comparisons and other inputs go to the main judge alone.

        main: context that opens the main judge. journal: record of all judges' judgements. view:
        number that the caller needs, without which a judgement abstains. progress: called with
        each judgement that is made.
        """
        async with AsyncExitStack() as stack:
            asks = {JUDGE: await stack.enter_async_context(main)}
            for name, spec in self.specs.items():
                if name != JUDGE:
                    opening = open_ask(spec, journal, view=view, progress=progress)
                    asks[name] = await stack.enter_async_context(opening)

            async def ask(
                items: Sequence[JudgeInput], needed: View | None = view
            ) -> list[Judgement]:
                if any(item.protocol != SINGLE for item in items):
                    return await asks[JUDGE](items, needed)
                answering = []
                for name, ask_one in asks.items():
                    spec = self.specs[name]
                    shown = [
                        replace(item, context=spec.shown_context(item.context, SINGLE))
                        for item in items
                    ]
                    answering.append(ask_one(shown, needed))
                answers = await asyncio.gather(*answering)
                votes = []
                for judgements in zip(*answers, strict=True):
                    members = dict(zip(asks, judgements, strict=True))
                    votes.append(self._vote(members, needed))
                return votes

            yield ask

    def _vote(self, members: Mapping[str, Judgement], view: View | None) -> Judgement:
        """Return the vote on one response."""
        fmt = self.main.format
        assert isinstance(fmt, JudgeFormat)  # `build_panel` requires a scale
        moved = {}
        for name, judgement in members.items():
            if view in OF_WRITTEN:
                judgement = judgement.with_number(view)
            moved[name] = on_scale(judgement, self.specs[name].format, fmt)
        return vote_of_panel(moved, self.vote, self.name)


def build_panel(
    main: JudgeSpec, judges: Mapping[str, PanelJudge], vote: PanelVote, view: ViewOrAuto
) -> Panel | None:
    """Return the panel of a job's config; None without further judges.

    main: the job's judge, whose limit on dollars all judges share. Raises ConfigError for a judge
    that rates no single response, and for a main judge without a scale.
    """
    if not judges:
        return None
    if not isinstance(main.format, JudgeFormat):
        raise ConfigError(
            "the ratings of a panel are on the scale of `judge`, and a scalar model has none: name "
            "a judge with a scale there, and the scalar model in panel"
        )
    specs = {JUDGE: main}
    for name, member in judges.items():
        spec = judge_spec(member.judge).that_reads(view, "choose")
        if not spec.rates:
            raise ConfigError(
                f"panel.{name}: its format {spec.format.name} rates no response alone"
            )
        specs[name] = replace(spec, spending=main.spending)
    if not main.rates:
        raise ConfigError(f"judge: its format {main.format.name} rates no response alone")
    return Panel(specs, vote)
