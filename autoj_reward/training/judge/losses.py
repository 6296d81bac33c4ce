"""The losses of one item, read from the model's logits at its trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from autoj_reward.training.judge.recipe import LossConfig
from autoj_reward.training.judge.targets import Item, Logits


@dataclass(frozen=True, slots=True)
class Reading:
    """Losses of one item, weighted into `loss`; expected: the expected ratings that were read."""

    loss: Tensor
    parts: dict[str, float]
    expected: dict[str, tuple[float, ...]]


def read_item(item: Item, logits: Sequence[Logits], losses: LossConfig, scale: Tensor) -> Reading:
    """Losses of an item; logits: one reader for each of its trees."""
    parts: dict[str, Tensor] = {}
    expected: dict[str, tuple[float, ...]] = {}
    [first, *_] = item.trees
    if first.text:
        at = logits[0]([node for node, _ in first.text]).float()
        wanted = torch.tensor([token for _, token in first.text], device=at.device)
        parts["judgement"] = F.cross_entropy(at, wanted)
    if item.part in ("preferred", "ranked"):
        slots = [(tree.direct, read) for tree, read in zip(item.trees, logits, strict=True)]
        means = torch.stack([_mean(slot.log_probs(read), scale) for slot, read in slots if slot])
        if item.part == "ranked":
            scores = torch.tensor(item.scores, device=means.device)
            parts["ranking"] = ranking_loss(means, scores, losses.preference_scale)
        else:
            logit = (means[0] - means[1]) * losses.preference_scale
            target = torch.tensor(item.target, device=logit.device)
            parts["preference"] = F.binary_cross_entropy_with_logits(logit, target)
        expected["direct"] = tuple(means.tolist())
    else:
        curve = torch.exp(-0.5 * ((scale - item.target) / losses.spread) ** 2)
        for name, slot in (("after", first.after), ("direct", first.direct)):
            if slot:
                log_p = slot.log_probs(logits[0])
                parts[f"slot_{name}"] = -(curve / curve.sum() * log_p).sum()
                expected[name] = (_mean(log_p, scale).item(),)
        if first.verdict:
            log_p = first.verdict.log_probs(logits[0])
            parts["verdict"] = -log_p[int(item.target)]
            expected["verdict"] = tuple(log_p.softmax(-1).tolist())
    weights = losses.model_dump()
    loss = sum((weights[name] * value for name, value in parts.items()), torch.zeros(()))
    return Reading(loss, {name: value.item() for name, value in parts.items()}, expected)


def _mean(log_p: Tensor, scale: Tensor) -> Tensor:
    return (log_p.softmax(-1) * scale).sum()


def ranking_loss(ratings: Tensor, scores: Tensor, scale: float) -> Tensor:
    """Mean Bradley-Terry loss over all pairs of a group.

    ratings: expected ratings, float [outputs]. scores: log10 of the probability of preferring each
    to one fixed output, float [outputs]; the better of two is to win with the logistic function of
    their difference, which is softer than the odds that GPT-4's probabilities give. scale: logits
    for each point of rating.
    """
    first, second = torch.triu_indices(len(ratings), len(ratings), 1, device=ratings.device)
    logits = (ratings[first] - ratings[second]) * scale
    return F.binary_cross_entropy_with_logits(logits, (scores[first] - scores[second]).sigmoid())
