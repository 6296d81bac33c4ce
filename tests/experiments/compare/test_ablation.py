from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from autoj_reward.config import load_config
from autoj_reward.errors import ConfigError
from autoj_reward.trainer.parts import Parts
from experiments.compare.ablation.__main__ import main, study
from experiments.compare.ablation.config import PARTS, RewardAblationConfig
from experiments.compare.ablation.rewards import joined
from experiments.study import Study

ROOT = Path(__file__).parents[3]
N, COSTLY = 8, 4
WORDS = [{"kind": "words", "low": 6, "high": 6}]
QUERIES = [{"query": f"query {n}", "kind": "format", "checks": WORDS} for n in range(5)]
"""The scripted policy's answer k has 4 + k words and a slash, so answer 2 is the best."""
PAIRS = [
    {"query": f"p{n}", "response_1": "long" * (1 + n % 3), "response_2": "long" * 2, "label": n % 3}
    for n in range(9)
]
VALIDATION = [
    {"query": f"v{n}", "response_1": "x" * n, "response_2": "yy", "label": n % 3} for n in range(9)
]


def write_rows(path: Path, rows: list[Any]) -> None:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))


class Ablation:
    """A run of the command on scripted models, in its own folder."""

    def __init__(self, folder: Path, queries: list[Any] = QUERIES, **config: Any) -> None:
        write_rows(folder / "queries.jsonl", queries)
        write_rows(folder / "compared.jsonl", VALIDATION)
        write_rows(folder / "eval_p.jsonl", PAIRS)
        self.output, self.log = folder / "out", folder / "log.jsonl"
        script = {"log": str(self.log)}
        made = {
            "queries": str(folder / "queries.jsonl"),
            "output": str(self.output),
            "policy": {"kind": "fake", "n": N},
            "judge": {"kind": "fake", "script": script | {"words": 7}},
            "scalar": {"kind": "fake", "model": "scalar", "script": script | {"words": 11}},
            "costly": {"queries": 3, "candidates": COSTLY},
            "data": {"folder": str(folder), "compared": ["compared.jsonl"], "held_out": 0.99},
            "eval_p": "eval_p.jsonl",
            "bootstrap": 10,
        }
        self.config = folder / "run.yaml"
        self.config.write_text(yaml.safe_dump(made | config))

    def run(self, *more: str) -> int:
        return main(["--config", str(self.config), *more])

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.output / "ablation.json").read_text())
        return found

    def judged(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


def test_the_config_of_the_repository(tmp_path: Path) -> None:
    config = load_config(RewardAblationConfig, ROOT / "configs/experiments/ablation.yaml")
    assert config.wanted(None) == PARTS
    judges = config.judges
    assert not judges["direct"].critique and judges["greedy"].critique
    assert (config.policy.n, config.policy.temperature) == (32, 1)


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ablation = Ablation(tmp_path)
    assert ablation.run() == 0
    found = ablation.json()
    assert found["parts"] == list(PARTS)
    assert (found["gold"], found["left_out"]) == ("program", [])
    # Every word more or less than 6 loses a sixth.
    gold = [1 - abs(k - 2) / 6 for k in range(N)]
    assert found["gold_figures"]["mean"] == pytest.approx(sum(gold) / N)
    assert found["gold_figures"]["queries_that_vary"] == 5

    everything, costly = found["sets"]["all"], found["sets"]["costly"]
    assert (everything["queries"], everything["candidates"]) == (5, 5 * N)
    assert (costly["queries"], costly["candidates"]) == (3, 3 * COSTLY)
    assert (everything["sizes"], costly["sizes"]) == ([2, 4, 8], [2, 4])
    panels = {"panel_mean", "panel_min"}
    assert set(everything["rewards"]) == panels | {
        "direct",
        "scalar",
        "logprob",
        "length",
        "random",
    }
    assert set(costly["rewards"]) == {
        *everything["rewards"],
        "rating",
        "expected",
    }
    rewards = everything["rewards"]
    # Without its own text the scripted judge says the same of all: a choice at random.
    assert rewards["direct"]["best_of"]["8"]["value"] == pytest.approx(sum(gold) / N)
    assert (
        rewards["direct"]["recovered"]["8"]["value"],
        rewards["direct"]["tie_rate"]["value"],
    ) == (
        pytest.approx(0),
        1,
    )
    # Beside a judge that says the same of all, the scalar model decides the mean, and the least too
    # where it is the lower.
    assert rewards["panel_mean"]["best_of"]["8"]["value"] == pytest.approx(1 / 3)
    assert rewards["panel_mean"]["less_reference"]["best_of"]["n"] == 5
    # The scalar model likes answer 6, whose gold is 1/3; the shortest has the highest
    # log-probability, the longest is answer 7.
    assert rewards["scalar"]["best_of"]["8"]["value"] == pytest.approx(1 / 3)
    assert rewards["logprob"]["best_of"]["8"]["value"] == pytest.approx(2 / 3)
    assert rewards["length"]["best_of"]["8"]["value"] == pytest.approx(1 / 6)
    assert rewards["length"]["within_spearman"]["value"] < 0
    assert rewards["length"]["slopes"]["alone"]["value"] > 0
    # The judge's critique rates as the program does, 10 less a point a word.
    rating = costly["rewards"]["rating"]
    assert costly["reference"] == "expected"
    assert rating["within_pearson"]["value"] == pytest.approx(1)
    assert rating["recovered"]["4"]["value"] == pytest.approx(1)
    assert costly["oracle"]["4"]["value"] == rating["best_of"]["4"]["value"] == 1

    over = found["over_optimization"]
    assert set(over) == panels | {"direct", "scalar"}
    assert len(over["scalar"]["points"]) == N
    assert over["scalar"]["points"][7]["kl"] == pytest.approx(math.log(8) - 7 / 8)
    assert over["direct"]["points"][7]["proxy"] is None  # a constant has no unit
    cost = found["cost"]
    assert (cost["critique"]["judgements"], cost["direct"]["judgements"]) == (12, 40)
    assert cost["critique"]["tokens_in"] == 20  # the critique's prompt, and the slot's

    pairs = found["eval_p"]
    assert pairs["pairs"] == 9
    assert set(pairs["rewards"]) == {"direct", "scalar", "length", "random"}
    assert pairs["rewards"]["direct"]["agreement"]["value"] == pytest.approx(1 / 3)

    text = (ablation.output / "ablation.md").read_text()
    assert text in capsys.readouterr().out
    for words in ("judge, expected, critique", "oracle", "Eval-P", "KL", found["command"]):
        assert words in text
    assert "5 queries, 40 candidates" in text
    plots = sorted(path.name for path in ablation.output.glob("*.svg"))
    assert plots == [f"ablation-best_of_n-{key}.svg" for key in ("all", "costly")] + [
        "ablation-over_optimization.svg"
    ]


def test_a_panel_joins_the_scores_as_a_reward_of_parts_does() -> None:
    config = load_config(RewardAblationConfig, ROOT / "configs/experiments/ablation.yaml")
    judge, scalar = np.array([10.0, 1.0, 5.5, np.nan]), np.array([0.0, 0.0, np.nan, np.nan])
    mean, least = (
        joined(Parts(config.panels[name]), judge, scalar).tolist()
        for name in ("panel_mean", "panel_min")
    )
    assert mean[:3] == [0.75, 0.25, 0.5] and math.isnan(mean[3])
    assert least[:3] == [0.5, 0.0, 0.5] and math.isnan(least[3])


def test_every_figure_has_an_interval_and_n(tmp_path: Path) -> None:
    ablation = Ablation(tmp_path)
    assert ablation.run("--parts", "scalar") == 0
    figures = ablation.json()["sets"]["all"]["rewards"]["scalar"]
    names = ("pearson", "spearman", "within_spearman", "tie_rate")
    estimates = [figures[name] for name in names]
    for estimate in (*estimates, *figures["best_of"].values(), *figures["recovered"].values()):
        assert estimate["low"] <= estimate["value"] <= estimate["high"]
        assert estimate["n"] >= 5


def test_cheap_parts_alone(tmp_path: Path) -> None:
    ablation = Ablation(tmp_path)
    assert ablation.run("--parts", "scalar, direct") == 0
    found = ablation.json()
    assert set(found["sets"]) == {"all"}
    assert found["sets"]["all"]["reference"] == "direct"
    assert "eval_p" not in found
    assert ablation.judged() == 5 * N  # the slot alone is read without a log line


def test_the_same_command_again_asks_nothing(tmp_path: Path) -> None:
    ablation = Ablation(tmp_path)
    assert ablation.run() == 0
    asked, before = ablation.judged(), ablation.json()
    assert ablation.run() == 0
    assert ablation.judged() == asked
    after = ablation.json()
    assert {own["new"] for own in after.pop("asked").values()} == {0}
    assert before.pop("asked")["greedy"]["new"] > 0
    assert after == before


def test_a_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    ablation = Ablation(tmp_path)
    slow = ("scalar.script.latency_s=0.02", "scalar.serve.max_ongoing=1")
    config = load_config(RewardAblationConfig, ablation.config, slow)

    async def cut_short() -> None:
        task = asyncio.create_task(study(Study(config, "", ("scalar",))))
        while ablation.judged() < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cut_short())
    assert 3 <= ablation.judged() < 5 * N
    assert ablation.run("--parts", "scalar", "--set", slow[0]) == 0
    # The judgement that was under way may be asked for again.
    assert ablation.judged() in (5 * N, 5 * N + 1)
    assert ablation.json()["asked"]["scalar"]["new"] <= 5 * N - 2


