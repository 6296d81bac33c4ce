"""Judgements per minute on a GPU with a judge's shape and random weights, and the roofline.

    python -m experiments.speed.gpu_throughput --config configs/experiments/gpu_throughput.yaml

Nothing is downloaded. vLLM fills the shape with random numbers. The prompts are made texts in
`autoj-en`, of the configured lengths. Output lengths are drawn and forced, since random weights
would never end a critique. A measured variant is not repeated.
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
from autoj_reward.config import EngineConfig
from autoj_reward.errors import ModelError
from autoj_reward.formats.render import render as render_prompt
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models import ResolvedModel
from autoj_reward.models.built_in import BASE, build_model
from autoj_reward.models.device import Device, detect_device
from autoj_reward.types import JudgeInput
from experiments.speed.bare import empty_cache
from experiments.speed.roofline import (
    READS,
    JudgementTokens,
    Lengths,
    Machine,
    Serving,
    find_machine,
    judgement_tokens,
    roofline,
    three_digits,
)
from experiments.speed.work import BACKGROUND
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

DTYPES: dict[Precision, str] = {"float32": "float32", "bf16": "bfloat16", "fp8": "bfloat16"}
"""vLLM's number type for the activations, by precision of the weights."""
WARM_UP = 8
"""Number of prompts generated before measuring."""


class GpuThroughputConfig(StudyConfig):
    """Model shape, work and variants."""

    model: str = "llama-2-13b"
    """Name or folder of a model that `autoj plan` knows."""
    lengths: Lengths = Lengths()
    """Lengths of texts in tokens, and candidates per query."""
    queries: int = Field(64, ge=1)
    """Number of queries, with `lengths.candidates` candidates each."""
    seed: int = 0
    """Seed of texts and output lengths."""
    machine: Machine | None = None
    """Peaks of a device that is missing from the table of peaks, such as a CPU.

    null takes those of the GPU in this machine.
    """
    variants: dict[str, Serving] = Field(min_length=1)
    """Serving settings by name."""


def study(run: Study[GpuThroughputConfig]) -> str:
    """Measure the variants that are missing. Return the report.

    Before an engine starts, it raises ModelError if there is no GPU. It raises ConfigError or
    ModelError if the GPU's peaks are not known or the model does not fit.
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
    """Return the peaks of the device to measure."""
    if config.machine is not None:
        return config.machine
    device = detect_device()
    if device.kind == "cpu":
        raise ModelError(
            f"no GPU here: {config.model} needs an NVIDIA GPU with room for its weights and KV "
            "cache (a 13B shape in bf16: 40 GB at least, 80 for a batch worth measuring), and "
            "vLLM's GPU build (the package's extra `gpu`)"
        )
    return find_machine(device)


def measure_variant(
    config: GpuThroughputConfig,
    serving: Serving,
    shape: ModelShape,
    machine: Machine,
    folder: Path,
    prompts: Prompts,
) -> list[dict[str, Any]]:
    """Measure one variant, rating only and with critique, from an emptied prefix cache.

    Both run on one engine. Raises EngineError if the cache cannot be emptied, and ModelError for
    outputs of wrong length.
    """
    from vllm import LLM

    outputs = draw_output_lengths(len(prompts.ids), config.lengths.critique, config.seed)
    llm = LLM(**throughput_arguments(config, serving, folder, detect_device()))
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
            mean_tokens = JudgementTokens(
                prefix=prompts.prefix,
                own=round(sum(map(len, prompts.ids)) / len(prompts.ids)) - prompts.prefix,
                output=round(sum(tokens) / len(tokens)),
                sharers=config.lengths.candidates,
            )
            rate = roofline(shape, machine, serving, mean_tokens)
            measured_rate = 60 * len(tokens) / seconds / serving.tensor_parallel
            rows.append(
                {
                    "work": work,
                    "judgements": len(tokens),
                    "seconds": seconds,
                    "tokens_out": sum(tokens),
                    "per_minute": measured_rate,
                    "roofline": rate.per_minute / serving.tensor_parallel,
                    "bound": rate.bound,
                    "share": measured_rate * serving.tensor_parallel / rate.per_minute,
                }
            )
    finally:
        llm.llm_engine.engine_core.shutdown()
    return rows


def throughput_arguments(
    config: GpuThroughputConfig, serving: Serving, folder: Path, device: Device
) -> dict[str, Any]:
    """Return vLLM's arguments: a judge engine's, with random weights and the planned batch."""
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
    arguments = engine_arguments(engine, model, device)
    arguments |= {"load_format": "dummy", "enable_prefix_caching": serving.sharing}
    if serving.kv == "fp8":
        arguments["kv_cache_dtype"] = "fp8"
    return arguments


def generate(llm: Any, prompts: Sequence[list[int]], lengths: Sequence[int]) -> float:
    """Generate exactly the given number of tokens after each prompt. Return the seconds.

    Raises ModelError for outputs of wrong length.
    """
    from vllm import SamplingParams

    params = [
        SamplingParams(temperature=0.0, min_tokens=n, max_tokens=n, ignore_eos=True)
        for n in lengths
    ]
    started = time.monotonic()
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=True)
    seconds = time.monotonic() - started
    written = [len(output.outputs[0].token_ids) for output in outputs]
    if written != list(lengths):
        wrong_count = sum(a != b for a, b in zip(written, lengths, strict=True))
        raise ModelError(
            f"{wrong_count} of {len(written)} outputs have not the length they were given"
        )
    return seconds


SPREAD = 0.24
"""Standard deviation of a critique's length, divided by the mean length.

