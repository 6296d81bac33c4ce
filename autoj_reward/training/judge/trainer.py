"""The Hugging Face Trainer with the judge's losses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from transformers import Trainer, TrainerControl

from autoj_reward.evaluate.selection_metrics import WithinQuery, mean_orders
from autoj_reward.training.judge.losses import Reading, read_item
from autoj_reward.training.judge.recipe import LossConfig
from autoj_reward.training.judge.targets import Item, Logits
from autoj_reward.training.judge.tree import batch


@dataclass(frozen=True, slots=True)
class Collator:
    """Items to model inputs, with only those positions kept whose logits a loss reads."""

    pad: int

    def __call__(self, items: Sequence[Item]) -> dict[str, Any]:
        trees = [tree for item in items for tree in item.trees]
        keep = sorted(set().union(*(tree.read for tree in trees)))
        inputs = batch([tree.tokens for tree in trees], self.pad)
        return {**inputs, "logits_to_keep": torch.tensor(keep), "items": list(items)}


class JudgeTrainer(Trainer):
    """Trains on a list of items in their order. The loss of a batch is the mean over its items."""

    def __init__(self, losses: LossConfig, scale: Tensor, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = False  # the loss is divided by accumulation steps here
        self.losses = losses
        self.scale = scale
        self._seen: dict[str, list[float]] = defaultdict(list)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Mean loss of the batch; its parts are averaged until the next log entry."""
        readings = self.read(model, inputs)
        for reading in readings:
            for name, value in reading.parts.items():
                self._seen[name].append(value)
        return torch.stack([reading.loss for reading in readings]).mean()

    def read(self, model: nn.Module, inputs: dict[str, Any]) -> list[Reading]:
        """Losses and readings of a collated batch, item by item."""
        given = dict(inputs)
        items: list[Item] = given.pop("items")
        keep = given["logits_to_keep"].tolist()
        logits = model(**given, use_cache=False).logits
        place = {node: at for at, node in enumerate(keep)}
        scale = self.scale.to(logits.device)
        readings, row = [], 0
        for item in items:
            reads = [_reader(logits[row + n], place) for n in range(len(item.trees))]
            readings.append(read_item(item, reads, self.losses, scale))
            row += len(item.trees)
        return readings

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the parts of the loss since the last training entry."""
        if "loss" in logs:
            logs |= {f"loss/{name}": fmean(v) for name, v in self._seen.items()}
            self._seen.clear()
        super().log(logs, *args, **kwargs)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Validation: see `validate`; under the names that the Trainer and TensorBoard expect."""
        items = self.eval_dataset if eval_dataset is None else eval_dataset
        metrics = {f"eval_{name}": value for name, value in self.validate(items).items()}
        self.log(metrics)
        state = (self.args, self.state, self.control)
        self.control: TrainerControl = self.callback_handler.on_evaluate(*state, metrics)
        return metrics

    def validate(self, items: Sequence[Item]) -> dict[str, float]:
        """Spearman of the expected rating with the reference at each slot, agreement of verdicts
        and of preferences with human labels (one order; ties left out), the order of graded outputs
        to one instruction, and mean losses."""
        model = self.model
        model.eval()
        losses: dict[str, list[float]] = defaultdict(list)
        pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        hits: dict[str, list[bool]] = defaultdict(list)
        queries: list[WithinQuery] = []
        size = self.args.per_device_eval_batch_size
        with torch.no_grad(), self.compute_loss_context_manager():
            for start in range(0, len(items), size):
                inputs = self._prepare_inputs(self.data_collator(items[start : start + size]))
                for item, reading in zip(inputs["items"], self.read(model, inputs), strict=True):
                    for name, value in reading.parts.items():
                        losses[f"loss_{name}"].append(value)
                    for name, found in reading.expected.items():
                        if item.part == "ranked":
                            queries.append(WithinQuery(found, item.scores, _lengths(item)))
                        elif item.part == "rated":
                            pairs[f"spearman_{name}"].append((found[0], item.target))
                        elif item.part == "compared":
                            hits["agreement_verdict"].append(found.index(max(found)) == item.target)
                        elif item.target != 0.5:
                            first = found[0] > found[1]
                            hits["agreement_preference"].append(first == (item.target == 1))
        model.train()
        means = {name: fmean(v) for name, v in losses.items()}
        means |= {name: fmean(v) for name, v in hits.items()}
        ranks = {name: float(spearmanr(*zip(*v, strict=True))[0]) for name, v in pairs.items()}
        return {**means, **ranks, **mean_orders(queries)}


def _lengths(item: Item) -> tuple[float, ...]:
    return tuple(float(len(tree.tokens.ids)) for tree in item.trees)


def _reader(logits: Tensor, place: dict[int, int]) -> Logits:
    return lambda nodes: logits[[place[node] for node in nodes]]
