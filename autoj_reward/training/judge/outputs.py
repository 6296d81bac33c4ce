"""Outputs of a judge in training, read exactly as those of the judge that is served.

The judge's own code reads them (`GenerativeJudge`), with an engine that gives what a trainer has
sampled. So flags, thinking blocks, planted verdicts and unfinished outputs count as they will.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.config import JudgeConfig, OverLong
from autoj_reward.engine.base import (
    Generation,
    LabelProbs,
    Prepared,
    Sampling,
    extend_prompt,
)
from autoj_reward.engine.labels import Read, slot_tokens, trie_probs
from autoj_reward.errors import InputRejected
from autoj_reward.formats.render import RenderedPrompt
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.judge.generative import GenerativeJudge
from autoj_reward.models.views import Abilities
from autoj_reward.processes import processes
from autoj_reward.training.judge.questions import Question
from autoj_reward.types import Judgement, Usage


@dataclass(frozen=True, slots=True)
class JudgedOutput:
    """One output to a question, as it was read."""

    question: Question
    text: str
    tokens: int
    ended: bool
    """Whether the output ended by itself within its limit."""
    judgement: Judgement

    @property
    def parsed(self) -> bool:
        """Whether the output ended and has a verdict of its own, at its slot."""
        return self.ended and self.judgement.ok and not self.judgement.forced


def own_labels(output: JudgedOutput) -> dict[str, str] | None:
    """Return the labels that an output writes by slot, or None without a verdict of its own."""
    if not output.parsed:
        return None
    return {reading.slot: reading.label for reading in output.judgement.readings}


class OutputEngine:
    """Engine of a judge whose answers are given: one output, of which no more is asked."""

    problem = ""

    def __init__(
        self,
        tokens: PromptTokenizer,
        max_model_len: int,
        output: Sequence[int] = (),
        ended: bool = True,
        read_logprobs: Read | None = None,
    ) -> None:
        """output: token ids of the answer, with its stop token. read_logprobs: reads the
        distributions at slots; None if they are not wanted."""
        self._tokens = tokens
        self._max_model_len = max_model_len
        self._output = tuple(output)
        self._ended = ended
        self._read_logprobs = read_logprobs
        self._prompt_ids: tuple[int, ...] | None = None

    @property
    def abilities(self) -> Abilities:
        """Where distributions can be read."""
        can_read = self._read_logprobs is not None
        return Abilities(slots=can_read, written=can_read)

    async def start(self) -> None:
        """Do nothing: there is no model to load."""

    async def check(self) -> None:
        """Do nothing: there is nothing that could die."""

    async def close(self) -> None:
        """Do nothing."""

    async def contact(
        self, sampling: Sampling, capabilities: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return no capabilities, as an engine in this process."""
        return {}

    async def prepare(
        self, prompt: RenderedPrompt, max_tokens: int, over_long: OverLong
    ) -> Prepared:
        """Tokenize a prompt; raises InputRejected for one that is too long."""
        ids = self._tokens.ids(prompt)
        free = self._max_model_len - max_tokens
        if len(ids) > free:
            raise InputRejected(
                f"a prompt of {len(ids)} tokens, and max_length {self._max_model_len} leaves "
                f"{free} beside the output"
            )
        return Prepared(prompt, tuple(ids), tail=self._tokens.tail(ids))

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
        """Return what the output has after this prompt, at most `sampling.max_tokens` of it."""
        if self._prompt_ids is None:
            self._prompt_ids = prepared.ids
        begun = prepared.ids[len(self._prompt_ids) :]
        if begun != self._output[: len(begun)]:
            # The thinking was closed by force, and the trainer sampled nothing after that.
            return [Generation("", finished=False)]
        rest = self._output[len(begun) :]
        ids = rest[: sampling.max_tokens]
        text = _decode(self._tokens, ids)
        return [Generation(text, ids, finished=self._ended and len(ids) == len(rest))]

    def extend_prompt(self, prepared: Prepared, generation: Generation, text: str) -> Prepared:
        """Return the prompt followed by the answer and by `text`."""
        return extend_prompt(self._tokens, prepared, generation, text)

    async def label_probs(
        self,
        prepared: Prepared,
        generation: Generation,
        keep: int,
        slot: str,
        labels: Sequence[str],
    ) -> LabelProbs | None:
        """Return the probabilities of the labels at a slot, by the model in training."""
        if self._read_logprobs is None:
            return None
        context, ids_by_label = slot_tokens(self._tokens, prepared, generation, keep, slot, labels)
        return await trie_probs(context, ids_by_label, self._read_logprobs)


