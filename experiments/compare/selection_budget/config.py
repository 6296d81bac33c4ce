"""The config of `experiments.compare.selection_budget`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, model_validator

from autoj_reward.config import Block, View
from autoj_reward.errors import ConfigError
from experiments.study import ResampledConfig

PARTS = ("recorded", "systems", "scalar", "sampled", "knockout", "simulated")
ASKED = {"recorded", "systems"}
"""The parts with candidates that models are asked about."""


class NoisyJudge(Block):
    """A simulated judge. Noise in standard deviations of gold among the candidates of a query.

    full, cheap: of the rating after a critique, and of the one read before it. correlation: of the
    two, as far as the first is the same in every critique. resampled: share of the variance of
    `full` that every critique draws anew. comparison: probability that one order of a comparison
    names the better response.
    """

    full: float = Field(ge=0)
    cheap: float = Field(ge=0)
    correlation: float = Field(0.5, ge=0, le=1)
    resampled: float = Field(0.5, ge=0, le=1)
    comparison: float = Field(0.75, ge=0, le=1)


class Systems(Block):
    """Real candidates: the outputs of systems to an instruction. Gold is the system's figure on a
    leaderboard, so an output counts as good as its system is on the whole.

    outputs: a folder in AlpacaEval's form, one file a system. leaderboard: a CSV, and `column` of
        it. Relative paths start where those of the base's data do. instructions: drawn.
    """

    outputs: str
    leaderboard: str
    column: str = "win_rate"
    instructions: int = Field(60, ge=2)


class Simulation(Block):
    """Simulated queries of normally distributed gold.

    scalar: noise of the scalar reward model. prefix_tokens: read of a query by all its candidates,
    once; response_tokens, critique_tokens: mean lengths; length_spread: sigma of the log-normal
    lengths of critiques.
    """

    queries: int = Field(1000, ge=2)
    candidates: int = Field(32, ge=2)
    judges: dict[str, NoisyJudge] = Field(min_length=1)
    scalar: float = Field(1.5, ge=0)
    prefix_tokens: int = Field(500, ge=0)
    response_tokens: int = Field(300, ge=1)
    critique_tokens: int = Field(330, ge=1)
    length_spread: float = Field(0.3, ge=0)


class SelectionBudgetConfig(ResampledConfig):
    """What is replayed, on which candidates.

    base, common: a config of `experiments.compare.ablation` and overrides of it: queries, policy,
        judges, and in `costly` the candidates that are judged in full; its journal is read and
        added to.
    parts: of `recorded` and `systems` (rating slot and critique of every candidate), for both
        `scalar`, `sampled` and `knockout`, and `simulated`.
    shares: budgets; target: the one whose difference to full judging is tested.
    finalists: of knock-outs after the cheap pass.
    view: the number after a critique that ranks. k: critiques of the simulated judges.
    """

    base: Path
    common: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("recorded", "scalar", "simulated")
    shares: tuple[float, ...] = (0.1, 0.2, 0.35, 0.5, 0.75)
    target: float = Field(0.35, gt=0, lt=1)
    finalists: tuple[int, ...] = Field((2, 4), min_length=1)
    view: View = "expected"
    systems: Systems | None = None
    k: int = Field(4, ge=2, le=64)
    simulation: Simulation

    @model_validator(mode="after")
    def _measurable(self) -> SelectionBudgetConfig:
        if not all(0 < share < 1 for share in self.shares) or self.target not in self.shares:
            raise ValueError(
                f"shares {list(self.shares)} lie between 0 and 1, and target {self.target} is one "
                "of them"
            )
        if min(self.finalists) < 2:
            raise ValueError(f"finalists {list(self.finalists)}: a knock-out needs two")
        return self

    def possible(self) -> Sequence[str]:
        return [part for part in PARTS if part != "systems" or self.systems]

    def wanted(self, named: str | None) -> tuple[str, ...]:
        """The parts to run: those of the flag, or of the config. Raises ConfigError also for parts
        that need candidates without any."""
        found = super().wanted(",".join(self.parts) if named is None else named)
        if set(found) - {"simulated"} and not ASKED.intersection(found):
            raise ConfigError(f"parts {', '.join(found)}: they need the part recorded or systems")
        return found
