"""Training and validation examples made from data files, and their order in the training."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tqdm import tqdm

from autoj_reward.data.labelled import (
    Compared,
    Rated,
    excluded_queries,
    is_held_out,
    read_labelled,
    swapped,
)
from autoj_reward.errors import InputRejected
from autoj_reward.training.common import explain_no_row, refuse_bad
from autoj_reward.training.groups import Ranked, ranked_groups
from autoj_reward.training.judge.recipe import MixConfig, TrainJudgeConfig
from autoj_reward.training.judge.targets import Example, ExampleBuilder
from autoj_reward.types import BadRow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples of a run by part: `rated`, `direct`, `compared`, `preferred` and `ranked`."""

    training: dict[str, list[Example]]
    validation: dict[str, list[Example]]
    bad: tuple[BadRow, ...]
    """Rows left out."""

    def counts(self) -> dict[str, dict[str, int]]:
        """Count examples by split and part."""
        splits = {"training": self.training, "validation": self.validation}
        return {
            name: {part: len(examples) for part, examples in parts.items()}
            for name, parts in splits.items()
        }


def make_examples(config: TrainJudgeConfig, builder: ExampleBuilder) -> Examples:
    """Read every file of the config and make its examples; validation is split off by query.

    Raises InputError with the first rows, if any is bad and the config says to stop, or if
    nothing is left to train on.
    """
    rated, compared, bad = read_labelled(config.data, builder.format)
    splits: tuple[dict[str, list[Example]], dict[str, list[Example]]] = ({}, {})

    def make(
        part: str,
        row: Rated | Compared | Ranked,
        build: Callable[[], Example],
        validates: bool | None = None,
    ) -> None:
        try:
            if row.query in measured_queries:
                raise InputRejected("its query is among those of data.exclude, which measure")
            example = build()
            if example.tokens > config.max_length:
                raise InputRejected(
                    f"{example.tokens} tokens as a {part} example, "
                    f"max_length is {config.max_length}"
                )
            if not any(tree.logit_nodes for tree in example.trees):
                raise InputRejected("no judgement to learn from, and the losses read no slot")
        except InputRejected as error:
            bad[row.source, row.line] = BadRow(row.source, row.line, "", str(error))
            return
        if validates is None:
            validates = is_held_out(row.query, config.data.held_out)
        splits[validates].setdefault(part, []).append(example)

    measured_queries = excluded_queries(config.data, builder.format)
    for row in tqdm(rated, desc="rated rows", disable=None):
        make("rated", row, lambda row=row: builder.rated(row))  # type: ignore[misc]
        if config.mix.direct and not is_held_out(row.query, config.data.held_out):
            make("direct", row, lambda row=row: builder.direct(row))  # type: ignore[misc]
    for pair in tqdm(compared, desc="compared pairs", disable=None):
        if config.mix.compared:
            for order in (pair, swapped(pair, builder.format)):
                make("compared", pair, lambda row=order: builder.compared(row))  # type: ignore[misc]
        if config.mix.preferred:
            make("preferred", pair, lambda row=pair: builder.preferred(row))  # type: ignore[misc]
    if config.mix.ranked:
        groups = ranked_groups(config.data, config.groups, config.seed, builder.count, compared)
        for validates, group in groups:
            make("ranked", group, lambda row=group: builder.ranked(row), validates)  # type: ignore[misc]
    bad_rows = tuple(bad.values())
    refuse_bad(config, bad_rows)
    if not any(splits[0].values()):
        raise explain_no_row(bad_rows)
    return Examples(splits[0], splits[1], bad_rows)


def schedule(examples: Mapping[str, list[T]], mix: MixConfig, epochs: float, seed: int) -> list[T]:
    """Return the examples in training order, given by part. Each epoch is drawn and shuffled
    anew."""
    rng = random.Random(seed)
    shares = mix.model_dump()
    order: list[T] = []
    for epoch in range(math.ceil(epochs)):
        epoch_examples: list[T] = []
        for part, part_examples in examples.items():
            whole, rest = divmod(shares[part], 1)
            epoch_examples += part_examples * int(whole) + rng.sample(
                part_examples, round(rest * len(part_examples))
            )
        rng.shuffle(epoch_examples)
        order += epoch_examples[: round(len(epoch_examples) * min(1.0, epochs - epoch))]
    return order


def bad_by_source(bad: Sequence[BadRow]) -> dict[str, int]:
    """Count the rows of each file that were left out."""
    return dict(Counter(row.file for row in bad))
