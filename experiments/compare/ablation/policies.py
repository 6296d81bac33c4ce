"""Responses of trained policies, and how far these have moved from the policy they started from.

A response's divergence is the sum over its tokens of log pi(token) - log pi_0(token); its mean over
responses sampled from pi is an unbiased estimate of KL(pi || pi_0) in nats a response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from autoj_reward.config import PolicyConfig
from autoj_reward.errors import ConfigError
from autoj_reward.journal import Journal, Sampled
from autoj_reward.models import resolve
from autoj_reward.replicas.replica import policy_name
from rollouts.train.config import LearnerConfig


@dataclass(frozen=True, slots=True)
class PolicySample:
    """Responses to one query, and of each its log pi - log pi_0 in nats, summed over its tokens."""

    query: str
    responses: tuple[str, ...]
    divergences: tuple[float, ...]


def sample_policy(
    name: str, config: PolicyConfig, base: PolicyConfig, queries: Sequence[str], journal: Journal
) -> list[PolicySample]:
    """config.n responses to every query; what the journal holds is not sampled again.

    config: the trained policy, its `model` a folder. base: where its training started.
    Raises ModelError for a folder without a model, ConfigError if the tokenizers differ.
    """
    own = f"transformers:{policy_name(config)}"
    other = f"{own}:scored by {resolve(base).identity}"
    found: dict[str, PolicySample] = {}
    pair: _Pair | None = None
    for query in tqdm(queries, desc=f"sampling: {name}", unit="query"):
        kept, scored = journal.get_samples(own, query), journal.get_samples(other, query)
        if kept is None or scored is None:
            pair = pair or _Pair(config, base)
            kept, scored = pair.sample(query)
            journal.put_samples(own, query, kept)
            journal.put_samples(other, query, scored)
        gaps = (
            p - q
            for p, q in zip(kept.logprobs, scored.logprobs, strict=True)
            if p is not None and q is not None
        )
        found[query] = PolicySample(query, kept.responses, tuple(gaps))
    return list(found.values())


class _Pair:
    """A trained policy and the one it started from, both loaded."""

    def __init__(self, config: PolicyConfig, base: PolicyConfig) -> None:
        import torch

        from rollouts.train.learner import load_policy, load_tokenizer

        torch.manual_seed(config.seed)
        self._config = config
        loaded = []
        for own in (config, base):
            learner = LearnerConfig(model=own.model, revision=own.revision, dtype="float32")
            path, tokenizer = load_tokenizer(learner)
            loaded.append((load_policy(learner, path, tokenizer).eval(), tokenizer))
        (self._policy, self._tokenizer), (self._base, other) = loaded
        if self._tokenizer.get_vocab() != other.get_vocab():
            raise ConfigError(
                f"policies: {config.model} has another tokenizer than {base.model}: name the "
                "policy that its training started from as policy.model"
            )

    def sample(self, query: str) -> tuple[Sampled, Sampled]:
        """Responses with their log-probabilities under the policy, and the same under the base."""
        import torch

        config, tokenizer = self._config, self._tokenizer
        head = [{"role": "system", "content": config.system}] if config.system else []
        chat = [*head, {"role": "user", "content": query}]
        inputs = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            ids = self._policy.generate(
                **inputs,
                do_sample=True,
                top_k=0,
                temperature=config.temperature,
                max_new_tokens=config.max_tokens,
                num_return_sequences=config.n,
            )
            start = inputs["input_ids"].shape[1]
            own, ends = ids[:, start:], self._policy.generation_config.eos_token_id
            ended = torch.isin(own, torch.tensor(ends))
            kept = ended.cumsum(1) - ended.int() == 0  # up to the first end, and with it
            sums = [self._logprobs(model, ids, start, kept) for model in (self._policy, self._base)]
        finished = tuple(bool(flag) for flag in ended.any(1))
        texts = tuple(
            tokenizer.decode(row[mask], skip_special_tokens=True)
            for row, mask in zip(own, kept, strict=True)
        )
        policy, base = (Sampled(texts, own, finished, int(kept.sum())) for own in sums)
        return policy, base

    def _logprobs(self, model: Any, ids: Any, start: int, kept: Any) -> tuple[float, ...]:
        read = model(ids, logits_to_keep=ids.shape[1] - start + 1).logits[:, :-1]
        logits = read.float() / self._config.temperature
        of_tokens = logits.log_softmax(-1).gather(-1, ids[:, start:, None]).squeeze(-1)
        return tuple(float(total) for total in (of_tokens * kept).sum(1))
