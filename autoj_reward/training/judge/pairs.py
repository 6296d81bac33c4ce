"""Pairs of a right and a wrong output of a judge to the same question, for its training by DPO.

Right is what `rewards.py` rewards. An output without a verdict of its own is a wrong one, but it
teaches the format and not the judging. So it is taken only where a question has no other wrong
output, and in at most a share of the pairs.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from autoj_reward.errors import InputError
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.io.checks import BadField
from autoj_reward.io.rows import read_rows
from autoj_reward.training.judge.outputs import JudgedOutput
from autoj_reward.training.judge.questions import (
    COMPARED,
    PREFERRED,
    RANKED,
    RATED,
    Question,
    Unit,
)
from autoj_reward.training.judge.rewards import Place, Scorer
from autoj_reward.types import BadRow, Verdict

REWARD_OF = {COMPARED: "verdict", RATED: "distance", PREFERRED: "order", RANKED: "best"}
"""Reward that tells the right outputs of a part from the wrong ones."""
UNPARSED = 0.25
"""Largest share of the pairs of a part whose wrong output has no verdict of its own."""


@dataclass(frozen=True, slots=True)
class SampledOutput:
    """One output that a served judge was sampled for."""

    text: str
    """The output as the judge wrote it after its prompt, thinking included."""
    sample: int
    """Its index among the outputs to its question."""
    read: JudgedOutput
    """What is read of its token ids, as of an output in training."""


@dataclass(frozen=True, slots=True)
class OutputPair:
    """A right and a wrong output to one question."""

    question: Question
    chosen: SampledOutput
    rejected: SampledOutput


@dataclass(frozen=True, slots=True)
class Choice:
    """Pairs that were chosen, with what was found on the way."""

    pairs: tuple[OutputPair, ...]
    """In the order of the questions."""
    with_both: Mapping[str, int]
    """Questions of each part with a right and a wrong output."""
    unparsed: int
    """Pairs whose wrong output has no verdict of its own."""
    over_share: int
    """Such pairs that were left out, since they were more than their share."""
    unbalanced: int
    """Pairs that were left out, so that the right verdicts name both positions equally often."""


def choose_pairs(
    units: Sequence[Unit],
    outputs: Mapping[Place, Sequence[SampledOutput]],
    scorer: Scorer,
    margin: float,
    most: int,
    seed: int,
) -> Choice:
    """Choose pairs of a right and a wrong output.

    outputs: those to each question, by its unit and place. margin: as `SampleConfig.margin`, as a
    share of the scale's width. most: pairs of a question.
    """
    rng = random.Random(seed)
    with_both = Counter[str]()
    by_part: dict[str, list[OutputPair]] = defaultdict(list)
    for unit in units:
        # The two questions of a unit are scored together: some rewards compare their outputs.
        sampled: list[SampledOutput] = []
        for question in unit:
            sampled += outputs[question.unit, question.place]
        values = scorer.score(REWARD_OF[unit[0].part], [output.read for output in sampled])
        for question in unit:
            scored = []
            for output, value in zip(sampled, values, strict=True):
                if output.read.question is question and value is not None:
                    scored.append((output, value))
            right, wrong = _tell_apart(question.part, scored, margin)
            if right and wrong:
                with_both[question.part] += 1
            rng.shuffle(right)
            rng.shuffle(wrong)
            # Sorting is stable: of each kind the order stays random.
            wrong.sort(key=lambda output: not output.read.parsed)
            pairs = zip(right[:most], wrong[:most], strict=False)
            by_part[question.part] += [OutputPair(question, *pair) for pair in pairs]
    chosen: list[OutputPair] = []
    over_share = 0
    unbalanced = 0
    for pairs_of_part in by_part.values():
        limited = _limit_unparsed(pairs_of_part, rng)
        balanced = _balance(limited, rng)
        over_share += len(pairs_of_part) - len(limited)
        unbalanced += len(limited) - len(balanced)
        chosen += balanced
    unparsed = sum(not pair.rejected.read.parsed for pair in chosen)
    return Choice(tuple(chosen), dict(with_both), unparsed, over_share, unbalanced)


def _tell_apart(
    part: str, scored: Sequence[tuple[SampledOutput, float]], margin: float
) -> tuple[list[SampledOutput], list[SampledOutput]]:
    """Return the right and the wrong outputs to a question, by their reward, 0..1.

    Each text is given once. Of a rated response the nearest outputs are right ones.
    """
    distinct = list({output.text: (output, value) for output, value in scored}.values())
    parsed_values = [value for output, value in distinct if output.read.parsed]
    if not parsed_values:
        return [], []
    if part == RATED:
        lowest_right = max(parsed_values)
        # Ratings are multiples of a tenth at least; sums of floats are not.
        highest_wrong = lowest_right - margin + 1e-6
    else:
        # Half stands for equal ratings, which are neither.
        lowest_right = 0.5 + 1e-6
        highest_wrong = 0.5 - 1e-6
    right = [output for output, value in distinct if value >= lowest_right and output.read.parsed]
    wrong = [output for output, value in distinct if value <= highest_wrong]
    return right, wrong


def _limit_unparsed(pairs: Sequence[OutputPair], rng: random.Random) -> list[OutputPair]:
    """Return the pairs without those that have more than their share of unparsed outputs."""
    unparsed = [n for n, pair in enumerate(pairs) if not pair.rejected.read.parsed]
    parsed = len(pairs) - len(unparsed)
    excess = len(unparsed) - int(parsed * UNPARSED / (1 - UNPARSED))
    return _leave_out(pairs, unparsed, excess, rng)


def _balance(pairs: Sequence[OutputPair], rng: random.Random) -> list[OutputPair]:
    """Return the pairs with as many right verdicts for the first position as for the second, and
    with the better response of a rated pair as often as the worse one."""
    sides: dict[bool, list[int]] = {True: [], False: []}
    for n, pair in enumerate(pairs):
        question = pair.question
        if question.part == COMPARED and question.label is not Verdict.TIE:
            sides[question.label is Verdict.FIRST].append(n)
        if question.part == PREFERRED:
            sides[(question.label is Verdict.FIRST) == (question.place == 0)].append(n)
    larger = max(sides.values(), key=len)
    excess = 2 * len(larger) - len(sides[True]) - len(sides[False])
    return _leave_out(pairs, larger, excess, rng)


def _leave_out(
    pairs: Sequence[OutputPair], places: Sequence[int], count: int, rng: random.Random
) -> list[OutputPair]:
    """Return the pairs without `count` random ones of those at some places."""
    dropped = set(rng.sample(places, max(0, count)))
    return [pair for n, pair in enumerate(pairs) if n not in dropped]


def make_pair_row(pair: OutputPair, fmt: JudgeFormat, seed: int) -> dict[str, Any]:
    """Return the row of a pair: TRL's preference form, and where the pair comes from."""
    question = pair.question
    begin = fmt.protocol(question.item.protocol).begin
    return {
        "prompt": render_messages(question, fmt),
        "chosen": [{"role": "assistant", "content": begin + pair.chosen.text}],
        "rejected": [{"role": "assistant", "content": begin + pair.rejected.text}],
        "part": question.part,
        "query": question.item.prompt.text,
        "responses": [response.text for response in question.item.responses],
        "label": question.label,
        "rating_label": question.rating,
        "best": question.best,
        "chosen_verdict": _describe_output(pair.chosen, seed),
        "rejected_verdict": _describe_output(pair.rejected, seed),
        "file": Path(question.source).name,
        "line": question.line,
        "judge": pair.chosen.read.judgement.judge,
    }


