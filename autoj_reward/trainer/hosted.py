"""Reward model whose judge the trainer hosts itself: an OpenAI-compatible server behind a router.

The trainer starts, wakes and stops the judge; nothing is started here. The reward config says how
the judge is read: format, view, scale, failures, shaping. The rest is filled in: the served model's
name and context length, and its tokenizer, so that prompts are sent as token ids.
"""

from __future__ import annotations

import json
import time
from functools import cache
from http.client import HTTPException
from typing import Any
from urllib.request import urlopen

from autoj_reward.config import RewardConfig, load_config
from autoj_reward.errors import ConfigError, EngineUnavailable
from autoj_reward.io.http import error_text
from autoj_reward.logs import LOG
from autoj_reward.models.unused import load_run
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import reward_file

ENGINE_KEYS = (
    "kind",
    "base_url",
    "api_key_env",
    "api_key_file",
    "api_key_command",
    "tokenizer",
)
"""Keys of a judge that name its engine."""
ANSWER_S = 10.0
"""Timeout in seconds of one request for the model's name."""
PAUSE_S = 0.5
"""Seconds between two such requests."""


@cache
def hosted_reward_model(router: str, tokenizer: str) -> RewardModel:
    """Return this process's reward model of the judge behind a router, built once.

    The config is that of the file in AUTOJ_REWARD. The judge itself opens at the first reward; a
    judge that sleeps is not woken here.

    router: host and port. tokenizer: folder or hub name of the served model's tokenizer. Raises
    ConfigError if the config names another judge, a longer context than the served one, or has
    another fault; EngineUnavailable if the router does not answer before `judge.serve.deadline_s`.
    """
    path = reward_file()
    config = load_config(RewardConfig, path)
    _require_no_engine(config)
    judge, url = config.judge, f"http://{router}/v1"
    deadline_s = judge.serve.deadline_s
    name, context_tokens = read_served_model(url, deadline_s)
    _require_served(config, name, context_tokens)
    engine: dict[str, Any] = {
        "kind": "openai",
        "base_url": url,
        "model": name,
        "tokenizer": tokenizer,
        # Workers ask all at once, so the first answer may wait behind the others' batches.
        "start_s": deadline_s,
        "max_model_len": context_tokens or judge.max_model_len,
    }
    filled_in = {key: value for key, value in engine.items() if key not in judge.model_fields_set}
    sets = [
        f"judge.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in filled_in.items()
    ]
    return RewardModel(load_run(RewardConfig, path, sets))


def read_served_model(base_url: str, deadline_s: float) -> tuple[str, int | None]:
    """Return the name and the context length in tokens of the first model that a server lists.

    The length is None if the server does not state it. Raises EngineUnavailable if there is no
    answer within `deadline_s`.
    """
    url, deadline, has_warned = f"{base_url}/models", time.monotonic() + deadline_s, False
    while True:
        try:
            with urlopen(url, timeout=ANSWER_S) as reply:
                model = json.load(reply)["data"][0]
                return str(model["id"]), model.get("max_model_len")
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            problem = error_text(error)
        if time.monotonic() + PAUSE_S >= deadline:
            raise EngineUnavailable(f"{url}: no answer within {deadline_s:g} s; last: {problem}")
        if not has_warned:
            LOG.warning("%s: no answer (%s): retrying for up to %g s", url, problem, deadline_s)
            has_warned = True
        time.sleep(PAUSE_S)


def _require_no_engine(config: RewardConfig) -> None:
    """Raise ConfigError if the main judge names an engine or a service of its own."""
    conflicting_keys = [
        f"judge.{key}" for key in ENGINE_KEYS if key in config.judge.model_fields_set
    ]
    if config.service:
        conflicting_keys.append("service")
    if conflicting_keys:
        raise ConfigError(
            f"the trainer hosts the judge, and the reward config names another engine by "
            f"{' and '.join(conflicting_keys)}: leave that out, or let the trainer host no judge "
            "(verl: reward.reward_model.enable=False)"
        )


def _require_served(config: RewardConfig, name: str, context_tokens: int | None) -> None:
    """Raise ConfigError if the judge names another model than the served one, or a longer
    context."""
    judge = config.judge
    if "model" in judge.model_fields_set and judge.model != name:
        raise ConfigError(
            f"judge.model is {judge.model}, and the trainer hosts {name}: leave judge.model out, "
            "and name the format in judge.format"
        )
    max_model_len = judge.max_model_len
    if (
        "max_model_len" in judge.model_fields_set
        and context_tokens
        and max_model_len > context_tokens
    ):
        raise ConfigError(
            f"judge.max_model_len is {max_model_len}, and the hosted judge takes {context_tokens} "
            "tokens: leave it out, or raise the limit of the hosted judge (verl: "
            "reward.reward_model.rollout.max_model_len)"
        )
