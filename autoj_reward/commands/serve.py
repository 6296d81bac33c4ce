"""`autoj serve`: a judge over HTTP, until SIGINT or SIGTERM."""

from __future__ import annotations

from autoj_reward.commands.flags import RUN, SET, STRICT_KEYS, calling

serve = calling("autoj_reward.edge.service:main", RUN, SET, STRICT_KEYS)