It is that of the 113 critiques of Auto-J on Eval-C's development half, whose quantiles lie
symmetrically around the median.
"""
RANGE = (0.32, 1.75)
"""Shortest and longest of these critiques, divided by the mean length."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts as token ids."""

    ids: list[list[int]]
    """Token ids of each prompt. The candidates of a query follow each other."""
    prefix: int
    """Mean number of tokens that the prompts of a query share."""


def draw_output_lengths(count: int, mean: int, seed: int) -> list[int]:
    """Draw lengths of critiques in tokens, spread around a mean like the released judgements."""
    factors = np.random.default_rng(seed).normal(1.0, SPREAD, count).clip(*RANGE)
    return [max(1, round(mean * float(share))) for share in factors]


def make_prompts(
    folder: Path, vocabulary: int, lengths: Lengths, queries: int, seed: int
) -> Prompts:
    """Return prompts of `autoj-en` with random words, of about the given lengths.

    Token ids beyond the shape's vocabulary are folded into it. Equal texts stay equal, so shared
    prefixes stay shared. The template has the format's own length.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokens, fmt = PromptTokenizer(tokenizer, "chat"), load_format("autoj-en")
    rng, prompt_ids, shared_tokens = random.Random(seed), list[list[int]](), 0
    for _ in tqdm(range(queries), desc="prompts"):
        query = _make_text(tokenizer, lengths.query, rng)
        responses = [
            _make_text(tokenizer, lengths.response, rng) for _ in range(lengths.candidates)
        ]
        prompts = [
            render_prompt(JudgeInput("single", query, (response,)), fmt) for response in responses
        ]
        group = [[token % vocabulary for token in tokens.ids(prompt)] for prompt in prompts]
        shared_tokens += count_common_prefix(group)
        prompt_ids += group
    return Prompts(prompt_ids, round(shared_tokens / queries))


def count_common_prefix(group: list[list[int]]) -> int:
    """Return how many leading tokens all prompts of a group share.

    For a single prompt, all but the last.
    """
    if len(group) == 1:
        return len(group[0]) - 1
    first, last = min(group), max(group)
    return next(
        (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )


def write_shape(shape: ModelShape, folder: Path, every_token: bool = False) -> Path:
    """Write a model folder with config and tokenizer but no weights, for `load_format: dummy`.

    The tokenizer is the built-in model's. With `every_token` the vocabulary covers all of its
    tokens, even if the shape has fewer. Otherwise the ids of prompts must be folded into the
    shape's vocabulary.
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


def _make_text(tokenizer: Any, tokens: int, rng: random.Random) -> str:
    """Return random words of about `tokens` tokens."""
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
"""Columns of the report."""


def markdown(result: dict[str, Any]) -> str:
    """Return the report as one Markdown table."""
    rows = [
        row
        | {
            "variant": name,
            "shown": three_digits(row["per_minute"]),
            "limit": three_digits(row["roofline"]),
        }
        for name, variant_rows in result["steps"].items()
        for row in variant_rows
    ]
    title = f"{result['config']['model']} with random weights"
    return report("Throughput of a GPU", result, [(title, tabled(rows, COLUMNS), "")])


main = study_command(GpuThroughputConfig, study)

if __name__ == "__main__":
    sys.exit(main())
