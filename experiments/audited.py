"""Show when the audit of a reward raises its alarm, beside the true reward.

    python -m experiments.audited --config configs/experiments/learning_audit.yaml

`autoj train grpo` trains the policy of `experiments.learning` with scripted judges that want
different numbers of words. The audit judge wants the number that is really good, so its mean number
is the true reward. The audit changes no reward. So each run is trained without one, and the
responses of its steps are then given to a reward with an audit, in their order. Runs in `stopped`
are trained once more with the audit and `stop: true`, to show where it ends them.

False alarms are counted on the same responses, with audit judges that draw their numbers: a judge
that agrees with the main one but for noise, and one that has nothing to do with it. `simulated`
counts alarms by opposition over many more groups, whose numbers are drawn from normal
distributions. Every run adds an entry to `audited.json`, `audited.md` and the curves. A finished
run is not repeated.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from autoj_reward.client.client import JudgeClient
from autoj_reward.config import RewardConfig, check
from autoj_reward.errors import EngineError
from autoj_reward.io.chart import curves
from autoj_reward.trainer.audit import AUDIT_BOUNDS, GROUP_WINDOW, opposition
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from experiments.failing import score_by_program
from experiments.study import Study, StudyConfig, run_training, study_command
from experiments.tables import report, tabled

Step = list[Candidate]
"""Responses of one step, in groups."""
Script = Mapping[str, Any]
"""Script of a scripted judge."""
AUDIT = {"view": "rating", "share": 1.0, "canaries_every": 0}
"""Settings of every audit."""
GROUP = 8
"""Responses of a simulated group."""
SMOOTHED = 3
"""Steps whose mean is the true reward of the last of them."""
ALARMS = ("opposition", "gap_trend")
"""Alarms that compare the two judges."""


class AuditedConfig(StudyConfig):
    """Trainings to run, and audit judges to try on them."""

    base: Path
    """Training config."""
    sets: tuple[str, ...] = ()
    """Overrides of the training config."""
    words: int
    """Number of words of a good response."""
    judges: dict[str, int] = Field(min_length=1)
    """Number of words that each main judge wants, by name."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds that each judge is trained with."""
    stopped: tuple[str, ...] = ()
    """Runs, as judge and seed, that are trained once more with an audit that stops them."""
    agreements: tuple[float, ...] = (0.0, 0.1, -0.1, -0.3)
    """Correlations of the two judges' numbers in simulated runs."""
    simulations: int = Field(100, ge=1)
    """Simulated runs of each correlation."""
    groups: int = Field(1000, ge=1)
    """Audited groups in a simulated run, of 8 responses each."""
    draws: int = Field(20, ge=1)
    """Audit judges of each kind that draw their numbers, for the count of false alarms."""
    noise: float = Field(2.0, gt=0)
    """Standard deviation of the noise of an audit judge that agrees, in rating points."""


def study(run: Study[AuditedConfig]) -> str:
    """Train and measure the runs that are missing. Return the report."""
    config = run.config
    work: dict[str, Callable[[], Any]] = {
        f"{judge} {seed}": partial(_measure_run, config, judge, seed)
        for judge in config.judges
        for seed in config.seeds
    }
    for name in config.stopped:
        judge, _, seed = name.rpartition(" ")
        work[f"{name} stopped"] = partial(_measure_stop, config, judge, int(seed))
    work["simulated"] = partial(_simulate_alarms, config)
    return run.steps("audited", work, markdown, plots=plot_true_rewards)


def _measure_run(config: AuditedConfig, judge: str, seed: int) -> dict[str, Any]:
    """Train a run, and return its figures by step and its alarms, true and false."""
    main = {"words": config.judges[judge]}
    steps = _train(config, judge, seed)
    texts = sorted({candidate.response.text for step in steps for candidate in step})
    rng, false_alarms = random.Random(seed), {"agrees": Counter[str](), "chance": Counter[str]()}
    for _ in range(config.draws):
        noisy = {text: score_by_program(text, main["words"]) + rng.gauss(0, config.noise)
                 for text in texts}  # fmt: skip
        agrees = {text: min(10, max(1, round(rating))) for text, rating in noisy.items()}
        chance = {text: rng.randint(1, 10) for text in texts}
        for name, ratings in (("agrees", agrees), ("chance", chance)):
            figures = replay(steps, main, {"ratings": ratings})
            false_alarms[name].update(list(find_first_alarms(figures)))
    figures = replay(steps, main, {"words": config.words})
    return {
        "true": [_average_score(step, config.words) for step in steps],
        "judge": [_average_score(step, main["words"]) for step in steps],
        "audit": figures,
        "alarms": find_first_alarms(figures),
        "false_alarms": false_alarms,
    }


