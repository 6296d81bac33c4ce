"""Questions that a judge is trained to answer: its inputs as served, with what a right answer is.

A labelled pair asks two questions, one in each order of its responses, or one about each response
alone. Both questions of a pair are asked in one step, since some rewards compare their outputs.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tqdm import tqdm

from autoj_reward.data.labelled import (
    Compared,
    Rated,
    excluded_queries,
    is_held_out,
    read_labelled,
)
from autoj_reward.errors import ConfigError, InputRejected
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.judge.generative import GenerativeJudge
from autoj_reward.training.common import explain_no_row, refuse_bad
from autoj_reward.training.groups import Ranked, ranked_groups
from autoj_reward.training.judge.recipe import JudgeTrainingConfig, MixConfig
from autoj_reward.types import GROUP, PAIRWISE, SINGLE, BadRow, JudgeInput, Verdict

COMPARED, RATED, PREFERRED, RANKED = "compared", "rated", "preferred", "ranked"
"""Parts of the mix that ask for an output."""
PROTOCOLS = {COMPARED: PAIRWISE, RATED: SINGLE, PREFERRED: SINGLE, RANKED: GROUP}
"""Protocol that a part's questions are asked in."""
ONE_SIDED = 0.99
"""Share of the labels of a file from which on they are taken for a fault of the file."""
LOOK = "look whether the labels are read as you mean them (autoj data show)"
"""What to do about labels that are all the same."""
T = TypeVar("T", Verdict, float)


@dataclass(frozen=True, slots=True)
class Question:
    """Judge input with the label that tells its right outputs from wrong ones."""

    part: str
    """Part of the mix that it comes from."""
    source: str
    line: int
    unit: int
    """Number of the unit; the questions of a unit are asked in one step."""
    place: int
    """Place in the unit: which order of a pair (`compared`), or which response (`preferred`)."""
    item: JudgeInput
    ids: tuple[int, ...]
    """Prompt as the judge is given it when it is served."""
    label: Verdict | None = None
    """Label of a comparison in this order; for `preferred`, that of the pair."""
    rating: float | None = None
    """Reference rating of a rated response."""
    best: tuple[int, ...] = ()
    """Indices of the best responses of a group."""


Unit = tuple[Question, ...]
"""Questions that are asked in one step."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions of a run, by part of the mix and unit."""

    training: dict[str, list[Unit]]
    validation: dict[str, list[Unit]]
    bad: tuple[BadRow, ...]
    """Rows left out."""
    alarms: tuple[str, ...]
    """What looks wrong with the labels."""

    def counts(self) -> dict[str, dict[str, int]]:
        """Count the rows by split and part."""
        splits = {"training": self.training, "validation": self.validation}
        return {
            name: {part: len(units) for part, units in parts.items()}
            for name, parts in splits.items()
        }


def make_questions(
    config: JudgeTrainingConfig, judge: GenerativeJudge, count: Callable[[str], int]
) -> Questions:
    """Read the rows of the config and make their questions; validation is split off by query.

    judge: renders the prompts as it is served. count: returns the tokens of a text. Raises
    InputError if no row is left to train on, or for bad rows if the config says to stop.
    """
    fmt = judge.format
    _require_protocols(config.mix, fmt)
    rated, compared, bad = read_labelled(config.data, fmt)
    measured_queries = excluded_queries(config.data, fmt)
    splits: tuple[dict[str, list[Unit]], dict[str, list[Unit]]] = ({}, {})
    units = 0
    rows = _yield_rows(config, rated, compared, count)
    for part, row, validates in tqdm(rows, desc="rows", disable=None):
        try:
            if row.query in measured_queries:
                raise InputRejected("its query is among those of data.exclude, which measure")
            unit = _make_unit(part, row, units, judge, config.seed)
        except InputRejected as error:
            bad[row.source, row.line] = BadRow(row.source, row.line, "", str(error))
            continue
        units += 1
        splits[validates].setdefault(part, []).append(unit)
    bad_rows = tuple(bad.values())
    refuse_bad(config, bad_rows)
    if not any(splits[0].values()):
        raise explain_no_row(bad_rows)
    alarms: list[str] = []
    if config.mix.compared or config.mix.preferred:
        alarms += _find_one_sided(compared)
    if config.mix.rated:
        alarms += _find_one_rating(rated)
    return Questions(splits[0], splits[1], bad_rows, tuple(alarms))


def report_questions(questions: Questions) -> None:
    """Print to stderr the rows that were left out, the alarms about labels, and whether no row is
    held out."""
    for row in questions.bad:
        print(f"left out: {row}", file=sys.stderr)
    for alarm in questions.alarms:
        print(f"alarm: {alarm}", file=sys.stderr)
    if not questions.validation:
        print("no row is held out, so nothing is validated: see data.held_out", file=sys.stderr)


def _yield_rows(
    config: JudgeTrainingConfig,
    rated: Sequence[Rated],
    compared: Sequence[Compared],
    count: Callable[[str], int],
) -> Iterator[tuple[str, Rated | Compared | Ranked, bool]]:
    """Yield each row with its part, and whether it is for validation."""
    rows: list[tuple[str, Rated | Compared]] = []
    if config.mix.rated:
        rows += [(RATED, row) for row in rated]
    if config.mix.compared:
        rows += [(COMPARED, row) for row in compared]
    if config.mix.preferred:
        # A tie says nothing of how two ratings should differ.
        rows += [(PREFERRED, row) for row in compared if row.label is not Verdict.TIE]
    for part, row in rows:
        yield part, row, is_held_out(row.query, config.data.held_out)
    if config.mix.ranked:
        groups = ranked_groups(config.data, config.groups, config.seed, count, list(compared))
        for validates, group in groups:
            yield RANKED, group, validates


