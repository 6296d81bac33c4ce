"""What orders the outputs to one instruction is learned from, and measured by in validation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


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