def _measure_stop(config: AuditedConfig, judge: str, seed: int) -> dict[str, Any]:
    """Train a run that its audit stops, and return after how many steps.

    Raises EngineError for a run that failed without an alarm.
    """
    script = {"words": config.words}
    audit = {"judge": {"kind": "fake", "script": script}, **AUDIT, "stop": True}
    try:
        # Without checkpoints: the windows of an audit begin anew when a run resumes.
        overrides = (f"reward.audit={json.dumps(audit)}", "save_steps=100000")
        _train(config, judge, seed, overrides)
    except EngineError:
        steps = read_steps(_locate_folder(config, judge, seed, "stopped"))
        if find_first_alarms(replay(steps, {"words": config.judges[judge]}, script)):
            return {"stopped_after": len(steps)}
        raise
    return {"stopped_after": None}


def _train(
    config: AuditedConfig, judge: str, seed: int, overrides: Sequence[str] = ()
) -> list[Step]:
    """Train a run that is not finished, and return its responses by step."""
    folder = _locate_folder(config, judge, seed, "stopped" if overrides else "")
    sets = [
        "trainer.log_completions=true",
        *config.sets,
        f"reward.judge.script.words={config.judges[judge]}",
        f"seed={seed}",
        f"output={folder}",
    ]
    if not (folder / "policy").is_dir():  # a run saves its policy when it ends
        run_training(folder.name, "grpo", config.base, [*sets, *overrides])
    return read_steps(folder)


def _locate_folder(config: AuditedConfig, judge: str, seed: int, ending: str) -> Path:
    return config.output / "-".join(filter(None, ("grpo", judge, str(seed), ending)))


def read_steps(folder: Path) -> list[Step]:
    """Return the responses of a run by step, from the tables that TRL writes."""
    from pyarrow.parquet import read_table

    tables = (read_table(path) for path in sorted((folder / "completions").glob("*.parquet")))
    return [
        [Candidate(row["prompt"], row["completion"]) for row in table.to_pylist()]
        for table in tables
    ]


def replay(steps: Sequence[Step], main: Script, audit: Script) -> list[dict[str, float]]:
    """Give the responses of each step to a reward with an audit; return its figures by step.

    main, audit: scripts of the two judges.
    """
    judge, other = ({"kind": "fake", "script": script} for script in (main, audit))
    data = {"judge": judge, "view": "rating", "audit": {"judge": other, **AUDIT}}
    figures = []
    with RewardModel(check(RewardConfig, data, "replay")) as model:
        assert model.audit

        async def settle(client: JudgeClient) -> None:
            assert model.audit
            await asyncio.gather(*model.audit.in_flight)

        for step in steps:
            model.rewards_now(step)
            model.run(settle).result()
            figures.append(dict(model.audit.figures))
    return figures


