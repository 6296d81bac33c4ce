"""What a weak policy does wrong, made from good responses: worse than what they are made from."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

UNIT = re.compile(r"[^.!?\n]+[.!?\n]*")


def loop(text: str, rng: random.Random) -> str:
    """The text up to some sentence, which is then repeated to the length of the whole."""
    units: list[str] = UNIT.findall(text) or [text]
    at = rng.randrange(max(1, len(units) // 2))
    start = "".join(units[:at])
    unit = units[at] if units[at].endswith(("\n", " ")) else units[at] + " "
    return (start + unit * (2 + (len(text) - len(start)) // len(unit))).rstrip()


def broken_off(text: str, rng: random.Random) -> str:
    """The first part of the text, ending inside a word or sentence."""
    part = text[: max(1, round(len(text) * rng.uniform(0.25, 0.7)))]
    return part.rstrip(" .!?\n") or part


def shuffled(text: str, rng: random.Random) -> str:
    """The words of the text in no order."""
    words = text.split()
    rng.shuffle(words)
    return " ".join(words)


def scrambled(text: str, rng: random.Random) -> str:
    """The letters of each word in no order."""
    return " ".join("".join(rng.sample(word, len(word))) for word in text.split())


def echo(query: str, text: str) -> str:
    """The query again and again, to the length of the text."""
    return "\n".join([query.strip()] * (1 + len(text) // (len(query) + 1)))


FAULTS: dict[str, Callable[[str, random.Random], str]] = {
    "loop": loop,
    "broken_off": broken_off,
    "shuffled": shuffled,
    "scrambled": scrambled,
}


def faulty(query: str, text: str, others: Sequence[str], rng: random.Random) -> str:
    """A response to the query with one fault drawn: those above, the query itself, or a response
    to another query, of `others` the one nearest in length. text: a good response, not blank."""
    kind = rng.choice([*FAULTS, "echo", "off_topic"])
    if kind == "echo":
        return echo(query, text)
    if kind == "off_topic":
        return min(others, key=lambda other: abs(len(other) - len(text)))
    return FAULTS[kind](text, rng)
