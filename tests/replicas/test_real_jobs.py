"""Command-line jobs on the real stack, with separate engines for policy and judge.

They give the expected results and leave no processes behind.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.watched import Watched

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

QUERY = "Name three things to do on a rainy afternoon."


def test_the_job_from_the_command_line(tmp_path: Path) -> None:
    """The long prompts together exceed one batch of vLLM.

    Reading one of them in two parts would kill the CPU engine, since critiques are sampled with a
    seed.
    """
    long = [f"because of light {n} " + "because of light " * 450 for n in range(3)]
    rows = [
        {"query": QUERY, "id": 7},
        {"query": 5},
        {"query": "Say hello.", "responses": ["Hello!", ""]},
        {"query": "Why?", "responses": long},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    sets = [
        f"input={source}",
        f"output={tmp_path / 'out'}",
        "policy.n=4",
        "policy.max_tokens=24",
        "policy.max_model_len=512",
        "policy.kv_cache_gib=0.25",
        "judge.temperature=0.8",
        "judge.critiques=2",
        "judge.max_tokens=24",
        "judge.max_model_len=2048",
        "judge.kv_cache_gib=0.5",
    ]
    command = [
        sys.executable,
        "-m",
        "autoj_reward.cli",
        "best-of-n",
        "--config",
        "configs/jobs/best_of_32.yaml",
    ]
    command += [word for item in sets for word in ("--set", item)]
    with Watched(command) as job:
        code, remaining = job.end(500)
        assert code == 0, job.stderr[-2000:]
        assert any("VLLM" in title for title in job.titles) and remaining == []
        assert job.process.stdout is not None
        lines = (job.stderr + job.process.stdout.read()).replace("\r", "\n").splitlines()
    assert "\x1b" not in job.stderr  # a log file gets no control codes
    usage_lines = [line for line in lines if line.startswith("judge default:autoj-en:")]
    # Eight candidates with a text are rated, and the best of each query gets two critiques.
    assert len(usage_lines) == 1 and "14 of 14 judgements ok" in usage_lines[0]
    others = [line for line in lines if line not in usage_lines]
    assert not [line for line in others if re.search("raylet|serve|Token|GGUF", line, re.I)]
    selections = [
        json.loads(x) for x in (tmp_path / "out/selections.jsonl").read_text().splitlines()
    ]
    assert [s["line"] for s in selections] == [1, 3, 4] and selections[0]["extra"] == {"id": 7}
    assert len(selections[0]["ratings"]) == 4
    judged = [json.loads(x) for x in (tmp_path / "out/judgements.jsonl").read_text().splitlines()]
    rated = [j for j in judged if j["outcome"] == "ok"]
    assert [j["outcome"] for j in judged if j not in rated] == ["no_answer"]
    assert len(rated) == 8 and all(1 <= j["direct"] <= 10 for j in rated)
    assert [j["index"] for j in judged if j["critique"]] == [s["index"] for s in selections]
    assert all(1 <= s["expected"] <= 10 for s in selections)
    assert all(j["policy_logprob"] < 0 for j in judged[:4])
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [b["line"] for b in summary["bad_rows"]] == [2]
    assert "<html" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_two_signals_leave_no_engine(tmp_path: Path, number: signal.Signals) -> None:
    rows = [{"query": f"{n} Why?", "response": "because of light"} for n in range(2000)]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command = [sys.executable, "-m", "autoj_reward.cli", "score"]
    command += ["--input", str(source), "--output", str(output)]
    command += ["--set", "judge.max_model_len=2048", "--set", "judge.kv_cache_gib=0.5"]
    with Watched(command) as job:
        while not any("VLLM" in title for title in list(job.titles)):
            assert job.process.poll() is None, job.stderr[-2000:]
            time.sleep(0.2)
        for _ in range(2):
            job.process.send_signal(number)
            time.sleep(0.5)
        code, remaining = job.end()
        assert code != 0 and remaining == []
