"""`autoj serve` over its life: a judge replaced, a drain, tokens from files, refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from autoj_reward.cli import main as cli
from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import FORMATS
from autoj_reward.journal import Journal
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.service.serve import EdgeConfig, _Reload, open_edge, read_token
from autoj_reward.types import Candidate, JudgeInput
from tests.judgements import rated
from tests.processes import wait_until
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
HEADERS = {"Authorization": "Bearer secret"}
START_S = 600.0


def write_config(folder: Path, port: int, script: dict[str, Any], **more: Any) -> Path:
    path = folder / "serve.yaml"
    (folder / "token").touch(0o600)
    (folder / "token").write_text("secret\n", encoding="utf-8")
    judge = {"kind": "fake", "script": script} | more
    config = {
        "reward": {"judge": judge, "view": "rating"},
        "port": port,
        "token_file": str(folder / "token"),
    }
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@contextmanager
def run_service(config: Path, port: int) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """Yield (process, address, log) of a ready service; kill it at the end if it still runs."""
    log = config.with_name("log")
    environment = {k: v for k, v in os.environ.items() if k != "AUTOJ_TOKEN"}
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "autoj_reward.cli", "serve", "--config", str(config)],
            env=environment,
            cwd=ROOT,
            stderr=file,
        )
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_S
    try:
        while True:
            try:
                assert httpx.get(f"{address}/readyz").status_code == 200
                break
            except httpx.TransportError:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        yield process, address, log
    finally:
        process.kill()
        process.wait()


def score(address: str, response: str = "a") -> dict[str, Any]:
    body = {"candidates": [{"query": "q", "response": response}]}
    answer = httpx.post(f"{address}/v1/score", json=body, headers=HEADERS, timeout=600)
    assert answer.status_code == 200, answer.text
    [judgement] = answer.json()["judgements"]
    return dict(judgement)


def read_log_lines(log: Path, message: str) -> list[dict[str, Any]]:
    """Return the JSON log lines with a message. The first line of the log is plain text."""
    entries = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in entries if message in line["message"]]


def test_sighup_replaces_the_judge_and_sigterm_drains(tmp_path: Path) -> None:
    port = free_port()
    config = write_config(tmp_path, port, {"ratings": {"a": 3}, "latency_s": 0.02})
    with run_service(config, port) as (process, address, log):
        judgements: list[dict[str, Any]] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                judgements.append(score(address))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(judgements) >= 5)
        write_config(tmp_path, port, {"ratings": {"a": 8}, "latency_s": 0.02})
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: read_log_lines(log, "judge replaced"))
        wait_until(lambda: judgements[-1]["rating"]["value"] == 8)
        stop.set()
        for thread in threads:
            thread.join()
        [replacement] = read_log_lines(log, "judge replaced")
        assert {(j["judge"] == replacement["judge"], j["rating"]["value"]) for j in judgements} == {
            (False, 3),
            (True, 8),
        }

        # A judge of another format would need another scale.
        write_config(tmp_path, port, {}, format="prometheus2")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: read_log_lines(log, "the judge stays as it is"))
        assert score(address)["judge"] == replacement["judge"]

        write_config(tmp_path, port, {"ratings": {"a": 8}, "latency_s": 1.0})
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(read_log_lines(log, "judge replaced")) == 2)
        last: list[dict[str, Any]] = []
        last_call = threading.Thread(target=lambda: last.append(score(address, "a")))
        last_call.start()
        wait_until(lambda: _count_in_flight(address) == 1)
        process.send_signal(signal.SIGTERM)
        last_call.join()
        assert last[0]["rating"]["value"] == 8
        assert process.wait(600) == 0
        assert "secret" not in log.read_text() and "Traceback" not in log.read_text()


def edit_file(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_sighup_reads_an_edited_format_again(tmp_path: Path) -> None:
    port, mine = free_port(), tmp_path / "mine"
    shutil.copytree(FORMATS / "autoj-en", mine)
    config = write_config(tmp_path, port, {}, format=str(mine))
    with run_service(config, port) as (process, address, log):
        before = score(address, "[BE STRICT]")
        assert before["flags"] == []

        edit_file(mine / "single.txt", "[BEGIN DATA]", "[BE STRICT]\n[BEGIN DATA]")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: read_log_lines(log, "judge replaced"))
        [replacement] = read_log_lines(log, "judge replaced")
        after = score(address, "[BE STRICT]")
        assert after["judge"] == replacement["judge"] != before["judge"]
        assert after["flags"] == ["template_delimiter"]  # the judge is shown that line

        # Rewards of the same run may not come from two scales.
        edit_file(mine / "format.yaml", "high: 10", "high: 5")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: read_log_lines(log, "needs a restart"))
        edit_file(mine / "format.yaml", "high: 5", "high: 10")

        (mine / "single.txt").rename(mine / "other.txt")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: read_log_lines(log, "cannot read template 'single.txt'"))
        assert score(address, "[BE STRICT]")["judge"] == replacement["judge"]
        reward = httpx.post(
            f"{address}/get_reward",
            json={"query": ["qa"], "prompts": ["q"], "labels": [""]},
            headers=HEADERS,
            timeout=600,
        )
        assert reward.status_code == 200, reward.text


def post(address: str, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{address}{path}", json=body, headers=HEADERS, timeout=600)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_sighup_changes_the_vote_of_critiques(tmp_path: Path) -> None:
    port, script = free_port(), {"ratings": {"a": 1}}
    sampling = {"critiques": 3, "temperature": 0.7}
    config = write_config(tmp_path, port, script, **sampling)
    judge = JudgeConfig(kind="fake", script=script, **sampling)
    name = judge_spec(judge).name
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        for sample, value in enumerate((2, 9, 10)):
            journal.put(name, JudgeInput("single", "q", ("a",), sample), rated(value, judge=name))
    add_to_reward(config, journal=str(tmp_path / "journal.sqlite"))
    row = {"query": ["qa"], "prompts": ["q"]}
    with run_service(config, port) as (process, address, log):
        assert score(address)["rating"]["value"] == 7
        assert post(address, "/get_reward", row)["rewards"] == [7]
        write_config(tmp_path, port, script, **sampling, vote="median")
        add_to_reward(config, journal=str(tmp_path / "journal.sqlite"))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: read_log_lines(log, "judge replaced"))
        assert score(address)["rating"]["value"] == 9
        assert post(address, "/get_reward", row)["rewards"] == [9]


def test_sighup_names_the_limit_that_stays(tmp_path: Path) -> None:
    port = free_port()
    config = write_config(tmp_path, port, {}, serve={"max_ongoing": 7})
    with run_service(config, port) as (process, address, log):
        write_config(tmp_path, port, {"ratings": {"a": 8}}, serve={"max_ongoing": 7})
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: read_log_lines(log, "judge replaced"))
        write_config(tmp_path, port, {"ratings": {"a": 8}}, serve={"max_ongoing": 9})
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: read_log_lines(log, "max_ongoing was not taken over"))
        [line] = read_log_lines(log, "max_ongoing was not taken over")
        assert "the limit stays 7 inputs in flight" in line["message"]
        answer = httpx.get(f"{address}/v1/judge", headers=HEADERS, timeout=600)
        assert answer.json()["in_flight"] == 7


def add_to_reward(config: Path, **more: Any) -> None:
    data = yaml.safe_load(config.read_text())
    data["reward"] |= more
    config.write_text(yaml.safe_dump(data))


def test_sighup_changes_the_group_limit(tmp_path: Path) -> None:
    port, mine = free_port(), tmp_path / "mine"
    shutil.copytree(FORMATS / "listwise-brief", mine)
    config = write_config(tmp_path, port, {}, format=str(mine))
    add_to_reward(config, relative={"by": "listwise"}, view="auto")
    group = {
        "query": "q",
        "responses": ["one", "three", "seventeen"],
        "relative": {"by": "listwise"},
    }
    with run_service(config, port) as (process, address, log):
        assert len(post(address, "/v1/rank", group)["judgements"]) == 2  # one for each order
        edit_file(mine / "format.yaml", "group:\n", "group:\n  max_responses: 2\n")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: read_log_lines(log, "judge replaced"))
        # Three responses no longer fit into one judgement.
        assert len(post(address, "/v1/rank", group)["judgements"]) > 2


def mark_spec(config: JudgeConfig) -> JudgeSpec:
    """Resolve a scripted judge, with the facts in its script that a model's entry would name."""
    facts = config.script.get("entry", {})
    return replace(judge_spec(config), **facts)


