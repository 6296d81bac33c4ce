"""Judges trained on the verdicts of their own outputs, on a task that a program labels.

    python -m experiments.judge_rl --config configs/experiments/judge_rl.yaml

A query asks for a text of at most so many words, and one of two responses keeps the limit. The
default judge starts near chance: it decides for one position. With `rows.kinds: [most, least]` half
of the queries ask for at least so many words, so that neither the shorter nor the longer response
is right more often. Each method of the config trains it once for each seed, and
each trained judge is served and compares unseen pairs in both orders. The last column says how many
verdicts of the trainer's last validation the served judge gives too.

Each training and each measurement is done once, so the same command resumes; a training resumes
from its checkpoint. The results are judge_rl.json, judge_rl.md and judge_rl-steps.svg: accuracy and
consistency by step.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from pydantic import Field

from autoj_reward.config import Block, JudgeConfig
from autoj_reward.errors import EngineError
from autoj_reward.io.chart import curves
from autoj_reward.io.files import write_jsonl, write_text
from autoj_reward.journal import Journal
from autoj_reward.training.judge.held_out import FOLDER
from autoj_reward.types import PAIRWISE, JudgeInput, Verdict
from experiments.compare.panel import Answers
from experiments.compare.panel import ask as ask_judge
from experiments.study import Study, StudyConfig, run_training, study_command
from experiments.tables import report, tabled

ASKS = ("Describe", "Write about", "Think of", "Tell something of")
READERS = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Klara",
    "Leo", "Mara", "Nils", "Olga", "Paul", "Rosa", "Simon", "Thea", "Viktor",
)  # fmt: skip
TOPICS = (
    "the sea", "a market", "an old clock", "the moon", "a small garden", "a train", "winter",
    "a library", "a bridge", "bread",
)  # fmt: skip
SUBJECTS = (
    "the boats", "a grey cat", "our neighbour", "the old mill", "a tall lamp", "the children",
    "a cold wind", "the baker", "her brother", "a blue door",
)  # fmt: skip
VERBS = (
    "waits by", "looks at", "turns to", "rests near", "runs past", "walks to", "sings to",
    "thinks of", "comes from", "returns to",
)  # fmt: skip
PLACES = (
    "the harbour", "a stone wall", "the wide field", "our street", "the window", "a quiet river",
    "the station", "the hill", "a narrow path", "the morning light",
)  # fmt: skip
JOINS = ("and", "while", "so", "then")
Pair = dict[str, Any]
"""Row of a labelled pair."""


class RowsConfig(Block):
    """The pairs."""

    training: int = Field(400, ge=8)
    """Pairs to train on and to validate on."""
    test: int = Field(200, ge=2)
    """Pairs that measure the trained judges."""
    limits: tuple[int, int] = (6, 14)
    """Smallest and largest limit in words."""
    kinds: tuple[str, ...] = ("most", "least")
    """Kinds of limits that queries set."""
    seed: int = 0
    """Seed of the texts."""


class JudgeRLConfig(StudyConfig):
    """Methods, seeds and pairs of the study."""

    rows: RowsConfig = RowsConfig()
    """The pairs."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the trainings with each method."""
    start: dict[str, Any]
    """Keys of every run file: the judge to begin with, its format, and what methods share."""
    methods: dict[str, dict[str, Any]] = Field(min_length=1)
    """Further keys of the run file of each method."""
    served: JudgeConfig
    """The judge as it is served; its model and format are those of the run."""

    def possible(self) -> Sequence[str]:
        """Return the parts: the judge to begin with, and each training."""
        return ("start", *(f"{name}-{seed}" for name in self.methods for seed in self.seeds))


