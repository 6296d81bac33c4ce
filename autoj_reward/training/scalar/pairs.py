"""From human-labelled pairs to the conversations a scalar reward model tells apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoj_reward.data.labelled import (
    Compared,
    data_path,
    excluded_queries,
    is_held_out,
    read_compared,
)
from autoj_reward.errors import InputError, InputRejected, ModelError
from autoj_reward.formats.render import answered_prompt
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.training.fine_tuning import refuse_bad
from autoj_reward.training.groups import ranked_groups
from autoj_reward.training.scalar.recipe import TrainScalarConfig
from autoj_reward.training.tokenizer import set_own_pad
from autoj_reward.types import BadRow, Verdict


@dataclass(frozen=True, slots=True)
class Preference:
    """A pair with a winner; chosen_ids, rejected_ids: query and response in the chat template.

    extra_characters: length of the chosen response less that of the rejected one.
    """

    query: str
    chosen_ids: list[int]
    rejected_ids: list[int]
    margin: float
    extra_characters: int


@dataclass(frozen=True, slots=True)
class Preferences:
    """Pairs by split; ties: how many of each file were left out; bad: other rows left out."""

    training: list[Preference]
    validation: list[Preference]
    ties: dict[str, int]
    bad: tuple[BadRow, ...]

    def counts(self) -> dict[str, Any]:
        """Pairs and tokens by split, rows left out by file."""
        splits = {"training": self.training, "validation": self.validation}
        return {
            "pairs": {name: len(own) for name, own in splits.items()},
            "queries": {name: len({pair.query for pair in own}) for name, own in splits.items()},
            "tokens": {
                name: sum(len(pair.chosen_ids) + len(pair.rejected_ids) for pair in own)
                for name, own in splits.items()
            },
            "ties_left_out": self.ties,
            "bad_left_out": dict(Counter(Path(row.file).name for row in self.bad)),
        }


def load_tokenizer(path: str, revision: str | None = None) -> Any:
    """A model's tokenizer with a pad token that ends no conversation.

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


def read_preferences(config: TrainScalarConfig, tokenizer: Any) -> Preferences:
    """Read every file of the config; validation is split off by query, as for judges.

    Raises InputError with the first rows, if any is bad and the config says to stop; if nothing
    is left to train on; or if margins are asked for and no row has one.
    """
    fmt, tokens = load_format(config.format), PromptTokenizer(tokenizer, "chat")
    measured = excluded_queries(config.data, fmt)
    splits: tuple[list[Preference], list[Preference]] = ([], [])
    ties: Counter[str] = Counter()
    bad: list[BadRow] = []
    margins = 0
    compared: list[Compared] = []
    for name in config.data.compared:
        found = read_compared(data_path(config.data, name), fmt, margins=config.margin)
        bad += found.bad
        compared += found.rows
    own = [(is_held_out(row.query, config.data.held_out), row) for row in compared]
    for held, row in [*own, *_extremes(config, tokens, compared)]:
        if row.label is Verdict.TIE:
            ties[Path(row.source).name] += 1
            continue
        try:
            if row.query in measured:
                raise InputRejected("its query is among those of data.exclude, which measure")
            pair = _preference(row, tokens, config.max_length)
        except InputRejected as error:
            bad.append(BadRow(row.source, row.line, "", str(error)))
            continue
        margins += row.margin is not None
        splits[held].append(pair)
    refuse_bad(config, bad)
    if not splits[0]:
        raise InputError("no pair is left to train on; see data and max_length in the config")
    if config.margin and not margins:
        raise InputError("margin is set, but no row of data.compared has a field margin: unset it")
    return Preferences(*splits, dict(ties), tuple(bad))


def _extremes(
    config: TrainScalarConfig, tokens: PromptTokenizer, compared: Sequence[Compared]
) -> Iterator[tuple[bool, Compared]]:
    """The best and the worst of each group, True before those that validate."""
    if not config.groups:
        return

    def count(text: str) -> int:
        return len(tokens.continuation(text))

    groups = ranked_groups(config.data, config.groups, config.seed, count, compared)
    for validates, group in groups:
        ranked = sorted(zip(group.scores, group.responses, strict=True))
        pair = ranked[-1][1], ranked[0][1]
        yield validates, Compared(group.source, group.line, group.query, pair, Verdict.FIRST)


def _preference(row: Compared, tokens: PromptTokenizer, limit: int) -> Preference:
    chosen, rejected = row.responses if row.label is Verdict.FIRST else row.responses[::-1]
    better = tokens.ids(answered_prompt(row.query, chosen))
    worse = tokens.ids(answered_prompt(row.query, rejected))
    if (longest := max(len(better), len(worse))) > limit:
        raise InputRejected(f"{longest} tokens, max_length is {limit}")
    return Preference(row.query, better, worse, row.margin or 0.0, len(chosen) - len(rejected))
