"""`autoj serve`: a judge over HTTP, until SIGINT or SIGTERM."""

from __future__ import annotations

from autoj_reward.commands.flags import RUN, SET, calling

serve = calling("autoj_reward.edge.service:main", RUN, SET)
