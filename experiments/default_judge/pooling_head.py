"""Pooling head: an attention head that averages the prompt and adjusts the judge's rating.

The rating slot reads only the last token. The mean of the judge's hidden states over the rating
prompt orders responses to one query better. So one head of one block is made to average. Its
queries are zero, so it attends to every token alike. One dimension of its value is a ridge
regression of graded outputs and reference ratings on the block's normalised states. Its output is
added along the direction that raises the expected rating. Format and cost do not change. Critiques
are affected too.

The result is a LoRA adapter, with the rank that the three changed matrices need, and the merged
judge. The states are saved, so a killed run resumes.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from autoj_reward.config import Block, JudgeConfig
from autoj_reward.data.labelled import (
    JudgeData,
    Rated,
    data_path,
    excluded_queries,
    is_held_out,
    rated_files,
)
from autoj_reward.errors import InputError
from autoj_reward.evaluate.statistics import Draws
from autoj_reward.formats.schema import JudgeFormat, load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models import format_and_wrapper, resolve
from autoj_reward.training.groups import faulty, read_groups
from autoj_reward.training.judge.recipe import LossConfig
from autoj_reward.training.judge.targets import ExampleBuilder
from autoj_reward.training.saving import merge_adapter
from experiments.compare.outputs import OrderedConfig, read_graded_outputs
from experiments.compare.rivals import cache_states, make_rating_prompts, make_ridge

FAULTY = -4.0
"""Score of a response with a made fault, less its instruction's mean. It is below all
systems' scores."""


class PoolingHeadConfig(Block):
    """Settings for fitting the pooling head: the stage `head`."""

    model: str
    """Base model of the judge."""
    adapter: Path
    """Adapter of the judge."""
    block: int = Field(ge=0)
    """Block whose head becomes the pooling head, counted from 0."""
    rows: int = Field(3000, ge=10)
    """Number of graded outputs to fit, drawn at random. The rated rows are added to them."""
    faults: int = Field(0, ge=0)
    """Number of these outputs that are fitted a second time, with a fault made into them."""
    groups: tuple[str, ...] = ()
    """Files of more rows, as in a training's `groups.files`."""
    rated_weight: float = Field(1.0, gt=0)
    """Weight of a rated row; a graded output has 1."""
    made_weight: float = Field(1.0, gt=0)
    """Weight of a row with a made fault or from a group."""
    strength: float = Field(1.0, gt=0)
    """Scale of what the head adds to the expected rating, to first order.

    It is in rating points for a preference of one power of ten.
    """
    examples: int = Field(32, ge=1)
    """Number of rows that decide which head is replaced, and that give the direction."""
    seed: int = 0
    """Seed of the draws."""


def read_rows_to_fit(
    config: PoolingHeadConfig, data: JudgeData, fmt: JudgeFormat
) -> tuple[list[Rated], list[float]]:
    """Return the rows to fit, and the weight of each.

    `rating` is the graded score less its instruction's mean, or the rating less the mean rating.
    """
    measured_queries = excluded_queries(data, fmt)
    selection = OrderedConfig(split="validation", rival_rows=config.rows)
    graded_rows = read_graded_outputs(data, selection, fmt, Draws(1, config.seed)).fitted
    rng, other_responses = random.Random(config.seed), [row.response for row in graded_rows]
    extra_rows = [
        replace(row, response=faulty(row.query, row.response, other_responses, rng), rating=FAULTY)
        for row in graded_rows[: config.faults]
        if row.response.strip()
    ]
    for name in config.groups:
        for group in read_groups(data_path(data, name)):
            mean = fmean(group.scores)
            extra_rows += [
                Rated(group.source, group.line, group.query, response, score - mean)
                for response, score in zip(group.responses, group.scores, strict=True)
            ]
    rated_rows = [
        row
        for _, rows in rated_files(data, fmt)
        for row in rows.rows
        if not is_held_out(row.query, data.held_out)
    ]
    mean = fmean([row.rating for row in rated_rows] or [0.0])
    weighted_rows = [(row, 1.0) for row in graded_rows] + [
        (row, config.made_weight) for row in extra_rows
    ]
    weighted_rows += [
        (replace(row, rating=row.rating - mean), config.rated_weight) for row in rated_rows
    ]
    rows, weights = zip(
        *[
            row_and_weight
            for row_and_weight in weighted_rows
            if row_and_weight[0].query not in measured_queries
        ],
        strict=True,
    )
    return list(rows), list(weights)


