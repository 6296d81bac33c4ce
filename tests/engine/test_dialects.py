"""`autoj score` on endpoints that answer as in the field; see `dialects.yaml`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.cli import main as cli
from autoj_reward.engine import endpoint as requests
from tests.engine.dialects import TINY_CHARS, RuledEndpoint, as_lines, user_text

DIALECTS: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "dialects.yaml").read_text(encoding="utf-8")
)
RESPONSES = ("A rose is a flower.", "An oak is a tree.", "A tulip is a flower.", "A daisy is one.")
OF_PYTHON = re.compile(
    r"Traceback|object has no|subscriptable|NoneType|list index|to unpack|literal for|KeyError"
)
"""Words of Python's own errors, which help no user."""


@pytest.fixture
def run_dialect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that scores four rows, and returns the exit code and the results."""
    monkeypatch.setattr(requests, "LONGEST_PAUSE_S", 0.01)
    (tmp_path / "in.jsonl").write_text(
        as_lines([{"query": "Name a flower.", "response": text} for text in RESPONSES]),
        encoding="utf-8",
    )
    endpoints: list[RuledEndpoint] = []

    def run(endpoint: RuledEndpoint, **judge: Any) -> tuple[int, list[dict[str, Any]]]:
        endpoints.append(endpoint)
        settings = {"kind": "openai", "model": "m", "base_url": endpoint.url} | judge
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump({"judge": settings}), encoding="utf-8")
        output = tmp_path / "out.jsonl"
        paths = ["--input", str(tmp_path / "in.jsonl"), "--output", str(output)]
        code = cli.main(["score", *paths, "--config", str(config)])
        # A run that ends early writes no results.
        lines = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
        return code, [json.loads(line) for line in lines]

    yield run
    for endpoint in endpoints:
        endpoint.close()


def find_last_judgement(endpoint: RuledEndpoint) -> dict[str, Any]:
    """Return the last request that was a judgement."""
    bodies = [body for _, body, _ in endpoint.requests]
    return [body for body in bodies if len(user_text(body)) >= TINY_CHARS][-1]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect["name"])
def test_a_dialect(
    dialect: dict[str, Any],
    run_dialect: Callable[..., Any],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    endpoint = RuledEndpoint(dialect["rules"])
    expected = dialect["expect"]
    code, rows = run_dialect(endpoint, **dialect.get("judge", {}))
    said = capfd.readouterr().err + caplog.text
    assert not OF_PYTHON.search(said + json.dumps(rows))
    assert expected.get("says", "") in said
    if "ends" in expected:
        assert code == 1 and expected["ends"] in said
        return
    assert [row["rating"] for row in rows] == expected["ratings"]
    # A run that judged nothing has failed.
    assert code == int(not any(expected["ratings"])), said
    for row in rows:
        if row["rating"] is None:
            assert expected["reason"] in row["reason"]
            assert expected.get("outcome", row["outcome"]) == row["outcome"]
    if "requests" in expected:
        assert len(endpoint.requests) == expected["requests"]
    body = find_last_judgement(endpoint)
    assert {name: body.get(name) for name in expected.get("sent", {})} == expected.get("sent", {})
    assert not set(expected.get("left_out", ())) & set(body)
