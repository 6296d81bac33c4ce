"""The log line on the judge and view of a run: logged once, where its user sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.cli.main import main
from autoj_reward.config import FailureConfig, JudgeConfig, PartConfig, RewardConfig
from autoj_reward.errors import BudgetExceeded
from autoj_reward.logs import LOG
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from tests.engine.test_distributions import Dialect
from tests.engine.test_openai_engine import Answer
from tests.evaluate_rows import write

GOES_ON = "distributions: requests of a token or two at the slot"
WRITTEN = "distributions: the alternatives (20) of each token that the judge writes"
NOT_ASKED = "distributions: not asked for"
NONE = "distributions: none: the endpoint tells no log-probabilities"


def make_judge(endpoint: Dialect) -> dict[str, Any]:
    secret = endpoint.url.replace("//", "//someone:hunter2@") + "?code=q-s3cret"
    endpoint_data = {"kind": "openai", "model": "served", "base_url": secret, "start_s": 60}
    return endpoint_data | {"format": "autoj-en"}


def refuse_zzz(endpoint: Dialect) -> None:
    """Make the endpoint answer at a URL with a query, and refuse inputs that hold `zzz`."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if "zzz" in str(body["messages"]):
            return 400, "the input is too long", {}
        return endpoint.answered(path.partition("?")[0], body)

    endpoint.answer = answer


def write_config(folder: Path, **content: Any) -> str:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def find_usage_lines(output: str) -> list[str]:
    assert "hunter2" not in output and "q-s3cret" not in output
    return [line for line in output.splitlines() if "distributions: " in line]


def score(folder: Path, judge: dict[str, Any], responses: list[str]) -> None:
    rows = write(folder / "in.jsonl", [{"query": "q", "response": r} for r in responses])
    files = ["--input", rows, "--output", str(folder / "out.jsonl")]
    assert main(["score", *files, "--config", write_config(folder, judge=judge)]) == 0


def best_of_n(folder: Path, judge: dict[str, Any], responses: list[str]) -> None:
    rows = write(folder / "in.jsonl", [{"query": "q", "responses": responses}])
    path = write_config(
        folder, input=rows, output=str(folder / "out"), judge=judge, tie_break=["first"]
    )
    assert main(["best-of-n", "--config", path]) == 0


def best_of_four(folder: Path, judge: dict[str, Any], responses: list[str]) -> None:
    row = {
        "id": 1,
        "prompt": "q",
        "subset": "s",
        "chosen": responses[:1],
        "rejected": responses[1:],
    }
    files = ["--data", write(folder / "in.jsonl", [row]), "--json", str(folder / "out.json")]
    path = write_config(folder, judge=judge, view="rating", bootstrap=20)
    assert main(["evaluate", "best-of-four", *files, "--config", path]) == 0


@pytest.mark.parametrize("job", [score, best_of_n, best_of_four], ids=lambda job: job.__name__)
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        pytest.param({"goes_on": True}, GOES_ON, id="goes on"),
        pytest.param({}, NOT_ASKED, id="alternatives"),
        pytest.param({"most": None}, NONE, id="refuses"),
    ],
)
def test_a_job_says_once_what_its_first_judgements_used(
    job: Callable[[Path, dict[str, Any], list[str]], None],
    kind: dict[str, Any],
    where: str,
    speaking: Callable[..., Dialect],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    endpoint = speaking(**kind)
    refuse_zzz(endpoint)
    job(tmp_path, make_judge(endpoint), ["a", "zzz", "c", "d"])
    [line] = find_usage_lines(capfd.readouterr().err)
    assert line.startswith("judge served:autoj-en:")
    assert f" (openai at {endpoint.url}), view rating, {where}" in line
    assert line.endswith("; 3 of 4 judgements ok (1 input_rejected)")
    job(tmp_path, make_judge(endpoint), ["a", "c", "d"])  # all is on record: nobody is asked
    assert find_usage_lines(capfd.readouterr().err) == []


def test_a_long_job_says_it_before_its_end(
    speaking: Callable[..., Dialect], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint = speaking(most=None)
    refuse_zzz(endpoint)
    score(tmp_path, make_judge(endpoint), [f"a {n}" for n in range(40)])
    [line] = find_usage_lines(capfd.readouterr().err)
    assert line.endswith("; 32 of 32 judgements ok")


def test_comparing_has_verdicts_in_place_of_a_view(
    speaking: Callable[..., Dialect], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint = speaking(goes_on=True, written=("So, the final decision is Tie",))
    refuse_zzz(endpoint)
    rows = write(tmp_path / "in.jsonl", [{"query": "q", "response_1": "a", "response_2": "b"}])
    files = ["--input", rows, "--output", str(tmp_path / "out")]
    assert (
        main(["compare", *files, "--config", write_config(tmp_path, judge=make_judge(endpoint))])
        == 0
    )
    [line] = find_usage_lines(capfd.readouterr().err)
    assert f"), verdicts, {GOES_ON}; 2 of 2 judgements ok" in line


def test_a_trainer_says_it_at_its_first_batch(
    speaking: Callable[..., Dialect], capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint = speaking()
    refuse_zzz(endpoint)
    judge = JudgeConfig(**make_judge(endpoint))
    parts = {"second": PartConfig(judge=JudgeConfig(kind="fake"), view="rating")}
    candidates = [Candidate("q", response) for response in ("a", "zzz", "c", "d")]
    with RewardModel(RewardConfig(judge=judge, failures=FailureConfig(budget=1))) as reward:
        for _ in range(2):
            reward.rewards_now(candidates)
    [line] = find_usage_lines(capfd.readouterr().err)
    assert f" (openai at {endpoint.url}), view expected, {WRITTEN}; 3 of 4 judgements ok" in line
    with RewardModel(RewardConfig(judge=judge, parts=parts)) as reward:
        reward.rewards_now(candidates[:1])
    first, second = find_usage_lines(capfd.readouterr().err)
    assert first.startswith("judge: judge served:")
    assert second.startswith("second: judge default:")
    assert second.endswith("(fake), view rating, distributions: scripted; 1 of 1 judgements ok")


def test_a_trainer_that_stops_at_once_says_it_before(
    speaking: Callable[..., Dialect], capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint = speaking(most=None)
    refuse_zzz(endpoint)
    config = RewardConfig(judge=JudgeConfig(**make_judge(endpoint)))
    with RewardModel(config) as reward, pytest.raises(BudgetExceeded):
        reward.rewards_now([Candidate("q", f"zzz {n}") for n in range(4)])
    [line] = find_usage_lines(capfd.readouterr().err)
    assert line.endswith(f"view rating, {NONE}; 0 of 4 judgements ok (4 input_rejected)")


@pytest.mark.parametrize(
    ("level", "logged", "printed"),
    [
        pytest.param(logging.NOTSET, 0, 1, id="default"),
        pytest.param(logging.INFO, 1, 0, id="logged"),
        pytest.param(logging.WARNING, 0, 0, id="silenced"),
    ],
)
def test_a_level_of_the_packages_logger_counts(
    level: int,
    logged: int,
    printed: int,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = LOG.level
    LOG.setLevel(level)
    try:
        with RewardModel(RewardConfig(judge=JudgeConfig(kind="fake"))) as reward:
            reward.rewards_now([Candidate("q", "a")])
    finally:
        LOG.setLevel(before)
    assert len(find_usage_lines(capfd.readouterr().err)) == printed
    assert len(find_usage_lines(caplog.text)) == logged
