"""The wall clock may jump: it dates records, and no deadline, pause or duration goes by it."""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.config import JudgeConfig
from autoj_reward.journal import Journal
from autoj_reward.models.spec import judge_spec
from autoj_reward.service.api import make_app
from autoj_reward.service.gateway import Limits
from autoj_reward.types import Candidate, Judgement, Outcome
from tests.clock import VirtualClock, measure

ROOT = Path(__file__).parents[1]
HOURS = 6 * 3600.0
DATED = {
    "autoj_reward/journal/__init__.py",
    "autoj_reward/data/teacher.py",
    "autoj_reward/service/trainers.py",
    "autoj_reward/io/http.py",
    "autoj_reward/models/identity.py",
    "autoj_reward/watch/answers.py",
    "experiments/upstream.py",
}
"""Files that write down when something was stored or answered, or ask how long ago
that was."""
CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}


def find_clock_uses(text: str) -> Iterator[str]:
    """Every use of the wall clock, however the module's names are imported."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            yield from {".".join(ast.unparse(node).split(".")[-2:])} & CLOCKS
        elif isinstance(node, ast.ImportFrom):
            yield from {f"{node.module}.{alias.name}" for alias in node.names} & CLOCKS


def test_the_wall_clock_is_found() -> None:
    text = "import time, datetime\nfrom time import time\ntime.time()\ndatetime.datetime.now()"
    assert sorted(find_clock_uses(text)) == ["datetime.now", "time.time", "time.time"]
    assert list(find_clock_uses("import time\ntime.monotonic()\nfrom datetime import date")) == []


def test_only_records_are_dated_by_the_wall_clock() -> None:
    users = {
        str(path.relative_to(ROOT))
        for folder in ("autoj_reward", "rollouts", "experiments")
        for path in (ROOT / folder).rglob("*.py")
        if any(find_clock_uses(path.read_text(encoding="utf-8")))
    }
    assert users == DATED


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that is hours late, then hours early, from one look to the next."""
    now, jumps = time.time, itertools.cycle((-HOURS, HOURS, HOURS, -HOURS))
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))


def make_backend(**script: object) -> LocalBackend:
    return LocalBackend(judge_spec(JudgeConfig(kind="fake", script=script)))


@pytest.mark.usefixtures("jumping")
def test_deadlines_and_pauses_keep_while_the_clock_jumps(
    tmp_path: Path, virtual_clock: VirtualClock
) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    candidates = [Candidate("q", r) for r in ("a", "hang", "ccc")]

    async def rate() -> tuple[Sequence[Judgement], float, Sequence[Judgement]]:
        backend = make_backend(fail={"hang": "hang"}, latency_s=0.05)
        client = JudgeClient(backend, journal=journal, limits=ClientLimits(deadline_s=5.0, chunk=1))
        judgements, seconds = await measure(client.rate(candidates))
        again = await JudgeClient(backend, journal=journal).rate(candidates[:1])
        return judgements, seconds, again

    (first, hung, last), seconds, again = virtual_clock.run(rate())
    assert seconds == pytest.approx(5.0)
    assert first.ok and last.ok and hung.outcome is Outcome.UNAVAILABLE
    assert first.usage.latency_s == pytest.approx(0.05)
    # Whatever the dates say, a later run finds what is stored.
    assert again == [first]
    assert len(list(journal.export())) == 3
    journal.close()


@pytest.mark.usefixtures("jumping")
def test_the_service_answers_in_time_while_the_clock_jumps(virtual_clock: VirtualClock) -> None:
    async def list_statuses() -> list[int]:
        backend = make_backend(fail={"hang": "hang"}, latency_s=0.05)
        app = make_app(JudgeClient(backend), "secret", Limits(deadline_s=5.0, body_s=5.0))
        statuses = []
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app.guard),
            base_url="http://service",
            headers={"Authorization": "Bearer secret"},
        ) as http:
            for response in ("a", "hang", "ccc"):
                body = {"candidates": [{"query": "q", "response": response}]}
                statuses.append((await http.post("/v1/score", json=body)).status_code)
        return statuses

    assert virtual_clock.run(list_statuses()) == [200, 504, 200]
