"""TRL PPO: a judge in place of the reward model of the stock PPOTrainer.

    reward_model = PPOReward(reward, tokenizer, prompts)
    trainer = PPOTrainer(..., reward_model=reward_model, train_dataset=prompts)

PPOTrainer passes token ids and reads a score at one token of each row. This module decodes the ids
and finds the row's prompt among those of the dataset. It asks the judge, and puts the reward on
every token of the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from autoj_reward.conversation import show
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.trainer.prompts import Turn, candidate, query_text, refuse_needed
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.shaping import refuse_groups
from autoj_reward.trainer.stats import batch_metrics, tag_metrics
from autoj_reward.types import Candidate


class PPOReward(nn.Module):
    """A reward model for `trl.experimental.ppo.PPOTrainer`, without a network of its own.

    tokenizer: the policy's. Its pad token must differ from its end-of-sequence token.
    prompts: {token ids of a prompt as in the dataset, without padding: the prompt, as text or
        messages}; `prompt_table` makes it.

    The judge reads a response up to its first pad or end token, where TRL masks it. A query may
    contain these tokens. The attribute `figures` holds the `judge/…` metrics of the last batch, for
    a callback to log. Failed judgements get the configured fallback; BudgetExceeded is raised when
    too many fail. Raises ConfigError for equal pad and end tokens and for prompts that cannot be
    told apart. Raises it too for a config that needs several responses of a query at once.
    """

    base_model_prefix = "judge"

    def __init__(
        self, model: RewardModel, tokenizer: Any, prompts: Mapping[tuple[int, ...], Turn]
    ) -> None:
        super().__init__()
        refuse_groups(model.config, "PPO samples one response of a query")
        refuse_needed(model.fields, "PPO hands over token ids without the dataset's columns")
        if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
            raise ConfigError(
                f"the tokenizer's pad token is {tokenizer.pad_token!r} and its end of sequence "
                f"{tokenizer.eos_token!r}: PPO finds the end of a response by its padding, so give "
                "the tokenizer a pad token of its own (SmolLM2: <|endoftext|>)"
            )
        self.config = SimpleNamespace(model_type="judge", num_labels=1)
        self.judge = _Judge(model, tokenizer, _Prompts(prompts, tokenizer.pad_token_id))
        self.score = nn.Identity()

    @property
    def figures(self) -> dict[str, float]:
        """Return the metrics of the last batch; see `batch_metrics` and `tag_metrics`."""
        return self.judge.figures


class _Judge(nn.Module):
    """Backbone of the reward model: maps token ids to the reward, as a hidden state of size 1."""

    def __init__(self, model: RewardModel, tokenizer: Any, prompts: _Prompts) -> None:
        super().__init__()
        self._model, self._tokenizer, self._prompts = model, tokenizer, prompts
        self.figures: dict[str, float] = {}
        # Distributed wrappers refuse a module without parameters.
        self.unused = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        """Return the row's reward at every token, as `hidden_states` ([batch, length, 1]
        float32,)."""
        # TRL replaces every pad token by 0, also in prompts.
        rows = input_ids.masked_fill(~attention_mask.bool(), self._tokenizer.pad_token_id)
        candidates = [self._read_candidate(row) for row in rows.tolist()]
        rewards = self._model.rewards_now(candidates)
        figures = batch_metrics(rewards, candidates, self._model.config)
        self.figures = figures | tag_metrics(rewards)
        numbers = self._model.numbers(rewards, candidates)
        state = torch.tensor(numbers, dtype=torch.float32, device=input_ids.device)
        return SimpleNamespace(hidden_states=(state[:, None, None].expand(*input_ids.shape, 1),))

    def _read_candidate(self, ids: list[int]) -> Candidate:
        prompt, rest = self._prompts.find(ids)
        ends = (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id)
        response = list(takewhile(lambda token: token not in ends, rest))
        return candidate(prompt, self._tokenizer.decode(response, skip_special_tokens=True))


class _Prompts:
    """The dataset's prompts by their token ids. Raises ConfigError if one begins with another."""

    def __init__(self, padded_prompts: Mapping[tuple[int, ...], Turn], pad: int) -> None:
        if not padded_prompts:
            raise ConfigError("PPOReward needs the prompts of the dataset")
        self._pad = pad
        self._prompts = prompts = index_by_ids(
            (self._strip_padding(ids), prompt) for ids, prompt in padded_prompts.items()
        )
        self._lengths = sorted({len(ids) for ids in prompts}, reverse=True)
        ordered = sorted(prompts)
        for shorter, longer in pairwise(ordered):
            if longer[: len(shorter)] == shorter:
                raise ConfigError(
                    "one prompt is the beginning of another, so a response cannot be told from a "
                    f"longer prompt: {_describe_prompt(prompts[shorter])!r:.80} and "
                    f"{_describe_prompt(prompts[longer])!r:.80}. Use a chat template, which ends "
                    "prompts"
                )

    def find(self, row: Sequence[int]) -> tuple[Turn, Sequence[int]]:
        """Return the prompt that a row begins with after its padding, and the token ids after it.

        Raises InputError if there is none.
        """
        ids = self._strip_padding(row)
        for length in self._lengths:
            prompt = self._prompts.get(tuple(ids[:length]))
            if prompt is not None:
                return prompt, ids[length:]
        raise InputError(
            f"no prompt of the dataset opens this row of {len(ids)} tokens: give PPOReward the "
            "prompts with the ids of train_dataset and eval_dataset"
        )

    def _strip_padding(self, ids: Sequence[int]) -> Sequence[int]:
        start = next((i for i, token in enumerate(ids) if token != self._pad), len(ids))
        return ids[start:]


