"""How much of the judging each trainer hides behind generation.

    python -m experiments.speed.overlap --config configs/experiments/overlap.yaml

`make test-trl` and `make test-frameworks` install the trainers. A trainer that is not installed is
named in the table without figures.

Each part runs one trainer's own scheduling code, without models. A rollout takes a drawn time. The
judge is an endpoint that answers every request after a fixed time, and works on a fixed number of
requests at once. Each trainer is timed with generation alone, with judging alone, and with both.
Training is left out.

The results overlap.json and overlap.md are rewritten after each part.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from pydantic import Field

from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.errors import EngineError
from autoj_reward.io.files import write_text
from autoj_reward.trainer.rows import VARIABLE
from experiments.speed.endpoint import serve_app
from experiments.speed.overlap_trainers import TRAINERS, OverlapWork, ScriptedPolicy
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

ANSWER = {"role": "assistant", "content": "The response answers the question.\n\nRating: [[7]]"}
"""Answer to every request. It is short, so that reading it costs little time."""


class OverlapConfig(StudyConfig):
    """Sizes and times of the scripted work, and where the trainers are installed."""

    trl: Path
    """Folder with TRL. It comes before an installed TRL."""
    frameworks: Path
    """Folder with verl and OpenRLHF."""
    groups: int = Field(8, ge=1)
    """Prompts of a step."""
    generations: int = Field(4, ge=2)
    """Rollouts of a prompt."""
    steps: int = Field(2, ge=1)
    """Steps of each measurement."""
    shortest_s: float = Field(2.0, ge=0)
    """Seconds of the shortest rollout."""
    longest_s: float = Field(12.0, ge=0)
    """Seconds of the longest rollout. Times are drawn uniformly in between."""
    judgement_s: float = Field(2.0, gt=0)
    """Seconds of a judgement."""
    places: int = Field(8, ge=1)
    """Judgements that the judge works on at once. Others wait."""
    seed: int = 0
    """Seed of the rollouts' times."""

    def possible(self) -> Sequence[str]:
        """Return the names of the study's parts."""
        return tuple(TRAINERS)


class JudgeEndpoint:
    """Judge endpoint that answers after a fixed time and counts the requests in flight."""

    def __init__(self, places: int) -> None:
        self._places = asyncio.Semaphore(places)
        self.start(0.0)

    def start(self, judgement_s: float) -> None:
        """Begin a measurement with this time of a judgement."""
        self._judgement_s = judgement_s
        self._in_flight = 0
        self.most_in_flight = 0
        """Largest number of requests in flight since the start, with those that wait."""
        self.answered = 0
        """Requests answered since the start."""

    async def complete(self, request: web.Request) -> web.Response:
        """Answer a chat completion."""
        await request.read()
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        async with self._places:
            await asyncio.sleep(self._judgement_s)
        self._in_flight -= 1
        self.answered += 1
        return web.json_response({"choices": [{"message": ANSWER, "finish_reason": "stop"}]})


PHASES = {
    "first_s": (False, False),  # opens the judge and the connections
    "neither_s": (False, False),
    "generation_s": (True, False),
    "judging_s": (False, True),
    "both_s": (True, True),
}
"""By measurement: whether generation and judging take time."""


def measure(
    part: str, work: OverlapWork, judge: JudgeEndpoint, judgement_s: float
) -> dict[str, float]:
    """Return the seconds of a step of one trainer, and the judgements in flight.

    Raises EngineError if a rollout was not judged once.
    """
    figures: dict[str, float] = {}
    with TRAINERS[part].open(work) as run:
        for name, (generates, judges) in PHASES.items():
            work.policy.start(generates)
            judge.start(judgement_s if judges else 0.0)
            began = time.monotonic()
            run()
            figures[name] = (time.monotonic() - began) / work.steps
            if name != "first_s" and judge.answered != work.rollouts:
                raise EngineError(
                    f"{part}: {judge.answered} judgements of {work.rollouts} rollouts: see the log"
                )
        return figures | {"in_flight": judge.most_in_flight}


def measure_hidden_share(figures: Mapping[str, float]) -> float:
    """Return the share of the judging that generation hides: 0 if neither overlaps.

    The seconds of a step that neither generates nor judges are in all figures, and count once.
    """
    neither, both = figures["neither_s"], figures["both_s"]
    judging = figures["judging_s"] - neither
    return (figures["generation_s"] + judging - both) / judging


COLUMNS = {
    "trainer": "{name} {version}",
    "neither, s": "{neither_s:.1f}",
    "generation alone, s": "{generation_s:.1f}",
    "judging alone, s": "{judging_s:.1f}",
    "both, s": "{both_s:.1f}",
    "judging hidden": "{hidden:.0%}",
    "in flight": "{in_flight}",
}
NOTE = (
    "Seconds of a step. Neither: rollouts and judgements take no time. Judging alone: rollouts "
    "take none. Hidden: share of the judging that generation hides. In flight: most judgements at "
    "a time with both, with those that wait for a place."
)
FIGURES = ("neither_s", "generation_s", "judging_s", "both_s", "hidden", "in_flight")


def markdown(result: dict[str, Any]) -> str:
    """Write the figures as a Markdown table."""
    rows = [step | {"name": TRAINERS[part].name} for part, step in result["steps"].items()]
    title = "Judging during generation"
    return report(title, result, [(title, tabled(rows, COLUMNS), NOTE)])


def measure_installed(
    part: str, config: OverlapConfig, work: OverlapWork, judge: JudgeEndpoint
) -> dict[str, Any]:
    """Return the figures of a trainer with its version; without figures if it is not installed."""
    package = TRAINERS[part].package
    folder = config.trl if package == "trl" else config.frameworks
    if not (folder / package).is_dir():
        target = "test-trl" if package == "trl" else "test-frameworks"
        print(f"{package} is not in {folder}: make {target}", file=sys.stderr)
        return {"version": "not installed", **dict.fromkeys(FIGURES)}
    version = importlib.metadata.version(package)
    figures = measure(part, work, judge, config.judgement_s)
    return {"version": version, **figures, "hidden": measure_hidden_share(figures)}


def study(run: Study[OverlapConfig]) -> str:
    """Measure the parts, and return the report."""
    config = run.config
    # The child process of TRL's async trainer gets this path too.
    sys.path[:] = [str(config.trl.resolve()), *sys.path, str(config.frameworks.resolve())]
    judge = JudgeEndpoint(config.places)
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", judge.complete)
    with serve_app(app) as (url, _):
        judge_config = JudgeConfig(kind="openai", model="judge", base_url=f"{url}/v1")
        reward = RewardConfig(judge=judge_config, view="rating")
        file = config.output / "reward.yaml"
        write_text(file, yaml.safe_dump(reward.model_dump(mode="json", exclude_unset=True)))
        os.environ[VARIABLE] = str(file.resolve())
        rollouts = config.groups * config.generations * config.steps
        policy = ScriptedPolicy(rollouts, config.shortest_s, config.longest_s, config.seed)
        sizes = (config.groups, config.generations, config.steps)
        work = OverlapWork(*sizes, policy, judge_config, config.output)
        return run.steps(
            "overlap",
            {part: partial(measure_installed, part, config, work, judge) for part in TRAINERS},
            markdown,
            final=lambda figures: figures["both_s"] is not None,
            free={"trl", "frameworks"},
        )


main = study_command(OverlapConfig, study, tuple(TRAINERS))

if __name__ == "__main__":
    sys.exit(main())
