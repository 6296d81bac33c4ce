from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput
from tests.judgements import rated

JUDGE = "default:autoj-en:9e0094f1c595f786"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "journal.sqlite"
    journal = Journal(file)
    for n in range(10):
        judgement = rated(n + 1, critique=f"critique {n}", judge=JUDGE)
        journal.put(JUDGE, JudgeInput("single", "q", (f"r{n}",)), judgement)
    journal.close()
    return file


def test_stats_export_and_compact(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def export(name: str) -> list[dict]:
        out = path.parent / name
        assert cli.main(["journal", "export", str(path), "--output", str(out)]) == 0
        return [json.loads(line) for line in out.read_text(encoding="ascii").splitlines()]

    before = export("before.jsonl")
    assert len(before) == 10 and {record["judge"] for record in before} == {JUDGE}
    assert cli.main(["journal", "compact", str(path)]) == 0
    assert "bytes before" in capsys.readouterr().out
    assert export("after.jsonl") == before
    assert cli.main(["journal", "stats", str(path)]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert (stats["judgements"], stats["by_judge"]) == (10, {JUDGE: {"ok": 10}})
    assert stats["bytes"] == path.stat().st_size
    assert stats["oldest"] == before[0]["at"] and stats["newest"] == before[-1]["at"]


@pytest.mark.parametrize(
    "words", [["stats"], ["export", "--output", "out.jsonl"], ["compact"]], ids=lambda w: w[0]
)
def test_a_journal_that_is_not_there_is_named_and_not_made(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal.sqlite"
    assert cli.main(["journal", words[0], str(path), *words[1:]]) == 1
    assert f"no journal at {path}: name the file" in capsys.readouterr().err
    assert not path.exists()