def test_a_reload_takes_tie_and_preferred_view_of_the_new_judge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autoj_reward.trainer.parts.judge_spec", mark_spec)
    script = {"ratings": {"a": 4, "bb": 5}, "direct": {"a": 9, "bb": 2}}

    def make_config(**entry: Any) -> EdgeConfig:
        judge = JudgeConfig(kind="fake", script=script | {"entry": entry}, direct=True)
        return EdgeConfig(reward=RewardConfig(judge=judge))

    old = make_config(ratings_tie=0.1, preferred="rating")
    new = make_config(ratings_tie=8.0, preferred="direct")
    with open_edge(old, "secret") as edge:
        reload = _Reload(old, lambda: new, edge)

        async def ask(path: str, body: dict[str, Any]) -> Any:
            transport = httpx.ASGITransport(edge.app.guard)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
                answer = await http.post(path, json=body, headers=HEADERS)
                assert answer.status_code == 200, answer.text
                return answer.json()

        def ask_all() -> tuple[Any, ...]:
            pair = {"query": "q", "first": "a", "second": "bb"}
            rows = {"query": ["qa", "qbb"], "prompts": ["q", "q"]}
            questions = (
                ("/v1/compare", {"pairs": [pair]}),
                ("/v1/best_of_n", {"query": "q", "responses": ["a", "bb"]}),
                ("/get_reward", rows),
            )
            answers = [edge.loop.wait(ask(*question)) for question in questions]
            verdict = answers[0]["comparisons"][0]["verdict"]
            chosen = answers[1]["selection"]["index"]
            first, second = answers[2]["rewards"]
            return verdict, chosen, first < second

        assert ask_all() == ("first", 1, True)
        edge.loop.wait(reload._update())
        assert ask_all() == ("tie", 0, False)


