"""Rejection sampling (best-of-N distillation): sample N, keep the judge's choice, train on it.

    autoj train rejection-sampling --config configs/trainers/rejection_sampling.yaml

Every round has a folder: a best-of-N job in `best_of_n/`, its training rows `sft.jsonl` (and
`pairs.jsonl`, best against worst, for preference training), checkpoints in `sft/`, and `policy/`,
which the next round samples. Responses that were cut off at `policy.max_tokens` are judged and not
trained on. The same command after a stop goes on in the round it was in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import (
    BestOfNConfig,
    Block,
    ChoiceConfig,
    PolicyConfig,
)
from autoj_reward.conversation import Prompt
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.formats.render import user_prompt
from autoj_reward.io.claims import claim, finish
from autoj_reward.io.files import require_apart, write_jsonl
from autoj_reward.journal import Journal
from autoj_reward.models.unused import load_run
from autoj_reward.processes import processes
from autoj_reward.replicas.replica import policy_name
from autoj_reward.training.common import half_precision, on_gpu
from rollouts.best_of_n import job as best_of_n
from rollouts.best_of_n.sampling import encode_prompt
from rollouts.train.learner import (
    LearnerConfig,
    load_policy,
    load_policy_tokenizer,
    lora,
    require_arguments,
)


class SftConfig(Block):
    """Settings of the training on the chosen responses, by TRL's SFTTrainer."""

    epochs: float = Field(1.0, gt=0)
    """Passes over the rows of a round."""
    batch_size: int = Field(8, ge=1)
    """Rows in an optimizer step."""
    device_batch_size: int = Field(1, ge=1)
    """Rows that are processed at a time."""
    learning_rate: float = Field(1e-5, gt=0)
    """Learning rate of the optimizer."""
    lora_rank: int | None = Field(None, ge=1)
    """Rank of a LoRA adapter, merged into the policy after each round. null trains all weights."""
    max_length: int = Field(1024, ge=16)
    """Longest training row in tokens, prompt and response together."""
    save_steps: int = Field(50, ge=1)
    """Steps between checkpoints."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of TRL's SFTConfig, by their names there."""


class RejectionSamplingConfig(ChoiceConfig):
    """Settings of rejection sampling: of the best-of-N job of every round, and of its training."""

    input: str
    """Input of the best-of-N job of every round."""
    output: Path
    """Folder for the rounds."""
    policy: PolicyConfig
    """The initial policy, and how it samples."""
    rounds: int = Field(1, ge=1)
    """Times to sample and train."""
    better_by: float = Field(0.0, ge=0)
    """Least gain of the chosen response over the query's mean, in points of the view
    or of the score. Queries with a smaller gain are not trained on: where all responses are alike,
    the choice teaches nothing. With a shortlist, the mean is over the responses with critiques."""
    sft: SftConfig = SftConfig()
    """The training on the chosen responses."""
    seed: int = 0
    """Random seed of the training."""


def main(config: str, sets: Sequence[str] = (), strict: bool = False) -> int:
    """Run every unfinished round, print where the last policy is, and return the exit code 0."""
    if processes() > 1:
        raise ConfigError("rejection sampling runs in one process: start it without a launcher")
    checked = load_run(RejectionSamplingConfig, config, sets, strict)
    require_apart([checked.input, checked.policy.model], folder=checked.output)
    require_arguments("sft.trainer", checked.sft.trainer, "trl:SFTConfig")
    claim(checked.output, checked, changeable={"output", "rounds"})
    policy = checked.policy.model
    for number in range(1, checked.rounds + 1):
        folder = checked.output / f"round-{number}"
        if not (folder / "policy" / "config.json").is_file():
            _run_round(checked, folder, policy, number)
        policy = str(folder / "policy")
    finish(checked.output)
    print(f"policy: {policy}")
    return 0


def job_of_round(config: RejectionSamplingConfig, policy: str, number: int) -> BestOfNConfig:
    """Return the best-of-N job of round `number` (from 1), which samples the policy `policy`."""
    sampled = {"model": policy, "seed": config.policy.seed + number - 1}
    given = config.model_fields_set & set(ChoiceConfig.model_fields)
    chosen = {name: getattr(config, name) for name in given}
    return BestOfNConfig(
        input=config.input,
        output=config.output / f"round-{number}" / "best_of_n",
        policy=config.policy.model_copy(update=sampled),
        **chosen,
    )


def _run_round(config: RejectionSamplingConfig, folder: Path, policy: str, number: int) -> None:
    job = job_of_round(config, policy, number)
    # The rows to train on are chosen by the number that ranked.
    job = job.model_copy(update={"view": best_of_n.build_job(job).choice.view})
    if not (job.output / "summary.json").is_file():
        best_of_n.run_job(job)
    rows = chosen_rows(job, config.better_by, policy, number)
    write_jsonl(folder / "sft.jsonl", rows.sft)
    write_jsonl(folder / "pairs.jsonl", rows.pairs)
    cut = f"{rows.cut} choices were cut off at policy.max_tokens {config.policy.max_tokens}"
    print(f"round {number}: {len(rows.sft)} rows to train on; {cut}", file=sys.stderr)
    if not rows.sft:
        raise InputError(
            f"round {number}: no query has a finished response that is better than its mean by "
            f"{config.better_by:g} ({cut}): lower better_by, or sample more, warmer or longer"
        )
    _train(config, folder, policy, rows.sft)