def find_first_alarms(figures: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """Return the first step, from 1, with an alarm that compares the judges, by its name."""
    alarms: dict[str, int] = {}
    for step, step_figures in enumerate(figures, 1):
        alarms |= {
            name: step
            for name in ALARMS
            if name not in alarms and step_figures[f"audit/alarm_{name}"]
        }
    return alarms


def _simulate_alarms(config: AuditedConfig) -> list[dict[str, Any]]:
    """Return, for each correlation of two judges, the share of simulated runs with an alarm."""
    rng, rows = np.random.default_rng(0), []
    for agreement in config.agreements:
        alarm_steps = [
            _simulate_first_alarm(agreement, config.groups, rng) for _ in range(config.simulations)
        ]
        raised_steps = [at for at in alarm_steps if at is not None]
        share = len(raised_steps) / len(alarm_steps)
        median = statistics.median(raised_steps) if raised_steps else None
        rows.append({"agreement": agreement, "share": share, "median": median})
    return rows


def _simulate_first_alarm(agreement: float, groups: int, rng: np.random.Generator) -> int | None:
    """Return the first group, from 1, at which a simulated run raises the alarm."""
    main, noise = rng.normal(size=(2, groups, GROUP))
    other = agreement * main + math.sqrt(1 - agreement**2) * noise
    x, y = (ratings - ratings.mean(axis=1, keepdims=True) for ratings in (main, other))
    correlations = (x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    window: deque[float] = deque(maxlen=GROUP_WINDOW)
    for n, correlation in enumerate(correlations.tolist(), 1):
        window.append(correlation)
        if opposition(window) > AUDIT_BOUNDS["opposition"]:
            return n
    return None


def _average_score(step: Step, words: int) -> float:
    return statistics.fmean(score_by_program(candidate.response.text, words) for candidate in step)


def compute_moving_means(values: Sequence[float]) -> list[float]:
    """Return the mean of each value and the SMOOTHED - 1 before it, as far as there are any."""
    return [statistics.fmean(values[max(0, n - SMOOTHED) : n]) for n in range(1, len(values) + 1)]


COLUMNS = {
    "run": "{run}",
    "true reward, first 3 steps": "{start:.2f}",
    "highest [step]": "{highest:.2f} [{highest_at}]",
    "last 3": "{last:.2f}",
    "below the start for good from step": "{falls_at}",
    "alarm by opposition [true reward]": "{opposition}",
    "by gap trend [true reward]": "{gap_trend}",
    "stopped after": "{stopped}",
}
FALSE_COLUMNS = {
    "run": "{run}",
    "audit judge": "{kind}",
    "false alarms by opposition": "{opposition}",
    "by gap trend": "{gap_trend}",
    "replays": "{draws}",
}


SIMULATED_COLUMNS = {
    "correlation of the judges": "{agreement:+.1f}",
    "runs with an alarm": "{share:.3f}",
    "median group of the alarm": "{median}",
}


def markdown(result: dict[str, Any]) -> str:
    """Return the report: one row for each run, and one for each kind of audit judge."""
    simulated = result["steps"].get("simulated", [])
    runs = {name: run for name, run in result["steps"].items() if "true" in run}
    rows = [
        _make_row(name, runs[name], result["steps"].get(f"{name} stopped", {})) for name in runs
    ]
    draws = result["config"]["draws"]
    false_rows = [
        {"run": name, "kind": kind, "draws": draws}
        | {alarm: counts.get(alarm, 0) for alarm in ALARMS}
        for name, run in runs.items()
        for kind, counts in run["false_alarms"].items()
    ]
    note = f"True rewards are means over {SMOOTHED} steps. Steps count from 1."
    sections = [
        ("Runs", tabled(rows, COLUMNS), note),
        ("False alarms", tabled(false_rows, FALSE_COLUMNS), ""),
        ("Simulated judges", tabled(simulated, SIMULATED_COLUMNS), ""),
    ]
    return report("Audit of a reward", result, sections)


def _make_row(name: str, run: Mapping[str, Any], stop_step: Mapping[str, Any]) -> dict[str, Any]:
    means = compute_moving_means(run["true"])
    start = means[min(SMOOTHED, len(means)) - 1]
    above = [step for step, value in enumerate(means, 1) if value >= start]
    highest_at = max(range(len(means)), key=means.__getitem__)
    alarms = {
        alarm: f"{at} [{means[at - 1]:.2f}]" if (at := run["alarms"].get(alarm)) else "none"
        for alarm in ALARMS
    }
    return alarms | {
        "run": name,
        "start": start,
        "highest": means[highest_at],
        "highest_at": highest_at + 1,
        "last": means[-1],
        "falls_at": above[-1] + 1 if above[-1] < len(means) else "never",
        "stopped": stop_step.get("stopped_after"),
    }


def plot_true_rewards(result: dict[str, Any]) -> dict[str, str]:
    """Return a plot of the true reward of each run, as SVG."""
    lines = {
        name: list(enumerate(compute_moving_means(run["true"]), 1))
        for name, run in result["steps"].items()
        if "true" in run
    }
    return {"true": curves(lines, "step", "true reward")} if lines else {}


main = study_command(AuditedConfig, study)

if __name__ == "__main__":
    sys.exit(main())
