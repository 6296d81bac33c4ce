"""A judge as a naive reward function of a trainer asks it: transformers' `generate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from autoj_reward.config import JudgeConfig
from autoj_reward.formats.rating import parse_rating
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.formats.verdict import ParseFailure
from autoj_reward.models import format_and_wrapper, resolve
from autoj_reward.models.settings import dtype_of
from autoj_reward.types import Candidate, JudgeInput, Usage
from experiments.speed.throughput.work import Spent, spread


class NaiveReward:
    """The judge's model in this process; batches of `batch`, padded on the left, one after another,
    and the rating from the text. It judges `count` candidates of a piece of work."""

    def __init__(self, config: JudgeConfig, batch: int, count: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        name, wrapper = format_and_wrapper(config)
        model = resolve(config)
        self._config, self._format, self._batch, self._count = (
            config,
            load_format(name),
            batch,
            count,
        )
        self._device = model.device
        dtype = getattr(torch, dtype_of(config, model.device))
        options = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model.path, **options)
        self._tokens = PromptTokenizer(self._tokenizer, wrapper)
        self._net: Any = AutoModelForCausalLM.from_pretrained(model.path, dtype=dtype, **options)
        self._net.eval().to(self._device)

    async def judge(self, given: list[Candidate]) -> Spent:
        """Judge `count` of the candidates."""
        some = spread(given, self._count)
        started = time.monotonic()
        rated, usage = 0, Usage()
        for start in range(0, len(some), self._batch):
            texts, cost = self._generate(some[start : start + self._batch])
            parsed = [parse_rating(text, self._format) for text in texts]
            rated += sum(not isinstance(p, ParseFailure) for p in parsed)
            usage += cost
        return Spent(time.monotonic() - started, len(some), rated, usage)

    def _generate(self, given: Sequence[Candidate]) -> tuple[list[str], Usage]:
        import torch

        inputs = (JudgeInput(c.query, (c.response,)) for c in given)
        prompts = [self._tokens.ids(render(item, self._format)) for item in inputs]
        longest = max(map(len, prompts))
        eos = self._tokenizer.eos_token_id
        ids = torch.tensor([[*[eos] * (longest - len(p)), *p] for p in prompts])
        mask = torch.tensor([[*[0] * (longest - len(p)), *[1] * len(p)] for p in prompts])
        with torch.inference_mode():
            out = self._net.generate(
                input_ids=ids.to(self._device),
                attention_mask=mask.to(self._device),
                max_new_tokens=self._config.max_tokens,
                do_sample=False,
                pad_token_id=eos,
            )
        own = [row[: row.index(eos)] if eos in row else row for row in out[:, longest:].tolist()]
        texts = self._tokenizer.batch_decode(own, skip_special_tokens=True)
        most = out.shape[1] - longest
        written = sum(min(len(row) + 1, most) for row in own)  # with the token that ends it
        return texts, Usage(sum(map(len, prompts)), 0, written)
