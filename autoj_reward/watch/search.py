"""Queries in order, and those that hold a text: looked for in the journals, a stretch at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from autoj_reward.journal.reading import Entry
from autoj_reward.watch.index import Filter
from autoj_reward.watch.run import Run

SECONDS = 1.0
"""How long one question may look before it says how far it came."""
STRETCH = 25
"""Queries that are taken at a time."""
MOST = 5000
"""Judgements of one query that are looked through."""


class Found(NamedTuple):
    """Queries that hold the text. next: where to go on; None when all have been looked through."""

    rows: list[dict[str, Any]]
    next: int | None


def search(run: Run, wanted: Filter, text: str, start: int, most: int) -> Found:
    """So many queries from the start-th on whose query, response or critique holds the text, in
    whatever case; all of them hold an empty one."""
    if not text:
        rows = _queries(run, wanted, start, most)
        return Found(rows, start + most if len(rows) == most else None)
    until, found, needle = time.monotonic() + SECONDS, list[dict[str, Any]](), text.casefold()
    while time.monotonic() < until:
        stretch = _queries(run, wanted, start, STRETCH)
        for row in stretch:
            start += 1
            if _holds(run, row["id"], needle):
                found.append(row)
            if len(found) == most:
                return Found(found, start)
        if len(stretch) < STRETCH:
            return Found(found, None)
    return Found(found, start)


def _queries(run: Run, wanted: Filter, start: int, most: int) -> list[dict[str, Any]]:
    with run.lock:
        return run.index.queries(wanted, start, most)


def _holds(run: Run, asked: int, needle: str) -> bool:
    with run.lock:
        places = run.index.places(asked, MOST)
    for n in range(0, len(places), 200):
        if any(
            needle in text.casefold() for text in _texts(run.texts(places[n : n + 200]).values())
        ):
            return True
    return False


def _texts(entries: Iterable[Entry]) -> Iterable[str]:
    for entry in entries:
        yield from entry.item.untrusted
        yield from (entry.judgement.critique, entry.judgement.thinking, entry.judgement.reason)
