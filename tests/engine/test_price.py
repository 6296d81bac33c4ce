"""Dollars of judgements, and the limit on what a run spends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.config import JudgeConfig, PartConfig, RewardConfig
from autoj_reward.config.load import check
from autoj_reward.errors import ConfigError, SpendingLimit
from autoj_reward.models.price import Price, find_price
from autoj_reward.models.spec import judge_spec
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.stats import batch_metrics
from autoj_reward.types import Candidate, Usage
from tests.engine.dialects import as_lines
from tests.engine.test_openai_engine import Endpoint, chat

PRICE = {"in": 1000.0, "cached": 100.0, "out": 2000.0}
USAGE = {
    "prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 40}, "completion_tokens": 10,
}  # fmt: skip
USD = (60 * 1000 + 40 * 100 + 10 * 2000) / 1e6
"""Cost of one judgement."""


@pytest.fixture
def priced(endpoint: Endpoint) -> Endpoint:
    endpoint.greets = True
    endpoint.script(chat("Rating: [[7]]", usage=USAGE))
    return endpoint


def run_score(folder: Path, endpoint: Endpoint, count: int, *sets: str) -> int:
    rows = [{"query": "Why?", "response": f"Because {n}."} for n in range(count)]
    (folder / "in.jsonl").write_text(as_lines(rows), encoding="utf-8")
    judge = {"kind": "openai", "model": "m", "base_url": endpoint.url, "price": PRICE}
    judge["serve"] = {"max_ongoing": 1}
    paths = ["--input", str(folder / "in.jsonl"), "--output", str(folder / "out.jsonl")]
    settings = [f"judge={json.dumps(judge)}", *sets]
    return cli.main(["score", *paths, *(word for s in settings for word in ("--set", s))])


def test_a_job_tells_its_dollars(
    priced: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_score(tmp_path, priced, 4) == 0
    said = capsys.readouterr()
    assert f"4 ok; {4 * USD:.4f} US dollars; 0 left out" in said.out
    assert f"4 of 4 judgements ok, {4 * USD:.4f} US dollars" in said.err
    summary = json.loads((tmp_path / "out.jsonl.summary.json").read_text(encoding="utf-8"))
    assert summary["usd"] == pytest.approx(4 * USD)


def test_a_job_stops_at_its_limit_and_the_same_command_goes_on(
    priced: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = f"max_usd={2.5 * USD}"
    assert run_score(tmp_path, priced, 5, limit) == 1
    assert f"this run has spent {3 * USD:.4f} US dollars" in capsys.readouterr().err
    assert len(priced.requests) == 3
    assert run_score(tmp_path, priced, 5, limit) == 0
    assert len(priced.requests) == 5
    rows = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(row)["rating"] for row in rows] == [7] * 5


def test_a_limit_needs_a_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text(as_lines([{"query": "q", "response": "r"}]))
    paths = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    sets = ["--set", "judge.kind=fake", "--set", "max_usd=1"]
    assert cli.main(["score", *paths, *sets]) == 1
    assert "max_usd is 1, which needs a price: set judge.price" in capsys.readouterr().err


def test_a_limit_needs_the_price_of_every_endpoint(
    priced: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = {"kind": "openai", "model": "n", "base_url": priced.url}
    panel = f"panel={json.dumps({'second': {'judge': member}})}"
    assert run_score(tmp_path, priced, 2, "max_usd=1", panel) == 1
    why = "max_usd is 1, which needs a price: set panel.second.judge.price"
    assert why in capsys.readouterr().err
    judge = JudgeConfig.model_validate({"kind": "fake"})
    part = PartConfig(judge=JudgeConfig.model_validate(member), view="rating")
    config = RewardConfig(judge=judge, parts={"second": part}, max_usd=1)
    with pytest.raises(ConfigError, match=r"set reward\.parts\.second\.judge\.price"):
        RewardModel(config)
    assert not priced.requests


def test_the_judges_of_a_panel_share_its_limit(
    priced: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = {"kind": "openai", "model": "n", "base_url": priced.url, "price": PRICE}
    panel = f"panel={json.dumps({'second': {'judge': member}})}"
    assert run_score(tmp_path, priced, 2, f"max_usd={1.5 * USD}", panel) == 1
    assert "this run has spent" in capsys.readouterr().err
    free = {**member, "price": {"in": 0, "out": 0}}
    panel = f"panel={json.dumps({'second': {'judge': free}})}"
    assert run_score(tmp_path, priced, 2, f"max_usd={2.5 * USD}", panel) == 0


def test_the_judges_of_a_reward_share_its_limit(priced: Endpoint) -> None:
    settings: dict[str, Any] = {"kind": "openai", "model": "m", "base_url": priced.url}
    judge = JudgeConfig.model_validate(settings | {"price": PRICE, "format": "autoj-en"})
    part = PartConfig(judge=judge.model_copy(update={"format": "general"}), view="rating")
    config = RewardConfig(judge=judge, view="rating", parts={"second": part}, max_usd=1.5 * USD)
    candidates = [Candidate("Why?", "Because.")]
    with RewardModel(config) as model:
        rewards = model.rewards_now(candidates)
        metrics = batch_metrics(rewards, candidates, config)
        assert metrics["judge/usd"] == pytest.approx(USD)
        with pytest.raises(SpendingLimit, match="max_usd is"):
            model.rewards_now([Candidate("Why?", "So.")])
    assert len(priced.requests) == 2


def test_a_price_judges_nothing_anew(priced: Endpoint) -> None:
    data = {"kind": "openai", "model": "m", "base_url": priced.url}
    names = {
        judge_spec(JudgeConfig.model_validate(data | more)).name for more in ({}, {"price": PRICE})
    }
    assert len(names) == 1


@pytest.mark.parametrize(
    ("price", "words"),
    [
        ({"in": 1}, "a price needs `in` and `out`"),
        ({"in": 1, "out": -2}, "greater than or equal to 0"),
        ({"in": 1, "out": 2, "images": 3}, "images"),
        ("cheap", "genai-prices"),
    ],
)
def test_a_price_that_is_none(price: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(JudgeConfig, {"kind": "fake", "price": price}, "run.yaml")


def test_a_price_by_the_name_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own interface, without the package."""
    prices = ModuleType("genai_prices")
    rates = {"input_tokens": 2.5, "cache_read_tokens": -1.25, "output_tokens": 10.0}

    def calc_price(tokens: dict[str, int], model: str) -> SimpleNamespace:
        if model != "gpt-4o":
            raise LookupError(model)
        usd = sum(rates[name] * count for name, count in tokens.items()) / 1e6
        return SimpleNamespace(total_price=usd)

    prices.Usage = dict  # type: ignore[attr-defined]
    prices.calc_price = calc_price  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "genai_prices", prices)
    found = find_price(JudgeConfig(kind="fake", model="gpt-4o", price="genai-prices"))
    assert found is not None
    assert found.usd(Usage(1_000_000, 400_000, 100_000)) == pytest.approx(1.5 + 0.5 + 1.0)
    with pytest.raises(ConfigError, match="does not list the model mine"):
        find_price(JudgeConfig(kind="fake", model="mine", price="genai-prices"))
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(ConfigError, match=r"autoj-reward\[prices\]"):
        find_price(JudgeConfig(kind="fake", model="gpt-4o", price="genai-prices"))


def test_more_cached_tokens_than_tokens_cost_no_less_than_nothing() -> None:
    assert Price(1.0, 0.5, 2.0).usd(Usage(10, 1000, 0)) == pytest.approx(5e-6)