def render_messages(question: Question, fmt: JudgeFormat) -> list[dict[str, str]]:
    """Return the prompt of a question as chat messages."""
    return [
        {"role": message.role, "content": message.text} for message in render(question.item, fmt)
    ]


def _describe_output(output: SampledOutput, seed: int) -> dict[str, Any]:
    judgement = output.read.judgement
    return {
        "outcome": judgement.outcome,
        "reason": judgement.reason,
        "readings": {reading.slot: reading.label for reading in judgement.readings},
        "parsed": output.read.parsed,
        "ended": output.read.ended,
        "tokens": output.read.tokens,
        "sample": output.sample,
        "seed": seed + output.sample,
    }


class VerdictFields(BaseModel):
    """Fields of an output's verdict that the training reads."""

    ended: bool


class PairRow(BaseModel):
    """Fields of a row of pairs that the training reads."""

    prompt: list[dict[str, str]]
    chosen: list[dict[str, str]] = Field(min_length=1)
    rejected: list[dict[str, str]] = Field(min_length=1)
    part: str
    query: str
    responses: tuple[str, ...]
    chosen_verdict: VerdictFields
    rejected_verdict: VerdictFields


@dataclass(frozen=True, slots=True)
class Written:
    """An output as it stands in a file."""

    text: str
    """The output after its prompt."""
    ended: bool
    """Whether it ended by itself, within its limit."""


@dataclass(frozen=True, slots=True)
class WrittenPair:
    """A pair of outputs as it stands in a file, with its question."""

    line: int
    question: Question
    chosen: Written
    rejected: Written


def read_pairs(
    path: Path, questions: Mapping[str, Sequence[Unit]], fmt: JudgeFormat
) -> tuple[dict[str, list[WrittenPair]], tuple[BadRow, ...]]:
    """Return the pairs of a file by part, and the bad rows.

    questions: those that may be trained on, by part. A row of another question is bad: its query
    may be held out. Raises InputError if there is no file.
    """
    if not path.is_file():
        raise InputError(
            f"{path}: there are no pairs yet: write them with autoj train judge sample, with this "
            "run file"
        )
    by_content: dict[Any, Question] = {}
    for units in questions.values():
        for question in (question for unit in units for question in unit):
            texts = tuple(response.text for response in question.item.responses)
            by_content[question.part, question.item.prompt.text, texts] = question

    def build(line: int, row: Any) -> WrittenPair:
        try:
            pair = PairRow.model_validate(row)
        except ValidationError as error:
            [first, *_] = error.errors()
            raise BadField(".".join(map(str, first["loc"])), first["msg"]) from None
        question = by_content.get((pair.part, pair.query, pair.responses))
        if question is None:
            raise BadField("query", "no question of this run's training rows")
        if pair.prompt != render_messages(question, fmt):
            raise BadField("prompt", f"not what format {fmt.name} asks: sample again")
        begin = fmt.protocol(question.item.protocol).begin
        return WrittenPair(
            line,
            question,
            Written(pair.chosen[-1]["content"].removeprefix(begin), pair.chosen_verdict.ended),
            Written(pair.rejected[-1]["content"].removeprefix(begin), pair.rejected_verdict.ended),
        )

    rows = read_rows(str(path), build)
    pairs: dict[str, list[WrittenPair]] = defaultdict(list)
    for pair in rows.rows:
        pairs[pair.question.part].append(pair)
    return dict(pairs), rows.bad
