"""The scalar reward model behind the judge's interface: one forward pass, one number."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from autoj_reward.config import JudgeConfig, View
from autoj_reward.engine.base import Score, Scorer
from autoj_reward.errors import InputRejected
from autoj_reward.formats.render import (
    answered_prompt,
    require_context,
    require_readable,
    text_flags,
)
from autoj_reward.formats.schema import ScalarFormat
from autoj_reward.models.views import VIEWS, Abilities, distributions_of
from autoj_reward.types import JudgeInput, Judgement, Outcome, Rating, Usage, Verdict


class ScalarReward:
    """Scores one response, or orders two by their scores.

    A score is a rating on a scale of its own: it is `rating`, `expected` and `direct` alike, and
    there is no critique and no distribution (paper, section 6.4).
    """

    def __init__(self, config: JudgeConfig, fmt: ScalarFormat, engine: Scorer, name: str) -> None:
        self.config = config
        self.format = fmt
        self.engine = engine
        self.name = name

    @property
    def views(self) -> frozenset[View]:
        """The numbers that this judge gives, which are all the same."""
        return VIEWS

    @property
    def distributions(self) -> str:
        """Where label probabilities come from, for a log: a scalar model has none."""
        return distributions_of(self.config, Abilities())

    async def contact(self, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what is to be kept of a first contact: nothing, the model runs in this process."""
        return {}

    async def judge(self, item: JudgeInput) -> Judgement:
        """The score of one response, or the verdict of two: the higher score, TIE if equal. A
        `direct` input is scored like any other.

        A score that is not finite abstains. Raises EngineUnavailable when the engine does not
        answer.
        """
        started = time.monotonic()
        flags = set(text_flags(item))
        scores: list[float] = []
        usage = Usage()
        outcome, reason = Outcome.OK, ""
        try:
            require_readable(item, self.config.max_text_chars)
            require_context(item, self.format)
            for response in item.responses:
                found, cut = await self._score(item, response)
                flags |= {"input_truncated"} if cut else set()
                usage += found.usage
                if not math.isfinite(found.value):
                    outcome, reason = Outcome.UNPARSABLE, f"the score is {found.value}"
                scores.append(found.value)
        except InputRejected as error:
            outcome, reason = Outcome.INPUT_REJECTED, str(error)
        ok = outcome is Outcome.OK
        single = item.kind == "single"
        return Judgement(
            outcome,
            reason=reason,
            rating=Rating(scores[0], None, scores[0], direct=scores[0]) if ok and single else None,
            verdict=_order(*scores) if ok and not single else None,
            usage=usage.lasting(time.monotonic() - started),
            judge=self.name,
            flags=tuple(sorted(flags)),
        )

    async def _score(self, item: JudgeInput, response: str) -> tuple[Score, bool]:
        prompt = answered_prompt(item.query, response, self.format, item.turns)
        # vLLM keeps a place for one token of output, also where it only pools.
        prepared = await self.engine.prepare(prompt, 1, self.config.over_long)
        return await self.engine.score(prepared), prepared.truncated


def _order(first: float, second: float) -> Verdict:
    if first == second:
        return Verdict.TIE
    return Verdict.FIRST if first > second else Verdict.SECOND
