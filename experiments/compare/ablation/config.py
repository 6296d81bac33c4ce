"""The config of `experiments.compare.ablation`, and which of its parts a config allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, model_validator

from autoj_reward.config import (
    Block,
    JudgeConfig,
    PartConfig,
    PolicyConfig,
    RewardConfig,
    View,
)
from experiments.compare.ablation.rewards import KNOWN
from experiments.compare.panel import PanelConfig

PARTS = ("direct", "scalar", "critique", "eval_p")


class Costly(Block):
    """What the rewards with critiques are asked of: the first queries, and their first candidates;
    their best-of-N ends there, and the cheap rewards are measured there too."""

    queries: int = Field(16, ge=2)
    candidates: int = Field(8, ge=2)


class RewardAblationConfig(PanelConfig):
    """What is compared, on which candidates.

    queries: rows of `query` with `kind` and `checks` for a program to grade, or of `query` alone
        with a gold judge. policy: who answers them.
    journal: SQLite file of every sample and judgement, by default in the output folder; several
        runs may name the same one.
    gold: a judge that grades instead of the program; gold_view: which number of it is gold.
    scalar: the reward model beside the judge; null: none.
    seed: of everything that is drawn.
    """

    queries: str
    journal: Path | None = None
    policy: PolicyConfig
    gold: JudgeConfig | None = None
    gold_view: View = "rating"
    scalar: JudgeConfig | None = None
    costly: Costly = Costly()

    @model_validator(mode="after")
    def _sampling(self) -> RewardAblationConfig:
        if self.policy.n < self.costly.candidates:
            raise ValueError(
                f"costly.candidates is {self.costly.candidates}, but policy.n samples "
                f"{self.policy.n} a query"
            )
        return self

    @property
    def judges(self) -> dict[str, JudgeConfig]:
        """Every reward model that is asked, by the name that the rewards use."""
        return self.variants | ({"scalar": self.scalar} if self.scalar else {})

    @property
    def panels(self) -> dict[str, RewardConfig]:
        """The judge's rating slot and the scalar model as one reward; none without the latter."""
        if self.scalar is None:
            return {}
        parts = {"scalar": PartConfig(judge=self.scalar)}
        both = RewardConfig(judge=self.variants["direct"], parts=parts)
        return {"panel_mean": both, "panel_min": both.model_copy(update={"reduce": "min"})}

    def possible(self) -> Sequence[str]:
        has = {
            "scalar": self.scalar is not None,
            "eval_p": self.eval_p is not None,
        }
        return [part for part in PARTS if has.get(part, True)]

    def rewards(self, parts: tuple[str, ...]) -> dict[str, bool]:
        """The rewards that ask a model in these parts, and whether each is costly."""
        return {name: own.costly for name, own in KNOWN.items() if own.part in parts}
