"""Passes over outputs that share their prompts: a prompt is computed once for all its outputs.

A judge's prompt holds two responses and is often many times longer than a brief output. GRPO has
several outputs to each prompt, so most of a step would go into computing prompts again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from trl.models import unwrap_model_for_generation

WORTH = 0.7
"""Share of the tokens that a packed pass may have at most, to be worth its mask."""
LAST = torch.tensor([-1])
"""Place of a row's last token, for `logits_to_keep`. By an index the model copies the hidden state;
for a number it takes a slice, which a CPU multiplies a hundred times slower in bfloat16."""


def pad_left(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Return token ids and attention mask of rows padded on the left, int64 [rows, longest]."""
    size = max(map(len, rows))
    ids = torch.full((len(rows), size), pad)
    mask = torch.zeros(len(rows), size, dtype=torch.long)
    for n, row in enumerate(rows):
        ids[n, size - len(row) :] = torch.tensor(row)
        mask[n, size - len(row) :] = 1
    return ids, mask


def generate(
    trainer: Any,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    size: int,
    repeats: int = 1,
) -> list[list[int]]:
    """Return outputs to prompts, up to their stop token, by the model in training.

    prompts: token ids. config: has a list of stop tokens. size: prompts in a pass. repeats: outputs
    to each prompt, which stand one after the other. All processes give as many prompts, since FSDP
    has them compute together.
    """
    outputs: list[list[int]] = []
    with _open_model(trainer) as model:
        for start in range(0, len(prompts), size):
            outputs += _generate_repeatedly(model, prompts[start : start + size], repeats, config)
    return outputs


def _generate_repeatedly(
    model: Any, prompts: Sequence[Sequence[int]], count: int, config: GenerationConfig
) -> list[list[int]]:
    """Return `count` outputs to each prompt."""
    padded_ids, padded_mask = pad_left(prompts, config.pad_token_id)
    ids = padded_ids.to(model.device)
    mask = padded_mask.to(model.device)
    options: dict[str, Any] = {}
    if count > 1 and ids.shape[1] > 1:
        # All but the last token: generation reads that itself, to have logits to begin with.
        begun = model(
            input_ids=ids[:, :-1],
            attention_mask=mask[:, :-1],
            position_ids=(mask[:, :-1].cumsum(-1) - 1).clamp_min(0),
            use_cache=True,
            logits_to_keep=LAST,
        )
        begun.past_key_values.batch_repeat_interleave(count)
        options["past_key_values"] = begun.past_key_values
    whole = model.generate(
        input_ids=ids.repeat_interleave(count, 0),
        attention_mask=mask.repeat_interleave(count, 0),
        generation_config=config,
        logits_to_keep=LAST,
        **options,
    )
    return [_cut_after(row, config.eos_token_id) for row in whole[:, ids.shape[1] :].tolist()]


@contextmanager
def _open_model(trainer: Any) -> Iterator[Any]:
    """Yield the trainer's model, whole and ready to generate."""
    was_training = trainer.model.training
    trainer.model.eval()
    with ExitStack() as stack:
        model = stack.enter_context(
            unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator)
        )
        stack.enter_context(torch.no_grad())
        # As in the training pass, autocast narrows what a LoRA adapter reads.
        stack.enter_context(trainer.accelerator.autocast())
        stack.enter_context(_without_generation_defaults(model))
        if trainer.is_fsdp_enabled:
            from torch.distributed.fsdp import FullyShardedDataParallel

            wrapped = trainer.model_wrapped
            stack.enter_context(FullyShardedDataParallel.summon_full_params(wrapped, recurse=False))
        yield model
    trainer.model.train(was_training)


@contextmanager
def _without_generation_defaults(model: Any) -> Iterator[None]:
    """Take away the generation config that came with the model, within this context.

    Many chat models bring a penalty for repetition. `generate` takes from there what its own config
    leaves open, and a judge is served without it.
    """
    # PEFT hands its own one down to the model in it.
    holders = [model, model.get_base_model()] if hasattr(model, "get_base_model") else [model]
    configs = [holder.generation_config for holder in holders]
    for holder in holders:
        holder.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for holder, config in zip(holders, configs, strict=True):
            holder.generation_config = config


