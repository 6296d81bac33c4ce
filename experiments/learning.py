"""Show that a policy learns through the reward path: several seeds, before and after.

    python -m experiments.learning --config configs/experiments/learning_proof.yaml
    python -m experiments.learning --config configs/experiments/learning_judge.yaml

Every algorithm trains the same policy from every seed by `autoj train`. Responses of the first and
of the trained policy, to queries that were not trained on, are then scored: by a program that
counts words, where the training's judge is scripted to rate how near a response comes to a number
of them (and every rating in the journal must be what the program grants); else by the same judge
that rewarded. `learning.json`, `learning.md` and the curves `learning-reward.svg` get an entry a
run; one that is done is not repeated.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from autoj_reward.config import RewardConfig, load_config
from autoj_reward.errors import EngineError
from autoj_reward.io.chart import curves
from autoj_reward.io.rows import read_queries
from autoj_reward.journal import Journal
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from experiments.failing import Failing, FailingRun, program_score
from experiments.study import Study, StudyConfig, run_training, study_command
from experiments.tables import report, tabled
from rollouts.train.learner import LearnerConfig, TrainConfig


class LearningConfig(StudyConfig):
    """base: a training config. algorithms: name to overrides.

    test: queries that are not trained on. samples: responses to each, before and after.
    """

    base: Path
    test: str
    algorithms: dict[str, tuple[str, ...]] = Field(min_length=1)
    seeds: tuple[int, ...] = (0, 1, 2)
    samples: int = Field(8, ge=1)
    failing: Failing | None = None
    """A judge that fails on some responses. Every run of GRPO is then made twice: with failed
    judgements left out, and with failed judgements counted as 0."""

    @property
    def treatments(self) -> tuple[str, ...]:
        """Return the words that a run's name has for what becomes of failed judgements."""
        return tuple(TREATMENTS) if self.failing else ("",)


TREATMENTS: dict[str, Literal["out", "zero"]] = {" left-out": "out", " counted-as-0": "zero"}


def study(run: Study[LearningConfig]) -> str:
    """Train and measure the runs that are missing."""
    config = run.config
    work = {
        f"{algorithm} {seed}{treatment}": partial(_learned, config, algorithm, seed, treatment)
        for algorithm in config.algorithms
        for seed in config.seeds
        for treatment in config.treatments
    }
    return run.steps("learning", work, markdown, plots=reward_curves)


def _learned(config: LearningConfig, algorithm: str, seed: int, treatment: str) -> dict[str, Any]:
    folder = config.output / f"{algorithm}-{seed}{treatment.replace(' ', '-')}"
    sets = [*config.algorithms[algorithm], f"seed={seed}", f"output={folder}"]
    module = ["autoj_reward.cli"]
    if config.failing:
        how = FailingRun(failures=TREATMENTS[treatment], **config.failing.model_dump())
        module = ["experiments.failing", how.model_dump_json()]
    run_training(folder.name, algorithm, config.base, sets, module)
    return _measure(config, load_config(TrainConfig, config.base, sets))


