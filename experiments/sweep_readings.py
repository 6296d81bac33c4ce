"""What a sweep reads of its runs: a judge's validation, a scalar model's epochs, a GRPO step."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoj_reward.config import Block
from autoj_reward.errors import ConfigError
from autoj_reward.training.judge.recipe import TrainJudgeConfig
from autoj_reward.training.scalar.recipe import TrainScalarConfig
from rollouts.train.config import TrainConfig

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """kind: config of the training. done: what a finished run has. columns: of the table.

    read: rows of a finished run, from its folder and config. shown: the rows as the table has
    them. check: raises ConfigError, before anything starts, for configs that cannot be compared.
    """

    kind: type[Block]
    done: str
    columns: Mapping[str, str]
    note: str
    read: Callable[[Path, Any], list[dict[str, Any]]]
    shown: Callable[[Rows], list[dict[str, Any]]]
    check: Callable[[Mapping[str, Any]], None]


def _record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return found


VALIDATED = {
    "Spearman, slot after the prompt": "eval_spearman_direct",
    "Spearman, slot after the reference critique": "eval_spearman_after",
    "verdict agreement": "eval_agreement_verdict",
    "preference agreement": "eval_agreement_preference",
    "output loss": "eval_loss_judgement",
}


def _judge(folder: Path, _config: TrainJudgeConfig) -> list[dict[str, Any]]:
    """The validation at the end of a run; None where a variant has no such reading."""
    record = _record(folder)
    kept = ("config", "examples", "steps", "validation", "seconds_since_last_start", "machine")
    return [{key: record[key] for key in kept}]


def _validated(rows: Rows) -> list[dict[str, Any]]:
    nothing = dict.fromkeys(VALIDATED.values())
    return [{**row, "validation": nothing | dict(row["validation"])} for row in rows]


def _scalar(folder: Path, _config: TrainScalarConfig) -> list[dict[str, Any]]:
    """The held-out pairs at the end of every epoch: accuracy, Bradley-Terry loss, mean margin."""
    record = _record(folder)
    found = [entry for entry in record["history"] if "eval_accuracy" in entry]
    if not found:
        raise ConfigError(f"{folder}: no pair was held out to choose by: raise data.held_out")
    return [
        {
            "epoch": epoch,
            "accuracy": {
                "value": entry["eval_accuracy"],
                "low": entry.get("eval_accuracy_low"),
                "high": entry.get("eval_accuracy_high"),
            },
            "loss": entry["eval_loss"],
            "margin": entry["eval_margin"],
            "longer": record["validation"]["length_accuracy"],
            "pairs": record["pairs"]["validation"],
        }
        for epoch, entry in enumerate(found, 1)
    ]


def _chosen(rows: Rows) -> list[dict[str, Any]]:
    """With a mark at the highest accuracy; of equals, at the lowest loss."""
    best = max(rows, key=lambda row: (row["accuracy"]["value"], -row["loss"]))
    return [{**row, "mark": "chosen" if row is best else ""} for row in rows]


def _held_out(configs: Mapping[str, TrainScalarConfig]) -> None:
    if not all(config.data.held_out for config in configs.values()):
        raise ConfigError("data.held_out is 0: nothing to choose by; set a share")


def _grpo(folder: Path, config: TrainConfig) -> list[dict[str, Any]]:
    """Medians over the steps after the first, which also warms up: seconds a step, seconds waited
    for the judge, seconds of judging with the waits for its engine."""

    def later(name: str) -> list[float]:
        return [value for step, value in logged(folder / "logs", name) if step > 1]

    spent = zip(later("judge/seconds"), later("judge/queued_seconds"), strict=True)
    return [
        {
            "step": statistics.median(later("train/step_time")),
            "wait": statistics.median(later("judge/wait_seconds")),
            "judged": statistics.median(map(sum, spent)) * config.batch_size,
            "steps": len(later("train/step_time")),
        }
    ]


def _over_free(rows: Rows) -> list[dict[str, Any]]:
    """Beside the variant `free`; of it nothing is hidden."""
    free = next(row["step"] for row in rows if row["variant"] == "free")
    return [
        {
            **row,
            "over": row["step"] / free,
            "hidden": None if row["variant"] == "free" else 1 - row["wait"] / row["judged"],
        }
        for row in rows
    ]


def _free_first(configs: Mapping[str, TrainConfig]) -> None:
    if next(iter(configs)) != "free":
        raise ConfigError("variants needs a first one named `free`, to compare the others with")


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


READINGS = {
    "judge": Reading(
        TrainJudgeConfig,
        "training.json",
        {
            "variant": "{variant}",
            "overrides": "{overrides}",
            "steps": "{steps}",
            **{head: f"{{validation[{key}]:.3f}}" for head, key in VALIDATED.items()},
        },
        "Spearman: of the expected rating with the reference. Agreement: with the human labels.",
        _judge,
        _validated,
        lambda configs: None,
    ),
    "scalar": Reading(
        TrainScalarConfig,
        "training.json",
        {
            "variant": "{variant}",
            "overrides": "{overrides}",
            "epoch": "{epoch}",
            "accuracy [95 %]": "{accuracy}",
            "loss": "{loss:.4f}",
            "mean margin": "{margin:.3f}",
            "the longer response wins": "{longer}",
            "pairs": "{pairs}",
            "": "{mark}",
        },
        "On the held-out pairs; intervals by bootstrap over queries. The chosen accuracy is the "
        "best of several readings on the same pairs, which flatters it; the overrides, and "
        "stop_after=EPOCH if it is not the last, train that very model. Where it stands first or "
        "last of its column, try further values.",
        _scalar,
        _chosen,
        _held_out,
    ),
    "grpo": Reading(
        TrainConfig,
        "policy",
        {
            "reward": "{variant}",
            "seconds a step": "{step:.1f}",
            "over free": "{over:.2f}",
            "waiting for the judge": "{wait:.1f} s",
            "judged": "{judged:.1f} s",
            "hidden": "{hidden:.0%}",
            "steps": "{steps}",
        },
        "Medians of the steps after the first, by TRL's own time of a step. Judged: the sum of the "
        "judgements' own seconds in the replica, which is what asking one after the other would "
        "take at this load. Hidden: the share of it that the trainer did not wait for.",
        _grpo,
        _over_free,
        _free_first,
    ),
}
"""By what is trained."""
