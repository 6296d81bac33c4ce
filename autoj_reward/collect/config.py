"""What a collection asks, of whom, about which rows, and what it may cost."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from autoj_reward.collect.sources import SourceConfig
from autoj_reward.config import Block, EngineConfig


class TeacherConfig(EngineConfig):
    """The model that writes the judgements: an endpoint, a model on this machine, or a script.

    max_tokens: of one answer. price_in, price_out: US dollars a million tokens, 0 for a model of
        one's own. concurrency: questions in flight. patience: questions in a row that nobody
        answers, after which the run stops; each was asked again for ten minutes already.
    """

    max_tokens: int = Field(1024, ge=1)
    temperature: float = Field(0.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = 0
    price_in: float = Field(0.0, ge=0)
    price_out: float = Field(0.0, ge=0)
    concurrency: int = Field(8, ge=1)
    patience: int = Field(20, ge=1)


class BudgetConfig(Block):
    """What all runs into one output may spend together; null is no limit.

    usd: dollars. tokens: input and output together. A question is only asked if its longest answer
    still fits, so the limits hold as far as the endpoint bills what it reports.
    """

    usd: float | None = Field(None, ge=0)
    tokens: int | None = Field(None, ge=0)


class CollectConfig(Block):
    """A collection of judgements to train on (paper, section 3.3).

    protocol: `pairwise` compares, `single` criticises one response of each row in three questions.
    folder: where relative paths start, as in the training of judges; null takes AUTOJ_DATA.
    scenarios: folder of scenario files of one's own, beside the package's.
    rows: at most so many rows, drawn from all that pass the filters; null takes all.
    others_below: confidence below which the classifier says `others`; null takes its own.
    per_scenario: judgements at which a scenario is full.
    decontaminate: files whose queries measure judges; rows with one of them are left out.
    near_duplicate: Jaccard similarity from which texts count as the same, null for equal texts.
    seed: how the rows of a scenario are ordered.
    """

    protocol: Literal["pairwise", "single"]
    teacher: TeacherConfig
    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    output: Path
    folder: Path | None = None
    scenarios: Path | None = None
    rows: int | None = Field(None, ge=1)
    others_below: float | None = Field(None, ge=0, le=1)
    per_scenario: int = Field(100, ge=1)
    decontaminate: tuple[str, ...] = ()
    near_duplicate: float | None = Field(0.8, gt=0, le=1)
    budget: BudgetConfig = BudgetConfig()
    seed: int = 0
