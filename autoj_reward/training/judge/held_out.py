"""Accuracy of a judge in training on held-out rows, which it judges greedily as when it is served.

Each validation writes its verdicts to `validation/step-N.jsonl`, so that they can be compared with
those of the judge that is served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, TrainerCallback

from autoj_reward.io.files import write_jsonl
from autoj_reward.training.judge.alarms import Alarms
from autoj_reward.training.judge.outputs import JudgedOutput, OutputReader, pad_left
from autoj_reward.training.judge.questions import Question, Unit
from autoj_reward.training.judge.rewards import Scorer

FOLDER = "validation"
"""Folder of the verdicts, in the output folder."""


class HeldOut(TrainerCallback):
    """Validation on held-out questions, before the first step, at equal distances, and at the end.

    The metrics are logged as `eval_NAME`; see `Scorer.metrics`.
    """

    def __init__(
        self,
        validation: Mapping[str, Sequence[Unit]],
        items: int,
        every: int,
        reader: OutputReader,
        scorer: Scorer,
        limit: int,
        size: int,
        output: Path,
        watched: bool = False,
    ) -> None:
        """items: most rows of a part. every: steps between validations. limit: longest output in
        tokens. size: prompts in a pass. watched: whether alarms are raised by these outputs."""
        self.trainer: Any = None
        """The trainer; set once it is built."""
        self.last: dict[str, float] = {}
        """Metrics of the last validation."""
        self._questions = [
            question for units in validation.values() for unit in units[:items] for question in unit
        ]
        self._every = every
        self._reader = reader
        self._scorer = scorer
        self._limit = limit
        self._size = size
        self._output = output
        self.alarms = Alarms(window=len(self._questions)) if watched else None
        """Alarms that these outputs raise, each validation alone."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Validate the judge that the run starts from."""
        if state.global_step == 0:
            self._validate(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Validate when it is due."""
        if state.global_step % self._every == 0 or state.global_step == state.max_steps:
            # To log the validation marks the step as logged, and its own metrics are yet to come.
            should_log = control.should_log
            self._validate(state)
            control.should_log = should_log

    def _validate(self, state: Any) -> None:
        if not self._questions:
            return
        accelerator = self.trainer.accelerator
        outputs = self._judge_share(accelerator)
        rows = [make_row(output) for output in outputs]
        if accelerator.num_processes > 1:
            from accelerate.utils import gather_object

            outputs = gather_object(outputs)
            rows = gather_object(rows)
        outputs = outputs[: len(self._questions)]
        self.last = self._scorer.metrics(outputs)
        self.trainer.log({f"eval_{name}": value for name, value in self.last.items()})
        if state.is_world_process_zero:
            if self.alarms is not None:
                self.alarms.look(outputs, state.global_step)
            path = self._output / FOLDER / f"step-{state.global_step}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_jsonl(path, rows[: len(self._questions)])

    def _judge_share(self, accelerator: Any) -> list[JudgedOutput]:
        """Return this process's share of the outputs. Each process has as many, as FSDP requires:
        the last one repeats questions."""
        world = accelerator.num_processes
        size = -(-len(self._questions) // world)
        begin = accelerator.process_index * size
        share = [self._questions[n % len(self._questions)] for n in range(begin, begin + size)]
        outputs: list[JudgedOutput] = []
        for start in range(0, size, self._size):
            part = share[start : start + self._size]
            outputs += self._reader.read(part, self._generate([q.ids for q in part]))
        return outputs

    def _generate(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the greedy output to each prompt, up to its stop token."""
        import torch
        from trl.models import unwrap_model_for_generation

        trainer = self.trainer
        tokenizer = trainer.processing_class
        ids, mask = pad_left(prompts, tokenizer.pad_token_id)
        device = trainer.accelerator.device
        config = GenerationConfig(
            max_new_tokens=self._limit,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        was_training = trainer.model.training
        trainer.model.eval()
        with (
            unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model,
            torch.no_grad(),
            summon_all(trainer),
        ):
            whole = model.generate(
                input_ids=ids.to(device), attention_mask=mask.to(device), generation_config=config
            )
        trainer.model.train(was_training)
        return [cut_after(row, tokenizer.eos_token_id) for row in whole[:, ids.shape[1] :].tolist()]


def summon_all(trainer: Any) -> Any:
    """Return a context in which weights that FSDP shards are whole on each process."""
    if not trainer.is_fsdp_enabled:
        return nullcontext()
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel.summon_full_params(trainer.model_wrapped, recurse=False)


def cut_after(ids: Sequence[int], stop: int) -> list[int]:
    """Return token ids up to the first stop token, with it."""
    if stop in ids:
        return list(ids[: ids.index(stop) + 1])
    return list(ids)


def make_row(output: JudgedOutput) -> dict[str, Any]:
    """Return what a validation writes of an output."""
    question: Question = output.question
    judgement = output.judgement
    return {
        "file": Path(question.source).name,
        "line": question.line,
        "part": question.part,
        "query": question.item.prompt.text,
        "responses": [response.text for response in question.item.responses],
        "label": question.label,
        "rating_label": question.rating,
        "verdict": judgement.verdict if output.parsed else None,
        "rating": judgement.rating if output.parsed else None,
        "outcome": judgement.outcome,
        "reason": judgement.reason,
        "output": output.text,
    }
