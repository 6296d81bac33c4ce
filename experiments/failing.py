"""Run `autoj train grpo` with a scripted judge that fails more often on good responses.

    python -m experiments.failing HOW train grpo --config configs/experiments/learning_task.yaml ...

`experiments.learning` starts it for a config with `failing`. HOW is that block as JSON, with
`failures`: `out` leaves a failed judgement out of its group, as this package does; `zero` counts it
as a reward of 0, as a reward function with `except: return 0` does. Whatever the judge answered,
the program's own score of every response goes to `true.jsonl` in the run's folder, a line a step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from autoj_reward.config import Block
from autoj_reward.io.files import text_digest


class Failing(Block):
    """How a scripted judge fails."""

    good: int = 7
    """Lowest true score of a good response."""
    share_good: float = Field(0.5, ge=0, le=1)
    """Share of the good responses whose judgement fails, drawn by the response's hash."""
    share_other: float = Field(0.1, ge=0, le=1)
    """Share of the other responses whose judgement fails."""


class FailingRun(Failing):
    """A run with such a judge."""

    failures: Literal["out", "zero"]
    """What becomes of a failed judgement: left out, or a reward of 0."""


def program_score(response: str, words: int) -> int:
    """Return the program's score of a response, 1..10, which the scripted judge must have given."""
    return max(1, 10 - abs(len(response.split()) - words))


def fails(how: Failing, response: str, score: int) -> bool:
    """Return whether the judge fails on a response of this true score."""
    drawn = int.from_bytes(text_digest(f"fails: {response}")[:8], "big") / 2**64
    return drawn < (how.share_good if score >= how.good else how.share_other)


def _write(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="ascii") as file:
        file.write(json.dumps(line) + "\n")


def install(how: FailingRun) -> None:
    """Make this process's scripted judge fail, and its GRPO reward treat failures as `how` says."""
    from autoj_reward.engine import fake
    from autoj_reward.trainer.prompts import response_text
    from autoj_reward.trainer.trl import GRPOReward
    from rollouts.train import online

    class FailingEngine(fake.FakeEngine):
        def _fault(self, response: str) -> str | None:
            score = program_score(response, self._script["words"])
            return "truncated" if fails(how, response, score) else super()._fault(response)

    class CountedReward(GRPOReward):
        async def judge(
            self, prompts: Sequence[Any], completions: Sequence[Any], **given: Any
        ) -> list[float | None]:
            values = await super().judge(prompts, completions, **given)
            words = self.model.config.judge.script["words"]
            scores = [program_score(response_text(text), words) for text in completions]
            line = {"scores": scores, "failed": [value is None for value in values]}
            _write(Path(str(self.model.config.journal)).parent / "true.jsonl", line)
            if how.failures == "out":
                return values
            return [0.0 if value is None else value for value in values]

    fake.FakeEngine = FailingEngine  # type: ignore[misc]
    online.GRPOReward = CountedReward  # type: ignore[misc]


if __name__ == "__main__":
    from autoj_reward.cli.main import main

    install(FailingRun.model_validate_json(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
