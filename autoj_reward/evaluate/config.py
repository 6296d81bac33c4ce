"""Config blocks of the evaluations. The files that are measured come by flag."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, model_validator

from autoj_reward.config import Block, JudgeConfig, TieBreak, View
from autoj_reward.evaluate.intervals import Draws
from autoj_reward.models.views import with_readings


class EvaluateConfig(Block):
    """What every evaluation has.

    judge: who is measured. journal: SQLite file of every judgement; beside the result by default.
    sample: measure only so many rows, drawn with the seed; null measures all.
    bootstrap, seed: resamples of each 95 % interval, and how everything random is drawn.
    """

    judge: JudgeConfig = JudgeConfig()
    journal: Path | None = None
    sample: int | None = Field(None, ge=1)
    bootstrap: int = Field(2000, ge=1)
    seed: int = 0

    @property
    def draws(self) -> Draws:
        """How intervals are drawn."""
        return Draws(self.bootstrap, self.seed)


class PairsConfig(EvaluateConfig):
    """Labelled pairs: Eval-P, RewardBench, JudgeBench, LLMBar.

    protocol: `pairwise` compares the two responses in both orders; `pointwise` rates each alone.
    view, tie_threshold: of `pointwise`: the number compared, and the largest difference that is
        a tie; null: the one that the judge compares by, if it does by ratings, else 0. Search it
        on other rows, never on those that are measured.
    repeats: how often each comparison is asked, for its stability under repetition.
    columns: column of the data by context field of the judge's format, where it has another name.
    """

    protocol: Literal["pairwise", "pointwise"] = "pairwise"
    view: View = "expected"
    tie_threshold: float | None = Field(None, ge=0)
    repeats: int = Field(1, ge=1, le=16)
    columns: dict[str, str] = Field(default_factory=dict)


class CritiquesConfig(EvaluateConfig):
    """Eval-C.

    grader: who compares two critiques; its format is the prompt.
    reference: whose critiques in the data the judge's are compared with.
    """

    grader: JudgeConfig = JudgeConfig(format="critique-grader", critique=False)
    reference: str = "autoj"

    @model_validator(mode="after")
    def _format(self) -> CritiquesConfig:
        if self.grader.format == "auto":
            raise ValueError("grader.format is auto: name it, for example critique-grader")
        return self


class SelectionConfig(EvaluateConfig):
    """Eval-R.

    grader: who grades the chosen responses. sizes: the N of best-of-N.
    view: the number that ranks candidates. tie_break: what decides among equals, in order.
    budget: share of the tokens of full judging, over 0 and at most 1, as in a best-of-N job; each N
        is chosen within its own. null: every candidate is judged in full.
    grade: `selected` grades what a rule chose (the paper); `all` every candidate, which also gives
        within-query correlation and the share of the possible gain.
    """

    grader: JudgeConfig = JudgeConfig(format="general")
    sizes: tuple[int, ...] = Field((8, 16, 32), min_length=1)
    view: View = "rating"
    tie_break: tuple[TieBreak, ...] = ("policy_logprob", "first")
    budget: float | None = Field(None, gt=0, le=1)
    grade: Literal["selected", "all"] = "selected"


class RankingConfig(EvaluateConfig):
    """System ranking. sample: instructions drawn, the same for every system.

    view: the number that is averaged. column: the leaderboard's column to compare with.
    """

    view: View = "rating"
    column: str = "win_rate"


class BestOfFourConfig(EvaluateConfig):
    """RewardBench 2. view: the number that ranks the candidates. columns: as of `PairsConfig`."""

    view: View = "expected"
    columns: dict[str, str] = Field(default_factory=dict)


C = TypeVar("C", PairsConfig, SelectionConfig, RankingConfig, BestOfFourConfig)


def with_view_read(config: C) -> C:
    """Return the config with a judge that reads what the view needs, where responses are rated."""
    if isinstance(config, PairsConfig) and config.protocol == "pairwise":
        return config
    rules = config.tie_break if isinstance(config, SelectionConfig) else ()
    judge = with_readings(config.judge, config.view, "choose", rules)
    return config.model_copy(update={"judge": judge})
