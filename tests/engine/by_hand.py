"""Label probabilities computed with plain transformers, without any code of this package."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


def label_probs(
    model: Any, tokenizer: Any, ids: Sequence[int], labels: Collection[str]
) -> dict[str, float]:
    """Return P(its tokens) of each label after the ids, less the probability of longer labels."""
    import torch

    tokens = {t: tuple(tokenizer(t, add_special_tokens=False)["input_ids"]) for t in labels}
    prefixes = {label_ids[:n] for label_ids in tokens.values() for n in range(len(label_ids))}
    nexts: dict[tuple[int, ...], Any] = {}
    for length in {len(prefix) for prefix in prefixes}:
        alike = [prefix for prefix in prefixes if len(prefix) == length]
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *prefix] for prefix in alike])).logits[:, -1]
        nexts |= dict(zip(alike, logits.softmax(-1), strict=True))
    probs = {}
    for text, label_ids in tokens.items():
        longer = {
            t[len(label_ids)]
            for t in tokens.values()
            if t != label_ids and t[: len(label_ids)] == label_ids
        }
        probs[text] = 1.0 - sum(nexts[label_ids][token].item() for token in longer)
        for n, token in enumerate(label_ids):
            probs[text] *= nexts[label_ids[:n]][token].item()
    return probs
