"""The judges that are compared, the rows they are measured on, and how they are asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoj_reward.client.judging import asking
from autoj_reward.config import JudgeConfig
from autoj_reward.evaluate.labelled import JudgeData
from autoj_reward.journal import Journal
from autoj_reward.models import format_and_wrapper
from autoj_reward.prompts.format import JudgeFormat, load_format
from autoj_reward.types import JudgeInput, Judgement
from experiments.study import ResampledConfig

Answers = Mapping[JudgeInput, Judgement]


class PanelConfig(ResampledConfig):
    """A judge in its variants, and labelled rows.

    data: rated responses and human-labelled pairs; the tie threshold is searched on the held-out
        pairs. eval_p: the labelled pairs that measure, a path like those in data; nothing is
        fitted to their queries. Null: none.
    """

    data: JudgeData = JudgeData()
    eval_p: str | None = None
    judge: JudgeConfig = JudgeConfig()

    @property
    def format(self) -> JudgeFormat:
        """The judge's own."""
        return load_format(format_and_wrapper(self.judge)[0])

    @property
    def variants(self) -> dict[str, JudgeConfig]:
        """The judge without a critique, and with a greedy one."""
        return {"direct": greedy(self.judge, critique=False), "greedy": greedy(self.judge)}


def greedy(judge: JudgeConfig, critique: bool = True) -> JudgeConfig:
    """The judge with one judgement a response, at temperature 0."""
    return judge.model_copy(update={"critique": critique, "critiques": 1, "temperature": 0.0})


async def ask(judge: JudgeConfig, journal: Journal, inputs: Iterable[JudgeInput]) -> Answers:
    """The judgement of every input; the judge is started only if the journal lacks one."""
    items = list(dict.fromkeys(inputs))
    async with asking(judge, journal, len(items)) as asked:
        return dict(zip(items, await asked(items), strict=True))
