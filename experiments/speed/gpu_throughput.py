"""Judgements a minute on a GPU by a judge's shape with random weights, beside the roofline.

    python -m experiments.speed.gpu_throughput --config configs/experiments/gpu_throughput.yaml

Nothing is downloaded: vLLM fills the shape with random numbers, and prompts are text of our own in
`autoj-en`, of the configured lengths. Output lengths are drawn and forced, since random weights
would never end a critique. A variant that was measured is not run again.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from tqdm import tqdm

from autoj_reward.capacity.memory import ModelShape, Precision, find_shape
from autoj_reward.capacity.plan import three_digits
from autoj_reward.capacity.roofline import (
    READS,
    JudgementTokens,
    Lengths,
    Machine,
    Serving,
    judgement_tokens,
    reported,
    roofline,
)
from autoj_reward.config import EngineConfig
from autoj_reward.errors import ModelError
from autoj_reward.formats.render import render as render_prompt
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models import ResolvedModel
from autoj_reward.models.built_in import BASE, build_model
from autoj_reward.models.device import Device, device_here
from autoj_reward.types import JudgeInput
from experiments.speed.bare import empty_cache
from experiments.speed.work import BACKGROUND
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

DTYPES: dict[Precision, str] = {"float32": "float32", "bf16": "bfloat16", "fp8": "bfloat16"}
WARM_UP = 8


class GpuThroughputConfig(StudyConfig):
    """model: a name or folder that `autoj plan` knows. queries: of `lengths.candidates` each.

    variants: name to how the engine serves. machine: peaks of a device that is not in the planner's
    table, such as a CPU; null takes those of the GPU that is found.
    """

    model: str = "llama-2-13b"
    lengths: Lengths = Lengths()
    queries: int = Field(64, ge=1)
    seed: int = 0
    machine: Machine | None = None
    variants: dict[str, Serving] = Field(min_length=1)


def study(run: Study[GpuThroughputConfig]) -> str:
    """Measure every variant that has not been.

    Raises ModelError without a GPU, and ConfigError or ModelError where the planner knows no
    peaks of it or the model does not fit, before an engine starts.
    """
    config = run.config
    machine, shape = find_device(config), find_shape(config.model)
    for serving in config.variants.values():
        roofline(shape, machine, serving, judgement_tokens(config.lengths))
    folder = write_shape(shape, config.output / "model")
    prompts = make_prompts(folder, shape.vocabulary, config.lengths, config.queries, config.seed)
    work = {
        name: partial(measure_variant, config, serving, shape, machine, folder, prompts)
        for name, serving in config.variants.items()
    }
    return run.steps("throughput", work, markdown)


def find_device(config: GpuThroughputConfig) -> Machine:
    """Return the peaks of the device that will be measured."""
    if config.machine is not None:
        return config.machine
    found = device_here()
    if found.kind == "cpu":
        raise ModelError(
            f"no GPU here: {config.model} needs an NVIDIA GPU with room for its weights and KV "
            "cache (a 13B shape in bf16: 40 GB at least, 80 for a batch worth measuring), and "
            "vLLM's GPU build (the package's extra `gpu`)"
        )
    return reported(found.name)


def measure_variant(
    config: GpuThroughputConfig,
    serving: Serving,
    shape: ModelShape,
    machine: Machine,
    folder: Path,
    prompts: Prompts,
) -> list[dict[str, Any]]:
    """Return the rows of one variant: rating only and with critique, on one engine with its cache
    emptied.

    Raises EngineError if the cache cannot be emptied, ModelError for outputs of other lengths."""
    from vllm import LLM

    outputs = output_lengths(len(prompts.ids), config.lengths.critique, config.seed)
    llm = LLM(**throughput_arguments(config, serving, folder, device_here()))
    rows = []
    try:
        first = prompts.ids[:WARM_UP]
        generate(llm, first, [READS] * len(first))
        for work, tokens in (
            ("rating only", [READS] * len(prompts.ids)),
            ("with critique", [critique + READS for critique in outputs]),
        ):
            empty_cache(llm)
            seconds = generate(llm, prompts.ids, tokens)
            asked = JudgementTokens(
                prefix=prompts.prefix,
                own=round(sum(map(len, prompts.ids)) / len(prompts.ids)) - prompts.prefix,
                output=round(sum(tokens) / len(tokens)),
                sharers=config.lengths.candidates,
            )
            rate = roofline(shape, machine, serving, asked)
            measured = 60 * len(tokens) / seconds / serving.tensor_parallel
            rows.append(
                {
                    "work": work,
                    "judgements": len(tokens),
                    "seconds": seconds,
                    "tokens_out": sum(tokens),
                    "per_minute": measured,
                    "roofline": rate.per_minute / serving.tensor_parallel,
                    "bound": rate.bound,
                    "share": measured * serving.tensor_parallel / rate.per_minute,
                }
            )
    finally:
        llm.llm_engine.engine_core.shutdown()
    return rows


def throughput_arguments(
    config: GpuThroughputConfig, serving: Serving, folder: Path, device: Device
) -> dict[str, Any]:
    """vLLM's arguments: those of a judge's engine, but random weights and the batch as planned."""
    from autoj_reward.engine.vllm import engine_arguments

    lengths = config.lengths
    engine = EngineConfig.model_validate(
        {
            "model": str(folder),
            "dtype": DTYPES[serving.weights],
            "quantization": "fp8_per_tensor" if serving.weights == "fp8" else None,
            "tensor_parallel": serving.tensor_parallel,
            "gpu_memory_utilization": serving.memory_share,
            "kv_cache_gib": serving.kv_cache_gib,
            "max_sequences": serving.max_sequences,
            "max_model_len": 256 + 2 * (lengths.query + lengths.response + lengths.critique),
        }
    )
    model = ResolvedModel(str(folder), "random", device.kind)
    found = engine_arguments(engine, model, device)
    found |= {"load_format": "dummy", "enable_prefix_caching": serving.sharing}
    if serving.kv == "fp8":
        found["kv_cache_dtype"] = "fp8"
    return found


def generate(llm: Any, prompts: Sequence[list[int]], lengths: Sequence[int]) -> float:
    """Return the seconds to write exactly the given number of tokens after each prompt. Raises
    ModelError for outputs of other lengths."""
    from vllm import SamplingParams

    params = [
        SamplingParams(temperature=0.0, min_tokens=n, max_tokens=n, ignore_eos=True)
        for n in lengths
    ]
    started = time.monotonic()
    found = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=True)
    seconds = time.monotonic() - started
    written = [len(output.outputs[0].token_ids) for output in found]
    if written != list(lengths):
        wrong = sum(a != b for a, b in zip(written, lengths, strict=True))
        raise ModelError(f"{wrong} of {len(written)} outputs have not the length they were given")
    return seconds


SPREAD = 0.24
"""Standard deviation of a released judgement's length over its mean: the 113 critiques of Auto-J on
Eval-C's development half, whose quantiles lie symmetrically around the median."""
RANGE = (0.32, 1.75)
"""The shortest and the longest of them over their mean."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """ids: candidates of a query one after another. prefix: mean tokens that a query's share."""

    ids: list[list[int]]
    prefix: int