def logged(logs: Path, name: str) -> list[tuple[int, float]]:
    """Return (step, value) of a metric in TensorBoard's files, by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: list[tuple[int, float]] = []
    for path in sorted(logs.rglob("events*")):
        events = EventAccumulator(str(path))
        events.Reload()
        if name in events.Tags()["scalars"]:
            found += [(e.step, e.value) for e in events.Scalars(name)]
    return sorted(found)


def _measure(config: LearningConfig, run: TrainConfig) -> dict[str, Any]:
    """Scores and words before and after on the test queries, and the curves of the training."""
    queries = [row.query for row in read_queries(config.test).rows]
    first = sample_responses(run.learner, run.learner.model, queries, config.samples)
    last = sample_responses(run.learner, str(run.output / "policy"), queries, config.samples)
    asked = [query for query in queries for _ in range(config.samples)]
    if run.reward.judge.kind == "fake":
        words = run.reward.judge.script["words"]
        _check_journal(run.output / "journal.sqlite", words)
        before, after = (
            [float(program_score(text, words)) for text in said] for said in (first, last)
        )
    else:
        before, after = judge_rewards(run.reward, asked, first, last)
    logs, own = run.output / "logs", run.output / "true.jsonl"
    true = [json.loads(line) for line in own.open(encoding="ascii")] if own.is_file() else []
    return {
        "true": [line["scores"] for line in true],
        "failed": [line["failed"] for line in true],
        "before": before,
        "after": after,
        "words_before": [len(text.split()) for text in first],
        "words_after": [len(text.split()) for text in last],
        "reward": logged(logs, "judge/raw"),
        "characters": logged(logs, "judge/response_characters"),
    }


def _check_journal(path: Path, words: int) -> None:
    """Raise EngineError unless every rating is what the program grants."""
    with closing(Journal(path)) as journal:
        wrong = [
            row
            for row in journal.export()
            if row["outcome"] == "ok"
            and row["rating"]["value"] != program_score(row["input"]["responses"][0], words)
        ]
    if wrong:
        raise EngineError(f"{len(wrong)} ratings of {path} are not what the program grants")


def judge_rewards(
    reward: RewardConfig, queries: Sequence[str], *said: Sequence[str]
) -> list[list[float]]:
    """Return the judge's raw rewards of several sets of responses, without failed judgements."""
    found = []
    with RewardModel(reward.model_copy(update={"journal": None})) as model:
        for responses in said:
            asked = [Candidate(*pair) for pair in zip(queries, responses, strict=True)]
            rated = model.rewards_now(asked)
            found.append([reward.raw for reward in rated if reward.raw is not None])
    return found


def sample_responses(
    learner: LearnerConfig, model: str, queries: Sequence[str], n: int
) -> list[str]:
    """n responses to each query at the temperature of the training."""
    import torch

    from rollouts.train.learner import load_policy, load_policy_tokenizer

    torch.manual_seed(1)
    path, tokenizer = load_policy_tokenizer(learner.model_copy(update={"model": model}))
    policy = load_policy(learner, path, tokenizer)
    chats = [[{"role": "user", "content": query}] for query in queries for _ in range(n)]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        ids = policy.generate(
            **inputs,
            do_sample=True,
            top_k=0,
            temperature=learner.temperature,
            max_new_tokens=learner.max_response_tokens,
        )
    responses: list[str] = tokenizer.batch_decode(
        ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return responses


COLUMNS = {
    "run": "{run}",
    "score before": "{before:.2f}",
    "after": "{after:.2f}",
    "gain [95 %]": "{gain:+.2f} [{low:+.2f}, {high:+.2f}]",
    "words before": "{words_before:.1f}",
    "words after": "{words_after:.1f}",
    "reward, first and last fifth of the steps": "{first:.2f}, {last:.2f}",
}


def markdown(found: dict[str, Any]) -> str:
    """Write a Markdown table, one row a run."""
    rows = [_gain(name, run) for name, run in found["steps"].items()]
    return report("Learning", found, [("Runs", tabled(rows, COLUMNS), "")])


def reward_curves(found: dict[str, Any]) -> dict[str, str]:
    """Draw the reward of each step of every run, as SVG."""
    lines = {name: run["reward"] for name, run in found["steps"].items()}
    return {"reward": curves(lines, "step", "raw reward")} if lines else {}


def _gain(name: str, run: dict[str, Any]) -> dict[str, Any]:
    """Means of a run, and the gain with its interval by the normal distribution."""
    sides = [run["before"], run["after"]]
    error = math.sqrt(sum(statistics.variance(side) / len(side) for side in sides))
    before, after = map(statistics.fmean, sides)
    gain, curve = after - before, [value for _, value in run["reward"]]
    part = max(1, len(curve) // 5)
    return {
        "run": name,
        "before": before,
        "after": after,
        "gain": gain,
        "low": gain - 1.96 * error,
        "high": gain + 1.96 * error,
        "words_before": statistics.fmean(run["words_before"]),
        "words_after": statistics.fmean(run["words_after"]),
        "first": statistics.fmean(curve[:part]),
        "last": statistics.fmean(curve[-part:]),
    }


main = study_command(LearningConfig, study)

if __name__ == "__main__":
    sys.exit(main())
