"""Show that a policy learns through the reward path: several seeds, before and after training.

    python -m experiments.learning --config configs/experiments/learning_proof.yaml
    python -m experiments.learning --config configs/experiments/learning_judge.yaml
    python -m experiments.learning --config configs/experiments/learning_failures.yaml
    python -m experiments.learning --config configs/experiments/learning_relative.yaml
    python -m experiments.learning --config configs/experiments/learning_rubric.yaml

`autoj train` trains the same policy with every algorithm and every seed. Queries that were not
trained on are then answered by the policy before and after training, and the responses are scored.

Who scores depends on the reward:

- A scripted judge rates how close a response comes to a number of words. A program counts them.
- A scripted judge judges rubric items. A program looks for the text in quotes of each item, and a
  second table tells how often each item holds.
- Any other judge scores the responses itself.

Every reading in the journal of a scripted judge must equal the program's. With `failing` the
scripted judge fails by plan, more often on good responses, and each run is made twice: failures
left out, and failures counted as 0. Each run adds an entry to `learning.json`, `learning.md` and
the curves. A finished run is not repeated.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import RewardConfig, load_config
from autoj_reward.errors import EngineError
from autoj_reward.io.candidates import read_queries
from autoj_reward.io.chart import curves
from autoj_reward.journal import Journal
from autoj_reward.rubric_items import RubricItem
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from experiments.failing import (
    TREATMENTS,
    Failing,
    Treatment,
    read_true_scores,
    score_by_program,
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
    """Algorithms, each with overrides of the training config. Further words after the algorithm's
    name tell its runs with other overrides apart."""
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
            _train_and_measure, config, algorithm, seed, treatment
        )
        for algorithm in config.algorithms
        for seed in config.seeds
        for treatment in treatments
    }
    return run.steps("learning", work, markdown, plots=plot_rewards)


def _train_and_measure(
    config: LearningConfig, algorithm: str, seed: int, treatment: Treatment | None
) -> dict[str, Any]:
    folder = config.output / "-".join(filter(None, (*algorithm.split(), str(seed), treatment)))
    sets = [*config.algorithms[algorithm], f"seed={seed}", f"output={folder}"]
    module = ["autoj_reward.cli"]
    if config.failing:
        module = ["experiments.failing", str(treatment), config.failing.model_dump_json()]
    run_training(folder.name, algorithm.split()[0], config.base, sets, module)
    return _measure(config, load_config(TrainConfig, config.base, sets))


def read_metric(logs: Path, name: str) -> list[tuple[int, float]]:
    """Return the (step, value) pairs of a metric in TensorBoard's files, ordered by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    points: list[tuple[int, float]] = []
    for path in sorted(logs.rglob("events*")):
        events = EventAccumulator(str(path))
        events.Reload()
        if name in events.Tags()["scalars"]:
            points += [(e.step, e.value) for e in events.Scalars(name)]
    return sorted(points)


def _measure(config: LearningConfig, run: TrainConfig) -> dict[str, Any]:
    """Return scores and word counts of the test responses, before and after, and training
    curves."""
    queries = [row.prompt.text for row in read_queries(config.test).rows]
    first_responses = sample_responses(run.learner, run.learner.model, queries, config.samples)
    last_responses = sample_responses(
        run.learner, str(run.output / "policy"), queries, config.samples
    )
    response_queries = [query for query in queries for _ in range(config.samples)]
    items = run.reward.rubric.load() if run.reward.rubric else ()
    if run.reward.judge.kind == "fake":
        words: Any = None if items else run.reward.judge.script["words"]
        _check_journal(run.output / "journal.sqlite", words)
        score = partial(score_by_rubric, items) if items else partial(score_by_program, words=words)
        before, after = (
            [float(score(text)) for text in responses]
            for responses in (first_responses, last_responses)
        )
    else:
        before, after = collect_judge_rewards(
            run.reward, response_queries, first_responses, last_responses
        )
    logs = run.output / "logs"
    return {
        "true": read_true_scores(run.output) if config.failing else [],
        "before": before,
        "after": after,
        "items": [
            item.record()
            | {
                "before": _measure_item_share(item, first_responses),
                "after": _measure_item_share(item, last_responses),
            }
            for item in items
        ],
        "words_before": [len(text.split()) for text in first_responses],
        "words_after": [len(text.split()) for text in last_responses],
        "reward": read_metric(logs, "judge/raw"),
        "characters": read_metric(logs, "judge/response_characters"),
    }


