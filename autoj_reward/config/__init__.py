"""Run configuration: one YAML file a run, checked at load, unknown keys rejected by name."""

from autoj_reward.config.block import Block
from autoj_reward.config.jobs import (
    BestOfNConfig,
    RayDataConfig,
    ScoreConfig,
    TieBreak,
    View,
    ViewOrAuto,
)
from autoj_reward.config.load import check, load_config
from autoj_reward.config.models import (
    EngineConfig,
    JudgeConfig,
    OverLong,
    PolicyConfig,
    ReplicaConfig,
)
from autoj_reward.config.reward import (
    JUDGE,
    BudgetConfig,
    FailureConfig,
    JudgedConfig,
    PartConfig,
    RewardConfig,
    ServiceConfig,
    ShapingConfig,
)

__all__ = [
    "JUDGE",
    "BestOfNConfig",
    "Block",
    "BudgetConfig",
    "EngineConfig",
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
