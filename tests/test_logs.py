"""Logs that nobody can flood."""

from __future__ import annotations

import logging
from typing import Any

from autoj_reward.logs import REQUEST, Sparing


def make_record(message: str, **facts: Any) -> logging.LogRecord:
    entry = logging.LogRecord("autoj_reward", logging.INFO, "", 0, message, (), None)
    if facts:
        entry.facts = facts
    return entry


def test_of_one_message_a_few_a_second_and_how_many_were_left_out() -> None:
    now = 10.5
    spare = Sparing(most=2, now=lambda: now)
    assert [spare.filter(make_record("refused")) for _ in range(5)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert spare.filter(make_record("another"))
    now = 13.0
    later = make_record("refused", status=401)
    assert spare.filter(later) and later.__dict__["facts"] == {"status": 401, "left_out": 3}
    after = make_record("refused")
    assert spare.filter(after) and "facts" not in after.__dict__


def test_every_request_has_its_line() -> None:
    spare = Sparing(most=1, now=lambda: 0.0)
    assert all(spare.filter(make_record(REQUEST)) for _ in range(100))


def test_messages_that_differ_in_their_details_are_one() -> None:
    spare = Sparing(most=1, now=lambda: 0.0)
    outcomes = [
        spare.filter(make_record(f"socket.accept() failed\nsocket: {n}")) for n in range(10)
    ]
    assert outcomes.count(True) == 1
