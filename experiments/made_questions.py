"""Questions made by a program, which a program can check, in the four kinds of the ablation.

What a policy answers to them trains the default judge; the ablation's own queries, written by hand,
stay unseen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from experiments.compare.ablation.checkers import KINDS

PLACES = ("harbour", "forest", "market", "library", "desert", "island", "castle", "kitchen")
TOPICS = ("bread", "snow", "trains", "books", "gardens", "clocks", "horses", "rain", "chess")
GROUPS = {
    "birds": ("owl", "eagle", "sparrow", "heron", "robin"),
    "vegetables": ("carrot", "onion", "spinach", "leek", "radish"),
    "pieces of furniture": ("sofa", "shelf", "stool", "wardrobe", "desk"),
    "vehicles": ("bus", "lorry", "tram", "van", "ferry"),
}
PEOPLE = ("Nina", "Karl", "Aisha", "Paul", "Sofia", "Jonas", "Leila", "Victor")
DAYS = ("Tuesday", "Wednesday", "Friday", "Saturday", "Sunday")
THINGS = ("lamp", "kettle", "ladder", "blanket", "guitar", "compass", "basket", "mirror")
WORDS = (
    "pepper",
    "balloon",
    "mississippi",
    "committee",
    "parallel",
    "coffee",
    "letter",
    "tomorrow",
)

Made = tuple[str, list[dict[str, Any]]]
"""A query and its checks, as a row of a query file has them."""


def _words(low: int, high: int) -> dict[str, Any]:
    return {"kind": "words", "low": low, "high": high}


def _number(value: float) -> dict[str, Any]:
    return {"kind": "number", "value": value, "weight": 3}


def _names(right: list[str], wrong: list[str]) -> dict[str, Any]:
    return {"kind": "names", "values": right, "others": wrong, "weight": 3}


def _form(rng: random.Random) -> Made:
    topic, n = rng.choice(TOPICS), rng.randint(2, 6)
    about = {"kind": "contains", "words": [topic]}
    count = {"low": n, "high": n}
    most = rng.choice((8, 15, 20, 30))
    choices: list[Made] = [
        (f"Say something about {topic} in at most {most} words.", [_words(3, most), about]),
        (f"Write {n} sentences about {topic}.", [{"kind": "sentences", **count}, about]),
        (
            f"Make a bullet list of {n} things one may see in a {rng.choice(PLACES)}. Use hyphens.",
            [{"kind": "bullets", **count}, _words(n, 8 * n)],
        ),
        (
            f"Name {n} facts about {topic} as a numbered list.",
            [{"kind": "numbered", **count}, about, _words(2 * n, 20 * n)],
        ),
        (
            f"Write one line about {topic} in capital letters only.",
            [{"kind": "case", "to": "upper"}, about, _words(2, 20)],
        ),
        (
            f"Write a short note about {topic}. Use small letters only, never a capital one.",
            [{"kind": "case", "to": "lower"}, about, _words(4, 50)],
        ),
        (
            f'Give a JSON object with the keys "title" and "topic" for a book on {topic}.',
            [{"kind": "json", "keys": ["title", "topic"]}],
        ),
        (
            f'Begin with "Well then" and say in one sentence what you think of {topic}.',
            [{"kind": "starts", "text": "Well then"}, {"kind": "sentences", "low": 1, "high": 1}],
        ),
    ]  # fmt: skip
    return rng.choice(choices)


def _sum(rng: random.Random) -> Made:
    a, b, small = rng.randint(11, 89), rng.randint(3, 60), rng.randint(2, 9)
    name, thing = rng.choice(PEOPLE), rng.choice(THINGS)
    short = rng.random() < 0.5
    asked, value = rng.choice((
        (f"Add {a} and {b}.", a + b),
        (f"Take {b} from {a + b}.", a),
        (f"Multiply {small} by {b}.", small * b),
        (f"{name} has {a} stamps and gets {b} more. How many stamps are that?", a + b),
        (f"A {thing} costs {b} euros. What do {small} of them cost together?", small * b),
        (f"Share {small * b} coins equally among {small} people. How many does each get?", b),
        (f"{name} is {a} years old. How old was {name} {small} years ago?", a - small),
    ))  # fmt: skip
    if short:
        return f"{asked} Reply with a number and nothing else.", [_number(value), _words(1, 1)]
    return asked, [_number(value), _words(1, 30)]


def _extraction(rng: random.Random) -> Made:
    (one, two), (early, late) = rng.sample(PEOPLE, 2), rng.sample(DAYS, 2)
    thing, other = rng.sample(THINGS, 2)
    kind, rest = rng.sample(sorted(GROUPS), 2)
    right, wrong = rng.sample(GROUPS[kind], 2), rng.sample(GROUPS[rest], 3)
    mixed = rng.sample([*right, *wrong], 5)
    year, later = rng.randint(1790, 1890), rng.randint(1900, 2015)
    choices: list[Made] = [
        (
            f'Read: "{one} lent the {thing} to {two} on {early}." Who got the {thing}? One name.',
            [_names([two], [one]), _words(1, 1)],
        ),
        (
            f'Read: "{one} comes on {early} and {two} on {late}." When does {two} come?',
            [_names([late], [early]), _words(1, 8)],
        ),
        (
            f'Read: "The {thing} is from {year}, the {other} from {later}." '
            f"From which year is the {other}? Only the year.",
            [_names([str(later)], [str(year)]), _words(1, 1)],
        ),
        (
            f"Pick the {kind} out of these words and name only them: {', '.join(mixed)}.",
            [_names(right, wrong), _words(2, 4)],
        ),
        (
            f'Read: "{one} repaired the {thing} while {two} painted the {other}." '
            f"What did {one} repair?",
            [_names([thing], [other]), _words(1, 8)],
        ),
    ]  # fmt: skip
    return rng.choice(choices)


def _counting(rng: random.Random) -> Made:
    word = rng.choice(WORDS)
    letter = rng.choice(sorted(set(word)))
    n, last = rng.randint(3, 7), rng.randint(4, 9)
    items = rng.sample(THINGS, n)
    choices: list[Made] = [
        (
            f'How often does the letter "{letter}" occur in "{word}"? Reply with a number.',
            [_number(word.count(letter)), _words(1, 4)],
        ),
        (
            f'Of how many letters is the word "{word}" made?',
            [_number(len(word)), _words(1, 15)],
        ),
        (
            f"How many things are these: {', '.join(items)}?",
            [_number(n), _words(1, 15)],
        ),
        (
            f"Write the numbers from 1 to {last} in one line, with commas between.",
            [_names([str(k) for k in range(1, last + 1)], [str(last + 1)]), _words(last, last)],
        ),
        (
            f'Write the word "{rng.choice(TOPICS)}" {n} times and nothing else.',
            [_words(n, n)],
        ),
    ]  # fmt: skip
    return rng.choice(choices)


MAKERS: dict[str, Callable[[random.Random], Made]] = dict(
    zip(KINDS, (_form, _sum, _extraction, _counting), strict=True)
)


def made_questions(count: int, seed: int) -> list[dict[str, Any]]:
    """That many different rows of a query file (`query`, `kind`, `checks`), the kinds in turn."""
    rng = random.Random(seed)
    found: dict[str, dict[str, Any]] = {}
    while len(found) < count:
        kind = KINDS[len(found) % len(KINDS)]
        query, checks = MAKERS[kind](rng)
        found.setdefault(query, {"query": query, "kind": kind, "checks": checks})
    return list(found.values())
