"""What a judge may know beside query and response: texts by name, such as a reference or a rubric,
and the turns of a conversation.

They are data like the query: never control tokens, and a verdict in them is not the judge's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoj_reward.conversation import Turn

NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
OWN = re.compile("query|response(_[0-9]+)?")
"""The names of what a judge input has by itself, so of no context field."""


def is_own(name: str) -> bool:
    """Whether a judge input has what a name means by itself."""
    return OWN.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Context(Mapping[str, str]):
    """A frozen mapping of named texts; equal whatever the order they were given in.

    turns: the conversation that the response answers, where it is more than the user's one turn;
        the query is then its plain text.

    >>> Context({"reference": "42"})["reference"]
    '42'

    Raises ValueError for a name that no template could have or that a judge input has itself,
    TypeError for what is no text.
    """

    texts: tuple[tuple[str, str], ...] | Mapping[str, str] = ()
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        given = dict(self.texts)
        for name, text in given.items():
            if not isinstance(name, str) or not NAME.fullmatch(name) or is_own(name):
                raise ValueError(f"{name!r} names no context field: write it like `reference`")
            if not isinstance(text, str):
                raise TypeError(f"context field {name!r} is no text: {text!r:.80}")
        object.__setattr__(self, "texts", tuple(sorted(given.items())))

    def __getitem__(self, name: str) -> str:
        return dict(self.texts)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.texts))

    def __len__(self) -> int:
        return len(self.texts)

    def after(self, turns: tuple[Turn, ...]) -> Context:
        """The same texts, after these turns; a user's one turn is a query like any other."""
        return Context(self.texts, () if [t.role for t in turns] == ["user"] else turns)


NOTHING = Context()


def context_of(given: Mapping[str, str]) -> Context:
    """The frozen form of a mapping."""
    return given if isinstance(given, Context) else Context(given)


@dataclass(frozen=True, slots=True)
class Asked:
    """One context field that rows are asked for, and the column that holds it.

    required: whether a row without it cannot be judged.
    """

    field: str
    column: str
    required: bool = False
