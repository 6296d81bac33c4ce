"""The service's code compared with the bare engine, on a judge's shape with random weights.

    python -m experiments.speed.gpu_service --config configs/experiments/gpu_service.yaml

Both judge the same queries, one engine after the other: with critiques and rating slots, and by the
rating alone. Ray is left out, so this runs where only vLLM is installed.
`experiments.speed.throughput` measures what Ray costs. The vocabulary covers every token of the
texts, even if the shape has fewer. Random weights hardly ever end a critique, so nearly all
critiques have the maximum length.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.capacity.memory import find_shape
from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.config import JudgeConfig
from autoj_reward.engine.vllm import VllmEngine
from autoj_reward.formats.schema import load_format
from autoj_reward.judge.generative import GenerativeJudge
from autoj_reward.models import resolve
from autoj_reward.models.device import detect_device
from autoj_reward.models.settings import max_ongoing, resolve_engine_settings
from autoj_reward.models.spec import judge_spec
from autoj_reward.replicas.replica import JudgeReplica
from experiments.speed.bare import BareEngine
from experiments.speed.gpu_throughput import write_shape
from experiments.speed.work import WARM_UP, SideRound, made_candidates, make_client_side
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

DUMMY = {"load_format": "dummy"}
"""vLLM's argument for random weights."""


class GpuServiceConfig(StudyConfig):
    """Model shape and work."""

    model: str = "llama-2-13b"
    """Name or folder of a model that `autoj plan` knows."""
    critique: int = Field(330, ge=1)
    """Maximum length of a critique in tokens."""
    queries: int = Field(12, ge=1)
    """Number of queries."""
    candidates: int = Field(32, ge=1)
    """Number of candidates for each query."""
    max_model_len: int = Field(2048, ge=64)
    """Maximum length of prompt and output in tokens."""
    kv_cache_gib: float | None = Field(None, gt=0)
    """Size of the KV cache in GiB. null leaves it to the engine's settings."""

    def judge(self, folder: Path, critique: bool) -> JudgeConfig:
        """Return the judge's config of both sides."""
        return JudgeConfig(
            model=str(folder),
            format="autoj-en",
            wrapper="chat",
            critique=critique,
            max_tokens=self.critique,
            max_model_len=self.max_model_len,
            kv_cache_gib=self.kv_cache_gib,
        )


class RandomEngine(VllmEngine):
    """The service's engine with random weights."""

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | DUMMY


async def study(run: Study[GpuServiceConfig]) -> str:
    """Measure the bare engine, then the service. Return the report with their seconds and ratio."""
    config = run.config
    folder = write_shape(find_shape(config.model), config.output / "model", every_token=True)
    bare, service = await _measure_bare(config, folder), await _measure_service(config, folder)
    rows = [
        {
            "work": work,
            "judgements": bare_round.judgements,
            "bare_s": bare_round.seconds,
            "critiques_s": bare_round.critiques_s,
            "service_s": service_round.seconds,
            "ratio": service_round.seconds / bare_round.seconds,
            "per_minute": 60 * service_round.judgements / service_round.seconds,
            "usage": [asdict(bare_round.usage), asdict(service_round.usage)],
        }
        for (work, bare_round), service_round in zip(bare.items(), service.values(), strict=True)
    ]
    return run.write("service", {"rows": rows}, markdown)


async def _measure_bare(config: GpuServiceConfig, folder: Path) -> dict[str, SideRound]:
    """Measure `vllm.LLM.generate` with all prompts at once."""
    with closing(BareEngine.start(config.judge(folder, critique=True), **DUMMY)) as bare:
        await bare.judge(made_candidates("w", 1, WARM_UP))
        return {
            work: await bare.judge(_make_work(config, work), critique=work == "with critique")
            for work in ("with critique", "rating only")
        }


async def _measure_service(config: GpuServiceConfig, folder: Path) -> dict[str, SideRound]:
    """Measure a client on a replica's code. One engine serves both kinds of work."""
    judge = config.judge(folder, critique=True)
    engine = RandomEngine(judge, resolve(judge), "chat")
    await engine.start()
    try:
        ongoing = max_ongoing(resolve_engine_settings(judge, detect_device()), 1)
        rounds = {}
        for work in ("with critique", "rating only"):
            judge_config = config.judge(folder, critique=work == "with critique")
            replica = JudgeReplica(
                GenerativeJudge(judge_config, load_format("autoj-en"), engine, work)
            )
            backend = LocalBackend(judge_spec(judge_config), replica)
            limits = ClientLimits(max_in_flight=ongoing)
            side = make_client_side(JudgeClient(backend, limits=limits))
            await side(made_candidates(f"w{work[0]}", 1, WARM_UP))
            rounds[work] = await side(_make_work(config, work))
        return rounds
    finally:
        await engine.close()


def _make_work(config: GpuServiceConfig, work: str) -> Any:
    """Return the texts of one kind of work.

    Each kind has its own, since the service's engine caches them.
    """
    return made_candidates(work[0], config.queries, config.candidates)


COLUMNS = {
    "work": "{work}",
    "judgements": "{judgements}",
    "bare engine, s": "{bare_s:.2f}",
    "of it critiques, s": "{critiques_s:.2f}",
    "service, s": "{service_s:.2f}",
    "ratio": "{ratio:.3f}",
    "service, judgements a minute": "{per_minute:.0f}",
}
"""Columns of the report."""


def markdown(result: dict[str, Any]) -> str:
    """Return the report as one Markdown table."""
    table = (result["config"]["model"], tabled(result["rows"], COLUMNS), "")
    return report("Service beside bare engine", result, [table])


main = study_command(GpuServiceConfig, study)

if __name__ == "__main__":
    sys.exit(main())
