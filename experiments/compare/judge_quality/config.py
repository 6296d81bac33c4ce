"""What is measured, of which judges, on which rows."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from autoj_reward.config import Block, JudgeConfig
from autoj_reward.evaluate.labelled import JudgeData
from experiments.compare.judge_quality.parts import JUDGED
from experiments.study import named_parts

PARTS = (*JUDGED, "rivals")


class JudgeQualityConfig(Block):
    """What is measured, on which rows.

    data: rated responses and human-labelled pairs. The held-out rated responses measure, the
        others are for the rivals to fit; the tie threshold is searched on the held-out pairs.
    eval_p: the labelled pairs that measure comparisons, a path like those in data. Null: none.
    base: the judge before its training, as a rival; its hidden states are the probe's.
    critiques, temperature: of the part `single_k`; 0 critiques leave it out.
    probe_layers: layers of the base that the probe may choose from.
    bootstrap, seed: resamples of each 95 % interval, and how they are drawn.
    """

    data: JudgeData
    eval_p: str | None = None
    output: Path
    judge: JudgeConfig = JudgeConfig()
    base: JudgeConfig | None = None
    critiques: int = Field(4, ge=0, le=64)
    temperature: float = Field(0.7, gt=0)
    probe_layers: tuple[int, ...] = tuple(range(6, 25, 3))
    bootstrap: int = Field(2000, ge=1)
    seed: int = 0

    @property
    def judges(self) -> dict[str, JudgeConfig]:
        """Every judge that is asked, by the name that the parts use."""
        greedy = {"critique": True, "critiques": 1, "temperature": 0.0}
        sampled = {"critique": True, "critiques": self.critiques, "temperature": self.temperature}
        found = {
            "greedy": self.judge.model_copy(update=greedy),
            "direct": self.judge.model_copy(update=greedy | {"critique": False}),
        }
        if self.critiques:
            found["sampled"] = self.judge.model_copy(update=sampled)
        if self.base:
            found["base"] = self.base.model_copy(update=greedy)
        return found

    def parts(self, wanted: str | None) -> tuple[str, ...]:
        """The parts to run, in their order: those named, or all that the config allows.

        Raises ConfigError for a name that is unknown or that the config leaves out.
        """
        possible = [
            part
            for part in PARTS
            if part == "rivals"
            or (JUDGED[part].judge in self.judges and (self.eval_p or not JUDGED[part].pairs))
        ]
        return named_parts(wanted, possible)
