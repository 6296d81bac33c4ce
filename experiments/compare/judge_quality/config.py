"""What is measured, of which judges, on which rows."""

from __future__ import annotations

from collections.abc import Sequence

from autoj_reward.config import JudgeConfig
from experiments.compare.judge_quality.outputs import OrderedConfig
from experiments.compare.judge_quality.parts import JUDGED
from experiments.compare.panel import PanelConfig, greedy

PARTS = (*JUDGED, "rivals", "ordered")


class JudgeQualityConfig(PanelConfig):
    """What is measured, on which rows: the held-out rated responses measure, the others are for
    the rivals to fit.

    ordered: which graded outputs the part `ordered` takes.
    base: the judge before its training, as a rival; its hidden states are the probe's.
    scalar: the reward model beside the judge in `ordered`; null: none.
    probe_layers: layers of the base that the probe may choose from.
    """

    ordered: OrderedConfig = OrderedConfig()
    base: JudgeConfig | None = None
    scalar: JudgeConfig | None = None
    probe_layers: tuple[int, ...] = tuple(range(6, 25, 3))

    @property
    def judges(self) -> dict[str, JudgeConfig]:
        """Every judge that is asked, by the name that the parts use."""
        return self.variants | ({"base": greedy(self.base)} if self.base else {})

    def possible(self) -> Sequence[str]:
        judged = [name for name, part in JUDGED.items() if part.judge in self.judges]
        return [*judged, "rivals", *(["ordered"] if self.data.graded.folder else [])]