def prompt_table(
    rows: Iterable[Mapping[str, Any]], prompts: Sequence[Turn] | str = "prompt"
) -> dict[tuple[int, ...], Turn]:
    """Return {token ids: prompt} of the dataset that PPO trains on. It asks no judge.

    rows: the tokenized dataset, or any rows with `input_ids`. prompts: the column that holds each
    row's prompt, as text or messages, or the prompts themselves, in the order of the rows. Raises
    ConfigError for rows without ids or without prompts, and as `index_by_ids`.
    """
    ids = []
    column = []
    for number, row in enumerate(rows):
        ids.append(_read_ids(row, number))
        if isinstance(prompts, str):
            if row.get(prompts) is None:
                raise ConfigError(
                    f"row {number} of the dataset has no {prompts!r} (it has {', '.join(row)}): "
                    "name the column that holds the prompt, or give the prompts, one for each row"
                )
            column.append(row[prompts])
    given = column if isinstance(prompts, str) else list(prompts)
    if len(given) != len(ids):
        raise ConfigError(
            f"{len(given)} prompts for {len(ids)} rows: give the prompt of each row, in their order"
        )
    return index_by_ids(zip(ids, given, strict=True))


def _read_ids(row: Mapping[str, Any], number: int) -> list[int]:
    ids: Any = row.get("input_ids")
    # A dataset may give tensors or arrays, whose elements are no keys.
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    if not isinstance(ids, Sequence) or not all(isinstance(token, int) for token in ids):
        raise ConfigError(
            f"row {number} of the dataset has no list of token ids in input_ids (it has "
            f"{', '.join(row)}): tokenize the prompts first, as PPOTrainer needs them"
        )
    return list(ids)


def index_by_ids(pairs: Iterable[tuple[Sequence[int], Turn]]) -> dict[tuple[int, ...], Turn]:
    """Return {token ids: prompt}. Raises ConfigError for two prompts with the same ids."""
    table: dict[tuple[int, ...], Turn] = {}
    for ids, prompt in pairs:
        stored_prompt = table.setdefault(tuple(ids), prompt)
        if stored_prompt is prompt:
            continue
        stored_text = _describe_prompt(stored_prompt)
        text = _describe_prompt(prompt)
        if stored_text != text:
            raise ConfigError(
                "two prompts have the same token ids, so a response cannot be told to be of one: "
                f"{stored_text!r:.80} and {text!r:.80}. Leave one out, "
                "and do not cut prompts to a length before they differ"
            )
    return table


def _describe_prompt(prompt: Turn) -> str:
    """Return a prompt as text, a malformed one too: it costs its own rows when they are judged."""
    try:
        return query_text(prompt)
    except InputError:
        return show(prompt)
