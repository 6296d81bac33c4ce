"""Scalar reward model with the interface of a judge: one forward pass, one number."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autoj_reward.config import JudgeConfig
from autoj_reward.conversation import Response
from autoj_reward.engine.base import Score, Scorer
from autoj_reward.errors import FormatError, InputRejected
from autoj_reward.formats.protocols import PROTOCOLS, require_responses
from autoj_reward.formats.render import (
    answered_prompt,
    require_context,
    require_readable,
    text_flags,
)
from autoj_reward.formats.schema import ScalarFormat
from autoj_reward.media import OMITTED_FLAG
from autoj_reward.models.views import Abilities
from autoj_reward.types import PAIRWISE, SINGLE, JudgeInput, Judgement, Outcome, Usage, Verdict


class ScalarReward:
    """Judge that scores one response, or orders two by their scores.

    A score is a rating on the model's own scale. It is `rating`, `expected` and `direct` alike.
    There is no critique and no distribution (paper, section 6.4).
    """

    def __init__(self, config: JudgeConfig, fmt: ScalarFormat, engine: Scorer, name: str) -> None:
        self.config = config
        self.format = fmt
        self.engine = engine
        self.name = name

    @property
    def abilities(self) -> Abilities:
        """Where probabilities are told: nobody asks, since a scalar model has none."""
        return Abilities()

    async def contact(self, capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return {}: there is no endpoint to contact."""
        return {}

    async def judge(self, item: JudgeInput) -> Judgement:
        """Score one response, or return the verdict of two: the higher score wins, equal scores
        tie.

        A `direct` input is scored like any other. A score that is not finite makes the judgement
        abstain. Raises EngineUnavailable if the engine does not answer.
        """
        if item.protocol not in READ:
            raise FormatError(f"format {self.format.name!r} has no {item.protocol} protocol")
        started = time.monotonic()
        flags = set(text_flags(item))
        scores: list[float] = []
        usage = Usage()
        outcome, reason = Outcome.OK, ""
        try:
            require_responses(item, PROTOCOLS[item.protocol])
            shown_item = item.show_media(self.config.media)
            flags |= set() if shown_item is item else {OMITTED_FLAG}
            item = shown_item
            require_readable(item, self.config.max_text_chars)
            require_context(item, self.format)
            for response in item.responses:
                score, cut = await self._score(item, response)
                flags |= {"input_truncated"} if cut else set()
                usage += score.usage
                if not math.isfinite(score.value):
                    outcome, reason = Outcome.UNPARSABLE, f"the score is {score.value}"
                scores.append(score.value)
        except InputRejected as error:
            outcome, reason = Outcome.INPUT_REJECTED, str(error)
        if outcome is Outcome.OK:
            judgement = READ[item.protocol](*scores)
        else:
            judgement = Judgement(outcome, reason)
        return replace(
            judgement,
            usage=usage.lasting(time.monotonic() - started),
            judge=self.name,
            flags=tuple(sorted(flags)),
        )

    async def _score(self, item: JudgeInput, response: Response) -> tuple[Score, bool]:
        prompt = answered_prompt(item.prompt, response, self.format)
        # vLLM reserves one token of output even for pooling models.
        prepared = await self.engine.prepare(prompt, 1, self.config.over_long)
        return await self.engine.score(prepared), prepared.truncated


def _compare(first: float, second: float) -> Judgement:
    order = Verdict.FIRST if first > second else Verdict.SECOND
    return Judgement.of_verdict(Verdict.TIE if first == second else order)


READ: dict[str, Callable[..., Judgement]] = {SINGLE: Judgement.of_score, PAIRWISE: _compare}
"""Function that turns the scores of an input's responses into a judgement, by protocol."""
