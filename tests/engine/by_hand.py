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
    begun = {own[:n] for own in tokens.values() for n in range(len(own))}
    nexts: dict[tuple[int, ...], Any] = {}
    for length in {len(prefix) for prefix in begun}:
        alike = [prefix for prefix in begun if len(prefix) == length]
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *prefix] for prefix in alike])).logits[:, -1]
        nexts |= dict(zip(alike, logits.softmax(-1), strict=True))
    found = {}
    for text, own in tokens.items():
        longer = {t[len(own)] for t in tokens.values() if t != own and t[: len(own)] == own}
        found[text] = 1.0 - sum(nexts[own][token].item() for token in longer)
        for n, token in enumerate(own):
            found[text] *= nexts[own[:n]][token].item()
    return found