class OutputReader:
    """Reader of outputs as judgements."""

    def __init__(
        self,
        config: JudgeConfig,
        fmt: JudgeFormat,
        tokens: PromptTokenizer,
        stop_ids: Collection[int],
        logprobs: BatchedLogprobs | None = None,
    ) -> None:
        """config: the judge as it will be served. stop_ids: tokens that end an output. logprobs:
        reads the distributions of ratings; None if they are not wanted."""
        self.config = config
        self.format = fmt
        self._tokens = tokens
        self.stop_ids = frozenset(stop_ids)
        self._logprobs = logprobs

    def prompting_judge(self) -> GenerativeJudge:
        """Return a judge that renders prompts and has no answers."""
        return self._make_judge(OutputEngine(self._tokens, self.config.max_model_len))

    def read(
        self, questions: Sequence[Question], outputs: Sequence[Sequence[int]]
    ) -> list[JudgedOutput]:
        """Return the judgement that each output makes. outputs: token ids, one for each
        question."""
        return asyncio.run(self._read_all(questions, outputs))

    async def _read_all(
        self, questions: Sequence[Question], outputs: Sequence[Sequence[int]]
    ) -> list[JudgedOutput]:
        work = (
            self._read_one(question, tuple(ids))
            for question, ids in zip(questions, outputs, strict=True)
        )
        return await asyncio.gather(*work)

    async def _read_one(self, question: Question, ids: tuple[int, ...]) -> JudgedOutput:
        ended = bool(ids) and ids[-1] in self.stop_ids
        read_logprobs = self._logprobs.read if self._logprobs else None
        engine = OutputEngine(self._tokens, self.config.max_model_len, ids, ended, read_logprobs)
        judgement = await self._make_judge(engine).judge(question.item)
        text = _decode(self._tokens, ids)
        return JudgedOutput(question, text, len(ids), ended, judgement)

    def _make_judge(self, engine: OutputEngine) -> GenerativeJudge:
        return GenerativeJudge(self.config, self.format, engine, "")


def gather_outputs(outputs: list[JudgedOutput]) -> list[JudgedOutput]:
    """Return the outputs of all processes, in the order of the processes."""
    if processes() == 1:
        return outputs
    from accelerate.utils import gather_object

    gathered: list[JudgedOutput] = gather_object(outputs)
    return gathered


def _decode(tokens: PromptTokenizer, ids: Sequence[int]) -> str:
    """Return the text of an output as vLLM returns it."""
    text: str = tokens.tokenizer.decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text


class BatchedLogprobs:
    """Next-token log-probabilities of the model in training, for many contexts in one pass.

    Contexts that are asked for in one turn of the event loop share a pass.
    """

    def __init__(self, pad: int, size: int) -> None:
        """pad: a token to pad with. size: contexts in a pass."""
        self.trainer: Any = None
        """Trainer of the model; set once it is built."""
        self._pad = pad
        self._size = size
        self._waiting: list[tuple[list[int], list[int], asyncio.Future[Any]]] = []

    async def read(
        self, context: list[int], candidates: list[int]
    ) -> tuple[dict[int, float], Usage]:
        """Return the natural log-probability of each candidate as the token after the context."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._answer)
        future = loop.create_future()
        self._waiting.append((context, candidates, future))
        return await future, Usage()

    def _answer(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for start in range(0, len(waiting), self._size):
            part = waiting[start : start + self._size]
            rows = self._compute([context for context, _, _ in part])
            for (_, candidates, future), row in zip(part, rows, strict=True):
                if not future.done():
                    future.set_result({token: float(row[token]) for token in candidates})

    def _compute(self, contexts: Sequence[Sequence[int]]) -> Any:
        """Return log-probabilities, float [contexts, vocabulary]."""
        import torch

        from autoj_reward.training.judge.shared_prompts import LAST, pad_left

        ids, mask = pad_left(contexts, self._pad)
        model = self.trainer.model
        was_training = model.training
        model.eval()
        with torch.no_grad(), self.trainer.accelerator.autocast():
            logits = model(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                position_ids=(mask.cumsum(-1) - 1).clamp_min(0).to(model.device),
                logits_to_keep=LAST,
            ).logits
        model.train(was_training)
        return logits[:, -1].float().log_softmax(-1).cpu()