def compute_mean_state(model: Any, block: int, ids: list[int]) -> NDArray[np.float32]:
    """Return the mean of a block's normalised input over a prompt, before the norm's weight.

    The shape is [width].
    """
    with torch.inference_mode():
        output = model.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        states = output.hidden_states[block][0].float()
        variance = states.pow(2).mean(-1, keepdim=True)
        mean = (states * torch.rsqrt(variance + model.config.rms_norm_eps)).mean(0)
    return np.asarray(mean.numpy(), dtype=np.float32)


def fit_pooling(
    states: NDArray[np.float32], rows: list[Rated], sample_weights: list[float]
) -> tuple[NDArray[np.float64], float]:
    """Fit a ridge regression of ratings on mean states.

    Returns the weights, [width], and the ridge's strength. `sample_weights` holds the weight of
    each row. The direction of the mean of all states is removed from the weights. What the head
    adds then has a mean near zero and stays exact in half precision.
    """
    model = make_pipeline(StandardScaler(), make_ridge(rows))
    ratings = [row.rating for row in rows]
    model.fit(states, ratings, ridgecv__sample_weight=np.array(sample_weights))
    scaler, regression = model[0], model[1]
    weights = np.asarray(regression.coef_ / scaler.scale_)
    common = np.asarray(scaler.mean_)
    return weights - common * (weights @ common) / (common @ common), float(regression.alpha_)


def compute_expected_rating(model: Any, builder: ExampleBuilder, row: Rated) -> Tensor:
    """Return the mean of the distribution at the slot right after the prompt, with its gradient."""
    [tree] = builder.direct(row).trees
    assert tree.direct
    logits = model(torch.tensor([tree.tokens.ids]), use_cache=False).logits[0]
    log_p = tree.direct.log_probs(lambda nodes: logits[nodes])
    return (log_p.softmax(-1) * builder.scale).sum()


