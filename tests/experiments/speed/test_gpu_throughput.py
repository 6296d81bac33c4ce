from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from autoj_reward.capacity.memory import find_shape, shape_of
from autoj_reward.config import check
from autoj_reward.errors import EngineError
from autoj_reward.models.device import Device
from experiments.speed.gpu_throughput import (
    GpuThroughputConfig,
    Prompts,
    count_common_prefix,
    draw_output_lengths,
    main,
    make_prompts,
    measure_variant,
    throughput_arguments,
    write_shape,
)
from experiments.speed.roofline import READS, Lengths
from tests.experiments.speed.shape import TINY

H100 = Device("cuda", 79.6, (9, 0))
PEAKS = {"tflops": {"float32": 0.1}, "bandwidth_gbs": 10, "memory_gib": 8}
LENGTHS = {"query": 20, "response": 40, "critique": 12, "candidates": 3}


def make_config(tmp_path: Path, **changes: Any) -> GpuThroughputConfig:
    """Return the config of a tiny shape on a CPU."""
    shape = tmp_path / "shape"
    shape.mkdir(exist_ok=True)
    (shape / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    plain = {"weights": "float32", "kv": "float32", "kv_cache_gib": 0.25, "max_sequences": 8}
    data = {
        "output": str(tmp_path / "run"),
        "model": str(shape),
        "lengths": LENGTHS,
        "queries": 2,
        "machine": PEAKS,
        "variants": {"plain": plain},
    }
    return check(GpuThroughputConfig, data | changes, "test")


def test_output_lengths_are_those_of_the_released_judgements() -> None:
    drawn = draw_output_lengths(20_000, 330, seed=0)
    assert statistics.mean(drawn) == pytest.approx(330, rel=0.01)
    assert statistics.stdev(drawn) == pytest.approx(79, rel=0.03)
    assert min(drawn) >= 105 and max(drawn) <= 578
    assert (
        drawn
        == draw_output_lengths(20_000, 330, seed=0)
        != draw_output_lengths(20_000, 330, seed=1)
    )


def test_prompts_share_their_query_and_stay_in_the_vocabulary(smollm2: Any, tmp_path: Path) -> None:
    folder = write_shape(shape_of(TINY, "tiny"), tmp_path)
    lengths = Lengths(query=50, response=100, candidates=4)
    prompts = make_prompts(folder, 1000, lengths, queries=3, seed=0)
    assert len(prompts.ids) == 12 and len({tuple(ids) for ids in prompts.ids}) == 12
    assert all(0 <= token < 1000 for ids in prompts.ids for token in ids)
    # autoj-en takes about 130 tokens with the chat turn, about 65 of them before the response.
    assert statistics.mean(map(len, prompts.ids)) == pytest.approx(130 + 150, abs=8)
    assert prompts.prefix == pytest.approx(65 + 50, abs=8)
    for n in range(3):
        group = prompts.ids[4 * n : 4 * n + 4]
        assert count_common_prefix(group) == pytest.approx(prompts.prefix, abs=8)
    assert count_common_prefix([prompts.ids[0], prompts.ids[4]]) < 62
    again = make_prompts(folder, 1000, lengths, queries=3, seed=0)
    assert again == prompts


@pytest.mark.parametrize(
    ("group", "shared"),
    [([[1, 2, 3], [1, 2, 4]], 2), ([[1, 2], [1, 2, 4]], 2), ([[5], [6]], 0), ([[1, 2, 3]], 2)],
)
def test_common_prefix(group: list[list[int]], shared: int) -> None:
    assert count_common_prefix(group) == shared


@pytest.mark.parametrize("name", ["llama-2-13b", "qwen2.5-7b"])
def test_the_model_folder_has_the_shape(smollm2: Any, tmp_path: Path, name: str) -> None:
    shape = find_shape(name)
    written_shape = find_shape(str(write_shape(shape, tmp_path)))
    assert written_shape.parameters == pytest.approx(shape.parameters, rel=1e-3)
    assert written_shape.kv_bytes("bf16") == shape.kv_bytes("bf16")
    assert not list(tmp_path.glob("*.safetensors"))


def test_arguments_of_the_engine(tmp_path: Path) -> None:
    fast = {"weights": "fp8", "kv": "fp8", "max_sequences": 1024, "memory_share": 0.8}
    data = {"output": "runs/x", "variants": {"fast": fast, "bf16": {"sharing": False}}}
    config = check(GpuThroughputConfig, data, "test")
    arguments = throughput_arguments(config, config.variants["fast"], tmp_path, H100)
    expected = {
        "load_format": "dummy", "dtype": "bfloat16", "quantization": "fp8_per_tensor",
        "kv_cache_dtype": "fp8",
        "max_num_seqs": 1024, "gpu_memory_utilization": 0.8, "enable_prefix_caching": True,
    }  # fmt: skip
    assert {key: arguments[key] for key in expected} == expected
    longest = 130 + 350 + max(draw_output_lengths(10_000, 330, seed=0)) + READS
    assert arguments["max_model_len"] >= longest
    plain = throughput_arguments(config, config.variants["bf16"], tmp_path, H100)
    assert plain["quantization"] is None and "kv_cache_dtype" not in plain
    assert plain["enable_prefix_caching"] is False


def test_without_a_gpu_it_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    path = "configs/experiments/gpu_throughput.yaml"
    assert main(["--config", path, "--set", f"output={tmp_path / 'run'}"]) == 1
    stderr = capsys.readouterr().err
    assert "no GPU here: llama-2-13b needs an NVIDIA GPU" in stderr and "40 GB" in stderr
    assert not (tmp_path / "run").exists()


class Model:
    """Stand-in for vllm.LLM that generates as many tokens as it is asked for.

    Its prefix cache becomes empty at the third attempt after each generation, or never.
    """

    def __init__(self, emptied: bool) -> None:
        self.tries, self.emptied, self.full = 0, emptied, False
        self.filled: list[bool] = []
        core = SimpleNamespace(shutdown=lambda: None)
        self.llm_engine = SimpleNamespace(engine_core=core)

    def reset_prefix_cache(self) -> bool:
        self.tries += 1
        self.full = not (self.emptied and self.tries % 3 == 0)
        return not self.full

    def generate(
        self, prompts: list[Any], params: list[dict[str, Any]], use_tqdm: bool
    ) -> list[Any]:
        self.filled.append(self.full)
        self.full = True
        lengths = [sampling["max_tokens"] for sampling in params]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0] * n)]) for n in lengths]


