"""Label probabilities at a verdict slot: exact arithmetic, and the token ids that models would
write."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from autoj_reward.engine.base import Generation, LabelProbs, Prepared
from autoj_reward.engine.labels import Read, slot_tokens, trie_probs
from autoj_reward.errors import InputRejected
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.types import Usage
from tests.tokenizers import FAMILIES

Named = Callable[[str], Any]
CONTEXT = [7, 8]


def make_reader(table: dict[tuple[int, ...], dict[int, float]], calls: list[Any]) -> Read:
    """Return a `Read` function with tabulated next-token probabilities after CONTEXT; it records
    its calls."""

    async def read_next(context: list[int], token_ids: list[int]) -> tuple[dict[int, float], Usage]:
        assert context[:2] == CONTEXT
        node = tuple(context[2:])
        calls.append((node, token_ids))
        logprobs = {i: math.log(p) for i, p in table[node].items() if i in token_ids}
        return logprobs, Usage(tokens_in=len(context), tokens_out=1)

    return read_next


RATINGS: dict[str, tuple[int, ...]] = {str(n): (100 + n,) for n in range(1, 10)} | {
    "10": (101, 100)
}


async def compute_probs(
    labels: dict[str, tuple[int, ...]], table: dict[tuple[int, ...], dict[int, float]]
) -> tuple[dict[str, float], LabelProbs, list[Any]]:
    calls: list[Any] = []
    result = await trie_probs(CONTEXT, labels, make_reader(table, calls))
    return dict(result.probs), result, calls


async def test_ten_of_two_digits_is_not_folded_into_one() -> None:
    table = {(): {101: 0.4, 105: 0.3, 109: 0.1}, (101,): {100: 0.25, 999: 0.75}}
    probs, result, calls = await compute_probs(RATINGS, table)
    assert list(probs) == [str(n) for n in range(1, 11)]
    assert probs["10"] == pytest.approx(0.4 * 0.25)
    assert probs["1"] == pytest.approx(0.4 * 0.75)
    assert probs["5"] == pytest.approx(0.3)
    assert probs["9"] == pytest.approx(0.1)
    assert probs["2"] == 0
    assert result.outside == pytest.approx(0.2)
    assert sorted(calls) == [((), [101, 102, 103, 104, 105, 106, 107, 108, 109]), ((101,), [100])]
    assert result.usage == Usage(tokens_in=2 + 3, tokens_out=2)


async def test_ten_as_one_token_takes_one_read() -> None:
    labels: dict[str, tuple[int, ...]] = {str(n): (100 + n,) for n in range(1, 11)}
    probs, result, calls = await compute_probs(labels, {(): {101: 0.2, 110: 0.5}})
    assert probs["1"] == pytest.approx(0.2)
    assert probs["10"] == pytest.approx(0.5)
    assert result.outside == pytest.approx(0.3)
    assert len(calls) == 1


async def test_labels_that_share_tokens() -> None:
    labels = {"Response 1": (20, 21, 1), "Response 2": (20, 21, 2), "Tie": (30,)}
    table = {
        (): {20: 0.6, 30: 0.3},
        (20,): {21: 0.5},
        (20, 21): {1: 0.8, 2: 0.1},
    }
    probs, result, calls = await compute_probs(labels, table)
    assert probs["Response 1"] == pytest.approx(0.6 * 0.5 * 0.8)
    assert probs["Response 2"] == pytest.approx(0.6 * 0.5 * 0.1)
    assert probs["Tie"] == pytest.approx(0.3)
    assert result.outside == pytest.approx(1 - 0.24 - 0.03 - 0.3)
    assert len(calls) == 3


async def test_ids_missing_from_the_answer_count_as_zero() -> None:
    probs, result, _ = await compute_probs(RATINGS, {(): {101: 0.5}, (101,): {}})
    assert probs["10"] == 0 and probs["1"] == pytest.approx(0.5)
    probs, result, _ = await compute_probs(RATINGS, {(): {}, (101,): {100: 0.9}})
    assert set(probs.values()) == {0.0}
    assert result.outside == 1


async def test_no_read_goes_on_where_one_failed() -> None:
    ended: list[bool] = []

    async def read_next(context: list[int], token_ids: list[int]) -> tuple[dict[int, float], Usage]:
        if context == CONTEXT:
            raise InputRejected("no log-probabilities")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        raise AssertionError

    with pytest.raises(InputRejected):
        await trie_probs(CONTEXT, RATINGS, read_next)
    assert ended == [True]


async def test_rounding_above_one_does_not_go_negative() -> None:
    probs, result, _ = await compute_probs(
        RATINGS, {(): {101: 1.0000001}, (101,): {100: 1.0000001}}
    )
    assert probs["1"] == 0
    assert result.outside == 0


NAMES = ("smollm2", *FAMILIES)
LABELS = [str(n) for n in range(1, 11)]
OWN = "The response 东京 is good.\n\nRating: [[10]]"
SLOT = "Rating: [["


def make_generation(tokenizer: Any, text: str) -> Generation:
    """Return a text as a model generates it: its ids end in the end token, its text does not."""
    ids = PromptTokenizer(tokenizer, "chat").continuation(text)
    return Generation(text, (*ids, tokenizer.eos_token_id))


@pytest.mark.parametrize("name", NAMES)
def test_rating_labels_after_the_slot(name: str, tokenizer_named: Named) -> None:
    tokenizer = tokenizer_named(name)
    tokens = PromptTokenizer(tokenizer, "chat")
    prepared = Prepared((), (3, 4, 5))
    generation = make_generation(tokenizer, OWN)
    keep = OWN.index(SLOT)
    context, labels = slot_tokens(tokens, prepared, generation, keep, SLOT, LABELS)

    digits = {label: tokenizer.convert_ids_to_tokens(list(ids)) for label, ids in labels.items()}
    ten = ["10"] if name == "llama3" else ["1", "0"]
    assert digits == {str(n): [str(n)] for n in range(1, 10)} | {"10": ten}
    assert labels["1"][0] == labels["10"][0] or name == "llama3"
    # The context is the prompt and the model's own ids up to the label.
    written = list(generation.ids)
    before = written[: written.index(labels["10"][0])]
    assert context == [3, 4, 5, *before]


@pytest.mark.parametrize("name", NAMES)
def test_forced_rating_slot(name: str, tokenizer_named: Named) -> None:
    tokenizer = tokenizer_named(name)
    tokens = PromptTokenizer(tokenizer, "chat")
    generation = make_generation(tokenizer, "The response 东京 is good.")
    written = list(generation.ids[:-1])
    force = "\nRating: [["
    context, labels = slot_tokens(
        tokens, Prepared((), (3,)), generation, len(generation.text), force, LABELS
    )
    assert context[: 1 + len(written)] == [3, *written]
    assert tokenizer.decode(context[1:]).lstrip() == generation.text + force
    assert tokenizer.convert_ids_to_tokens(list(labels["7"])) == ["7"]
    for label, ids in labels.items():
        assert tokenizer.decode([*context[1:], *ids]).lstrip() == generation.text + force + label


@pytest.mark.parametrize("name", NAMES)
def test_forced_slot_after_a_malformed_one(name: str, tokenizer_named: Named) -> None:
    """Only the text before the malformed slot is kept."""
    tokenizer = tokenizer_named(name)
    tokens = PromptTokenizer(tokenizer, "chat")
    generation = make_generation(tokenizer, "So so. Rating: [[x]] and more")
    context, _ = slot_tokens(tokens, Prepared((), (3,)), generation, 7, "\nRating: [[", LABELS)
    assert tokenizer.decode(context[1:]).lstrip() == "So so. \nRating: [["


@pytest.mark.parametrize("name", NAMES)
def test_forced_slot_without_any_critique(name: str, tokenizer_named: Named) -> None:
    tokenizer = tokenizer_named(name)
    tokens = PromptTokenizer(tokenizer, "chat")
    context, labels = slot_tokens(tokens, Prepared((), (3,)), Generation(""), 0, SLOT, LABELS)
    assert context[0] == 3
    assert tokenizer.decode(context[1:]).lstrip() == SLOT
    assert tokenizer.convert_ids_to_tokens(list(labels["2"])) == ["2"]


@pytest.mark.parametrize("name", NAMES)
def test_decision_labels_merge_with_the_space_before_them(
    name: str, tokenizer_named: Named
) -> None:
    tokenizer = tokenizer_named(name)
    tokens = PromptTokenizer(tokenizer, "chat")
    generation = make_generation(tokenizer, "Both are good.")
    force = "\n\nSo, the final decision is "
    options = ["Response 1", "Response 2", "Tie"]
    context, labels = slot_tokens(
        tokens, Prepared((), ()), generation, len(generation.text), force, options
    )
    for label, ids in labels.items():
        answer_text = tokenizer.decode([*context, *ids]).lstrip()
        assert answer_text == generation.text + force + label
        own_ids = tokens.continuation(force + label)
        assert [*context, *ids][len(generation.ids) - 1 :] == own_ids
    assert labels["Response 1"][:-1] == labels["Response 2"][:-1]
    assert labels["Tie"][0] != labels["Response 1"][0]
