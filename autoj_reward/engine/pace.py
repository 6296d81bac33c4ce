"""Requests and tokens a minute, for endpoints whose accounts are limited."""

from __future__ import annotations

import asyncio
import time

from autoj_reward.processes import processes

MINUTE_S = 60.0


class Pace:
    """Lets requests through as fast as the limits allow, evenly over the minute.

    The processes of one run divide the limits between them.
    """

    def __init__(self, requests: float | None, tokens: float | None) -> None:
        """requests, tokens: most of them a minute; None: no limit."""
        share_s = MINUTE_S * processes()
        self._request_s = share_s / requests if requests else 0.0
        self._token_s = share_s / tokens if tokens else 0.0
        self._free_at = 0.0

    async def take(self, tokens: int) -> None:
        """Wait for the turn of a request that may cost so many tokens."""
        if not (self._request_s or self._token_s):
            return
        now = time.monotonic()
        turn = max(now, self._free_at)
        self._free_at = turn + max(self._request_s, tokens * self._token_s)
        await asyncio.sleep(turn - now)

    def correct(self, expected: int, spent: int | None) -> None:
        """Give back what a request did not cost. spent: tokens; None where it is not told."""
        if spent is not None and spent < expected:
            over = max(self._request_s, expected * self._token_s)
            self._free_at -= over - max(self._request_s, spent * self._token_s)
