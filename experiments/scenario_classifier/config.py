"""What a comparison of scenario classifiers trains on, measures on, and tries."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from autoj_reward.config import Block
from experiments.study import ResampledConfig, StudyConfig
from rollouts.train.config import LearnerConfig

Part = Literal["constant", "terms", "vectors", "finetuned"]


class LabelledData(Block):
    """Labelled queries.

    folder: where relative paths start, those from ./ excepted; null takes the environment variable
        AUTOJ_DATA.
    training: rows of `category`, `instruction`, `input`. held_out: share of each scenario in them
        that is kept for validation. exclude: files whose queries are not to be trained on.
    extra: further training rows, of `scenario` and `prompt`. measure: such rows to measure on;
        null: none.
    """

    folder: Path | None = None
    training: str
    extra: str | None = None
    measure: str | None = None
    exclude: tuple[str, ...] = ()
    held_out: float = Field(0.2, gt=0, lt=1)


class ScenarioClassifierConfig(ResampledConfig):
    """A comparison.

    base: the model whose token embeddings are used. finetuned: folder of a model that
        `experiments.scenario_classifier.finetune` made; null leaves the part out.
    max_terms: terms kept, those that depend most on the scenario (chi-squared). strengths: values
        of C for the classifier on terms to choose from, by cross-validation within the training
        rows.
    max_tokens: of a query whose embeddings are read.
    """

    data: LabelledData
    base: str = "smollm2-135m-instruct"
    finetuned: str | None = None
    parts: tuple[Part, ...] = ("constant", "terms", "vectors")
    max_terms: int = Field(20000, ge=1)
    strengths: tuple[float, ...] = (0.3, 1.0, 3.0)
    max_tokens: int = Field(256, ge=32)
    folds: int = Field(5, ge=2)
    bootstrap: int = Field(1000, ge=1)


class FinetuneConfig(StudyConfig):
    """Training a language model to name the scenario (paper, Appendix B: 3 epochs, batch 64, 1e-5).

    max_length: tokens of a prompt with its answer; a longer query is cut in its middle.
    """

    data: LabelledData
    learner: LearnerConfig = LearnerConfig()
    epochs: float = Field(3.0, gt=0)
    batch_size: int = Field(64, ge=1)
    device_batch_size: int = Field(4, ge=1)
    learning_rate: float = Field(1e-5, gt=0)
    max_length: int = Field(2048, ge=64)
    save_steps: int = Field(20, ge=1)
    seed: int = 0
