"""A protocol, its format and a question that the package knows nothing of: which of three responses
is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import yaml

from autoj_reward.formats.protocols import JudgeProtocol
from autoj_reward.formats.scale import Scale
from autoj_reward.formats.slots import ChoiceSlot, Slot
from autoj_reward.questions.ask import Ask
from autoj_reward.types import JudgeInput, Judgement

TRIPLE = "triple"
LABELS = {"one": "Left", "two": "Middle", "three": "Right"}


class Triple(JudgeProtocol):
    """The best of three responses is named."""

    responses: ClassVar[int] = 3

    def slots(self, scale: Scale, count: int) -> tuple[Slot, ...]:
        choices = tuple((name, (label,)) for name, label in LABELS.items())
        return (ChoiceSlot("best", self.open, self.close, self.force, choices),)


FORMAT = {
    "name": "best-of-three",
    TRIPLE: {
        "template": "triple.txt",
        "fields": {"q": "query", "a": "response_1", "b": "response_2", "c": "response_3"},
        "open": r"The best is \[",
        "close": r"\]",
        "force": "\n\nThe best is [",
    },
}


def write_format(folder: Path) -> str:
    """Write the format's files, and return what `judge.format` names it by."""
    folder.mkdir()
    (folder / "triple.txt").write_text("{q}\nLeft: {a}\nMiddle: {b}\nRight: {c}\n")
    (folder / "format.yaml").write_text(yaml.safe_dump(FORMAT))
    return str(folder)


@dataclass(frozen=True, slots=True)
class Best:
    """Which of three responses is best? Asked in two orders, which must agree."""

    query: str
    responses: tuple[str, str, str]

    def inputs(self) -> list[JudgeInput]:
        orders = (self.responses, self.responses[::-1])
        return [JudgeInput(TRIPLE, self.query, order) for order in orders]

    async def answer(self, ask: Ask) -> tuple[str | None, Sequence[Judgement]]:
        judgements = await ask(self.inputs())
        places = {name: n for n, name in enumerate(LABELS)}
        best_responses = set[str | None]()
        for item, judgement in zip(self.inputs(), judgements, strict=True):
            choice = judgement.reading("best")
            best_responses.add(item.responses[places[choice.label]].text if choice else None)
        return (best_responses.pop() if len(best_responses) == 1 else None), judgements