def output_lengths(count: int, mean: int, seed: int) -> list[int]:
    """Draw the tokens of critiques, spread around a mean as the released judgements are."""
    drawn = np.random.default_rng(seed).normal(1.0, SPREAD, count).clip(*RANGE)
    return [max(1, round(mean * float(share))) for share in drawn]


def make_prompts(
    folder: Path, vocabulary: int, lengths: Lengths, queries: int, seed: int
) -> Prompts:
    """Prompts of `autoj-en` around random words, of about the lengths given.

    Ids of the tokenizer that the vocabulary does not have are folded into it: equal texts stay
    equal, so the shared prefixes stay shared. Template lengths are those of the format.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokens, fmt = PromptTokenizer(tokenizer, "chat"), load_format("autoj-en")
    rng, found, shared = random.Random(seed), list[list[int]](), 0
    for _ in tqdm(range(queries), desc="prompts"):
        query = _text(tokenizer, lengths.query, rng)
        responses = [_text(tokenizer, lengths.response, rng) for _ in range(lengths.candidates)]
        prompts = [
            render_prompt(JudgeInput("single", query, (response,)), fmt) for response in responses
        ]
        group = [[token % vocabulary for token in tokens.ids(prompt)] for prompt in prompts]
        shared += common_prefix(group)
        found += group
    return Prompts(found, round(shared / queries))


def common_prefix(group: list[list[int]]) -> int:
    """Leading tokens that all prompts of a group have; of a single one, all but the last."""
    if len(group) == 1:
        return len(group[0]) - 1
    first, last = min(group), max(group)
    return next(
        (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )


def write_shape(shape: ModelShape, folder: Path, every_token: bool = False) -> Path:
    """Write a model folder with config and tokenizer, and no weights: for `load_format: dummy`.

    The tokenizer is the built-in model's. every_token: the vocabulary has all of its tokens, also
    where the shape has fewer; else ids of prompts must be folded into that of the shape.
    """
    from transformers import AutoTokenizer, LlamaConfig

    tokenizer = AutoTokenizer.from_pretrained(str(build_model(BASE)))
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=max(shape.vocabulary, len(tokenizer) if every_token else 0),
        tie_word_embeddings=shape.tied,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
    )
    config.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def _text(tokenizer: Any, tokens: int, rng: random.Random) -> str:
    """Random words of about so many tokens."""
    words = " ".join(rng.choices(BACKGROUND.split(), k=tokens))
    ids = tokenizer(words, add_special_tokens=False)["input_ids"]
    return str(tokenizer.decode(ids[:tokens]))


COLUMNS = {
    "variant": "{variant}",
    "work": "{work}",
    "judgements a minute a device": "{shown}",
    "roofline": "{limit}",
    "share": "{share:.2f}",
    "bound by": "{bound}",
}


def markdown(found: dict[str, Any]) -> str:
    """Write a Markdown table."""
    rows = [
        row
        | {
            "variant": name,
            "shown": three_digits(row["per_minute"]),
            "limit": three_digits(row["roofline"]),
        }
        for name, own in found["steps"].items()
        for row in own
    ]
    title = f"{found['config']['model']} with random weights"
    return report("Throughput of a GPU", found, [(title, tabled(rows, COLUMNS), "")])


main = study_command(GpuThroughputConfig, study)

if __name__ == "__main__":
    sys.exit(main())
