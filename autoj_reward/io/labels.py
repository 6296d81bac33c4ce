"""How public data codes which of two responses is better: one table of codings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoj_reward.io.checks import BadField, number, show

A, B, TIE, BOTH_BAD = "A", "B", "tie", "both_bad"
"""Labels of a pair: the first response is better, the second, neither, or both are bad."""

WINNERS = {
    **dict.fromkeys(("model_a", "a", "response_a", "model_1", "response_1", "first"), A),
    **dict.fromkeys(("model_b", "b", "response_b", "model_2", "response_2", "second"), B),
    **dict.fromkeys(("tie", "draw", "equal"), TIE),
    # MT-Bench: the judge changed its verdict with the order of the responses.
    "tie (inconsistent)": TIE,
    **dict.fromkeys(("tie (bothbad)", "bothbad", "both_bad", "both bad"), BOTH_BAD),
}
ARROWS = {
    **dict.fromkeys(("A>>B", "A>B", "B<A", "B<<A"), A),
    **dict.fromkeys(("B>>A", "B>A", "A<B", "A<<B"), B),
    **dict.fromkeys(("A=B", "B=A"), TIE),
}
CODINGS: dict[str, Mapping[Any, str]] = {
    "0, 1, 2": {0: A, 1: B, 2: TIE, **WINNERS},
    "0, 1": {0: A, 1: B},
    "1, 2": {1: A, 2: B},
    "1, 0": {1: A, 0: B},
    "A>B": ARROWS,
    "winner": WINNERS,
}
"""Label for each value, by the name of the coding. 0 is the first response in `0, 1`, and the
second one in `1, 0`."""
VOTES = {0: TIE, 1: A, 2: B}
"""A vote of PandaLM's annotators."""


def read_label(coding: str, value: Any, field: str) -> str | None:
    """Return the label that a value stands for; None without a value.

    Raises BadField for a value that the coding does not have.
    """
    if value is None or value == "":  # a table of texts (CSV) has no null
        return None
    if coding in READERS:
        return READERS[coding](value, field)
    known = CODINGS[coding]
    if isinstance(value, str):
        value = value.strip()
        if coding != "A>B":
            value = value.lower()
    # true and 1.0 are not 1, and a table of texts (CSV) holds numbers as texts.
    if type(value) in (str, int) and value in known:
        return known[value]
    if isinstance(value, float) and value.is_integer() and int(value) in known:
        return known[int(value)]
    if isinstance(value, str) and value.isdecimal() and len(value) < 3 and int(value) in known:
        return known[int(value)]
    # One spelling of each label is enough to show what is meant.
    spellings: dict[str, Any] = {}
    for option, label in known.items():
        spellings.setdefault(label, option)
    options = ", ".join(map(str, spellings.values()))
    raise BadField(field, f"{show(value)} is no label: one of {options}")


def label_of_numbers(values: Sequence[Any]) -> str | None:
    """Return the label of the higher of two numbers; None if one is missing."""
    first, second = values
    if first is None or second is None:
        return None
    return TIE if first == second else A if first > second else B


def _read_strength(value: Any, field: str) -> str:
    """Read a preference of -3 to 3, where a negative one is for the first response."""
    strength = number(as_number(value), field)
    return TIE if strength == 0 else A if strength < 0 else B


def _read_preference(value: Any, field: str) -> str:
    """Read a preference of 1 to 2, with 1.5, or 0 in old files, for a tie."""
    preference = number(as_number(value), field)
    if preference != 0 and not 1 <= preference <= 2:
        raise BadField(field, f"{show(value)} is no preference: 1 to 2, or 0 for a tie")
    return TIE if preference in (0, 1.5) else A if preference < 1.5 else B


def _read_votes(values: Any, field: str) -> str:
    """Return the label that two of three annotators gave; a tie without such a majority."""
    votes = []
    for n, value in enumerate(values, 1):
        vote = as_number(value)
        if type(vote) is not int or vote not in VOTES:
            raise BadField(f"annotator{n}", f"{show(value)} is no vote: 0 tie, 1 first, 2 second")
        votes.append(VOTES[vote])
    return next((vote for vote in votes if votes.count(vote) >= 2), TIE)


def _read_flags(values: Any, field: str) -> str | None:
    """Read three columns, of which the one that is 1 is the label: first, second, tie."""
    flags = [as_number(value) for value in values]
    if flags == [None, None, None]:
        return None
    if sorted(map(str, flags)) != ["0", "0", "1"]:
        raise BadField(field, f"{show(flags)} is no label: one of three columns is 1")
    return (A, B, TIE)[flags.index(1)]


READERS: dict[str, Callable[[Any, str], str | None]] = {
    "first": lambda value, field: A,
    "-3..3": _read_strength,
    "1..2": _read_preference,
    "votes": _read_votes,
    "flags": _read_flags,
}
"""Codings that are no table of values."""


def as_number(value: Any) -> Any:
    """Return the number that a text holds; any other value unchanged."""
    if not isinstance(value, str) or len(value) > 40:
        return value
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return value
