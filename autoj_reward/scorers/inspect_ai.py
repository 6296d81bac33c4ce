"""inspect_ai: a scorer that asks the judge about the final answer of each sample.

    AUTOJ_REWARD=reward.yaml inspect score logs/LOG.eval --scorer autoj_reward/judge

inspect_ai finds it by an entry point of this package. In a task it is `judge_scorer()`. Set
AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`). A judgement that fails is
unscored: inspect_ai leaves the sample out of its metrics, and the log says why.
"""

from __future__ import annotations

from typing import Any

from inspect_ai.model import ChatMessageAssistant
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState

from autoj_reward.config import JUDGE, FailureBudgetConfig
from autoj_reward.trainer.parts import Reward
from autoj_reward.trainer.prompts import candidate, mappings
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import reward_model
from autoj_reward.trainer.shaping import FailureBudget, refuse_groups
from autoj_reward.types import Candidate

REASON = "unscored_reason"
"""Key of the metadata from which inspect_ai takes a score's reason. Older releases know no other
way to give one."""
UNLIMITED = FailureBudgetConfig(budget=1.0)
"""Failure budget of an evaluation: failures are unscored samples of the log, and end nothing."""


@scorer(metrics=[mean(), stderr()], name="judge")
def judge_scorer() -> Scorer:
    """Return the scorer. A sample's score is its reward by the config that AUTOJ_REWARD names.

    The judge shows the sample's metadata as context, with its target as the reference. Raises
    ConfigError if the variable is not set, or if the reward needs several responses to a prompt.
    """
    model = reward_model()
    refuse_groups(model.config, "inspect_ai scores one sample at a time")
    budgets = {JUDGE: FailureBudget(UNLIMITED)}

    async def score(state: TaskState, target: Target) -> Score:
        rated_candidate = make_candidate(model, state, target)
        [reward] = await model.rewards([rated_candidate], budgets)
        return make_score(reward, rated_candidate)

    return score


def make_candidate(model: RewardModel, state: TaskState, target: Target) -> Candidate:
    """Return the candidate of a sample: its output, after the messages before that."""
    turns = list(state.messages)
    if turns and isinstance(turns[-1], ChatMessageAssistant):
        turns.pop()
    prompt = mappings(turns) or mappings(state.input)
    row = {**state.metadata, "target": target.text}
    return candidate(prompt, state.output.completion, model.fields.read(row, "target"))


def make_score(reward: Reward, rated_candidate: Candidate) -> Score:
    """Return the score of a reward, with the judge's text, outcome and readings.

    It is unscored if the reward is None.
    """
    judgement = reward.judgement
    metadata: dict[str, Any] = {
        "outcome": judgement.outcome.value,
        "judge": judgement.judge,
        "flags": list(judgement.flags),
        "forced": judgement.forced,
        "readings": judgement.record()["readings"],
        "parts": dict(reward.parts),
    }
    if reward.value is None:
        return Score.unscored(
            answer=rated_candidate.response.text,
            explanation=judgement.why,
            metadata={**metadata, REASON: "grader_failed"},
        )
    return Score(
        value=reward.value,
        answer=rated_candidate.response.text,
        explanation=judgement.critique,
        metadata=metadata,
    )
