"""The recipe of a scalar reward model, and the pairs of conversations that it learns from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from autoj_reward.data.labelled import (
    Compared,
    compared_files,
    excluded_queries,
    is_held_out,
)
from autoj_reward.errors import InputError, InputRejected, ModelError
from autoj_reward.formats.render import answered_prompt
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.training.common import FineTuningConfig, refuse_bad, set_own_pad
from autoj_reward.training.groups import GroupsConfig, ranked_groups
from autoj_reward.types import BadRow, Verdict


class TrainScalarConfig(FineTuningConfig):
    """A training run of a scalar reward model on the judge's pairs, ties left out.

    `max_length` counts the tokens of a conversation: the query and one response.
    """

    format: str = "autoj-en"
    """The judge format that rendered pairs (`usrmsg`) were rendered with."""
    margin: bool = False
    """Take the pairs' own `margin` field: the least difference of rewards that costs nothing in the
    loss; 0 where a row has none."""
    groups: GroupsConfig | None = None
    """The best and the worst of each group of graded outputs (`data.graded`) is a pair too; null is
    without."""
    center: float | None = Field(None, ge=0)
    """Weight of the squared sum of a pair's rewards, which keeps them around 0; null for none."""
    epochs: int = Field(5, ge=1)
    """Passes over the pairs that the learning rate's schedule is laid out for."""
    stop_after: int | None = Field(None, ge=1)
    """Epochs after which a run ends on this schedule; null goes through all."""

    @property
    def run_epochs(self) -> int:
        """Number of epochs that are run."""
        return self.stop_after or self.epochs

    @model_validator(mode="after")
    def _require_consistent(self) -> TrainScalarConfig:
        if self.run_epochs > self.epochs:
            raise ValueError(f"stop_after {self.stop_after} is beyond epochs {self.epochs}")
        if self.data.rated:
            raise ValueError("data.rated: a scalar model learns from pairs: name data.compared")
        if not self.data.compared and not self.groups:
            raise ValueError("data.compared names no file: a scalar model learns from pairs")
        return self


@dataclass(frozen=True, slots=True)
class ChosenPair:
    """A pair with a winner, as token ids."""

    query: str
    chosen_ids: list[int]
    """Query and response in the chat template."""
    rejected_ids: list[int]
    margin: float
    extra_characters: int
    """Length of the chosen response less that of the rejected one."""


@dataclass(frozen=True, slots=True)
class ChosenPairs:
    """Training and validation pairs, with the rows left out."""

    training: list[ChosenPair]
    validation: list[ChosenPair]
    ties: dict[str, int]
    """Ties left out, by file."""
    bad: tuple[BadRow, ...]
    """Bad rows left out."""

    def counts(self) -> dict[str, Any]:
        """Count pairs and tokens by split, and rows left out by file."""
        splits = {"training": self.training, "validation": self.validation}
        return {
            "pairs": {name: len(pairs) for name, pairs in splits.items()},
            "queries": {
                name: len({pair.query for pair in pairs}) for name, pairs in splits.items()
            },
            "tokens": {
                name: sum(len(pair.chosen_ids) + len(pair.rejected_ids) for pair in pairs)
                for name, pairs in splits.items()
            },
            "ties_left_out": self.ties,
            "bad_left_out": dict(Counter(Path(row.file).name for row in self.bad)),
        }


def load_tokenizer(path: str, revision: str | None = None) -> Any:
    """Load a model's tokenizer with a pad token that ends no conversation.

    A scalar model's reward is read at the last token that is no pad. Raises ModelError for a
    tokenizer without a chat template, or whose pad token ends its conversations.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path, revision=revision)
    if not tokenizer.chat_template:
        raise ModelError(
            f"{path}: the tokenizer has no chat template to put a response behind its query: "
            "save it with one and name that folder"
        )
    set_own_pad(tokenizer)
    if PromptTokenizer(tokenizer, "chat").ids(answered_prompt("?", "!"))[-1] == (
        tokenizer.pad_token_id
    ):
        raise ModelError(
            f"{path}: the pad token {tokenizer.pad_token!r} ends every conversation, where the "
            "reward is read: save the tokenizer with another and name that folder"
        )
    return tokenizer


def read_chosen_pairs(config: TrainScalarConfig, tokenizer: Any) -> ChosenPairs:
    """Read every file of the config; validation is split off by query, as for judges.

    Raises InputError with the first rows, if any is bad and the config says to stop; if nothing
    is left to train on; or if margins are asked for and no row has one.
    """
    fmt, tokens = load_format(config.format), PromptTokenizer(tokenizer, "chat")
    measured_queries = excluded_queries(config.data, fmt)
    splits: tuple[list[ChosenPair], list[ChosenPair]] = ([], [])
    ties: Counter[str] = Counter()
    bad: list[BadRow] = []
    margins = 0
    compared: list[Compared] = []
    for rows in compared_files(config.data, fmt, margins=config.margin):
        bad += rows.bad
        compared += rows.rows
    split_rows = [(is_held_out(row.query, config.data.held_out), row) for row in compared]
    for validates, row in [*split_rows, *_pair_extremes(config, tokens, compared)]:
        if row.label is Verdict.TIE:
            ties[Path(row.source).name] += 1
            continue
        try:
            if row.query in measured_queries:
                raise InputRejected("its query is among those of data.exclude, which measure")
            pair = _tokenize(row, tokens, config.max_length)
        except InputRejected as error:
            bad.append(BadRow(row.source, row.line, "", str(error)))
            continue
        margins += row.margin is not None
        splits[validates].append(pair)
    refuse_bad(config, bad)
    if not splits[0]:
        raise InputError("no pair is left to train on; see data and max_length in the config")
    if config.margin and not margins:
        raise InputError("margin is set, but no row of data.compared has a field margin: unset it")
    return ChosenPairs(*splits, dict(ties), tuple(bad))


def _pair_extremes(
    config: TrainScalarConfig, tokens: PromptTokenizer, compared: Sequence[Compared]
) -> Iterator[tuple[bool, Compared]]:
    """Yield (is validation, pair) with the best and the worst response of each group."""
    if not config.groups:
        return
    groups = ranked_groups(config.data, config.groups, config.seed, tokens.count, compared)
    for validates, group in groups:
        ranked = sorted(zip(group.scores, group.responses, strict=True))
        pair = ranked[-1][1], ranked[0][1]
        yield validates, Compared(group.source, group.line, group.query, pair, Verdict.FIRST)


def _tokenize(row: Compared, tokens: PromptTokenizer, limit: int) -> ChosenPair:
    chosen, rejected = row.responses if row.label is Verdict.FIRST else row.responses[::-1]
    better = tokens.ids(answered_prompt(row.query, chosen))
    worse = tokens.ids(answered_prompt(row.query, rejected))
    if (longest := max(len(better), len(worse))) > limit:
        raise InputRejected(f"{longest} tokens, max_length is {limit}")
    return ChosenPair(row.query, better, worse, row.margin or 0.0, len(chosen) - len(rejected))