def _train(
    config: RejectionSamplingConfig, folder: Path, policy: str, rows: Sequence[dict[str, Any]]
) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from autoj_reward.training.saving import train_on

    sft = config.sft
    learner = LearnerConfig(model=policy, revision=config.policy.revision, lora_rank=sft.lora_rank)
    path, tokenizer = load_policy_tokenizer(learner)
    arguments = {
        "output_dir": str(folder / "sft"),
        "num_train_epochs": sft.epochs,
        "per_device_train_batch_size": sft.device_batch_size,
        "gradient_accumulation_steps": max(1, sft.batch_size // sft.device_batch_size),
        "learning_rate": sft.learning_rate,
        "max_length": sft.max_length,
        "completion_only_loss": True,
        "save_steps": sft.save_steps,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": ["tensorboard"],
        "use_cpu": not on_gpu(),
        **half_precision("auto"),
        "seed": config.seed,
        **sft.trainer,
    }
    trainer = SFTTrainer(
        model=load_policy(learner, path, tokenizer),
        args=SFTConfig(**arguments),
        train_dataset=Dataset.from_list(
            [{k: r[k] for k in ("prompt", "completion")} for r in rows]
        ),
        processing_class=tokenizer,
        peft_config=lora(learner),
    )
    train_on(trainer, folder / "sft")
    model = trainer.accelerator.unwrap_model(trainer.model)
    if sft.lora_rank:
        model = model.merge_and_unload()
    half = folder / ".policy"
    model.save_pretrained(half)
    tokenizer.save_pretrained(half)
    half.rename(folder / "policy")


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Training rows of one round. Each row has its origin under `source`."""

    sft: tuple[Row, ...]
    """Rows of `prompt` and `completion`."""
    pairs: tuple[Row, ...]
    """Rows of `prompt`, `chosen` and `rejected`."""
    cut: int
    """Queries without a row because their chosen response was cut off at `max_tokens`."""


def chosen_rows(job: BestOfNConfig, better_by: float, policy: str, number: int) -> TrainingRows:
    """Return the training rows of a finished job, in round `number`.

    A query gives no row if its chosen response is unrated, empty or cut off, or gains less than
    `better_by` over the mean of the rated responses. It gives a pair if its lowest-rated complete
    response has a lower value than the chosen one.
    """
    judged: dict[int, list[Row]] = {}
    for record in _read_lines(job.output / "judgements.jsonl"):
        judged.setdefault(record["line"], []).append(record)
    selections = list(_read_lines(job.output / "selections.jsonl"))
    finished = _read_finished(job, map(_read_query, selections))
    sft, pairs, cut = [], [], 0
    for choice in selections:
        best = choice[job.view]
        rated = [j for j in judged[choice["line"]] if j[job.view] is not None]
        if best is None or best - sum(j[job.view] for j in rated) / len(rated) < better_by:
            continue
        if not choice["response"].strip():
            continue
        ended = finished.get(_read_query(choice)) or (True,) * len(judged[choice["line"]])
        if not ended[choice["index"]]:
            cut += 1
            continue
        source = _describe_source(choice, best, rated) | {"policy": policy, "round": number}
        prompt, answer = _make_prompt(job, _read_query(choice)), _make_answer(choice["response"])
        sft.append({"prompt": prompt, "completion": answer, "source": source})
        worst = min((j for j in rated if ended[j["index"]]), key=lambda j: float(j[job.view]))
        if worst[job.view] < best:
            rejected_source = {"rejected_index": worst["index"], "rejected_value": worst[job.view]}
            pair = {"prompt": prompt, "chosen": answer, "rejected": _make_answer(worst["response"])}
            pairs.append(pair | {"source": source | rejected_source})
    return TrainingRows(tuple(sft), tuple(pairs), cut)


def _read_finished(job: BestOfNConfig, queries: Iterable[Prompt]) -> dict[Prompt, tuple[bool, ...]]:
    """Return, by query, whether the policy ended each response itself.

    Queries whose responses came with the input are missing.
    """
    if job.policy is None:
        return {}
    name = policy_name(job.policy)
    with closing(Journal(job.journal or job.output / "journal.sqlite")) as journal:
        samples = {query: journal.get_samples(name, encode_prompt(query)) for query in queries}
    return {query: sampled.finished for query, sampled in samples.items() if sampled}


def _describe_source(choice: Row, best: float, rated: list[Row]) -> Row:
    fields = {name: choice[name] for name in ("line", "index", "rule")}
    return fields | {"value": best, "of": len(rated), "judge": rated[0]["judge"]}


def _read_query(choice: Row) -> Prompt:
    """Return the query or conversation that the responses of a selection answer."""
    return Prompt.of(choice["messages"] if "messages" in choice else str(choice["query"]))


def _make_prompt(job: BestOfNConfig, query: Prompt) -> list[dict[str, str]]:
    """Return the conversation that the policy was sampled with."""
    prompt = user_prompt(query, job.policy.system if job.policy else None)
    return [{"role": message.role, "content": message.text} for message in prompt]


def _make_answer(response: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": response}]


def _read_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)
