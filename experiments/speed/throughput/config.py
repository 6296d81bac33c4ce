"""The config of `experiments.speed.throughput`."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from autoj_reward.config import JudgeConfig
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.models import format_of
from experiments.study import StudyConfig

PARTS = ("paths", "prefix", "replicas")


class ThroughputConfig(StudyConfig):
    """What is judged, and how often.

    judge: on vLLM, greedy, with critiques of at most `max_tokens`.
    queries, candidates: one piece of work is so many queries with so many candidates each; the
        part `prefix` takes one query. rounds: measured ones, after a warm-up.
    short_words, long_words: of the queries of the part `prefix`.
    replicas: of the part `replicas`, against one.
    """

    judge: JudgeConfig = JudgeConfig()
    queries: int = Field(2, ge=1)
    candidates: int = Field(32, ge=2)
    rounds: int = Field(3, ge=1)
    short_words: int = Field(30, ge=1)
    long_words: int = Field(450, ge=1)
    replicas: int = Field(2, ge=2)

    @model_validator(mode="after")
    def _comparable(self) -> ThroughputConfig:
        judge = self.judge
        if judge.kind != "vllm" or not isinstance(format_of(judge), JudgeFormat):
            raise ValueError("judge: only a generative judge of kind vllm has a bare engine")
        if not judge.critique or judge.direct or judge.critiques > 1 or judge.temperature > 0:
            raise ValueError(
                "judge: the sides do the same work for one greedy critique a candidate: leave "
                "critique, direct, critiques and temperature as they are"
            )
        if judge.serve.replicas not in ("auto", 1):
            raise ValueError("judge.serve.replicas: one engine is compared with one replica")
        return self

    def judge_on(self, replicas: int) -> JudgeConfig:
        """The judge on so many replicas."""
        serving = self.judge.serve.model_copy(update={"replicas": replicas})
        return self.judge.model_copy(update={"serve": serving})

    def possible(self) -> Sequence[str]:
        return PARTS
