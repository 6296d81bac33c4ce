"""OpenRLHF: an agent for `--train.agent_func_path`, a reward file for `--reward.remote_url`.

Pass this file as either of them, and set AUTOJ_REWARD to the YAML file of a reward config (a
`RewardConfig`). Name a running service in it, since several workers load this file. Prefer the
agent: its exceptions end the run with their message. OpenRLHF swallows those of a reward file and
fails later, on the missing reward. The third way is a running service, with the name of the run and
the token in its URL: `--reward.remote_url http://RUN:TOKEN@127.0.0.1:8300/get_reward`.

OpenRLHF passes prompt and response as one decoded text with special tokens. Scores are the rewards
mapped to 0 to 1 by the judge's scale, as its dynamic filtering expects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from autoj_reward.trainer.parts import RewardSource
from autoj_reward.trainer.prompts import (
    NOTHING,
    Beside,
    ContextFields,
    candidate,
    prompt_turns,
    strip_end_token,
    strip_prompt,
)
from autoj_reward.trainer.rows import reward_model
from autoj_reward.trainer.shaping import Budgets
from autoj_reward.trainer.stats import row_figures
from autoj_reward.types import Candidate


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **_: Any
) -> dict[str, Any]:
    """Return the rewards of one row or many, for OpenRLHF. All values are float tensors [rows]."""
    import torch

    answer = asyncio.run(get_reward(reward_model(), queries, prompts, labels))
    return {
        "rewards": torch.tensor(answer["rewards"]),
        "scores": torch.tensor(answer["scores"]),
        "extra_logs": {name: torch.tensor(row) for name, row in answer["extra_logs"].items()},
    }


async def get_reward(
    model: RewardSource,
    queries: Sequence[str],
    prompts: Sequence[str],
    labels: Sequence[Any] | None = None,
    budgets: Budgets | None = None,
) -> dict[str, Any]:
    """Return the answer of `/get_reward`, as lists of one number per row.

    labels: reference answer or rubric of each row, as `label_row` reads them, for a judge that
    shows one. budgets: failure budgets of the calling run, if several share the model. Every row
    has the same extra_logs, since OpenRLHF joins rows by the names of the first. Failed judgements
    get the configured fallback, since None would crash the training. Raises BudgetExceeded when too
    many have failed. Malformed rubric items cost their row alone. Raises ConfigError for a single
    row if the config needs all responses of a query; OpenRLHF sends single rows since 0.9.1.
    """
    if not queries:
        return {"rewards": [], "scores": [], "extra_logs": {}}
    rows_beside = [
        model.fields.read(label_row(model.fields, label), "label") for label in labels or ()
    ]
    rows = zip(queries, prompts, rows_beside or [NOTHING] * len(queries), strict=True)
    candidates = [split(query, prompt, beside) for query, prompt, beside in rows]
    rewards = await model.rewards(candidates, budgets)
    numbers = model.numbers(rewards, candidates)
    figures = [row_figures(reward, model.parts) for reward in rewards]
    return {
        "rewards": numbers,
        "scores": [model.parts.share(row["judge_raw"]) for row in figures],
        "extra_logs": {name: [row[name] for row in figures] for name in figures[0]},
    }


def label_row(fields: ContextFields, label: Any) -> Mapping[str, Any]:
    """Return the row of context that a label holds.

    For a reward by rubric items, a label may be the items, or an object with `rubric` and, if
    given, `reference` and other fields; either one as JSON text or as data. Any other label is the
    reference. The items are read, and malformed ones named, by `ContextFields.read`.
    """
    names = next(
        (context_column.names for context_column in fields.asked if context_column.items), ()
    )
    value = label
    if names and isinstance(label, str):
        with suppress(ValueError, RecursionError):  # an answer that is no JSON, or nested too deep
            value = json.loads(label)
    if names and isinstance(value, list):
        return {names[0]: value}
    if isinstance(value, Mapping) and any(name in value for name in names):
        return value
    return {"label": label}


def split(query: str, prompt: str, beside: Beside = NOTHING) -> Candidate:
    """Return the candidate in a decoded text that begins with its prompt.

    The query is what the user says in the prompt. The candidate is unusable if the text does not
    begin with the prompt.
    """
    response = strip_prompt(query, prompt)
    if response is not None:
        return candidate(prompt_turns(prompt), strip_end_token(response), beside)
    reason = (
        f"the text {query[:40]!r} does not open with its prompt {prompt[:40]!r} or an end of it, "
        "so its response is unknown: give prompt and text as the same tokenizer decodes them"
    )
    return replace(candidate(prompt_turns(prompt), query, beside), unusable=reason)


def __getattr__(name: str) -> Any:
    # Made on first use: a service that answers /get_reward does not need OpenRLHF.
    if name == "AgentExecutor":
        return _make_agent_executor()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _make_agent_executor() -> type:
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    class AgentExecutor(SingleTurnAgentExecutor):
        """OpenRLHF's single-turn agent, rewarded where exceptions are not swallowed."""

        async def execute(self, prompt: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
            output: dict[str, Any] = await super().execute(prompt, *args, **kwargs)
            tokenizer = kwargs["hf_tokenizer"]
            [(start, end)] = output["action_ranges"]
            response = tokenizer.decode(
                output["observation_tokens"][start:end], skip_special_tokens=False
            )
            answer = await get_reward(
                reward_model(), [prompt + response], [prompt], [output.get("label")]
            )
            figures = {name: row[0] for name, row in answer["extra_logs"].items()}
            [reward], [share] = answer["rewards"], answer["scores"]
            return output | {"reward": reward, "scores": share, "extra_logs": figures}

    return AgentExecutor
