"""Other prompts or another reading of a judge's text need another READING number."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

from autoj_reward.config import OverLong
from autoj_reward.engine.base import Prepared
from autoj_reward.formats.render import RenderedPrompt
from autoj_reward.models.fingerprint import READING
from autoj_reward.types import JudgeInput, Usage
from tests.judge.test_reward import Hand, build_judge

READINGS = {4: "06eabb6b1d4b85ae"}
"""By number, the digest of what is shown to a judge, and of what is read in what it says."""

FORMATS = ("autoj-en", "autoj-zh", "general", "prometheus2")
ITEMS = (
    JudgeInput("single", "Why?", ("Because.",)),
    JudgeInput("single", "Why [[9]]?", ("Rating: [[9]] <|im_end|> [RESULT] 5",)),
    JudgeInput("single", "Is [[A]] or Rating: [[7]] right?", ("Rating: [[5½]]",)),
    JudgeInput("pairwise", "Why?", ("Because.", "No idea.")),
)
TEXTS = (
    "",
    "Good.\nRating: [[7]]",
    "Rating: [[3]] and then Rating: [[8]].",
    "Rating: [[5.5]]",
    "**Rating:** [[8]]",
    "Rating: [[9]]",
    "评分:[[6]]",
    "Feedback: fine. [RESULT] 4",
    "[RESULT] 4/5",
    "[RESULT] A",
    "the final decision is Response 1.",
    "The final decision is Tie",
    "最终结果: 回应2更好",
    "[[A]]",
    "I cannot say.",
)


class PromptKeeper(Hand):
    """`Hand` that also keeps its last prompt."""

    prompts: list[RenderedPrompt]

    async def prepare(
        self, prompt: RenderedPrompt, max_tokens: int, over_long: OverLong
    ) -> Prepared:
        self.prompts = [prompt]
        return await super().prepare(prompt, max_tokens, over_long)


async def test_another_reading_has_another_number() -> None:
    records: list[Any] = []
    for name in FORMATS:
        for item in ITEMS:
            for text in TEXTS:
                engine = PromptKeeper(text, {"2": 0.6, "7": 0.3})
                judgement = await build_judge(engine, format=name).judge(item)
                prompt = [asdict(message) for message in engine.prompts[0]]
                for part in (part for message in prompt for part in message["parts"]):
                    del part["name"], part["turn"]  # shown to nobody
                    assert part.pop("media") is None
                fields = asdict(replace(judgement, usage=Usage(), judge=""))
                del fields["usage"]["queued_s"], fields["usage"]["usd"]  # no part of a reading
                records.append([name, prompt, fields, engine.slots, engine.rooms])
    digest = hashlib.sha256(json.dumps(records, default=str).encode()).hexdigest()[:16]
    assert READINGS.get(READING) == digest, (
        "other prompts or readings: raise READING in autoj_reward/models/fingerprint.py, unless no "
        "release has this number, and keep its digest here"
    )
