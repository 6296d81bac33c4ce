"""The judges of a reward: opened, named, agreed on over ranks, asked and closed together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from autoj_reward.client.client import JudgeClient
from autoj_reward.client.judging import describe_run
from autoj_reward.client.session import open_reward
from autoj_reward.config import JUDGE, RewardConfig, View
from autoj_reward.errors import AutojError
from autoj_reward.journal import Journal
from autoj_reward.models.calibration import JudgeCalibration
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.models.views import resolve_view
from autoj_reward.processes import of_first_rank
from autoj_reward.trainer.groups import rate_groups
from autoj_reward.trainer.parts import AskPart, reward_judges
from autoj_reward.types import Judgement


class Judges:
    """The judges of a reward's parts and of its audit, by name, with the main judge first.

    Used on one event loop. `open` may be called again after `close`.

    Attributes: `specs`, the resolved judges; `clients`, those of the open judges; `views`, the
    view of each judge, empty until `agree`.
    """

    def __init__(
        self,
        config: RewardConfig,
        specs: dict[str, JudgeSpec],
        calibrations: Mapping[str, JudgeCalibration],
        gpus: str | None = None,
    ) -> None:
        """specs: as `reward_judges` returns them. calibrations: those of judges that have one.

        gpus: GPUs for replicas that start with the judges, in the form of CUDA_VISIBLE_DEVICES;
        None: those of this process.
        """
        self.config = config
        self.specs = specs
        self._calibrations = calibrations
        self._gpus = gpus
        self._stack = AsyncExitStack()
        self._agreeing = asyncio.Lock()
        self._possible_views: dict[str, frozenset[View]] = {}
        self.clients: dict[str, JudgeClient] = {}
        self.views: dict[str, View] = {}

    async def open(self) -> None:
        """Start the judges' replicas, or connect to their services.

        Raises ConfigError for a judge that cannot give what the config asks of it, ModelError, or
        EngineUnavailable naming the address. What was opened before the error is closed.
        """
        async with AsyncExitStack() as stack:
            journal = None
            if self.config.journal:
                journal = Journal(self.config.journal, self.config.journal_max_gib)
                stack.callback(journal.close)
            clients = {}
            for name, spec in self.specs.items():
                service = self.config.judged[name].service
                opening = open_reward(spec, service, journal=journal, gpus=self._gpus)
                clients[name] = await stack.enter_async_context(opening)
            for name, client in clients.items():  # raises before the training starts
                self._possible_views[name] = await self._find_views(name, client)
            self._stack = stack.pop_all()
        self.clients = clients

    async def replace_main(self, config: RewardConfig) -> None:
        """Replace the main judge while it is asked. The config may differ in `judge` alone.

        Raises AutojError if the new judge cannot start, or cannot give what the config asks of it;
        the old one then stays. `agree` must be called again.
        """
        client = self.clients[JUDGE]
        old = self.specs[JUDGE]
        # What was spent on the old judge counts.
        new = replace(reward_judges(config)[JUDGE], spending=old.spending)
        await client.update(new)
        try:
            views = await self._find_views(JUDGE, client)
        except AutojError:
            await client.update(old)
            raise
        self.config = config
        self.specs[JUDGE] = new
        self._possible_views[JUDGE] = views
        self.views = {}

    async def _find_views(self, name: str, client: JudgeClient) -> frozenset[View]:
        """Return the views that a judge can give.

        Raises ConfigError if it cannot give what the config asks of it.
        """
        facts = await client.contact()
        key = self.config.key_of(name)
        judged = self.config.judged[name]
        if judged.relative:
            facts.require_relative(judged.relative, f"{key}.relative")
        if judged.rubric:
            facts.require_rubric(judged.rubric, client.asks, f"{key}.rubric")
        self._resolve_view(name, client, facts.views)
        return facts.views

    async def close(self) -> None:
        """Stop what `open` started. Calls in flight raise EngineUnavailable."""
        await self._stack.aclose()
        self.clients = {}
        self.views = {}
        self._possible_views = {}

    async def agree(self) -> None:
        """Choose the view of each judge, once. Every rank of a training must call it.

        All ranks use the views and endpoint capabilities that rank 0 found, so that they log the
        same metrics. Not part of `open`, because ranks can communicate only once the training has
        begun.
        """
        async with self._agreeing:
            if self.views:
                return
            found = {}
            for name, views in self._possible_views.items():
                found[name] = sorted(views), dict(await self.clients[name].finding())
            # A training may have several reward models, and their judges may share a model.
            names = {}
            for name, spec in self.specs.items():
                names[name] = [spec.config.model, spec.format.name]
            key = f"autoj-reward-views {json.dumps(names, sort_keys=True)}"
            agreed = await asyncio.to_thread(of_first_rank, key, found)
            chosen_views = {}
            for name, (agreed_views, finding) in agreed.items():
                client = self.clients[name]
                await client.use_finding(finding)
                self._possible_views[name] = frozenset(agreed_views)
                chosen_views[name] = self._resolve_view(name, client, self._possible_views[name])
            self.views = chosen_views

    def ask_part(self, name: str, client: JudgeClient | None = None) -> AskPart:
        """Return the function that asks a judge for what its part needs: views, ranks or rubrics.

        client: asks in place of the judge's own client.
        """
        judged = self.config.judged[name]
        client = client or self.clients[name]
        if judged.relative:
            return partial(rate_groups, client, judged.relative)
        if judged.rubric:
            return partial(client.score_rubrics, rubric_config=judged.rubric)
        return partial(client.rate, view=self.views[name])

    def describe(
        self, answers: Mapping[str, Sequence[Judgement | None]] | None = None
    ) -> list[str]:
        """Return a log line for each open judge.

        It has the judge's name, view and distributions, and how its judgements in `answers` ended.
        """
        is_alone = len(self.config.parts) == 0
        lines = []
        for name, client in self.clients.items():
            view = self._resolve_view(name, client, self._possible_views[name])
            judgements = [judgement for judgement in (answers or {}).get(name, ()) if judgement]
            # A judge alone needs no name; beside functions or other judges it has one.
            part = "" if name == JUDGE and is_alone else name
            scoring = self.config.judged[name].scoring
            lines.append(describe_run(client, view, judgements, part, scoring))
        return lines

    def _resolve_view(self, name: str, client: JudgeClient, views: frozenset[View]) -> View:
        judged = self.config.judged[name]
        if judged.scoring:  # a score is the rating of what stands for its judgement
            return "rating"
        key = self.config.key_of(name)
        preferred = client.facts.preferred
        view = resolve_view(judged.view, "reward", preferred, views, f"{key}.view")
        calibration = self._calibrations.get(name)
        if calibration:
            asks = client.asks
            calibration.require(
                f"{key}.calibration", client.backend.judge, view, asks.critiques, asks.vote
            )
        return view
