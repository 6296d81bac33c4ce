"""Accuracy of a judge in training on held-out rows, which it judges greedily as when it is served.

Each validation writes its verdicts to `validation/step-N.jsonl`, so that they can be compared with
those of the judge that is served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import GenerationConfig, TrainerCallback

from autoj_reward.io.files import write_jsonl
from autoj_reward.training.judge.alarms import Alarms
from autoj_reward.training.judge.outputs import (
    JudgedOutput,
    OutputReader,
    gather_outputs,
    own_labels,
)
from autoj_reward.training.judge.questions import Question, Unit
from autoj_reward.training.judge.rewards import Scorer
from autoj_reward.training.judge.shared_prompts import generate

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
        self._questions = [
            question for units in validation.values() for unit in units[:items] for question in unit
        ]
        self._every = every
        self._reader = reader
        self._scorer = scorer
        self._limit = limit
        self._size = size
        self._output = output
        prints = PartialState().is_main_process
        self.alarms = Alarms(window=len(self._questions), prints=prints)
        """Alarms that these outputs raise, each validation alone; none if it is not watched."""
        self._watched = watched

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
        outputs = gather_outputs(self._judge_share(self.trainer.accelerator))
        # Processes judge as many questions each, so that some questions may be judged twice.
        outputs = outputs[: len(self._questions)]
        metrics = self._scorer.metrics(outputs)
        if self._watched:
            # All processes have all outputs, and one prints.
            self.alarms.look(outputs, state.global_step)
            metrics |= {f"alarm_{name}": 1.0 for name in self.alarms.active}
        model = self.trainer.model
        was_training = model.training
        # TRL adds the metrics of the training so far to what it logs of a model that trains.
        model.eval()
        self.trainer.log({f"eval_{name}": value for name, value in metrics.items()})
        model.train(was_training)
        if state.is_world_process_zero:
            path = self._output / FOLDER / f"step-{state.global_step}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_jsonl(path, [make_row(output) for output in outputs])

    def _judge_share(self, accelerator: Any) -> list[JudgedOutput]:
        """Return this process's share of the outputs. Each process has as many, as FSDP requires:
        the last one repeats questions."""
        world = accelerator.num_processes
        size = -(-len(self._questions) // world)
        begin = accelerator.process_index * size
        share = [self._questions[n % len(self._questions)] for n in range(begin, begin + size)]
        tokenizer = self.trainer.processing_class
        config = GenerationConfig(
            max_new_tokens=self._limit,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=list(self._reader.stop_ids),
        )
        prompts = [question.ids for question in share]
        return self._reader.read(share, generate(self.trainer, prompts, config, self._size))


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
        "best": question.best,
        "verdict": judgement.verdict if output.parsed else None,
        "rating": judgement.rating if output.parsed else None,
        "readings": own_labels(output),
        "outcome": judgement.outcome,
        "reason": judgement.reason,
        "output": output.text,
    }
