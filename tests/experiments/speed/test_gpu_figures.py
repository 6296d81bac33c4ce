"""Command of all GPU measurements, with small commands in place of engines."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from autoj_reward.config import check, load_config
from experiments.speed.gpu_figures import GpuFiguresConfig, main, study
from experiments.speed.gpu_service import GpuServiceConfig
from experiments.speed.gpu_throughput import GpuThroughputConfig
from experiments.study import Study
from tests.experiments.speed.shape import TINY

ROOT = Path(__file__).parents[3]


def make_config(tmp_path: Path, **parts: str) -> GpuFiguresConfig:
    """Return parts that run lines of Python; `result` is the file that they may write."""
    result = tmp_path / "part.json"
    measured: dict[str, Any] = {
        name: {"command": ["-c", code.replace("RESULT", repr(str(result)))]}
        for name, code in parts.items()
    }
    for name in measured:
        if "RESULT" in parts[name]:
            measured[name]["result"] = str(result)
    data = {"output": str(tmp_path / "run"), "measured": measured}
    return check(GpuFiguresConfig, data, "test")


def make_study(config: GpuFiguresConfig) -> Study[GpuFiguresConfig]:
    return Study(config, parts=config.select_parts(None))


def test_parts_are_kept_and_what_failed_is_tried_again(tmp_path: Path) -> None:
    writing = 'import json; json.dump({"rows": [{"per_minute": 7}]}, open(RESULT, "w"))'
    counting = "import pathlib; open('count', 'a').write('x'); {}".replace(
        "'count'", repr(str(tmp_path / "count"))
    )
    config = make_config(
        tmp_path, good=writing, counted=counting.format("1"), bad="raise SystemExit(3)"
    )
    text = study(make_study(config))
    steps = json.loads((config.output / "gpu_figures.json").read_text(encoding="utf-8"))["steps"]
    assert steps["good"]["result"] == {"rows": [{"per_minute": 7}]}
    assert [steps[name]["ok"] for name in ("good", "counted", "bad")] == [True, True, False]
    assert "left: bad; the same command goes on" in text
    study(make_study(config))
    assert (tmp_path / "count").read_text(encoding="utf-8") == "x"


def test_a_part_is_cut_off_when_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock stands still until the first part was cut off, however long this machine takes.
    ticks = chain([0.0] * 3, repeat(100.0))
    clock = SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr("experiments.speed.gpu_figures.time", clock)
    slow = "print('hello', flush=True); import time; time.sleep(600)"
    config = make_config(tmp_path, slow=slow, more="")
    config = config.model_copy(update={"minutes": 0.01})
    text = study(make_study(config))
    steps = json.loads((config.output / "gpu_figures.json").read_text(encoding="utf-8"))["steps"]
    assert not steps["slow"]["ok"] and "not begun" in steps["more"]["said"]
    assert "cut off: the time was up" in steps["slow"]["said"] and "left: slow, more" in text


def test_the_shipped_parts_name_commands_that_are_there(capsys: Any) -> None:
    config = load_config(GpuFiguresConfig, ROOT / "configs/experiments/gpu_figures.yaml")
    assert tuple(config.measured) == ("bf16", "service", "fp8", "prefix", "grpo", "tests")
    assert config.minutes < 9
    for name, part in config.measured.items():
        arguments = list(part.command)
        sets = [arguments[n + 1] for n, word in enumerate(arguments) if word == "--set"]
        if "experiments.speed.gpu_throughput" in arguments:
            path = ROOT / arguments[arguments.index("--config") + 1]
            loaded = load_config(GpuThroughputConfig, path, sets)
            assert part.result == loaded.output / "throughput.json"
        elif name == "service":
            loaded_service = load_config(GpuServiceConfig, ROOT / arguments[-1])
            assert part.result == loaded_service.output / "service.json"
    assert (
        main(["--config", str(ROOT / "configs/experiments/gpu_figures.yaml"), "--parts", "none"])
        == 1
    )
    assert "this config has the parts bf16, service" in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_a_tiny_shape_is_judged_by_the_bare_engine_and_by_the_service(
    smollm2: Any, tmp_path: Path
) -> None:
    shape = tmp_path / "shape"
    shape.mkdir()
    (shape / "config.json").write_text(json.dumps(TINY | {"head_dim": 32}), encoding="utf-8")
    config = {
        "output": str(tmp_path / "run"), "model": str(shape), "critique": 6, "queries": 1,
        "candidates": 3, "max_model_len": 1024, "kv_cache_gib": 0.25,
    }  # fmt: skip
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "experiments.speed.gpu_service", "--config", str(path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-4000:]
    rows = json.loads((tmp_path / "run/service.json").read_text(encoding="utf-8"))["rows"]
    assert [row["work"] for row in rows] == ["with critique", "rating only"]
    for row in rows:
        assert row["judgements"] == 3 and row["ratio"] > 0
        bare, service = row["usage"]
        # Of a forced rating the service reads the half point too.
        assert 0 < bare["tokens_out"] <= service["tokens_out"]
