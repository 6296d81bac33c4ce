"""Several continuations of one prompt as one sequence, computed once.

A critique, the rating slot right after the prompt and the slot after the critique all continue the
same prompt. Their tokens form a tree: each token sees its ancestors and nothing else, and its
position is its depth, so the model computes exactly what it would for each path alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class TokenTree:
    """Tokens in the order they were added; parents[i] < i is the token before i, -1 for none."""

    ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    _children: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, path: Sequence[int]) -> list[int]:
        """The nodes of a path from the root; what it shares with earlier paths is not repeated."""
        nodes = []
        parent = -1
        for depth, token in enumerate(path):
            node = self._children.get((parent, token))
            if node is None:
                node = len(self.ids)
                self._children[parent, token] = node
                self.ids.append(token)
                self.parents.append(parent)
                self.depths.append(depth)
            nodes.append(node)
            parent = node
        return nodes

    @property
    def linear(self) -> bool:
        """Whether the tree is one path, so that a plain causal mask does."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def visible(self, size: int) -> Tensor:
        """bool [size, size]: row i marks what token i sees, itself included. Rows of padding
        beyond the tree see themselves alone."""
        rows = torch.eye(size, dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                rows[node] |= rows[parent]
        return rows


def batch(trees: Sequence[TokenTree], pad: int) -> dict[str, Tensor]:
    """Model inputs of right-padded trees, int64 [trees, longest].

    The mask is bool [trees, 1, longest, longest] if any tree branches, else int64
    [trees, longest], which every attention implementation takes.
    """
    size = max(len(tree.ids) for tree in trees)
    ids = torch.full((len(trees), size), pad)
    positions = torch.zeros(len(trees), size, dtype=torch.long)
    lengths = torch.zeros(len(trees), size, dtype=torch.long)
    for row, tree in enumerate(trees):
        n = len(tree.ids)
        ids[row, :n] = torch.tensor(tree.ids)
        positions[row, :n] = torch.tensor(tree.depths)
        lengths[row, :n] = 1
    mask = lengths
    if not all(tree.linear for tree in trees):
        mask = torch.stack([tree.visible(size) for tree in trees])[:, None]
    return {"input_ids": ids, "position_ids": positions, "attention_mask": mask}
