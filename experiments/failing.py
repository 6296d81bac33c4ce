"""Train with a scripted judge that fails more often on good responses.

    python -m experiments.failing TREATMENT FAILING train grpo --config ...

`experiments.learning` starts it for a config with `failing`. TREATMENT is `left-out`, which is what
this package does with a failed judgement, or `counted-as-0`, which is what a reward function with
`except: return 0` does. FAILING is the block `failing` as JSON. Whatever the judge answered, the
program's own score of every response goes to `true.jsonl` in the run's folder, one line each step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from autoj_reward.config import Block
from autoj_reward.io.files import text_digest

Treatment = Literal["left-out", "counted-as-0"]
"""What becomes of a failed judgement."""
TREATMENTS: tuple[Treatment, ...] = get_args(Treatment)
TRUE_SCORES = "true.jsonl"
"""Name of the file of the program's scores in a run's folder."""


class Failing(Block):
    """How often a scripted judge fails."""

    good: int = 7
    """Lowest program score of a good response."""
    share_good: float = Field(0.5, ge=0, le=1)
    """Share of the good responses on which the judge fails. A response's hash decides."""
    share_other: float = Field(0.1, ge=0, le=1)
    """Share of the other responses on which the judge fails."""


def score_by_program(response: str, words: int) -> int:
    """Return the program's score of a response, 1..10. The scripted judge must give the same."""
    return max(1, 10 - abs(len(response.split()) - words))


def fails(failing: Failing, response: str, score: int) -> bool:
    """Return whether the judge fails on a response that the program gives this score."""
    draw = int.from_bytes(text_digest(f"fails: {response}")[:8], "big") / 2**64
    return draw < (failing.share_good if score >= failing.good else failing.share_other)


def read_true_scores(folder: Path) -> list[dict[str, Any]]:
    """Return `scores` and `failed` of the responses of each step, in order."""
    with (folder / TRUE_SCORES).open(encoding="ascii") as file:
        return [json.loads(line) for line in file]


def install(treatment: Treatment, failing: Failing) -> None:
    """Make the scripted judge of this process fail, and its GRPO reward treat failures so."""
    from autoj_reward.conversation import Response
    from autoj_reward.engine.fake import FakeEngine
    from autoj_reward.trainer.trl import GRPOReward

    scripted_fault, judge = FakeEngine._fault, GRPOReward.judge

    def decide_fault(engine: FakeEngine, response: str) -> str | None:
        score = score_by_program(response, engine._script["words"])
        return "truncated" if fails(failing, response, score) else scripted_fault(engine, response)

    async def judge_and_treat(
        reward: GRPOReward, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        values = await judge(reward, prompts, completions, **columns)
        config = reward.model.config
        words = config.judge.script["words"]
        texts = [Response.of(completion, "assistant").text for completion in completions]
        scores = [score_by_program(text, words) for text in texts]
        line = {"scores": scores, "failed": [value is None for value in values]}
        with (Path(str(config.journal)).parent / TRUE_SCORES).open("a", encoding="ascii") as file:
            file.write(json.dumps(line) + "\n")
        return values if treatment == "left-out" else [value or 0.0 for value in values]

    FakeEngine._fault = decide_fault  # type: ignore[assignment, method-assign]
    GRPOReward.judge = judge_and_treat  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    from autoj_reward.cli.main import main

    install(sys.argv[1], Failing.model_validate_json(sys.argv[2]))  # type: ignore[arg-type]
    sys.exit(main(sys.argv[3:]))