def _measure_item_share(item: RubricItem, responses: Sequence[str]) -> float:
    return statistics.fmean(item_holds(item.criterion, text) for text in responses)


def item_holds(criterion: str, response: str) -> bool:
    """Return whether the response has the text in quotes of a criterion, in any case."""
    return criterion.split('"')[1].lower() in response.lower()


def score_by_rubric(items: Sequence[RubricItem], response: str) -> float:
    """Return the program's score of a response: points of the items that hold, by all positive."""
    earned_points = sum(item.points for item in items if item_holds(item.criterion, response))
    return earned_points / sum(item.points for item in items if item.points > 0)


def _check_journal(path: Path, words: int | None) -> None:
    """Raise EngineError if a reading in the journal differs from the program's score.

    words: number of words that the scripted judge wants. None if it judges rubric items.
    """
    with closing(Journal(path)) as journal:
        wrong_ratings = sum(
            reading["value"] != program_value
            for row in journal.export()
            if row["outcome"] == "ok"
            for reading, program_value in zip(
                row["readings"], _grant_scores(row["input"], words), strict=True
            )
        )
    if wrong_ratings:
        raise EngineError(f"{wrong_ratings} ratings of {path} are not what the program grants")


def _grant_scores(judge_input: Mapping[str, Any], words: int | None) -> list[float]:
    """Return what the program grants in each slot of a judgement.

    A slot is a rubric item, or else a response: `rating`, or a group's `response_1`, ...
    """
    if words is None:
        [response] = judge_input["responses"]
        return [item_holds(item["criterion"], response) for item in judge_input["items"]]
    return [score_by_program(response, words) for response in judge_input["responses"]]


def collect_judge_rewards(
    reward: RewardConfig, queries: Sequence[str], *response_sets: Sequence[str]
) -> list[list[float]]:
    """Return the judge's raw rewards for several sets of responses.

    Failed judgements are left out.
    """
    reward_sets = []
    with RewardModel(reward.model_copy(update={"journal": None})) as model:
        for responses in response_sets:
            candidates = [Candidate(*pair) for pair in zip(queries, responses, strict=True)]
            rewards = model.rewards_now(candidates)
            reward_sets.append([reward.raw for reward in rewards if reward.raw is not None])
    return reward_sets


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


ITEM_COLUMNS = {
    "run": "{run}",
    "item": "{criterion}",
    "points": "{points:+g}",
    "holds before": "{before:.3f}",
    "after": "{after}",
    "gain": "{gain}",
}
ITEMS_NOTE = "Share of the test responses for which an item holds; one figure for each seed."


def markdown(result: dict[str, Any]) -> str:
    """Return the report: one row for each run, and one for each rubric item."""
    runs = result["steps"]
    rows = [_summarise_run(name, run) for name, run in runs.items()]
    items = ("Rubric items", tabled(_make_item_rows(runs), ITEM_COLUMNS), ITEMS_NOTE)
    return report("Learning", result, [("Runs", tabled(rows, COLUMNS), ""), items])


def _make_item_rows(runs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each rubric item of each algorithm, over its seeds."""
    seeds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, run in runs.items():
        for item in run["items"]:
            seeds.setdefault((name.rpartition(" ")[0], item["criterion"]), []).append(item)
    return [
        items[0]
        | {
            "run": name,
            "after": ", ".join(f"{item['after']:.3f}" for item in items),
            "gain": ", ".join(f"{item['after'] - item['before']:+.3f}" for item in items),
        }
        for (name, _), items in seeds.items()
    ]


def plot_rewards(result: dict[str, Any]) -> dict[str, str]:
    """Return a plot of each step's mean reward, one line for each run, as SVG.

    If the judge fails by plan, the plot has the mean of the program's scores in place of rewards.
    """
    runs = result["steps"]
    if not runs:
        return {}
    if result["config"]["failing"]:
        # The legend tells lines apart by their first word: here the treatment.
        lines = {
            " ".join(reversed(name.split())): _average_true_scores(run)
            for name, run in runs.items()
        }
        return {"score": curves(lines, "step", "score of the policy's responses")}
    return {"reward": curves({n: run["reward"] for n, run in runs.items()}, "step", "raw reward")}


def _average_true_scores(run: dict[str, Any]) -> list[tuple[float, float]]:
    return [(step, statistics.fmean(line["scores"])) for step, line in enumerate(run["true"], 1)]


def _summarise_run(name: str, run: dict[str, Any]) -> dict[str, Any]:
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