def test_a_judge_as_gold(tmp_path: Path) -> None:
    gold = {"kind": "fake", "model": "gold", "script": {"words": 7, "fail": {}}}
    answer = "query 0 / answer 1 word "
    gold["script"] = {"words": 7, "fail": {answer: "unavailable"}}
    gold["serve"] = {"deadline_s": 30}
    ablation = Ablation(tmp_path, [{"query": f"query {n}"} for n in range(4)], gold=gold)
    assert ablation.run("--parts", "critique") == 0
    found = ablation.json()
    assert found["gold"].startswith("gold:")
    assert found["gold_figures"]["ungraded"] == 1
    assert found["sets"]["all"]["candidates"] == 4 * N - 1
    assert found["sets"]["all"]["sizes"] == [2, 4, 7]
    assert found["sets"]["costly"]["rewards"]["rating"]["within_pearson"]["value"] == 1


def test_failed_judgements_abstain(tmp_path: Path) -> None:
    fail = {f"query 0 / answer {k} " + "word " * k: "rejected" for k in (5, 6)}
    script = {"words": 11, "fail": fail}
    ablation = Ablation(tmp_path, scalar={"kind": "fake", "model": "s", "script": script})
    assert ablation.run("--parts", "scalar") == 0
    found = ablation.json()
    scalar = found["sets"]["all"]["rewards"]["scalar"]
    assert scalar["abstained"] == 2
    # Query 0 falls to answer 7, whose gold is 1/6; the others keep answer 6 with 1/3.
    assert scalar["best_of"]["8"]["value"] == pytest.approx((4 / 3 + 1 / 6) / 5)
    assert found["over_optimization"]["scalar"]["left_out"] == 1


