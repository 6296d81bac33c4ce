"""verl: a reward manager that needs no dataset column, and reward functions for verl's managers.

`JudgeRewardManager` reads the prompt from the rollout (`raw_prompt`), else from `extra_info`. The
response is the decoded tokens; for `judge.shows` an agent loop puts the messages of the whole
rollout into `extra_fields["messages"]` of its output. Set
`reward.reward_manager.source=importlib`, `module.path=PATH/TO/this/file.py` and
`name=JudgeRewardManager`. Use it in place of verl's rate_limited too: the judge's service limits
requests in flight itself.

The functions (`reward.custom_reward_function.path=PATH/TO/this/file.py` and their `name`) get no
prompt. So put the query into the dataset's `extra_info`, as text or messages, under `query` or the
name in `reward_kwargs.query_key`:

    compute_score          naive, dapo
    compute_score_sync     remote, which takes no coroutine
    compute_score_limited  rate_limited, which turns every exception into a reward of 0.0

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`). The judge is the model that
verl hosts (`reward.reward_model.enable=True`), else name a running service in the file, since verl
loads it in several workers. verl asks the manager for a hosted judge only if
`reward.custom_reward_function.path` is set too. With `JudgeRewardManager` a service gathers the
groups of relative rewards: the rollouts of one `uid`, whichever worker rewards them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from autoj_reward.errors import AutojError, ConfigError, InputError
from autoj_reward.trainer.hosted import hosted_reward_model
from autoj_reward.trainer.prompts import Turn, candidate
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import reward_model
from autoj_reward.trainer.shaping import refuse_groups
from autoj_reward.trainer.stats import row_figures

ALONE = "verl asks for one response a call, and tells its group to JudgeRewardManager alone"
"""Reason for refusing settings that need groups."""
LOG = logging.getLogger("autoj_reward.trainer")


async def compute_score(
    data_source: Any,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    query_key: str = "query",
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
    **_: Any,
) -> dict[str, float]:
    """Return the reward of one response, and the judge's metrics.

    reward_router_address, reward_model_tokenizer: of the judge that verl hosts, if it hosts one.

    The judge shows `ground_truth` as the reference, and `extra_info` as other context. Failed
    judgements get the configured fallback. The keys are always the same, and every value is finite.
    Raises BudgetExceeded when too many judgements of this worker have failed. Raises InputError if
    `extra_info` has no query, ConfigError if the config needs the other responses of a query.
    """
    about = {"ground_truth": ground_truth, **(extra_info or {})}
    model = _find_model(reward_router_address, reward_model_tokenizer)
    return await score(model, solution_str, about, query_key)


def compute_score_sync(*args: Any, **kwargs: Any) -> dict[str, float]:
    """Return the reward as `compute_score` does, for callers without an event loop."""
    return asyncio.run(compute_score(*args, **kwargs))


async def compute_score_limited(*args: Any, **kwargs: Any) -> dict[str, float | None]:
    """Return the reward as `compute_score` does, with the score None in place of an exception.

    The exception is logged. verl then has no rewards for the batch, which ends the run; from the
    exception it would make a reward of 0.0.
    """
    try:
        return dict(await compute_score(*args, **kwargs))
    except AutojError as error:
        LOG.error("no reward, which ends the run: %s", error)
        return {"score": None}


def _find_model(router: str | None, tokenizer: Any) -> RewardModel:
    """Return this process's reward model: of the judge that verl hosts, else of the config."""
    return reward_model() if router is None else hosted_reward_model(router, tokenizer.name_or_path)


async def score(
    model: RewardModel,
    completion: Turn,
    about: Mapping[str, Any],
    query_key: str,
    group_id: str | None = None,
    group_size: int | None = None,
    text: str | None = None,
) -> dict[str, float]:
    """Return the result of `compute_score` from a given reward model.

    about: `extra_info` and `ground_truth`. query_key: the key of the query in it. group_id and
    group_size: the group of the response, for relative rewards. text: what a judge reads by default
    of a completion of several turns.
    """
    refuse_groups(model.config, ALONE, gathered=group_size is not None)
    query = about.get(query_key)
    if query is None:
        raise InputError(
            f"extra_info has no {query_key!r} (it has {sorted(set(about) - {'ground_truth'})}): "
            "put the query there when the dataset is made, or name its key in "
            "reward_kwargs.query_key"
        )
    context = model.fields.try_read(about, "ground_truth")
    ungrouped_candidate = candidate(query, completion, context, "assistant", text)
    candidates = [replace(ungrouped_candidate, group_id=group_id, group_size=group_size)]
    [reward] = await model.rewards(candidates)
    [number] = model.numbers([reward], candidates)
    return {"score": number} | row_figures(reward, model.parts)


