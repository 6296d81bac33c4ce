"""Train a judge on the verdicts of its own outputs, by TRL's GRPOTrainer: `method: grpo`.

Prompts are the judge's inputs, with the token ids that the served judge gets. Outputs are read by
the judge's own code, so what is rewarded is what will be served.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from peft.helpers import disable_input_dtype_casting
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from autoj_reward.errors import ConfigError, InputError
from autoj_reward.processes import processes
from autoj_reward.training.common import (
    adapter_config,
    common_arguments,
    require_fit,
    set_own_pad,
    sharded,
)
from autoj_reward.training.judge.alarms import Alarms
from autoj_reward.training.judge.examples import bad_by_source
from autoj_reward.training.judge.held_out import HeldOut
from autoj_reward.training.judge.outputs import (
    BatchedLogprobs,
    JudgedOutput,
    OutputReader,
    gather_outputs,
)
from autoj_reward.training.judge.questions import (
    COMPARED,
    PREFERRED,
    RANKED,
    RATED,
    Question,
    Questions,
    make_questions,
    report_questions,
    schedule_units,
)
from autoj_reward.training.judge.recipe import JudgeGRPOConfig, step_load
from autoj_reward.training.judge.rewards import Scorer
from autoj_reward.training.judge.run import (
    build_arguments,
    last_validation,
    require_arguments,
    start_run,
)
from autoj_reward.training.judge.shared_prompts import generate, pack
from autoj_reward.training.saving import train_on

REWARDED = {
    "verdict": (COMPARED,),
    "both_orders": (COMPARED,),
    "order": (PREFERRED,),
    "best": (RANKED,),
    "distance": (RATED,),
    "ended": (COMPARED, RATED, PREFERRED, RANKED),
    "length": (COMPARED, RATED, PREFERRED, RANKED),
}
"""Parts of the mix that each reward is for."""


class JudgeGRPOTrainer(GRPOTrainer):
    """TRL's trainer on prompts that are given as token ids, in the order of the data set.

    The ids are those that the served judge gets. TRL would make its own from a text, in which a
    response could spell control tokens.
    """

    prompts: Sequence[Sequence[int]] = ()
    """Token ids of each prompt; the column `prompt` holds their indices."""

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [list(self.prompts[int(index)]) for index in prompts], None, {}

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *arguments: Any, **options: Any
    ) -> tuple[list[list[int]], Any]:
        """Sample an output to each prompt. Without vLLM, a prompt is computed once for all its
        outputs."""
        if self.use_vllm:
            outputs: tuple[list[list[int]], Any] = super()._generate_single_turn(
                prompt_ids, *arguments, **options
            )
            return outputs
        # TRL repeats each prompt for its outputs, one after the other.
        repeats = self.num_generations
        prompts = prompt_ids[::repeats]
        size = max(1, self.args.per_device_train_batch_size // repeats)
        return generate(self, prompts, self.generation_config, size, repeats), None

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Any,
        attention_mask: Any,
        logits_to_keep: int,
        *arguments: Any,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **options: Any,
    ) -> tuple[Any, Any, Any]:
        """Return log-probabilities and entropies of the outputs, [rows, tokens]. A prompt is
        computed once for all its outputs in the batch."""
        window = getattr(self.model.config, "sliding_window", None)
        packed = pack(input_ids, attention_mask, logits_to_keep, window)
        # TRL's own pass also has the loss of a mixture's router, and gradients of an entropy bonus.
        in_loss = compute_aux_loss or getattr(self, "_entropy_bonus_enabled", False)
        if packed is None or in_loss:
            found: tuple[Any, Any, Any] = super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                *arguments,
                compute_entropy=compute_entropy,
                compute_aux_loss=compute_aux_loss,
                **options,
            )
            return found
        with self.accelerator.autocast():
            logits = model(
                input_ids=packed.ids,
                attention_mask=packed.visible,
                position_ids=packed.positions,
                logits_to_keep=packed.kept,
                use_cache=False,
            ).logits
        logprobs = (packed.unpack(logits).float() / self.temperature).log_softmax(-1)
        chosen = logprobs.gather(-1, input_ids[:, -logits_to_keep:, None]).squeeze(-1)
        entropies = None
        if compute_entropy:
            fixed = logprobs.detach()
            entropies = -(fixed.exp() * fixed).sum(-1)
        return chosen, entropies, None


class RewardFunctions:
    """Reward functions of the trainer. All read the outputs of a step once, together."""

    def __init__(
        self, questions: Sequence[Question], reader: OutputReader, scorer: Scorer, alarms: Alarms
    ) -> None:
        self._questions = questions
        self._reader = reader
        self._scorer = scorer
        self._alarms = alarms
        self._given: Any = None
        self._outputs: list[JudgedOutput] = []

    def function(self, name: str) -> Callable[..., list[float | None]]:
        """Return the reward function of a name, as TRL calls it."""

        def compute(
            prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **others: Any
        ) -> list[float | None]:
            outputs = self._read(prompts, completion_ids, **others)
            return self._scorer.score(name, outputs)

        # TRL logs a reward by its function's name.
        compute.__name__ = name
        return compute

    def _read(
        self,
        prompts: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        log_metric: Callable[[str, float], None],
        trainer_state: Any,
        **_: Any,
    ) -> list[JudgedOutput]:
        if completion_ids is not self._given:
            questions = [self._questions[int(index)] for index in prompts]
            self._given = completion_ids
            self._outputs = self._reader.read(questions, completion_ids)
            # TRL gathers each metric from all processes, so that all have to log the same ones.
            outputs = gather_outputs(self._outputs)
            for name, value in self._scorer.metrics(outputs).items():
                log_metric(name, value)
            self._alarms.look(outputs, trainer_state.global_step)
            for name in self._alarms.active:
                log_metric(f"alarm_{name}", 1.0)
        return self._outputs


def train_on_outcomes(config: JudgeGRPOConfig, command: str = "") -> dict[str, Any]:
    """Run or resume a training to its end. Return the content of `training.json`.

    Raises as `train_judge`.
    """
    require_arguments(config.trainer, GRPOConfig)
    prompts_in_step = count_prompts(config)
    require_fit(lambda: step_load(config, processes()))
    run = start_run(
        config,
        command,
        files=tuple(config.groups.files),
        max_model_len=config.max_length,
        max_tokens=config.max_tokens,
        thinking_tokens=config.thinking_tokens,
        temperature=config.temperature,
        distribution=config.expected,
        over_long="reject",
    )
    tokenizer = run.tokenizer
    set_own_pad(tokenizer)
    logprobs = None
    if config.expected:
        logprobs = BatchedLogprobs(tokenizer.pad_token_id, config.device_batch_size)
    reader = OutputReader(run.judge, run.format, run.tokens, run.stop_ids, logprobs)
    questions = make_questions(config, reader.prompting_judge(), run.tokens.count)
    report_questions(questions)
    ordered, steps = order_questions(config, questions, prompts_in_step)

    limit = run.output_limit
    scorer = Scorer(run.format.scale, config.expected, limit)
    alarms = Alarms(prints=PartialState().is_main_process)
    rewards = RewardFunctions(ordered, reader, scorer, alarms)
    weights = choose_rewards(config, {question.part for question in ordered})
    arguments = make_arguments(config, steps, limit, list(weights.values()))
    set_seed(config.seed)
    model = run.load_model()
    held_out = HeldOut(
        questions.validation,
        config.validation_items,
        math.ceil(steps / config.validations),
        reader,
        scorer,
        limit,
        config.device_batch_size,
        config.output,
    )
    trainer = JudgeGRPOTrainer(
        model=model,
        reward_funcs=[rewards.function(name) for name in weights],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [str(n) for n in range(len(ordered))]}),
        processing_class=tokenizer,
        peft_config=adapter_config(model, config.lora, "CAUSAL_LM") if config.lora else None,
        callbacks=[held_out, alarms],
    )
    trainer.prompts = [question.ids for question in ordered]
    trainer.generation_config.eos_token_id = list(run.stop_ids)
    held_out.trainer = trainer
    if logprobs:
        logprobs.trainer = trainer
    # autocast narrows what LoRA reads; PEFT would widen it to the adapter's float32 before
    with disable_input_dtype_casting(trainer.model, active=trainer.args.bf16):
        train_on(trainer, config.output)
    results = {
        "rows": questions.counts(),
        "left_out": {Path(name).name: n for name, n in bad_by_source(questions.bad).items()},
        "validation": last_validation(trainer),
        "alarms": [*questions.alarms, *alarms.raised],
    }
    return run.finish(trainer, results)


def count_prompts(config: JudgeGRPOConfig) -> int:
    """Return the prompts of an optimizer step. Raises ConfigError if units would be divided."""
    unit = 2 * config.outputs * processes()
    if config.batch_size % unit:
        raise ConfigError(
            f"batch_size {config.batch_size} is no multiple of {unit}: 2 prompts of a pair, times "
            f"{config.outputs} outputs, times {processes()} processes"
        )
    if config.expected and sharded():
        raise ConfigError(
            "expected reads ratings with the weights in training, which FSDP divides: set "
            "expected: false, or train with accelerate's DDP"
        )
    return config.batch_size // config.outputs


def order_questions(
    config: JudgeGRPOConfig, questions: Questions, prompts_in_step: int
) -> tuple[list[Question], int]:
    """Return the questions in the order in which they are asked, and the number of steps.

    Raises InputError if there are fewer than one step asks.
    """
    units = schedule_units(questions.training, config.mix, config.epochs, config.seed)
    ordered = [question for unit in units for question in unit]
    steps = len(ordered) // prompts_in_step
    if config.max_steps is not None:
        steps = min(steps, config.max_steps)
    if not steps:
        raise InputError(
            f"{len(ordered)} prompts in all epochs, and a step asks {prompts_in_step}: give more "
            "rows or epochs, or a smaller batch_size"
        )
    return ordered[: steps * prompts_in_step], steps


def choose_rewards(config: JudgeGRPOConfig, parts: set[str]) -> dict[str, float]:
    """Return the weights of the rewards that the asked parts of the mix can earn.

    Raises ConfigError for a part whose right outputs no reward tells from wrong ones.
    """
    weights = {
        name: weight
        for name, weight in config.rewards.model_dump().items()
        if weight and parts.intersection(REWARDED[name])
    }
    for part in sorted(parts):
        of_verdict = [name for name in REWARDED if REWARDED[name] == (part,)]
        if not weights.keys() & of_verdict:
            raise ConfigError(
                f"rewards: none of a weight above 0 looks at the verdicts of {part}: set "
                f"rewards.{' or rewards.'.join(of_verdict)}, or mix.{part}: 0"
            )
    return weights


def make_arguments(
    config: JudgeGRPOConfig, steps: int, limit: int, weights: Sequence[float]
) -> GRPOConfig:
    """Return TRL's arguments. limit: longest output in tokens. weights: those of the rewards."""
    arguments = {
        **common_arguments(config, steps),
        "max_steps": steps,
        "num_generations": config.outputs,
        "max_completion_length": limit,
        "temperature": config.temperature,
        "beta": config.kl,
        "reward_weights": list(weights),
        # Scaled for each prompt apart, as TRL would, a right output would count the same whether
        # or not the other order agrees, and nothing would hold the judge back from one position.
        "scale_rewards": "batch",
        # Both questions of a unit stay in one step.
        "shuffle_dataset": False,
        **config.trainer,
    }
    arguments_of_trl: GRPOConfig = build_arguments(GRPOConfig, arguments)
    return arguments_of_trl
