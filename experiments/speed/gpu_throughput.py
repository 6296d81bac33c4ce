"""Judgements a minute on a GPU by a judge's shape with random weights, beside the roofline.

    python -m experiments.speed.gpu_throughput --config configs/experiments/gpu_throughput.yaml

Nothing is downloaded: vLLM fills the shape with random numbers, and prompts are text of our own in
`autoj-en`, of the configured lengths. Output lengths are drawn and forced, since random weights
would never end a critique. A variant that is in `throughput.json` is not run again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

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
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.models import ResolvedModel
from autoj_reward.models.device import Device, device_here
from experiments.speed.random_judge import Prompts, make_prompts, output_lengths, write_shape
from experiments.speed.throughput.bare import empty_cache
from experiments.study import Study, StudyConfig, command
from experiments.tables import report, tabled

DTYPES: dict[Precision, str] = {"float32": "float32", "bf16": "bfloat16", "fp8": "bfloat16"}
WARM_UP = 8


class GpuThroughputConfig(StudyConfig):
    """model: a name or folder that `autoj plan` knows. queries: of `lengths.candidates` each.

    variants: name to how the engine serves. device: `cpu` is for trying the path with a tiny shape.
    machine: peaks of a device that is not in the planner's table; null takes the one that is found.
    """

    model: str = "llama-2-13b"
    lengths: Lengths = Lengths()
    queries: int = Field(64, ge=1)
    seed: int = 0
    device: Literal["cuda", "cpu"] = "cuda"
    machine: Machine | None = None
    variants: dict[str, Serving] = Field(min_length=1)


def study(run: Study[GpuThroughputConfig]) -> str:
    """Measure every variant that has not been.

    Raises ModelError without a GPU, and ConfigError or ModelError where the planner knows no
    peaks of it or the model does not fit, before an engine starts.
    """
    config = run.config
    machine = find_device(config)
    shape = find_shape(config.model)
    for serving in config.variants.values():
        roofline(shape, machine, serving, judgement_tokens(config.lengths))
    folder = write_shape(shape, config.output / "model")
    prompts = make_prompts(folder, shape.vocabulary, config.lengths, config.queries, config.seed)
    found = before(config, machine)
    text = run.write("throughput", found, render)
    for name, serving in config.variants.items():
        about = {"variant": name, "serving": serving.model_dump(mode="json")}
        if not any(about == {key: row[key] for key in about} for row in found["rows"]):
            rows = measure(config, serving, shape, machine, folder, prompts)
            found["rows"] += [about | row for row in rows]
            text = run.write("throughput", found, render)
    return text


def before(config: GpuThroughputConfig, machine: Machine) -> dict[str, Any]:
    """What an earlier run of the same work on such a device left. Raises ConfigError if it was of
    another; rows of variants that have changed are dropped."""
    settings = config.model_dump(mode="json", exclude={"output", "variants", "machine"})
    settings["peaks"] = machine.model_dump(mode="json")
    path = config.output / "throughput.json"
    if not path.is_file():
        return {"settings": settings, "rows": []}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if found["settings"] != settings:
        raise ConfigError(f"{path} is of other settings: name another output, or remove it")
    now = {name: serving.model_dump(mode="json") for name, serving in config.variants.items()}
    rows = [row for row in found["rows"] if now.get(row["variant"]) == row["serving"]]
    return {"settings": settings, "rows": rows}


def find_device(config: GpuThroughputConfig) -> Machine:
    """The peaks of the device that will be measured."""
    if config.device == "cpu":
        if config.machine is None:
            raise ConfigError("device cpu needs `machine`: tflops, memory_gib and bandwidth_gbs")
        return config.machine
    found = device_here()
    if found.kind == "cpu":
        raise ModelError(
            f"no GPU here: {config.model} needs an NVIDIA GPU with room for its weights and KV "
            "cache (a 13B shape in bf16: 40 GB at least, 80 for a batch worth measuring), and "
            "vLLM's GPU build (the package's extra `gpu`)"
        )
    return config.machine or reported(found.name)


def measure(
    config: GpuThroughputConfig,
    serving: Serving,
    shape: ModelShape,
    machine: Machine,
    folder: Path,
    prompts: Prompts,
) -> list[dict[str, Any]]:
    """Rows of one variant: rating only and with critique, on one engine with its cache emptied.

    Raises EngineError if the cache cannot be emptied, ModelError for outputs of other lengths."""
    from vllm import LLM

    outputs = output_lengths(len(prompts.ids), config.lengths.critique, config.seed)
    device = replace(device_here(), kind=config.device)
    llm = LLM(**arguments(config, serving, folder, device))
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


def arguments(
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
    model = ResolvedModel(str(folder), "random", config.device)
    found = engine_arguments(engine, model, device)
    found |= {"load_format": "dummy", "enable_prefix_caching": serving.sharing}
    if serving.kv == "fp8":
        found["kv_cache_dtype"] = "fp8"
    return found


def generate(llm: Any, prompts: Sequence[list[int]], lengths: Sequence[int]) -> float:
    """Seconds to write exactly so many tokens after each prompt. Raises ModelError if it wrote
    others."""
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


COLUMNS = {
    "variant": "{variant}",
    "work": "{work}",
    "judgements a minute a device": "{shown}",
    "roofline": "{limit}",
    "share": "{share:.2f}",
    "bound by": "{bound}",
}


def render(found: dict[str, Any]) -> str:
    """A Markdown table."""
    rows = [
        row | {"shown": three_digits(row["per_minute"]), "limit": three_digits(row["roofline"])}
        for row in found["rows"]
    ]
    title = f"{found['settings']['model']} with random weights"
    return report("Throughput of a GPU", found, [(title, tabled(rows, COLUMNS), "")])


main = command(GpuThroughputConfig, study)

if __name__ == "__main__":
    sys.exit(main())
