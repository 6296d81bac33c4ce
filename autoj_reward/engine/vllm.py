"""Engines on vLLM's AsyncLLM, for GPUs and for vLLM's CPU build. Only this module imports vllm."""

from __future__ import annotations

import asyncio
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from autoj_reward.config import EngineConfig, OverLong
from autoj_reward.engine.base import (
    Generation,
    LabelProbs,
    Prepared,
    Sampling,
    Score,
    extend_prompt,
    fit_prompt,
)
from autoj_reward.engine.builds import require_fitting_builds
from autoj_reward.engine.labels import slot_tokens, trie_probs
from autoj_reward.errors import EngineUnavailable, InputRejected, ModelError
from autoj_reward.formats.render import RenderedPrompt
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models import ResolvedModel
from autoj_reward.models.classifier import check_classifier
from autoj_reward.models.device import Device, detect_device
from autoj_reward.models.settings import CPU_KV_GIB, resolve_engine_settings
from autoj_reward.models.views import Abilities
from autoj_reward.types import Usage

UNMEASURED = 0.01
"""Share of a GPU that vLLM requires to be free if the KV cache has a size of its own."""
IN_ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""vLLM's executor for one device in the engine's process.

With the short name `uni`, a CPU build still starts a worker beside the engine's process. That
worker imports all of vLLM again, only to bind threads to cores.
"""


def engine_arguments(
    config: EngineConfig, model: ResolvedModel, device: Device | None = None
) -> dict[str, Any]:
    """Return vLLM's engine arguments for a config. device: None means this machine's."""
    device = device or detect_device()
    config = resolve_engine_settings(config, device)
    arguments: dict[str, Any] = {
        "model": model.path,
        "revision": model.revision,
        "dtype": config.dtype,
        "quantization": config.quantization,
        "max_model_len": config.max_model_len,
        "tensor_parallel_size": config.tensor_parallel,
        "trust_remote_code": config.trust_remote_code,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "max_num_seqs": config.max_sequences,
        "max_num_batched_tokens": config.max_batched_tokens,
        "gpu_memory_utilization": config.gpu_memory_utilization,
    }
    if config.kv_cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(config.kv_cache_gib * 2**30)
        arguments["gpu_memory_utilization"] = UNMEASURED
    if device.kind == "cuda":
        return arguments
    if config.tensor_parallel == 1:
        arguments["distributed_executor_backend"] = IN_ONE_PROCESS
    # With the CPU's default block of 128 tokens, too little of a query's prefix would be cached.
    return arguments | {
        "kv_cache_memory_bytes": int((config.kv_cache_gib or CPU_KV_GIB) * 2**30),
        "block_size": 32,
        # A seeded request whose prompt is read in two parts kills vLLM 0.32's CPU engine ("CPU
        # Generator does not use offset"), so prompts are read whole.
        "enable_chunked_prefill": False,
        # Compiling takes longer than it saves on models that a CPU can serve.
        "enforce_eager": True,
    }


class _VllmModel:
    """Base class of the vLLM engines: one AsyncLLM."""

    runner: Literal["auto", "pooling"] = "auto"

    def __init__(
        self,
        config: EngineConfig,
        model: ResolvedModel,
        wrapper: str = "chat",
        marks: Sequence[str] = (),
    ) -> None:
        self.config = config
        self.model = model
        self.wrapper = wrapper
        self.marks = marks

    async def start(self) -> None:
        require_fitting_builds()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._check_wrapper()
        try:
            self._llm = AsyncLLM.from_engine_args(
                AsyncEngineArgs(runner=self.runner, **self.arguments()),
                stat_loggers=[_make_timing_logger()],
            )
        except Exception as error:
            raise ModelError(
                f"vLLM could not start {self.model.path!r}: {error or type(error).__name__}. The "
                "cause is in the engine's own lines above; common ones are a wrong model name, too "
                "little memory (lower kv_cache_gib or max_model_len) and a missing GPU"
            ) from error
        # Runs before the interpreter exits: later, vLLM's shutdown would fail and log an error.
        self._shut_down = weakref.finalize(self, _shut_down, self._llm)
        self.tokens = PromptTokenizer(
            self._llm.get_tokenizer(), self.wrapper, self.marks, self.config.chat_template_kwargs
        )

    def arguments(self) -> dict[str, Any]:
        """Return vLLM's engine arguments."""
        return engine_arguments(self.config, self.model)

    def _check_wrapper(self) -> None:
        """Raise ModelError if the wrapper cannot use the tokenizer, before any weights are
        loaded."""
        from transformers import AutoTokenizer

        if self.wrapper != "chat":
            return
        tokenizer = AutoTokenizer.from_pretrained(
            self.model.path,
            revision=self.model.revision,
            trust_remote_code=self.config.trust_remote_code,
        )
        PromptTokenizer(tokenizer, self.wrapper)

    async def prepare(
        self, prompt: RenderedPrompt, max_tokens: int, over_long: OverLong
    ) -> Prepared:
        return fit_prompt(self.tokens, prompt, self.config.max_model_len, max_tokens, over_long)

    async def _wait_for_output(self, outputs: AsyncIterator[Any]) -> tuple[Any, float]:
        """Return (finished output of one request, seconds that it waited in vLLM's queue)."""
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError

        last = None
        try:
            async for output in outputs:
                last = output
        except VLLMValidationError as error:
            raise InputRejected(f"vLLM refused the request: {error}") from error
        except EngineDeadError as error:
            raise EngineUnavailable(f"the vLLM engine died: {error}") from error
        if last is None:
            raise EngineUnavailable("vLLM ended a request without an answer")
        times = getattr(last, "metrics", None)  # pooling outputs have no metrics
        return last, max(0.0, times.scheduled_ts - times.queued_ts) if times else 0.0

    async def check(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._llm.check_health()
        except EngineDeadError as error:
            raise EngineUnavailable(f"the vLLM engine died: {error}") from error

    async def close(self) -> None:
        self._shut_down()


def _make_timing_logger() -> type:
    """Return a vLLM stat logger class that keeps nothing.

    vLLM reports when a request was queued and scheduled only if it has a stat logger. This one
    replaces Prometheus metrics that nobody would read.
    """
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class TimingOnly(PrometheusStatLogger):
        def __init__(self, vllm_config: Any, engine_indexes: Any = None) -> None:
            """Create no metrics."""

        def record(self, *args: Any, **kwargs: Any) -> None:
            """Ignore the record."""

        def log_engine_initialized(self) -> None:
            """Log nothing."""

        def record_admission_rejection(self, reason: str) -> None:
            """Ignore the rejection."""

    return TimingOnly


def _shut_down(llm: Any) -> None:
    llm.shutdown()
    # Its destructor calls this again, possibly after its modules were unloaded.
    llm.shutdown = lambda: None


class VllmEngine(_VllmModel):
    """Generative engine on vLLM.

    Only finished outputs are returned. Log-probabilities are computed only at slots.
    """

    abilities, problem = Abilities(), ""

    async def contact(
        self, sampling: Sampling, capabilities: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return {}

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
        from vllm.sampling_params import StructuredOutputsParams

        schema = sampling.json_schema
        output, queued = await self._run(
            list(prepared.ids),
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            frequency_penalty=sampling.frequency_penalty,
            logprobs=0 if sampling.logprob else None,
            structured_outputs=StructuredOutputsParams(json=schema) if schema else None,
        )
        [completion] = output.outputs
        cached = output.num_cached_tokens or 0
        return [
            Generation(
                text=completion.text,
                ids=tuple(completion.token_ids),
                finished=completion.finish_reason == "stop",
                logprob=completion.cumulative_logprob if sampling.logprob else None,
                usage=Usage(len(prepared.ids), cached, len(completion.token_ids), queued_s=queued),
            )
        ]

    def extend_prompt(self, prepared: Prepared, generation: Generation, text: str) -> Prepared:
        return extend_prompt(self.tokens, prepared, generation, text)

    async def label_probs(
        self,
        prepared: Prepared,
        generation: Generation,
        keep: int,
        slot: str,
        labels: Sequence[str],
    ) -> LabelProbs:
        context, ids_by_label = slot_tokens(self.tokens, prepared, generation, keep, slot, labels)

        async def read_logprobs(
            context: list[int], token_ids: list[int]
        ) -> tuple[dict[int, float], Usage]:
            key = tuple(context), tuple(token_ids)
            return await prepared.ask_once(key, lambda: self._read_logprobs(context, token_ids))

        return await trie_probs(context, ids_by_label, read_logprobs)

    async def _read_logprobs(
        self, context: list[int], token_ids: list[int]
    ) -> tuple[dict[int, float], Usage]:
        output, queued = await self._run(
            context, max_tokens=1, temperature=0.0, logprob_token_ids=token_ids
        )
        logprobs = output.outputs[0].logprobs[0]
        usage = Usage(len(context), output.num_cached_tokens or 0, 1, queued_s=queued)
        return {token: logprobs[token].logprob for token in token_ids if token in logprobs}, usage

    async def _run(self, ids: list[int], **sampling: Any) -> tuple[Any, float]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **sampling)
        return await self._wait_for_output(
            self._llm.generate({"prompt_token_ids": ids}, params, uuid.uuid4().hex)
        )


class VllmScorer(_VllmModel):
    """Scalar reward model on vLLM: a pooling model with a classification head of one label."""

    runner = "pooling"

    async def start(self) -> None:
        self._pad = check_classifier(self.model, self.config)
        # Pooling outputs have no scheduling time, so requests beyond capacity wait here.
        self._places = asyncio.Semaphore(self.arguments()["max_num_seqs"])
        await super().start()

    async def score(self, prepared: Prepared) -> Score:
        from vllm import PoolingParams

        # transformers, and so the model's training, reads the last token that is not padding;
        # vLLM reads the last token.
        ids = list(prepared.ids)
        while len(ids) > 1 and ids[-1] == self._pad:
            ids.pop()
        queued_at = time.monotonic()
        async with self._places:
            queued = time.monotonic() - queued_at
            output, _ = await self._wait_for_output(
                self._llm.encode(
                    {"prompt_token_ids": ids},
                    PoolingParams(task="classify", use_activation=False),
                    uuid.uuid4().hex,
                )
            )
        usage = Usage(len(ids), output.num_cached_tokens or 0, queued_s=queued)
        return Score(float(output.outputs.data[0]), usage)
