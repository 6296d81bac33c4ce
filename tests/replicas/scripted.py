"""Scripted judge for replicas on Ray, with the ratings that it knows."""

from __future__ import annotations

from typing import Any

from autoj_reward.config import JudgeConfig
from autoj_reward.types import Candidate


def make_judge(rating: int, replicas: int = 2, **script: Any) -> JudgeConfig:
    ratings = {f"answer {n}": rating for n in range(400)}
    return JudgeConfig.model_validate(
        {
            "kind": "fake",
            "script": {"ratings": ratings, "latency_s": 0.2} | script,
            "serve": {"replicas": replicas, "num_cpus": 1},
        }
    )


def make_candidates(start: int, count: int) -> list[Candidate]:
    return [Candidate(f"q{n % 8}", f"answer {n}") for n in range(start, start + count)]
