"""Upper limit of an engine's speed: a judge's work by `vllm.LLM.generate`, all at once."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.config import JudgeConfig
from autoj_reward.engine.base import Generation, Prepared
from autoj_reward.engine.labels import Ids, inner_nodes, probabilities, slot_tokens
from autoj_reward.errors import EngineError, ModelError
from autoj_reward.formats.read import ParseFailure
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import JudgeFormat, load_format, parse_rating
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.judge.generative import MIN_MASS
from autoj_reward.models import format_and_wrapper, resolve
from autoj_reward.types import Candidate, JudgeInput, Usage
from experiments.speed.work import SideRound

NOTHING = Generation("")
"""Output of a judge that wrote nothing."""
TRIES = 50
"""Maximum number of attempts to empty the prefix cache, WAIT_S seconds apart."""
WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class SlotReading:
    """Place at which a rating is read."""

    context: list[int]
    """Token ids before it."""
    labels: dict[str, Ids]
    """Token ids of each label there."""
    written: bool
    """Whether the judge opened the slot itself."""


def find_slot(
    tokens: PromptTokenizer, fmt: JudgeFormat, prompt: Sequence[int], generation: Generation
) -> SlotReading:
    """Return the rating slot of an output, forced if it has none, like GenerativeJudge does."""
    parsed, force = parse_rating(generation.text, fmt), fmt.protocol("single").force
    if isinstance(parsed, ParseFailure):
        keep, opening = parsed.end, force if generation.text else force.lstrip()
    else:
        keep, opening = parsed.opened, generation.text[parsed.opened : parsed.start]
    prepared = Prepared((), tuple(prompt))
    context, labels = slot_tokens(tokens, prepared, generation, keep, opening, fmt.scale.labels)
    return SlotReading(context, labels, not isinstance(parsed, ParseFailure))


class BareEngine:
    """`vllm.LLM` with a judge's format. Make one with `start`, and close it."""

    def __init__(self, config: JudgeConfig, llm: Any, params: Callable[..., Any]) -> None:
        """Wrap a `vllm.LLM`; `params` makes its SamplingParams."""
        name, wrapper = format_and_wrapper(config)
        self.config, self.format = config, load_format(name)
        self._llm, self._params = llm, params
        self.tokens = PromptTokenizer(llm.get_tokenizer(), wrapper)

    @classmethod
    def start(cls, config: JudgeConfig, **overrides: Any) -> BareEngine:
        """Start an engine with a replica's arguments and `overrides`.

        Raises ModelError with the cause.
        """
        from vllm import LLM, SamplingParams

        from autoj_reward.engine.vllm import engine_arguments

        arguments = engine_arguments(config, resolve(config)) | overrides
        try:
            llm = LLM(**arguments)
        except (RuntimeError, ValueError, OSError) as error:
            raise ModelError(
                f"vLLM could not start {config.model!r}: {error}. The cause is in the engine's own "
                "lines above; a common one is too little memory: lower judge.kv_cache_gib or "
                "judge.gpu_memory_utilization"
            ) from error
        return cls(config, llm, SamplingParams)

    def close(self) -> None:
        """Stop the engine and free its memory."""
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        gc.collect()

    def _generate(self, prompts: Sequence[list[int]], params: Any) -> list[Any]:
        """Return vLLM's outputs in order. `params` is one SamplingParams, or one per prompt."""
        requests = [{"prompt_token_ids": ids} for ids in prompts]
        outputs: list[Any] = self._llm.generate(requests, params, use_tqdm=False)
        return outputs

    def _read(
        self, slots: Sequence[SlotReading], options: dict[str, Any]
    ) -> tuple[list[dict[Ids, dict[int, float]]], list[Any]]:
        """Generate one token at every inner node of the label trees of all slots, in one batch.

        Returns {node: {token id: natural log-probability}} for each slot, and vLLM's outputs.
        """
        nodes = [
            (k, *node) for k, slot in enumerate(slots) for node in inner_nodes(slot.labels).items()
        ]
        params = [
            self._params(max_tokens=1, temperature=0.0, logprob_token_ids=ids, **options)
            for _, _, ids in nodes
        ]
        outputs = self._generate([[*slots[k].context, *node] for k, node, _ in nodes], params)
        slot_logprobs: list[dict[Ids, dict[int, float]]] = [{} for _ in slots]
        for (k, node, ids), output in zip(nodes, outputs, strict=True):
            token_logprobs = output.outputs[0].logprobs[0]
            slot_logprobs[k][node] = {
                i: token_logprobs[i].logprob for i in ids if i in token_logprobs
            }
        return slot_logprobs, outputs

    async def judge(
        self, candidates: list[Candidate], *, critique: bool = True, cached: bool = True
    ) -> SideRound:
        """Do the whole work of the judge, beginning with an empty prefix cache.

        With `critique=False` the slot right after the prompt is read. `cached` says whether a
        prompt may use what another left in the prefix cache.
        """
        options = {} if cached else {"skip_reading_prefix_cache": True}
        empty_cache(self._llm)
        started = time.monotonic()
        inputs = (JudgeInput("single", c.prompt, (c.response,)) for c in candidates)
        prompts = [self.tokens.ids(render(item, self.format)) for item in inputs]
        params = self._params(max_tokens=self.config.max_tokens, temperature=0.0, **options)
        outputs = self._generate(prompts, params) if critique else []
        critiques_s = time.monotonic() - started if critique else None
        texts = map(read_text, outputs) if critique else [NOTHING] * len(prompts)
        slots = [
            find_slot(self.tokens, self.format, prompt, generation)
            for prompt, generation in zip(prompts, texts, strict=True)
        ]
        slot_logprobs, reads = self._read(slots, options)
        mass = [
            sum(p for _, p in probabilities(slot.labels, logprobs))
            for slot, logprobs in zip(slots, slot_logprobs, strict=True)
        ]
        rated = sum(s.written or m >= MIN_MASS for s, m in zip(slots, mass, strict=True))
        usage = count_usage([*outputs, *reads])
        return SideRound(time.monotonic() - started, len(candidates), rated, usage, critiques_s)


def empty_cache(llm: Any) -> None:
    """Empty the prefix cache of a vllm.LLM. Raises EngineError if that fails."""
    for _ in range(TRIES):
        if llm.reset_prefix_cache():
            return
        time.sleep(WAIT_S)  # the last step's blocks are not free yet
    raise EngineError("the prefix cache cannot be emptied: the engine still has work")


def read_text(output: Any) -> Generation:
    """Return the judge's text in a vLLM output."""
    [completion] = output.outputs
    return Generation(completion.text, tuple(completion.token_ids))


def count_usage(outputs: Sequence[Any]) -> Usage:
    """Return the token counts of vLLM outputs."""
    return Usage(
        sum(len(output.prompt_token_ids) for output in outputs),
        sum(output.num_cached_tokens or 0 for output in outputs),
        sum(len(output.outputs[0].token_ids) for output in outputs),
    )
