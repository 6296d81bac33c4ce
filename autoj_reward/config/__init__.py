"""Run configuration: one YAML file per run, checked when loaded. Unknown keys are errors."""

from autoj_reward.config.jobs import (
    JUDGE,
    BestOfNConfig,
    FailureBudgetConfig,
    FailureConfig,
    JudgedConfig,
    PartConfig,
    RayDataConfig,
    RewardConfig,
    ScoreConfig,
    ServiceConfig,
    ShapingConfig,
    TieBreak,
    View,
    ViewOrAuto,
)
from autoj_reward.config.load import Block, check, load_config
from autoj_reward.config.models import (
    EngineConfig,
    JudgeConfig,
    OverLong,
    PolicyConfig,
    ReplicaConfig,
)

__all__ = [
    "JUDGE",
    "BestOfNConfig",
    "Block",
    "EngineConfig",
    "FailureBudgetConfig",
    "FailureConfig",
    "JudgeConfig",
    "JudgedConfig",
    "OverLong",
    "PartConfig",
    "PolicyConfig",
    "RayDataConfig",
    "ReplicaConfig",
    "RewardConfig",
    "ScoreConfig",
    "ServiceConfig",
    "ShapingConfig",
    "TieBreak",
    "View",
    "ViewOrAuto",
    "check",
    "load_config",
]
