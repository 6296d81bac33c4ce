"""Does a policy learn through the reward path? Several seeds, before and after on other queries.

    python -m experiments.learning_proof --config configs/learning_proof.yaml
    python -m experiments.learning_proof --config configs/learning_judge.yaml

Every algorithm trains the same policy from every seed by `autoj train`. Responses of the first and
of the trained policy, to queries that were not trained on, are then scored: by a program that
counts words, where the training's judge is scripted to rate how near a response comes to a number
of them (and every rating in the journal must be what the program grants); else by the same judge
that rewarded. `learning.json`, `learning.md` and the reward curves `learning.svg` get an entry a
run; one that is done is not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import Block, RewardConfig, load_config
from autoj_reward.errors import EngineError
from autoj_reward.io.chart import curves
from autoj_reward.io.files import write_json, write_text
from autoj_reward.io.markdown import table
from autoj_reward.io.provenance import describe_machine
from autoj_reward.io.rows import read_queries
from autoj_reward.journal import Journal
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from experiments.study import run_command
from rollouts.train.config import LearnerConfig, TrainConfig


class LearningConfig(Block):
    """base: a training config. algorithms: name to overrides.

    test: queries that are not trained on. samples: responses to each, before and after.
    """

    base: Path
    output: Path
    test: str
    algorithms: dict[str, tuple[str, ...]] = Field(min_length=1)
    seeds: tuple[int, ...] = (0, 1, 2)
    samples: int = Field(8, ge=1)


def score(response: str, words: int) -> int:
    """What the program grants a response: 1..10, as the scripted judge must have rated it."""
    return max(1, 10 - abs(len(response.split()) - words))


def run(config: LearningConfig) -> dict[str, Any]:
    """Train and measure what is missing; returns what is in `learning.json`."""
    found: dict[str, Any] = {"machine": describe_machine(), "runs": {}}
    for algorithm, own in config.algorithms.items():
        for seed in config.seeds:
            folder = config.output / f"{algorithm}-{seed}"
            sets = [*own, f"seed={seed}", f"output={folder}"]
            base = load_config(TrainConfig, config.base, sets)
            if not (folder / "learned.json").is_file():
                _train(algorithm, config.base, sets)
                write_json(folder / "learned.json", _measure(config, base))
            learned = json.loads((folder / "learned.json").read_text(encoding="utf-8"))
            found["runs"][f"{algorithm} {seed}"] = learned
            write_json(config.output / "learning.json", found)
            write_text(config.output / "learning.md", render(found))
            lines = {name: run["reward"] for name, run in found["runs"].items()}
            write_text(config.output / "learning.svg", curves(lines, "step", "raw reward"))
    return found


def _train(algorithm: str, base: Path, sets: Sequence[str]) -> None:
    flags = [word for override in sets for word in ("--set", override)]
    command = ["-m", "autoj_reward.cli", "train", algorithm, "--config", str(base), *flags]
    if subprocess.run([sys.executable, *command], check=False).returncode:
        raise EngineError(f"{algorithm} failed; its messages stand above")


def _measure(config: LearningConfig, run: TrainConfig) -> dict[str, Any]:
    """Scores and words before and after on the test queries, and the curves of the training."""
    queries = [row.query for row in read_queries(config.test).rows]
    first = sample(run.learner, run.learner.model, queries, config.samples)
    last = sample(run.learner, str(run.output / "policy"), queries, config.samples)
    asked = [query for query in queries for _ in range(config.samples)]
    if run.reward.judge.kind == "fake":
        words = run.reward.judge.script["words"]
        _check_journal(run.output / "journal.sqlite", words)
        before, after = ([float(score(text, words)) for text in said] for said in (first, last))
    else:
        before, after = judged(run.reward, asked, first, last)
    logs = run.output / "logs"
    return {
        "before": before,
        "after": after,
        "words_before": [len(text.split()) for text in first],
        "words_after": [len(text.split()) for text in last],
        "reward": logged(logs, "judge/raw"),
        "characters": logged(logs, "judge/response_characters"),
    }


def _check_journal(path: Path, words: int) -> None:
    """EngineError unless every rating is what the program grants."""
    journal = Journal(path)
    try:
        wrong = [
            row
            for row in journal.export()
            if row["rating"]["value"] != score(row["input"]["responses"][0], words)
        ]
    finally:
        journal.close()
    if wrong:
        raise EngineError(f"{len(wrong)} ratings of {path} are not what the program grants")


def judged(reward: RewardConfig, queries: Sequence[str], *said: Sequence[str]) -> list[list[float]]:
    """The judge's raw rewards of several sets of responses; failed judgements are left out."""
    found = []
    with RewardModel(reward.model_copy(update={"journal": None})) as model:
        for responses in said:
            asked = [Candidate(*pair) for pair in zip(queries, responses, strict=True)]
            rated = model.rewards_now(asked)
            found.append([reward.raw for reward in rated if reward.raw is not None])
    return found


def sample(learner: LearnerConfig, model: str, queries: Sequence[str], n: int) -> list[str]:
    """n responses to each query at the temperature of the training."""
    import torch

    from rollouts.train.learner import load_policy, load_tokenizer

    torch.manual_seed(1)
    path, tokenizer = load_tokenizer(learner.model_copy(update={"model": model}))
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


def logged(logs: Path, name: str) -> list[tuple[int, float]]:
    """(step, value) of a figure in TensorBoard's files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: list[tuple[int, float]] = []
    for path in sorted(logs.rglob("events*")):
        events = EventAccumulator(str(path))
        events.Reload()
        if name in events.Tags()["scalars"]:
            found += [(e.step, e.value) for e in events.Scalars(name)]
    return sorted(found)


def render(found: dict[str, Any]) -> str:
    """A Markdown table, one row a run."""
    steps = "reward, first and last fifth of the steps"
    head = ("run", "score before", "after", "gain [95 %]", "words before", "after", steps)
    rows = []
    for name, run in found["runs"].items():
        before, after = run["before"], run["after"]
        gain = statistics.fmean(after) - statistics.fmean(before)
        error = math.sqrt(
            statistics.variance(before) / len(before) + statistics.variance(after) / len(after)
        )
        curve = [value for _, value in run["reward"]]
        part = max(1, len(curve) // 5)
        rows.append(
            (
                name,
                f"{statistics.fmean(before):.2f}",
                f"{statistics.fmean(after):.2f}",
                f"{gain:+.2f} [{gain - 1.96 * error:+.2f}, {gain + 1.96 * error:+.2f}]",
                f"{statistics.fmean(run['words_before']):.1f}",
                f"{statistics.fmean(run['words_after']):.1f}",
                f"{statistics.fmean(curve[:part]):.2f}, {statistics.fmean(curve[-part:]):.2f}",
            )
        )
    machine = found["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores"
    return "\n".join([*table(head, rows), "", f"Machine: {where}.", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, measure and print the table."""

    def work(config: LearningConfig, _flags: argparse.Namespace, _command: str) -> str:
        return render(run(config))

    return run_command("experiments.learning_proof", __doc__, LearningConfig, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
