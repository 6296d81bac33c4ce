"""The losses of a judge's examples, and the Hugging Face Trainer with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Trainer, TrainerControl

from autoj_reward.evaluate.selection_metrics import WithinQuery, mean_orders
from autoj_reward.training.judge.recipe import LossConfig
from autoj_reward.training.judge.targets import Example, Logits, batch


@dataclass(frozen=True, slots=True)
class ExampleLosses:
    """Losses and readings of one example."""

    loss: Tensor
    """The weighted sum of the parts."""
    parts: dict[str, float]
    expected: dict[str, tuple[float, ...]]
    """Expected ratings or label probabilities, by slot."""


def read_losses(
    example: Example, logits: Sequence[Logits], losses: LossConfig, scale: Tensor
) -> ExampleLosses:
    """Compute the losses of an example.

    logits: one reader of logits for each tree of the example.
    """
    parts: dict[str, Tensor] = {}
    expected: dict[str, tuple[float, ...]] = {}
    [first, *_] = example.trees
    if first.text:
        text_logits = logits[0]([node for node, _ in first.text]).float()
        next_tokens = torch.tensor([token for _, token in first.text], device=text_logits.device)
        parts["judgement"] = F.cross_entropy(text_logits, next_tokens)
    if example.part in ("preferred", "ranked"):
        slots = [(tree.direct, reader) for tree, reader in zip(example.trees, logits, strict=True)]
        means = torch.stack(
            [_compute_mean(slot.log_probs(reader), scale) for slot, reader in slots if slot]
        )
        if example.part == "ranked":
            scores = torch.tensor(example.scores, device=means.device)
            parts["ranking"] = ranking_loss(means, scores, losses.preference_scale)
        else:
            logit = (means[0] - means[1]) * losses.preference_scale
            target = torch.tensor(example.target, device=logit.device)
            parts["preference"] = F.binary_cross_entropy_with_logits(logit, target)
        expected["direct"] = tuple(means.tolist())
    else:
        curve = torch.exp(-0.5 * ((scale - example.target) / losses.spread) ** 2)
        for name, slot in (("after", first.after), ("direct", first.direct)):
            if slot:
                log_p = slot.log_probs(logits[0])
                parts[f"slot_{name}"] = -(curve / curve.sum() * log_p).sum()
                expected[name] = (_compute_mean(log_p, scale).item(),)
        if first.verdict:
            log_p = first.verdict.log_probs(logits[0])
            parts["verdict"] = -log_p[int(example.target)]
            expected["verdict"] = tuple(log_p.softmax(-1).tolist())
    weights = losses.model_dump()
    loss = sum((weights[name] * value for name, value in parts.items()), torch.zeros(()))
    return ExampleLosses(loss, {name: value.item() for name, value in parts.items()}, expected)


def _compute_mean(log_p: Tensor, scale: Tensor) -> Tensor:
    return (log_p.softmax(-1) * scale).sum()


def ranking_loss(ratings: Tensor, scores: Tensor, scale: float) -> Tensor:
    """Return the mean Bradley-Terry loss over all pairs of a group.

    ratings: expected ratings, float [outputs]. scores: log10 of the probability of preferring each
    to one fixed output, float [outputs]; the better of two is to win with the logistic function of
    their difference, which is softer than the odds that GPT-4's probabilities give. scale: logits
    for each point of rating.
    """
    first, second = torch.triu_indices(len(ratings), len(ratings), 1, device=ratings.device)
    logits = (ratings[first] - ratings[second]) * scale
    return F.binary_cross_entropy_with_logits(logits, (scores[first] - scores[second]).sigmoid())


@dataclass(frozen=True, slots=True)
class Collator:
    """Collator of examples to model inputs; keeps only positions whose logits a loss reads."""

    pad: int

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        trees = [tree for example in examples for tree in example.trees]
        keep = sorted(set().union(*(tree.logit_nodes for tree in trees)))
        inputs = batch([tree.tokens for tree in trees], self.pad)
        return {**inputs, "logits_to_keep": torch.tensor(keep), "examples": list(examples)}


class JudgeTrainer(Trainer):
    """Trainer for examples; a batch's loss is the mean of its examples' losses."""

    def __init__(self, losses: LossConfig, scale: Tensor, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = False  # the loss is divided by accumulation steps here
        self.losses = losses
        self.scale = scale
        self._logged_parts: dict[str, list[float]] = defaultdict(list)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Return the mean loss of the batch; its parts are averaged until the next log entry."""
        readings = self.read(model, inputs)
        for reading in readings:
            for name, value in reading.parts.items():
                self._logged_parts[name].append(value)
        return torch.stack([reading.loss for reading in readings]).mean()

    def read(self, model: nn.Module, inputs: dict[str, Any]) -> list[ExampleLosses]:
        """Return losses and readings of a collated batch, example by example."""
        model_inputs = dict(inputs)
        examples: list[Example] = model_inputs.pop("examples")
        keep = model_inputs["logits_to_keep"].tolist()
        logits = model(**model_inputs, use_cache=False).logits
        place = {node: at for at, node in enumerate(keep)}
        scale = self.scale.to(logits.device)
        readings, row = [], 0
        for example in examples:
            readers = [_make_reader(logits[row + n], place) for n in range(len(example.trees))]
            readings.append(read_losses(example, readers, self.losses, scale))
            row += len(example.trees)
        return readings

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the parts of the loss since the last training entry."""
        if "loss" in logs:
            logs |= {f"loss/{name}": fmean(v) for name, v in self._logged_parts.items()}
            self._logged_parts.clear()
        super().log(logs, *args, **kwargs)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Run `validate`, and log its metrics under the names that the Trainer expects."""
        examples = self.eval_dataset if eval_dataset is None else eval_dataset
        metrics = {f"eval_{name}": value for name, value in self.validate(examples).items()}
        self.log(metrics)
        state = (self.args, self.state, self.control)
        self.control: TrainerControl = self.callback_handler.on_evaluate(*state, metrics)
        return metrics

    def validate(self, examples: Sequence[Example]) -> dict[str, float]:
        """Measure the model on examples.

        The metrics are Spearman of the expected rating with the reference at each slot, agreement
        of verdicts and of preferences with human labels (one order; ties left out), the order of
        graded outputs to one instruction, and mean losses.
        """
        model = self.model
        model.eval()
        losses: dict[str, list[float]] = defaultdict(list)
        pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        hits: dict[str, list[bool]] = defaultdict(list)
        queries: list[WithinQuery] = []
        size = self.args.per_device_eval_batch_size
        with torch.no_grad(), self.compute_loss_context_manager():
            for start in range(0, len(examples), size):
                inputs = self._prepare_inputs(self.data_collator(examples[start : start + size]))
                for example, reading in zip(
                    inputs["examples"], self.read(model, inputs), strict=True
                ):
                    for name, value in reading.parts.items():
                        losses[f"loss_{name}"].append(value)
                    for name, expected in reading.expected.items():
                        if example.part == "ranked":
                            queries.append(
                                WithinQuery(expected, example.scores, _count_tokens(example))
                            )
                        elif example.part == "rated":
                            pairs[f"spearman_{name}"].append((expected[0], example.target))
                        elif example.part == "compared":
                            hits["agreement_verdict"].append(
                                expected.index(max(expected)) == example.target
                            )
                        elif example.target != 0.5:
                            first = expected[0] > expected[1]
                            hits["agreement_preference"].append(first == (example.target == 1))
        model.train()
        means = {name: fmean(v) for name, v in losses.items()}
        means |= {name: fmean(v) for name, v in hits.items()}
        ranks = {name: float(spearmanr(*zip(*v, strict=True))[0]) for name, v in pairs.items()}
        return {**means, **ranks, **mean_orders(queries)}


def _count_tokens(example: Example) -> tuple[float, ...]:
    return tuple(float(len(tree.tokens.ids)) for tree in example.trees)


def _make_reader(logits: Tensor, place: dict[int, int]) -> Logits:
    return lambda nodes: logits[[place[node] for node in nodes]]