def study(run: Study[JudgeRLConfig]) -> str:
    """Train and measure one judge after another and return the report."""
    config = run.config
    write_rows(config)
    work: dict[str, Callable[[], Any]] = {"start": partial(measure, config, "start", None)}
    for name in config.methods:
        for seed in config.seeds:
            work[f"{name}-{seed}"] = partial(train_and_measure, config, name, seed)
    return run.steps("judge_rl", work, markdown, plots=draw_plots, free=("seeds", "methods"))


def make_text(words: int, rng: random.Random) -> str:
    """Return a text of so many words."""
    text: list[str] = []
    while len(text) < words:
        clause = (rng.choice(part) for part in (SUBJECTS, VERBS, PLACES, JOINS))
        text += " ".join(clause).split()
    return " ".join(text[:words]).capitalize() + "."


def make_pairs(count: int, config: RowsConfig, rng: random.Random) -> Iterator[Pair]:
    """Yield labelled pairs. The longer response has 1.5 to 3 times the words of the limit, and the
    shorter one at least half of them."""
    for _ in range(count):
        limit = rng.randint(*config.limits)
        kind = rng.choice(config.kinds)
        short = make_text(rng.randint(limit // 2, limit - 1), rng)
        long = make_text(rng.randint(round(1.5 * limit), 3 * limit), rng)
        right, wrong = (short, long) if kind == "most" else (long, short)
        label = rng.randrange(2)
        first, second = (right, wrong) if label == 0 else (wrong, right)
        ask, topic, reader = (rng.choice(part) for part in (ASKS, TOPICS, READERS))
        yield {
            "query": f"{ask} {topic} for {reader} in at {kind} {limit} words.",
            "response_1": first,
            "response_2": second,
            "label": label,
        }


def write_rows(config: JudgeRLConfig) -> None:
    """Write the pairs to rows/training.jsonl and rows/test.jsonl; the same ones each time."""
    rng = random.Random(config.rows.seed)
    folder = config.output / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("training", config.rows.training), ("test", config.rows.test)):
        write_jsonl(folder / f"{name}.jsonl", list(make_pairs(count, config.rows, rng)))


def train_and_measure(config: JudgeRLConfig, method: str, seed: int) -> dict[str, Any]:
    """Train a judge, or resume its training, and measure the judge that is served."""
    name = f"{method}-{seed}"
    folder = (config.output / name).absolute()
    rows = (config.output / "rows").absolute()
    run_file = config.output / f"{name}.yaml"
    settings = {
        **config.start,
        **config.methods[method],
        "output": str(folder),
        "seed": seed,
        "data": {
            "compared": [str(rows / "training.jsonl")],
            "exclude": [str(rows / "test.jsonl")],
            "held_out": 0.1,
        },
    }
    write_text(run_file, yaml.safe_dump(settings, sort_keys=False))
    if settings["method"] == "dpo":
        run_training(f"{name}, sampling", "judge sample", run_file)
    run_training(name, "judge", run_file)
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return record | measure(config, name, folder)


def measure(config: JudgeRLConfig, name: str, folder: Path | None) -> dict[str, Any]:
    """Return what the served judge makes of the test pairs, and of the last validation's.

    folder: output folder of the training; None for the judge that all begin with.
    """
    path = config.output / "rows/test.jsonl"
    pairs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    logged = _read_last_validation(folder) if folder else []
    inputs = [item for pair in pairs for item in make_orders(pair)]
    logged_inputs = [JudgeInput(PAIRWISE, row["query"], row["responses"]) for row in logged]
    model = config.start["model"] if folder is None else str(folder / "judge")
    judge = config.served.model_copy(
        update={"model": model, "format": config.start.get("format", "auto")}
    )
    with closing(Journal(config.output / "journal.sqlite")) as journal:
        answers = asyncio.run(ask_judge(judge, journal, [*inputs, *logged_inputs]))
    same = [
        read_verdict(answers, item) == (row["verdict"] and Verdict(row["verdict"]))
        for item, row in zip(logged_inputs, logged, strict=True)
    ]
    return {"served": score_pairs(pairs, answers), "same_as_logged": fmean(same) if same else None}


def _read_last_validation(folder: Path) -> list[dict[str, Any]]:
    files = list((folder / FOLDER).glob("step-*.jsonl"))
    if not files:
        raise EngineError(f"{folder}: no validation was written")
    last = max(files, key=lambda path: int(path.stem.partition("-")[2]))
    return [json.loads(line) for line in last.read_text(encoding="utf-8").splitlines()]


def make_orders(pair: Pair) -> tuple[JudgeInput, JudgeInput]:
    """Return the inputs that show a pair in both orders."""
    responses = (pair["response_1"], pair["response_2"])
    return (
        JudgeInput(PAIRWISE, pair["query"], responses),
        JudgeInput(PAIRWISE, pair["query"], responses[::-1]),
    )


def read_verdict(answers: Answers, item: JudgeInput) -> Verdict | None:
    """Return the verdict that the judge wrote; None if it wrote none."""
    judgement = answers[item]
    return judgement.verdict if judgement.ok and not judgement.forced else None


def score_pairs(pairs: Sequence[Pair], answers: Answers) -> dict[str, float]:
    """Return accuracy over all orders, consistency over pairs, and shares over verdicts."""
    right: list[bool] = []
    same: list[bool] = []
    verdicts: list[Verdict | None] = []
    for pair in pairs:
        label = (Verdict.FIRST, Verdict.SECOND)[pair["label"]]
        first, second = (read_verdict(answers, item) for item in make_orders(pair))
        right += [first is label, second is label.swapped()]
        same.append(first is not None and second is first.swapped())
        verdicts += [first, second]
    written = [verdict for verdict in verdicts if verdict]
    return {
        "pairs": len(pairs),
        "accuracy": fmean(right),
        "consistency": fmean(same),
        "parse_rate": len(written) / len(verdicts),
        "first": written.count(Verdict.FIRST) / max(1, len(written)),
    }


COLUMNS = {
    "judge": "{name}",
    "steps": "{steps}",
    "minutes": "{minutes:.0f}",
    "accuracy": "{served[accuracy]:.3f}",
    "consistency": "{served[consistency]:.3f}",
    "parse rate": "{served[parse_rate]:.3f}",
    "decides for the first": "{served[first]:.2f}",
    "same as the trainer's": "{same_as_logged:.3f}",
}
"""Columns of the table."""
NOTE = (
    "Unseen pairs, each in both orders, by the served judge at temperature 0. Accuracy is over all "
    "orders; a pair is consistent if both orders prefer the same response. Minutes are those since "
    "the training's last start."
)
"""Note under the table."""


def markdown(result: Mapping[str, Any]) -> str:
    """Return the report."""
    rows = []
    for name, figures in result["steps"].items():
        row = {"steps": None, "minutes": None} | figures | {"name": name}
        if "seconds_since_last_start" in figures:
            row["minutes"] = figures["seconds_since_last_start"] / 60
        rows.append(row)
    return report("Judge RL", dict(result), [("Unseen pairs", tabled(rows, COLUMNS), NOTE)])


def draw_plots(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the plot of validation accuracy and consistency by step, means over the seeds."""
    points: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, figures in result["steps"].items():
        method = name.rpartition("-")[0]
        for entry in figures.get("history", ()):
            for metric in ("accuracy", "consistency"):
                if f"eval_{metric}" in entry:
                    points[f"{method} {metric}"][entry["step"]].append(entry[f"eval_{metric}"])
    if not points:
        return {}
    lines = {
        name: [(step, fmean(values)) for step, values in sorted(by_step.items())]
        for name, by_step in points.items()
    }
    dashed = [name for name in lines if name.endswith("consistency")]
    return {"steps": curves(lines, "optimizer step", "validation", dashed=dashed)}


main = study_command(JudgeRLConfig, study, ("start", "METHOD-SEED"))

if __name__ == "__main__":
    sys.exit(main())