def test_bad_rows_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    unknown = {"query": "x", "kind": "format", "checks": [{"kind": "rhyme"}]}
    ablation = Ablation(tmp_path, [*QUERIES, unknown, QUERIES[1]])
    assert ablation.run("--parts", "scalar") == 0
    left = ablation.json()["left_out"]
    assert [(row["line"], row["field"]) for row in left] == [(6, "checks[0]"), (7, "query")]
    assert "repeats the query of line 2" in left[1]["reason"]
    said = capfd.readouterr()
    assert "queries.jsonl:6: field 'checks[0]'" in said.out + said.err


@pytest.mark.parametrize(
    ("queries", "config", "flags", "message"),
    [
        pytest.param(QUERIES[:1], {}, (), "an interval over queries needs two", id="one query"),
        pytest.param([{"query": "a"}], {}, (), "no usable row", id="no checks"),
        pytest.param(
            QUERIES, {"scalar": None}, ("--parts", "scalar"), "the parts direct", id="part"
        ),
        pytest.param(
            QUERIES, {"policy": {"kind": "fake", "n": 2}}, (), "costly.candidates is 4", id="n"
        ),
    ],
)
def test_errors_are_explained(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    queries: Any,
    config: Any,
    flags: Any,
    message: str,
) -> None:
    assert Ablation(tmp_path, queries, **config).run(*flags) == 1
    said = capsys.readouterr().err
    assert "ablation: error: " in said
    assert message in said


def test_limit(tmp_path: Path) -> None:
    ablation = Ablation(tmp_path)
    assert ablation.run("--parts", "eval_p,scalar", "--limit", "2") == 0
    found = ablation.json()
    assert found["sets"]["all"]["queries"] == 2
    assert found["eval_p"]["pairs"] == 2


def test_an_unknown_part_is_named(tmp_path: Path) -> None:
    config = load_config(RewardAblationConfig, Ablation(tmp_path).config)
    with pytest.raises(ConfigError, match="--parts magic: this config has the parts direct"):
        config.wanted("magic")