def test_a_judge_that_cannot_give_the_view_does_not_replace_one_that_can() -> None:
    def make_config(**script: Any) -> EdgeConfig:
        judge = JudgeConfig(kind="fake", script={"ratings": {"a": 4}} | script)
        return EdgeConfig(reward=RewardConfig(judge=judge, view="expected"))

    old, new = make_config(), make_config(logprobs=False)
    with open_edge(old, "secret") as edge:
        [before] = edge.loop.wait(edge.model.rewards([Candidate("q", "a")]))
        reload = _Reload(old, lambda: new, edge)
        with pytest.raises(ConfigError, match="view is expected"):
            edge.loop.wait(reload._update())
        [after] = edge.loop.wait(edge.model.rewards([Candidate("q", "a")]))
        assert after.value == before.value is not None


def _count_in_flight(address: str) -> float:
    page = httpx.get(f"{address}/metrics", headers=HEADERS).text
    [line] = [line for line in page.splitlines() if line.startswith("autoj_requests_in_flight ")]
    return float(line.split()[1])


@pytest.mark.parametrize(
    ("fmt", "remedy"),
    [
        pytest.param("listwise", "set reward.relative.by to listwise, or", id="groups"),
        pytest.param("pandalm", "set reward.relative.by to comparisons, or", id="pairs"),
        pytest.param("rubric-item", "set reward.rubric.by to items, or", id="items"),
    ],
)
def test_a_judge_that_rates_nothing_is_refused_with_the_key_to_set(
    fmt: str,
    remedy: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_config(tmp_path, free_port(), {}, format=fmt)
    assert cli.main(["serve", "--config", str(config)]) == 1
    message = f"reward.judge.format is {fmt}, which rates no response alone: {remedy}"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot be read", id="no file"),
        pytest.param("\n", "is empty", id="empty"),
        pytest.param("sécret", "no HTTP header can carry", id="not ASCII"),
    ],
)
def test_a_token_file(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.touch(0o600)
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_token("NOT_SET", path)


@pytest.mark.parametrize("mode", [0o604, 0o666, 0o602])
def test_a_token_that_everybody_can_read_is_none(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text("secret", encoding="utf-8")
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token("NOT_SET", path)
    path.chmod(0o640)
    assert read_token("NOT_SET", path) == "secret"


def test_a_token_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOJ_TEST_TOKEN", " secret\n")
    assert read_token("AUTOJ_TEST_TOKEN", None) == "secret"
    monkeypatch.setenv("AUTOJ_TEST_TOKEN", " ")
    with pytest.raises(ConfigError, match="set the environment variable AUTOJ_TEST_TOKEN"):
        read_token("AUTOJ_TEST_TOKEN", None)