try:
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
except ModuleNotFoundError:

    class RewardManagerBase:  # type: ignore[no-redef]
        """Stand-in for verl's base class, for imports where verl is not installed."""

        def __init__(self, config: Any, tokenizer: Any, compute_score: Any) -> None:
            self.config, self.tokenizer, self.compute_score = config, tokenizer, compute_score


class JudgeRewardManager(RewardManagerBase):
    """Reward manager of verl: returns the reward and the judge's metrics of one rollout."""

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
        **_: Any,
    ) -> None:
        super().__init__(config, tokenizer, compute_score)
        hosted = reward_router_address is not None
        if hosted and not config.reward.custom_reward_function.path:
            raise ConfigError(
                "reward.custom_reward_function.path is not set, so verl would read the model that "
                "it hosts as a scalar reward model and never ask this manager: set it to this file"
            )
        self._model = _find_model(reward_router_address, reward_model_tokenizer)
        reward_config = self._model.config
        refuse_groups(reward_config, ALONE, gathered=not hosted)
        relative = any(judged_config.relative for judged_config in reward_config.judged.values())
        self._group_size = _read_group_size(config) if relative else None

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Return the reward of one rollout, and the metrics as `reward_extra_info`.

        data: a DataProto of one rollout, with responses padded on the right. Of several sequences
        the last is rewarded, as in verl's own managers. Raises what `compute_score` raises.
        """
        row = data[len(data) - 1]
        ids = row.batch["responses"]
        length = int(row.batch["attention_mask"][-len(ids) :].sum())
        response = self.tokenizer.decode(ids[:length], skip_special_tokens=True)
        completion: Turn = response
        fields = row.non_tensor_batch
        truth = (fields.get("reward_model") or {}).get("ground_truth")
        about = {"ground_truth": truth, **(fields.get("extra_info") or {})}
        prompt = fields.get("raw_prompt")
        if prompt is not None:
            about["query"] = prompt
            messages = (fields.get("tool_extra_fields") or {}).get("messages")
            if isinstance(messages, Iterable) and not isinstance(prompt, str):
                completion = list(messages)[len(prompt) :]
        group_id = None
        if self._group_size is not None:
            group_id = fields.get("uid")
            if group_id is None:
                raise InputError(
                    f"this rollout has no uid (it has {sorted(fields)}), so its group is unknown: "
                    "use one of verl's trainers that set it, or leave `relative` out"
                )
        result = await score(
            self._model,
            completion,
            about,
            "query",
            group_id and str(group_id),
            self._group_size,
            response,
        )
        return {"reward_score": result["score"], "reward_extra_info": result}


def _read_group_size(config: Any) -> int:
    """Return the number of rollouts of a group, from verl's whole config.

    Raises ConfigError for groups of one, and for a validation with groups of another size: a reward
    manager does not see which rollouts are of the validation.
    """
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    size = int(rollout.n)
    if size < 2:
        raise ConfigError(
            f"actor_rollout_ref.rollout.n is {size}, and relative rewards compare the rollouts of "
            "a prompt: set it to 2 or more, or leave `relative` out"
        )
    validates = trainer.get("val_before_train", True) or trainer.get("test_freq", -1) > 0
    if validates and rollout.val_kwargs.n != size:
        raise ConfigError(
            f"actor_rollout_ref.rollout.val_kwargs.n is {rollout.val_kwargs.n} and rollout.n is "
            f"{size}: relative rewards need groups of one size, so set both to the same number, or "
            "set trainer.val_before_train to False and trainer.test_freq to -1"
        )
    return size