def _make_unit(
    part: str, row: Rated | Compared | Ranked, number: int, judge: GenerativeJudge, seed: int
) -> Unit:
    """Return the questions about a row. Raises InputRejected if one cannot be asked, or has no
    right answer."""
    protocol = PROTOCOLS[part]
    if isinstance(row, Rated):
        item = JudgeInput(protocol, row.query, (row.response,))
        ids = _find_prompt(item, judge)
        return (Question(part, row.source, row.line, number, 0, item, ids, rating=row.rating),)
    if isinstance(row, Ranked):
        # Groups come sorted by length, with a faulty response at their end.
        order = list(range(len(row.responses)))
        random.Random(f"{seed} {row.query} {row.responses}").shuffle(order)
        item = JudgeInput(protocol, row.query, tuple(row.responses[n] for n in order))
        highest = max(row.scores)
        best = tuple(place for place, n in enumerate(order) if row.scores[n] == highest)
        ids = _find_prompt(item, judge)
        return (Question(part, row.source, row.line, number, 0, item, ids, best=best),)
    first, second = row.responses
    if first == second and row.label is not Verdict.TIE:
        raise InputRejected(f"both responses are the same, and the label is {row.label}")
    if part == COMPARED and row.label not in judge.format.verdicts:
        raise InputRejected(f"the label is {row.label}, which format {judge.format.name} never is")
    shown: tuple[tuple[str, ...], ...] = ((first, second), (second, first))
    labels = (row.label, row.label.swapped())
    if part == PREFERRED:
        shown = ((first,), (second,))
        labels = (row.label, row.label)
    questions = []
    for place, (responses, label) in enumerate(zip(shown, labels, strict=True)):
        item = JudgeInput(protocol, row.query, responses)
        ids = _find_prompt(item, judge)
        questions.append(
            Question(part, row.source, row.line, number, place, item, ids, label=label)
        )
    return tuple(questions)


def _find_prompt(item: JudgeInput, judge: GenerativeJudge) -> tuple[int, ...]:
    return asyncio.run(judge.prepare(item)).ids


def _require_protocols(mix: MixConfig, fmt: JudgeFormat) -> None:
    """Raise ConfigError for a part of the mix that the format has no protocol for."""
    for part, protocol in PROTOCOLS.items():
        if getattr(mix, part) and protocol not in fmt.protocols:
            raise ConfigError(
                f"mix.{part} asks in the protocol {protocol}, which format {fmt.name} does not "
                f"have: set mix.{part}: 0, or name another format"
            )
    if mix.direct:
        raise ConfigError(
            "mix.direct is a part without a text, for method: sft alone: set it to 0, or take "
            "mix.rated"
        )


def _find_one_sided(compared: Sequence[Compared]) -> Iterator[str]:
    """Yield a warning for each file of pairs whose labels are nearly all the same."""
    for source, label, counted in _find_only_labels((row.source, row.label) for row in compared):
        effect = (
            "A judge that always says so is then right"
            if label is Verdict.TIE
            else "The judge learns no position from it, since each pair is asked about both ways"
        )
        yield f"{source}: {counted} labels are {label}. {effect}; {LOOK}"


def _find_one_rating(rated: Sequence[Rated]) -> Iterator[str]:
    """Yield a warning for each file of rated responses whose ratings are nearly all the same."""
    for source, rating, counted in _find_only_labels((row.source, row.rating) for row in rated):
        yield (
            f"{source}: {counted} ratings are {rating:g}. A judge that always says so is then "
            f"right; {LOOK}"
        )


def _find_only_labels(labelled: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T, str]]:
    """Yield the files whose labels are nearly all the same: file, label, and "n of m" of them.

    labelled: the file and the label of each row.
    """
    by_source: dict[str, Counter[T]] = {}
    for source, label in labelled:
        by_source.setdefault(source, Counter())[label] += 1
    for source, counts in by_source.items():
        [(label, count)] = counts.most_common(1)
        total = counts.total()
        if total >= 8 and count >= ONE_SIDED * total:
            yield source, label, f"{count} of {total}"


def schedule_units(
    parts: dict[str, list[Unit]], mix: MixConfig, epochs: float, seed: int
) -> list[Unit]:
    """Return the questions in training order, two at a time; each epoch is drawn and shuffled anew.

    So a step never divides the two questions of a pair. Questions that stand alone, such as those
    of rated responses, are put together by twos, and the last of an odd number is left out of its
    epoch.
    """
    shares = mix.model_dump()
    rng = random.Random(seed)
    order: list[Unit] = []
    whole_epochs, last = divmod(epochs, 1)
    for share_of_epoch in [1.0] * int(whole_epochs) + ([last] if last else []):
        singles: list[Question] = []
        epoch_units: list[Unit] = []
        for part, units in parts.items():
            whole, rest = divmod(shares[part], 1)
            drawn = units * int(whole) + rng.sample(units, round(rest * len(units)))
            for unit in drawn:
                if len(unit) == 2:
                    epoch_units.append(unit)
                else:
                    singles += unit
        rng.shuffle(singles)
        epoch_units += zip(singles[::2], singles[1::2], strict=False)
        rng.shuffle(epoch_units)
        order += epoch_units[: round(len(epoch_units) * share_of_epoch)]
    return order
