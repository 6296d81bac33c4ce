"""`autoj serve`: a judge over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from autoj_reward.commands.flags import RUN, SET, command


@command(RUN, SET)
def serve(config: str, sets: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM."""
    from autoj_reward.edge.service import main

    return main(config, sets)
