"""Steps that every method of training a judge shares: start, resume, save, and record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from autoj_reward.config import JudgeConfig
from autoj_reward.errors import ConfigError, did_you_mean
from autoj_reward.formats.schema import JudgeFormat, load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models import ResolvedModel, format_and_wrapper, resolve
from autoj_reward.training.common import claim_output, log_to, weights_dtype
from autoj_reward.training.judge.recipe import JudgeTrainingConfig


@dataclass(frozen=True)
class JudgeRun:
    """A training of a judge: its claimed output folder, and the judge that it starts from."""

    config: JudgeTrainingConfig
    judge: JudgeConfig
    """The judge as it will be served."""
    source: ResolvedModel
    format: JudgeFormat
    tokens: PromptTokenizer
    command: str
    started: float = field(default_factory=time.monotonic)

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""
        return self.tokens.tokenizer

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end an output when the judge is served: the tokenizer's end of sequence, and
        those of the model's generation config."""
        from transformers import GenerationConfig

        found = {self.tokenizer.eos_token_id}
        try:
            config = GenerationConfig.from_pretrained(
                self.source.path, revision=self.config.revision
            )
        except OSError:
            # Not every model has such a file.
            return tuple(found)
        ends = config.eos_token_id
        found.update(ends if isinstance(ends, list) else [] if ends is None else [ends])
        return tuple(sorted(found))

    @property
    def output_limit(self) -> int:
        """Longest output in tokens, thinking included."""
        return self.judge.max_tokens + (self.judge.thinking_tokens if self.format.thinking else 0)

    def load_model(self, attention: str = "sdpa") -> Any:
        """Return the weights to train, without an adapter."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(
            self.source.path,
            revision=self.config.revision,
            dtype=weights_dtype(self.config),
            attn_implementation=attention,
        )

    def finish(self, trainer: Any, results: Mapping[str, Any]) -> dict[str, Any]:
        """Save the judge and `training.json`, print what validation found and the judge's folder,
        and return the content of `training.json`."""
        from autoj_reward.training.saving import merge_adapter, save_weights, write_record

        config = self.config

        def merge(adapter: Path, target: Path) -> None:
            merge_adapter(self.source.path, config.revision, adapter, self.tokenizer, target)

        save_weights(trainer, config, "judge", merge)
        seconds = time.monotonic() - self.started
        record = write_record(trainer, config, self.command, seconds, results)
        if trainer.is_world_process_zero():
            folder = config.output / "judge"
            if summary := describe_validations(trainer):
                print(summary)
            print(f"judge: {folder}{self._explain_keys(folder)}")
        return record

    def _explain_keys(self, folder: Path) -> str:
        """Return the keys without which the judge in a folder is not asked as it was trained."""
        trained = format_and_wrapper(self.judge)
        by_itself = format_and_wrapper(JudgeConfig(model=str(folder)))
        keys = []
        for name, value, default in zip(("format", "wrapper"), trained, by_itself, strict=True):
            if value != default:
                keys.append(f"judge.{name}: {value}")
        return f" (as judge.model, with {', '.join(keys)})" if keys else ""


def start_run(
    config: JudgeTrainingConfig,
    command: str,
    *,
    files: tuple[str, ...] = (),
    adapter: Path | None = None,
    **judge: Any,
) -> JudgeRun:
    """Claim the output folder and load the tokenizer and the format.

    files, adapter: inputs of the run beside the config's data. judge: as for `load_run`. Raises
    ConfigError for an output folder that holds a run of another config.
    """
    claim_output(config, files, adapter)
    log_to(config.output / "logs")
    return load_run(config, command, **judge)


def load_run(config: JudgeTrainingConfig, command: str = "", **judge: Any) -> JudgeRun:
    """Load the tokenizer and the format.

    judge: further keys of the judge as it will be served.
    """
    from transformers import AutoTokenizer

    judge_config = JudgeConfig(
        model=config.model,
        revision=config.revision,
        format=config.format,
        wrapper=config.wrapper,
        **judge,
    )
    source = resolve(judge_config)
    fmt_name, wrapper = format_and_wrapper(judge_config)
    fmt = load_format(fmt_name)
    tokenizer = AutoTokenizer.from_pretrained(source.path, revision=config.revision)
    thinking = fmt.thinking
    marks = (thinking.open, thinking.close) if thinking else ()
    tokens = PromptTokenizer(tokenizer, wrapper, marks)
    return JudgeRun(config, judge_config, source, fmt, tokens, command)


def require_arguments(trainer: Mapping[str, Any], kind: Any) -> None:
    """Raise ConfigError for an argument in the run file's `trainer` that TRL's config lacks."""
    known = [field.name for field in fields(kind)]
    for name in trainer:
        if name not in known:
            raise ConfigError(
                f"trainer.{name}: no argument of TRL's {kind.__name__}"
                f"{did_you_mean(name, known, 'trainer.')}"
            )


def build_arguments(kind: Any, arguments: Mapping[str, Any]) -> Any:
    """Return TRL's config of the class `kind`. Raises ConfigError for values that it refuses."""
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"TRL's {kind.__name__} refuses the run file: {error}") from error


def describe_validations(trainer: Any) -> str:
    """Return a line with the metrics of a trainer's first and last validation of outputs.

    Empty after less than two of them, and for a training that validates no outputs.
    """
    found = [entry for entry in trainer.state.log_history if "eval_parse_rate" in entry]
    if len(found) < 2:
        return ""
    first, *_, last = found
    changes = []
    for name, value in last.items():
        if name.startswith("eval_") and name in first:
            changes.append(f"{name.removeprefix('eval_')} {first[name]:.3g} -> {value:.3g}")
    return f"held-out rows, before and after: {', '.join(changes)}"


def last_validation(trainer: Any) -> dict[str, float]:
    """Return the metrics of the last validation, also of an earlier start; empty without one."""
    for entry in reversed(trainer.state.log_history):
        found = {name: value for name, value in entry.items() if name.startswith("eval_")}
        if found:
            return found
    return {}