def measure_with(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the rows of a variant, with this model in place of vLLM."""
    vllm = SimpleNamespace(LLM=lambda **_: model, SamplingParams=dict)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setattr("experiments.speed.bare.WAIT_S", 0)
    config, prompts = make_config(tmp_path), Prompts([[1, 2, 3], [1, 2, 4]], 2)
    assert config.machine
    shape = shape_of(TINY, "tiny")
    return measure_variant(
        config, config.variants["plain"], shape, config.machine, tmp_path, prompts
    )


def test_each_work_begins_with_an_empty_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(emptied=True)
    rows = measure_with(model, tmp_path, monkeypatch)
    assert [row["work"] for row in rows] == ["rating only", "with critique"]
    assert model.filled == [False, False, False] and model.tries == 6


def test_a_cache_that_stays_full_ends_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match="prefix cache cannot be emptied"):
        measure_with(Model(emptied=False), tmp_path, monkeypatch)


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_tiny_shape_is_measured(smollm2: Any, tmp_path: Path) -> None:
    config = make_config(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    # In a process of its own: vLLM's engine leaves sockets and warnings behind.
    command = [sys.executable, "-m", "experiments.speed.gpu_throughput", "--config", str(path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    result_path = config.output / "throughput.json"
    rows = json.loads(result_path.read_text())["steps"]["plain"]
    assert [row["work"] for row in rows] == ["rating only", "with critique"]
    for row, tokens in zip(
        rows, (READS * 6, sum(draw_output_lengths(6, 12, 0)) + READS * 6), strict=True
    ):
        assert row["judgements"] == 6 and row["tokens_out"] == tokens
        assert row["per_minute"] == pytest.approx(360 / row["seconds"])
        assert 0 < row["share"] == pytest.approx(row["per_minute"] / row["roofline"])
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert json.loads(result_path.read_text())["steps"]["plain"] == rows
    assert "| plain | with critique |" in (config.output / "throughput.md").read_text()
