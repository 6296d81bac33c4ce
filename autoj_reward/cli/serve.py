"""`autoj serve`: a judge over HTTP, until SIGINT or SIGTERM."""

from __future__ import annotations

from autoj_reward.cli.flags import RUN, SET, STRICT_KEYS, calling

serve = calling("autoj_reward.service.serve:main", RUN, SET, STRICT_KEYS)
