from __future__ import annotations

import random

import pytest

from autoj_reward.io.backoff import Backoff


@pytest.mark.parametrize("jitter", [0.5, 1.0, 1.5])
def test_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch, jitter: float) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: jitter)
    backoff = Backoff(0.5, 3.0)
    pauses = [backoff.next_s() for _ in range(5)]
    assert pauses == [jitter * seconds for seconds in (0.5, 1, 2, 3, 3)]


def test_a_server_that_asks_for_more_gets_more_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: 1.0)
    backoff = Backoff(1.0, 30.0)
    assert [backoff.next_s(least_s=60.0), backoff.next_s(), backoff.next_s()] == [60.0, 2.0, 4.0]


def test_a_lower_limit_holds_the_next_pauses_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: 1.0)
    backoff = Backoff(8.0, 30.0)
    assert [backoff.next_s(longest_s=4.0), backoff.next_s(), backoff.next_s()] == [4.0, 8.0, 16.0]
