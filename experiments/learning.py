"""Show that a policy learns through the reward path: several seeds, before and after training.

    python -m experiments.learning --config configs/experiments/learning_proof.yaml
    python -m experiments.learning --config configs/experiments/learning_judge.yaml
    python -m experiments.learning --config configs/experiments/learning_failures.yaml
    python -m experiments.learning --config configs/experiments/learning_relative.yaml

`autoj train` trains the same policy with every algorithm and every seed. Queries that were not
trained on are then answered by the policy before and after training, and the responses are scored.
If the judge is scripted, it rates how close a response comes to a number of words. Then a program
that counts words scores, and every rating in the journal must equal the program's. Otherwise the
judge that rewarded also scores. With `failing` the scripted judge fails by plan, more often on good
responses, and each run is made twice: failures left out, and failures counted as 0. Each run adds
an entry to `learning.json`, `learning.md` and the curves. A finished run is not repeated.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import RewardConfig, load_config
from autoj_reward.errors import EngineError
from autoj_reward.io.chart import curves
from autoj_reward.io.rows import read_queries
from autoj_reward.journal import Journal
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from experiments.failing import (
    TREATMENTS,
    Failing,
    Treatment,
    program_score,
    read_true_scores,
)
from experiments.study import Study, StudyConfig, run_training, study_command
from experiments.tables import report, tabled
from rollouts.train.learner import LearnerConfig, TrainConfig


class LearningConfig(StudyConfig):
    """Trainings to run, and queries to test them on."""

    base: Path
    """Training config."""
    test: str
    """File of queries that are not trained on."""
    algorithms: dict[str, tuple[str, ...]] = Field(min_length=1)
    """Algorithms, each with overrides of the training config."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds that each algorithm is trained with."""
    samples: int = Field(8, ge=1)
    """Number of responses to each test query, before and after."""
    failing: Failing | None = None
    """How often the scripted judge fails. If set, every GRPO run is made once for each treatment of
    failed judgements, and the curves show the program's scores."""


def study(run: Study[LearningConfig]) -> str:
    """Train and measure the runs that are missing. Return the report."""
    config = run.config
    treatments = TREATMENTS if config.failing else (None,)
    work = {
        " ".join(filter(None, (algorithm, str(seed), treatment))): partial(
            _learned, config, algorithm, seed, treatment
        )
        for algorithm in config.algorithms
        for seed in config.seeds
        for treatment in treatments
    }
    return run.steps("learning", work, markdown, plots=reward_curves)


def _learned(
    config: LearningConfig, algorithm: str, seed: int, treatment: Treatment | None
) -> dict[str, Any]:
    folder = config.output / "-".join(filter(None, (algorithm, str(seed), treatment)))
    sets = [*config.algorithms[algorithm], f"seed={seed}", f"output={folder}"]
    module = ["autoj_reward.cli"]
    if config.failing:
        module = ["experiments.failing", str(treatment), config.failing.model_dump_json()]
    run_training(folder.name, algorithm, config.base, sets, module)
    return _measure(config, load_config(TrainConfig, config.base, sets))


def logged(logs: Path, name: str) -> list[tuple[int, float]]:
    """Return the (step, value) pairs of a metric in TensorBoard's files, ordered by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: list[tuple[int, float]] = []
    for path in sorted(logs.rglob("events*")):
        events = EventAccumulator(str(path))
        events.Reload()
        if name in events.Tags()["scalars"]:
            found += [(e.step, e.value) for e in events.Scalars(name)]
    return sorted(found)


def _measure(config: LearningConfig, run: TrainConfig) -> dict[str, Any]:
    """Return scores and word counts of the test responses, before and after, and training
    curves."""
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
    logs = run.output / "logs"
    return {
        "true": read_true_scores(run.output) if config.failing else [],
        "before": before,
        "after": after,
        "words_before": [len(text.split()) for text in first],
        "words_after": [len(text.split()) for text in last],
        "reward": logged(logs, "judge/raw"),
        "characters": logged(logs, "judge/response_characters"),
    }


def _check_journal(path: Path, words: int) -> None:
    """Raise EngineError if a rating in the journal differs from the program's score."""
    with closing(Journal(path)) as journal:
        wrong = sum(
            reading["value"] != program_score(response, words)
            for row in journal.export()
            if row["outcome"] == "ok"
            # One reading for each response: `rating`, or a group's `response_1`, `response_2`, ...
            for reading, response in zip(row["readings"], row["input"]["responses"], strict=True)
        )
    if wrong:
        raise EngineError(f"{wrong} ratings of {path} are not what the program grants")


def judge_rewards(
    reward: RewardConfig, queries: Sequence[str], *said: Sequence[str]
) -> list[list[float]]:
    """Return the judge's raw rewards for several sets of responses.

    Failed judgements are left out.
    """
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
    """Sample n responses to each query at the training's temperature."""
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
    """Return the report: one row for each run."""
    rows = [_gain(name, run) for name, run in found["steps"].items()]
    return report("Learning", found, [("Runs", tabled(rows, COLUMNS), "")])


def reward_curves(found: dict[str, Any]) -> dict[str, str]:
    """Return a plot of each step's mean reward, one line for each run, as SVG.

    If the judge fails by plan, the plot has the mean of the program's scores in place of rewards.
    """
    runs = found["steps"]
    if not runs:
        return {}
    if found["config"]["failing"]:
        # The legend tells lines apart by their first word: here the treatment.
        lines = {" ".join(reversed(name.split())): _true_means(run) for name, run in runs.items()}
        return {"score": curves(lines, "step", "score of the policy's responses")}
    return {"reward": curves({n: run["reward"] for n, run in runs.items()}, "step", "raw reward")}


def _true_means(run: dict[str, Any]) -> list[tuple[float, float]]:
    return [(step, statistics.fmean(line["scores"])) for step, line in enumerate(run["true"], 1)]


def _gain(name: str, run: dict[str, Any]) -> dict[str, Any]:
    """Return the means of a run, and the gain with its interval by the normal distribution."""
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