def find_least_head(model: Any, block: int, builder: ExampleBuilder, rows: list[Rated]) -> int:
    """Return the head of a block whose removal changes the expected ratings least."""
    attention = model.model.layers[block].self_attn
    weight = attention.o_proj.weight

    def rate_rows() -> Tensor:
        return torch.stack([compute_expected_rating(model, builder, row) for row in rows])

    changes = []
    with torch.no_grad():
        whole_ratings = rate_rows()
        for head in range(weight.shape[1] // attention.head_dim):
            place = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
            saved_weight = weight[:, place].clone()
            weight[:, place] = 0
            changes.append(float((rate_rows() - whole_ratings).abs().mean()))
            weight[:, place] = saved_weight
    return int(np.argmin(changes))


def find_rating_direction(
    model: Any, block: int, builder: ExampleBuilder, rows: list[Rated]
) -> Tensor:
    """Return the change of a block's attention output that adds one point of expected rating.

    To first order, it is the mean gradient over rows and their tokens, divided by its squared
    length. The shape is [width].
    """
    outputs: list[Tensor] = []

    def keep_output(module: Any, inputs: Any, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_(True))
        return outputs[-1]

    hook = model.model.layers[block].self_attn.o_proj.register_forward_hook(keep_output)
    total = torch.zeros(model.config.hidden_size)
    for row in rows:
        [gradient] = torch.autograd.grad(
            compute_expected_rating(model, builder, row), outputs.pop()
        )
        total += gradient[0].sum(0)
    hook.remove()
    mean = total / len(rows)
    return mean / mean.dot(mean)


def write_head(
    model: Any, block: int, head: int, weights: Tensor, direction: Tensor
) -> dict[str, Tensor]:
    """Make a head average, in place. Return the three changed matrices by module name.

    Other heads that share its keys lose one dimension of their value. `weights`, [width], are those
    of a mean state; `direction`, [width], is the output for one point of it.
    """
    layer = model.model.layers[block]
    attention = layer.self_attn
    size, heads_per_group = attention.head_dim, attention.num_key_value_groups
    place = slice(head * size, (head + 1) * size)
    group = head // heads_per_group
    with torch.no_grad():
        attention.q_proj.weight[place] = 0
        attention.v_proj.weight[group * size] = weights / layer.input_layernorm.weight
        for other in range(group * heads_per_group, (group + 1) * heads_per_group):
            attention.o_proj.weight[:, other * size] = 0
        attention.o_proj.weight[:, place] = 0
        attention.o_proj.weight[:, head * size] = direction
    name = f"model.layers.{block}.self_attn"
    return {
        f"{name}.{part}": getattr(attention, part).weight for part in ("q_proj", "v_proj", "o_proj")
    }


def write_judge(config: PoolingHeadConfig, data: JudgeData, output: Path) -> str:
    """Read the states, fit the head, and write `adapter/` and `judge/` to the output folder.

    Returns a description of the fit.
    """
    from transformers import AutoTokenizer

    judge = JudgeConfig(model=config.model)
    source = resolve(judge)
    name, wrapper = format_and_wrapper(judge)
    fmt, tokenizer = load_format(name), AutoTokenizer.from_pretrained(source.path)
    rows, sample_weights = read_rows_to_fit(config, data, fmt)

    def reader() -> Any:
        model = _load_judge(source.path, config.adapter).bfloat16()
        del model.model.layers[config.block :]
        model.model.norm = torch.nn.Identity()
        return lambda ids: compute_mean_state(model, config.block, ids)

    cache = output / "mean_states.npz"
    states = cache_states(make_rating_prompts(rows, judge, source.path), cache, reader)
    weights, alpha = fit_pooling(states, rows, sample_weights)
    model = _load_judge(source.path, config.adapter)
    builder = ExampleBuilder(PromptTokenizer(tokenizer, wrapper), fmt, LossConfig(slot_direct=1))
    examples = rows[: config.examples]
    head = find_least_head(model, config.block, builder, examples)
    direction = find_rating_direction(model, config.block, builder, examples)
    scaled_weights = torch.tensor(weights * config.strength, dtype=torch.float32)
    changed_weights = write_head(model, config.block, head, scaled_weights, direction)
    write_adapter(config.adapter, source.path, changed_weights, output / "adapter")
    merge_adapter(source.path, None, output / "adapter", tokenizer, output / "judge")
    fit = f"block {config.block}, head {head}; ridge of strength {alpha:g} on {len(rows)} rows"
    return f"{fit}; adapter and judge: {output}"


def _load_judge(base: str, adapter: Path) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload().eval()
    return model.requires_grad_(False)


WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
SMALLEST = 1e-4
"""Share of the largest singular value below which others are dropped: float16 cannot hold them."""


def average(adapters: dict[Path, float], target: Path) -> None:
    """Write the weighted mean of adapters, each trained on from the one before.

    Training on ranking costs some of the rating accuracy of the earlier training. A mean of the two
    adapters keeps most of both (averaged weights: arXiv 2109.01903). The LoRA factors A and B are
    averaged separately. This is close to the mean of their products, because one adapter was
    trained on from the other.

    `adapters` maps folders to weights that sum to 1, and `target` is the folder to write. Raises
    InputError for adapters of different shapes.
    """
    from safetensors.torch import load_file, save_file

    tensors_by_folder = {folder: load_file(folder / WEIGHTS) for folder in adapters}
    first = next(iter(tensors_by_folder.values()))
    for folder, tensors in tensors_by_folder.items():
        if {k: v.shape for k, v in tensors.items()} != {k: v.shape for k, v in first.items()}:
            raise InputError(
                f"{folder}: not of the layers and rank of {next(iter(tensors_by_folder))}"
            )
    mean = {
        name: sum(w * tensors_by_folder[folder][name].float() for folder, w in adapters.items()).to(
            kind.dtype
        )
        for name, kind in first.items()
    }
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(next(iter(adapters)) / "adapter_config.json", target)
    save_file(mean, target / WEIGHTS, metadata={"format": "pt"})


def factorise(change: Tensor) -> tuple[Tensor, Tensor]:
    """Factor a weight change, [outputs, inputs], into A [rank, inputs] and B [outputs, rank].

    B A equals the change. The rank is the smallest that float16 can express.
    """
    left_vectors, values, right_vectors = torch.linalg.svd(change.double(), full_matrices=False)
    rank = max(1, int((values > SMALLEST * values[0]).sum()))
    root = values[:rank].sqrt()
    return root[:, None] * right_vectors[:rank], left_vectors[:, :rank] * root


def write_adapter(
    adapter: Path, base: str, changed_weights: Mapping[str, Tensor], target: Path
) -> None:
    """Write the adapter with new merged weights for some modules.

    `base` is the folder of its base model, and `changed_weights` maps module names to weights.
    Raises KeyError for a module that the adapter does not have.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    facts = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
    tensors = load_file(adapter / WEIGHTS)
    scale = facts["lora_alpha"] / facts["r"]
    with safe_open(str(Path(base) / "model.safetensors"), "pt") as weights:
        for module, weight in changed_weights.items():
            first, second = (f"base_model.model.{module}.lora_{n}.weight" for n in "AB")
            kind = tensors[first].dtype
            a, b = factorise((weight - weights.get_tensor(f"{module}.weight").float()) / scale)
            tensors[first], tensors[second] = a.to(kind).contiguous(), b.to(kind).contiguous()
            facts["rank_pattern"][module] = len(a)
            facts["alpha_pattern"][module] = len(a) * scale
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    (target / CONFIG).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
