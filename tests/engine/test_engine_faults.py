"""Faults between a judge and its engine: only the affected input fails, and no number is
made up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.config import JudgeConfig, OverLong, PolicyConfig
from autoj_reward.conversation import Prompt
from autoj_reward.engine.base import Generation, LabelProbs, Prepared, Sampling
from autoj_reward.engine.fake import FakeEngine
from autoj_reward.errors import EngineUnavailable, FormatError
from autoj_reward.formats.render import RenderedPrompt
from autoj_reward.judge.make import make_judge
from autoj_reward.models.spec import judge_spec
from autoj_reward.replicas.replica import JudgeReplica, PolicyReplica
from autoj_reward.types import Candidate, Outcome
from tests.clock import VirtualClock

FAULTS = {
    "raises in prepare": (Outcome.UNAVAILABLE, "failed with KeyError"),
    "raises": (Outcome.UNAVAILABLE, "failed with RuntimeError"),
    "raises at the slot": (Outcome.UNAVAILABLE, "failed with IndexError"),
    "unavailable": (Outcome.UNAVAILABLE, "the engine is overloaded"),
    "hangs": (Outcome.UNAVAILABLE, "no answer within 5 s"),
    "no output": (Outcome.UNAVAILABLE, "0 answers in place of 1"),
    "two outputs": (Outcome.UNAVAILABLE, "2 answers in place of 1"),
    "garbage": (Outcome.UNPARSABLE, "slot"),
    "nan": (Outcome.UNAVAILABLE, "the label '1' probability nan"),
    "over 1": (Outcome.UNAVAILABLE, "the label '1' probability 7"),
    "below 0": (Outcome.UNAVAILABLE, "the label '1' probability -0.5"),
}
"""Fault: the outcome of the response that is its name, and what the reason says."""


class Faulty(FakeEngine):
    """Scripted engine that raises the fault which a response names."""

    async def prepare(
        self, prompt: RenderedPrompt, max_tokens: int, over_long: OverLong
    ) -> Prepared:
        if self._find_fault(prompt) == "raises in prepare":
            raise KeyError("length")
        return await super().prepare(prompt, max_tokens, over_long)

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
        fault = self._find_fault(prepared.prompt)
        if fault == "raises":
            raise RuntimeError("CUDA error: an illegal memory access")
        if fault == "unavailable":
            raise EngineUnavailable("the engine is overloaded")
        if fault == "hangs":
            await asyncio.Event().wait()
        if fault == "slow":
            await asyncio.sleep(0.2)
        if fault == "garbage":
            return [Generation("\x00\ufffd]]]][[[[ Rating: [[eleven]] \u202e")]
        [generation] = await super().generate(prepared, sampling)
        return {"no output": [], "two outputs": [generation, generation]}.get(fault, [generation])

    async def label_probs(
        self,
        prepared: Prepared,
        generation: Generation,
        keep: int,
        slot: str,
        labels: Sequence[str],
    ) -> LabelProbs | None:
        fault = self._find_fault(prepared.prompt)
        if fault == "raises at the slot":
            raise IndexError("index out of range in self")
        if fault == "garbage":
            return LabelProbs(tuple((label, 0.0) for label in labels))
        wrong = {"nan": math.nan, "over 1": 7.0, "below 0": -0.5}
        if fault in wrong:
            return LabelProbs(tuple((label, wrong[fault]) for label in labels))
        return await super().label_probs(prepared, generation, keep, slot, labels)

    @staticmethod
    def _find_fault(prompt: RenderedPrompt) -> str:
        return next(p.text for message in prompt for p in message.parts if p.response)


def make_client() -> JudgeClient:
    config = JudgeConfig(kind="fake")
    spec = judge_spec(config)
    replica = JudgeReplica(make_judge(spec))
    replica._judge.engine = replica._engine = Faulty(config)
    # One input a call: at its deadline a hanging one takes those with it that share its call.
    return JudgeClient(LocalBackend(spec, replica), limits=ClientLimits(deadline_s=5.0, chunk=1))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_one_input_and_has_a_reason(fault: str, virtual_clock: VirtualClock) -> None:
    outcome, reason = FAULTS[fault]
    candidates = [Candidate("q", r) for r in ("good", fault, "other")]
    good, bad, other = virtual_clock.run(make_client().rate(candidates))
    assert (good.view("rating"), other.view("rating")) == (5.0, 6.0)
    assert bad.outcome is outcome and reason in bad.reason
    assert bad.rating is None and bad.judge == good.judge


def test_a_slow_engine_is_waited_for(virtual_clock: VirtualClock) -> None:
    [judgement] = virtual_clock.run(make_client().rate([Candidate("q", "slow")]))
    assert judgement.ok and judgement.usage.latency_s == pytest.approx(0.2)


async def test_an_error_that_says_what_to_do_is_not_a_judgement() -> None:
    spec = judge_spec(JudgeConfig(kind="fake", format="pandalm"))  # it compares alone
    with pytest.raises(FormatError, match="no single protocol"):
        await JudgeClient(LocalBackend(spec)).rate([Candidate("q", "a")])


@pytest.mark.parametrize("count", [0, 2])
async def test_a_policy_that_gives_another_number_of_responses(count: int) -> None:
    config = PolicyConfig(kind="fake", n=3)
    replica = PolicyReplica(config)

    class Other(FakeEngine):
        async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
            return count * await super().generate(prepared, sampling)

    replica._engine = Other(config)
    with pytest.raises(EngineUnavailable, match=f"{count} answers in place of 1"):
        [_ async for _ in replica.batches(Prompt("q"))]