def _cut_after(ids: list[int], stops: Collection[int]) -> list[int]:
    """Return token ids up to the first stop token, with it."""
    for place, token in enumerate(ids):
        if token in stops:
            return ids[: place + 1]
    return ids


def pack(ids: Tensor, mask: Tensor, keep: int, window: int | None = None) -> Packed | None:
    """Return the rows as sequences that share their prompts; None if that saves too little.

    window: tokens that the model's attention reaches back, if that is limited. A packed sequence
    must be shorter, since its own mask takes the place of that limit.

    ids, mask: int64 [rows, length], of which the last `keep` are the output and the others the
    prompt, padded on the left.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    prompt = ids.shape[1] - keep
    for row, (tokens, visible) in enumerate(
        zip(ids[:, :prompt].tolist(), mask[:, :prompt].tolist(), strict=True)
    ):
        places.setdefault((*tokens, *visible), []).append(row)
    groups = list(places.values())
    most = max(map(len, groups))
    length = prompt + most * keep
    if len(groups) * length > WORTH * ids.numel() or (window and length > window):
        return None
    return Packed(ids, mask, keep, groups, most)


class Packed:
    """Rows of equal prompts as one sequence: the prompt, then one output after the other.

    An output sees the prompt and itself alone, at the positions that it has in its own row.
    """

    def __init__(
        self, ids: Tensor, mask: Tensor, keep: int, groups: Sequence[Sequence[int]], most: int
    ) -> None:
        """groups: indices of the rows of each prompt. most: rows of the largest group."""
        prompt = ids.shape[1] - keep
        firsts = torch.tensor([rows[0] for rows in groups], device=ids.device)
        # A smaller group is filled with its first row; what comes of the copies is not read.
        filled = [[*rows, *([rows[0]] * (most - len(rows)))] for rows in groups]
        index = torch.tensor(filled, device=ids.device)
        outputs = ids[index, prompt:]
        output_mask = mask[index, prompt:].bool()
        prompt_mask = mask[firsts, :prompt].bool()
        self.ids = torch.cat([ids[firsts, :prompt], outputs.flatten(1)], 1)
        """Token ids, int64 [groups, prompt + most * keep]."""
        starts = prompt_mask.sum(1, keepdim=True)
        steps = torch.arange(keep, device=ids.device).repeat(most)
        prompt_positions = (prompt_mask.long().cumsum(1) - 1).clamp_min(0)
        self.positions = torch.cat([prompt_positions, starts + steps], 1)
        """Positions of the tokens in their own rows, of the same shape."""
        valid = torch.cat([prompt_mask, output_mask.flatten(1)], 1)
        self.visible = self._make_mask(valid, prompt, keep, most)
        """bool [groups, 1, length, length]: row i marks the tokens that i sees."""
        self.kept = torch.arange(prompt - 1, self.ids.shape[1], device=ids.device)
        """Places of the tokens whose logits are computed: from the prompt's last one on. Indices
        for the reason of `LAST`."""
        # The token before an output's first one is the prompt's last.
        before = torch.arange(most * keep, device=ids.device)
        before[::keep] = 0
        place = {row: (n, k) for n, rows in enumerate(groups) for k, row in enumerate(rows)}
        self._groups = torch.tensor([place[row][0] for row in range(len(ids))], device=ids.device)
        self._columns = torch.stack(
            [before.view(most, keep)[place[row][1]] for row in range(len(ids))]
        )

    @staticmethod
    def _make_mask(valid: Tensor, prompt: int, keep: int, most: int) -> Tensor:
        length = valid.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=valid.device).tril()
        output = (torch.arange(length, device=valid.device) - prompt).div(
            keep, rounding_mode="floor"
        )
        output[:prompt] = -1
        same = output[:, None] == output[None, :]
        seen = causal & (same | (output < 0)[None, :])
        visible = seen[None] & valid[:, None, :]
        # A token of padding sees itself, since softmax over nothing is no number.
        visible |= torch.eye(length, dtype=torch.bool, device=valid.device)
        return visible[:, None]

    def unpack(self, logits: Tensor) -> Tensor:
        """Return the logits that predict each output token, [rows, keep, vocabulary].

        logits: [groups, kept tokens, vocabulary].
        """
        return logits[self._groups[:, None], self._columns]
