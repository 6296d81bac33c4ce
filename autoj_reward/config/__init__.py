"""Run configuration: one YAML file per run, checked when loaded. Unknown keys are errors."""

from autoj_reward.config.jobs import (
    JUDGE,
    BestOfNConfig,
    FailureBudgetConfig,
    FailureConfig,
    JudgedConfig,
    PartConfig,
    RankConfig,
    RayDataConfig,
    RelativeConfig,
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
from autoj_reward.config.rubric import GateConfig, RubricConfig

__all__ = [
    "JUDGE",
    "BestOfNConfig",
    "Block",
    "EngineConfig",
    "FailureBudgetConfig",
    "FailureConfig",
    "GateConfig",
    "JudgeConfig",
    "JudgedConfig",
    "OverLong",
    "PartConfig",
    "PolicyConfig",
    "RankConfig",
    "RayDataConfig",
    "RelativeConfig",
    "ReplicaConfig",
    "RewardConfig",
    "RubricConfig",
    "ScoreConfig",
    "ServiceConfig",
    "ShapingConfig",
    "TieBreak",
    "View",
    "ViewOrAuto",
    "check",
    "load_config",
]
