"""Sample a judge on its training questions, and pair right outputs with wrong ones.

    autoj train judge sample --config RUN.yaml

The run file is that of `method: dpo`. The judge is served as always, so that its outputs are those
that a user gets. Held-out rows and queries of `data.exclude` are not asked. A journal beside the
file of the pairs keeps each output, so the same command resumes after a kill.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from autoj_reward.client.judging import open_ask
from autoj_reward.config import JudgeConfig
from autoj_reward.errors import InputError
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import write_json, write_jsonl
from autoj_reward.journal import Journal
from autoj_reward.judge.thinking import CUT
from autoj_reward.models.spec import JudgeSpec, judge_spec, spec_of
from autoj_reward.thinking import KNOWN_MARKS, opened_at_end
from autoj_reward.training.judge.examples import bad_by_source
from autoj_reward.training.judge.outputs import JudgedOutput, OutputReader, own_labels
from autoj_reward.training.judge.pairs import (
    Choice,
    SampledOutput,
    choose_pairs,
    make_pair_row,
)
from autoj_reward.training.judge.questions import (
    Question,
    Questions,
    Unit,
    make_questions,
    report_questions,
)
from autoj_reward.training.judge.recipe import JudgeDPOConfig
from autoj_reward.training.judge.rewards import Place, Scorer
from autoj_reward.training.judge.run import load_run
from autoj_reward.types import JudgeInput, Judgement, Outcome

COMMAND = "autoj train judge sample"
SUMMARY, JOURNAL = ".summary.json", ".journal.sqlite"
NOT_SAID = (Outcome.UNAVAILABLE, Outcome.INPUT_REJECTED)
"""Outcomes of judgements for which the judge wrote nothing, so that they are no outputs of it."""


async def sample_outputs(
    judge: JudgeConfig | JudgeSpec,
    items: Sequence[JudgeInput],
    count: int,
    output: Path,
    label: str = "outputs",
) -> list[list[Judgement]]:
    """Return `count` judgements of each input, each sampled with a seed of its own.

    The journal beside `output` keeps them, so that none is asked for twice. label: of the progress
    bar.
    """
    sampled = [replace(item, sample=n) for item in items for n in range(count)]
    with closing(Journal(output.with_name(output.name + JOURNAL))) as journal:
        # The engine starts only if the journal lacks an output.
        async with open_ask(spec_of(judge), journal, len(set(sampled)), label) as ask:
            judgements = await ask(sampled)
    return [judgements[n : n + count] for n in range(0, len(judgements), count)]


def sample_pairs(config: JudgeDPOConfig) -> dict[str, Any]:
    """Sample the judge, and write the pairs and a summary beside them. Return the summary.

    Raises InputError if no question has a right and a wrong output, or for data that cannot be
    trained on.
    """
    run = load_run(config, **config.judge_keys())
    stop = run.tokenizer.eos_token_id
    reader = OutputReader(run.judge, run.format, run.tokens, run.stop_ids)
    questions = make_questions(config, reader.prompting_judge(), run.tokens.count)
    report_questions(questions)
    units = [unit for part_units in questions.training.values() for unit in part_units]
    asked = [question for unit in units for question in unit]
    spec = judge_spec(config.sampled_judge())
    path = config.pairs_file
    count = config.sample.outputs
    summary_path = path.with_name(path.name + SUMMARY)
    path.parent.mkdir(parents=True, exist_ok=True)
    claim = judged_by(
        spec.name, path, path, command=COMMAND, total=count * len(asked), files=(summary_path,)
    )
    with claim:
        judgements = asyncio.run(
            sample_outputs(spec, [question.item for question in asked], count, path)
        )
        outputs: dict[Place, list[SampledOutput]] = {}
        for question, judged in zip(asked, judgements, strict=True):
            outputs[question.unit, question.place] = read_sampled(
                question, judged, reader, run.tokens, run.format, stop
            )
        scale = run.format.scale
        scorer = Scorer(scale, expected=False, longest=config.sample.max_tokens)
        margin = config.sample.margin / (scale.high - scale.low)
        choice = choose_pairs(units, outputs, scorer, margin, config.sample.pairs, config.seed)
        summary = summarise(questions, units, outputs, count, choice, scorer)
        summary |= {"judge": spec.name, "pairs_file": str(path)}
        if not choice.pairs:
            raise InputError(explain_no_pair(summary))
        write_jsonl(path, (make_pair_row(pair, run.format, config.seed) for pair in choice.pairs))
        write_json(summary_path, summary)
    return summary


def read_sampled(
    question: Question,
    judgements: Sequence[Judgement],
    reader: OutputReader,
    tokens: PromptTokenizer,
    fmt: JudgeFormat,
    stop: int,
) -> list[SampledOutput]:
    """Return the outputs of judgements, each read again from the token ids that are trained on.

    Failures of the engine are left out. So are outputs that are read otherwise from their ids than
    they were when the judge was served, as a text whose tokens are not those that were sampled may
    be. stop: token that ends an output.
    """
    written = []
    for sample, judgement in enumerate(judgements):
        if judgement.outcome not in NOT_SAID:
            text, ended = spell_output(judgement, question, tokens, fmt)
            written.append((sample, judgement, text, ended))
    id_lists = [
        [*tokens.written(text), stop] if ended else tokens.written(text)
        for _, _, text, ended in written
    ]
    outputs = []
    readings = reader.read([question] * len(written), id_lists)
    for (sample, judgement, text, ended), read in zip(written, readings, strict=True):
        served = JudgedOutput(question, text, read.tokens, ended, judgement)
        if own_labels(served) == own_labels(read):
            judged = replace(read.judgement, judge=judgement.judge)
            outputs.append(SampledOutput(text, sample, replace(read, judgement=judged)))
    return outputs


def spell_output(
    judgement: Judgement, question: Question, tokens: PromptTokenizer, fmt: JudgeFormat
) -> tuple[str, bool]:
    """Return what the judge wrote after its prompt, and whether it ended that by itself.

    Of thinking that was closed by force, or never closed, the open block alone is returned.
    """
    marks = fmt.thinking.marks if fmt.thinking else None
    table = KNOWN_MARKS if marks is None else (marks, *KNOWN_MARKS)
    opened_by = opened_at_end(tokens.tail(question.ids), table)
    ended = "output_truncated" not in judgement.flags
    if not judgement.thinking and not opened_by:
        return judgement.critique, ended
    used = opened_by or table[0]
    thinking = f"{judgement.thinking}\n" if opened_by else f"{used.open}\n{judgement.thinking}\n"
    unclosed = CUT in judgement.flags or not judgement.critique
    if unclosed:
        return thinking, False
    return f"{thinking}{used.close}\n\n{judgement.critique}", ended


def summarise(
    questions: Questions,
    units: Sequence[Unit],
    outputs: dict[Place, list[SampledOutput]],
    count: int,
    choice: Choice,
    scorer: Scorer,
) -> dict[str, Any]:
    """Return what was asked, what the judge wrote, and what was made of it.

    count: outputs that were asked of each question.
    """
    asked = Counter(question.part for unit in units for question in unit)
    pairs = Counter(pair.question.part for pair in choice.pairs)
    read = [output.read for sampled in outputs.values() for output in sampled]
    tokens = {}
    if choice.pairs:
        tokens = {
            "chosen_tokens": fmean(pair.chosen.read.tokens for pair in choice.pairs),
            "rejected_tokens": fmean(pair.rejected.read.tokens for pair in choice.pairs),
        }
    return {
        "questions": dict(asked),
        "outputs": len(read),
        "outputs_left_out": asked.total() * count - len(read),
        "with_right_and_wrong": dict(choice.with_both),
        "pairs": dict(pairs),
        "pairs_with_unparsed": choice.unparsed,
        "left_out_unparsed": choice.over_share,
        "left_out_for_balance": choice.unbalanced,
        **tokens,
        "metrics": scorer.metrics(read),
        "rows_left_out": bad_by_source(questions.bad),
        "alarms": questions.alarms,
    }


def explain_no_pair(summary: dict[str, Any]) -> str:
    """Return why there is no pair, and what can be done."""
    asked = sum(summary["questions"].values())
    both = sum(summary["with_right_and_wrong"].values())
    shares = ", ".join(f"{name} {value:.3g}" for name, value in summary["metrics"].items())
    return (
        f"no pair of a right and a wrong output: {asked} questions, {summary['outputs']} outputs, "
        f"{both} questions with both, of which {summary['left_out_for_balance']} were left out for "
        f"the balance of positions ({shares}). Raise sample.outputs or sample.temperature; for a "
        "low parse_rate raise sample.max_tokens, or teach the format first (method: sft)"
    )


def describe_summary(summary: dict[str, Any]) -> str:
    """Return the summary in a few lines."""
    lines = []
    for part, asked in summary["questions"].items():
        both = summary["with_right_and_wrong"].get(part, 0)
        pairs = summary["pairs"].get(part, 0)
        lines.append(
            f"{part}: {asked} questions, {both} with a right and a wrong output, {pairs} pairs"
        )
    shares = ", ".join(f"{name} {value:.3g}" for name, value in summary["metrics"].items())
    lines += [
        f"{summary['outputs']} outputs: {shares}; {summary['outputs_left_out']} failed or are read "
        "otherwise from their tokens",
        f"left out: {summary['left_out_for_balance']} pairs so that both positions are right "
        f"equally often, {summary['left_out_unparsed']} whose wrong output has no verdict",
        f"pairs: {summary['pairs_file']}",
    ]
    return "\n".join(lines)
