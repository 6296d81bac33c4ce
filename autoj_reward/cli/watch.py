"""`autoj watch RUN`: a page over a run's record, on this machine alone."""

from __future__ import annotations

from autoj_reward.cli.flags import calling, flag

RUN = flag("path", metavar="RUN", help="output of best-of-n, score or train, or a journal")
PORT = flag("--port", type=int, default=8310, metavar="N", help="where it listens; 0: any free")

watch = calling("autoj_reward.watch.service:main", RUN, PORT)
