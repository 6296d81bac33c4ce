"""The run files of the studies load, and use all their keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from autoj_reward.config import Block, load_config
from autoj_reward.models.unused import keys_without_effect
from experiments.audited import AuditedConfig
from experiments.compare.groups import GroupStudyConfig
from experiments.compare.panel import JudgeQualityConfig
from experiments.compare.real_judge import RealJudgeConfig
from experiments.compare.rubric_judge import RubricJudgeConfig
from experiments.compare.shortlist import ShortlistConfig
from experiments.compare.tie_rules import TieRulesConfig
from experiments.default_judge.__main__ import DefaultJudgeConfig
from experiments.faults.attacks import AttacksConfig
from experiments.faults.chaos import ChaosConfig
from experiments.faults.plants import PlantsConfig
from experiments.judge_rl import JudgeRLConfig
from experiments.learning import LearningConfig
from experiments.paper.critiques import CritiquesConfig
from experiments.paper.ranking import RankingConfig
from experiments.speed.gpu_figures import GpuFiguresConfig
from experiments.speed.gpu_service import GpuServiceConfig
from experiments.speed.gpu_throughput import GpuThroughputConfig
from experiments.speed.group_peers import GroupPeersConfig
from experiments.speed.jobs import JobSpeedConfig
from experiments.speed.overlap import OverlapConfig
from experiments.speed.peers import PeersConfig
from experiments.speed.rubric_cost import RubricCostConfig
from experiments.speed.service import ServiceSpeedConfig
from experiments.speed.throughput import ThroughputConfig
from tests.support.configs import FOLDER, OURS, contains_values

FILES = sorted({*(FOLDER / "experiments").glob("*.yaml")} - {*OURS})
KINDS: dict[str, type[Block]] = {
    "paper_critiques": CritiquesConfig,
    "paper_ranking": RankingConfig,
    "judge_quality": JudgeQualityConfig,
    "default_judge": DefaultJudgeConfig,
    "learning_proof": LearningConfig,
    "learning_judge": LearningConfig,
    "learning_failures": LearningConfig,
    "learning_relative": LearningConfig,
    "learning_rubric": LearningConfig,
    "learning_audit": AuditedConfig,
    "attacks": AttacksConfig,
    "chaos": ChaosConfig,
    "plants": PlantsConfig,
    "service_speed": ServiceSpeedConfig,
    "gpu_throughput": GpuThroughputConfig,
    "gpu_figures": GpuFiguresConfig,
    "gpu_service": GpuServiceConfig,
    "throughput": ThroughputConfig,
    "job_speed": JobSpeedConfig,
    "peers": PeersConfig,
    "groups": GroupStudyConfig,
    "shortlist": ShortlistConfig,
    "tie_rules": TieRulesConfig,
    "judge_rl": JudgeRLConfig,
    "real_judge": RealJudgeConfig,
    "group_peers": GroupPeersConfig,
    "overlap": OverlapConfig,
    "rubric_cost": RubricCostConfig,
    "rubric_judge": RubricJudgeConfig,
}
"""Config classes, by the start of the file's name."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_run_file_of_a_study_loads_and_uses_its_keys(path: Path) -> None:
    kind = KINDS[max((start for start in KINDS if path.stem.startswith(start)), key=len)]
    expected = yaml.safe_load(path.read_text(encoding="utf-8"))
    loaded = load_config(kind, path)
    assert contains_values(loaded.model_dump(mode="json"), expected)
    assert keys_without_effect(loaded) == []
