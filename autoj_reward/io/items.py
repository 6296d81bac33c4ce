"""The one reader of rows: what a row of any layout holds, as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, show
from autoj_reward.io.labels import TIE, A, as_number, label_of_numbers, read_label
from autoj_reward.io.layouts import (
    GROUP,
    PAIR,
    PROMPT,
    SINGLE,
    Layout,
)
from autoj_reward.io.messages import (
    Asked,
    Message,
    Text,
    ask_sides,
    is_dialogue,
    load_messages,
    read_dialogue,
    read_history,
    read_value,
    split_answer,
)
from autoj_reward.io.paths import find, load

MEDIA_COLUMNS = re.compile("(images?|videos?|audios?)(_urls?)?")
"""Columns with media of the prompt, beside its text."""
MAX_PAIRED = 64
"""Largest group of which every two responses are compared."""
NUMBERED = re.compile(r"\s*\d{1,3}[.)]\s+(.*)")


@dataclass(slots=True)
class Item:
    """What one row holds. What a command does not ask for is read only on demand."""

    line: int
    """Number of the row, from 1."""
    layout: Layout
    fields: dict[str, Any]
    """All fields of the row, in order."""
    view: Mapping[str, Any]
    """The same, with the columns that the user named under this package's names."""
    kind: str
    """What the row is: SINGLE, PAIR, GROUP or PROMPT."""
    prompt: Text | None = None
    """A text, or messages if there are several turns or a system turn."""
    responses: list[Any] = field(default_factory=list)
    """Each a text or messages; None for one that is missing."""
    names: list[str] = field(default_factory=list)
    """Field of each response."""
    prompt_name: str = "query"
    """Field of the prompt."""
    thoughts: list[str | None] = field(default_factory=list)
    """What the policy thought before each response."""
    given: dict[str, Any] = field(default_factory=dict)
    """Values that the layout's own reader found, by field; they go before those at paths."""
    rows: tuple[int, ...] = ()
    """Numbers of all rows that it was made of, if they are several."""
    more: list[Item] = field(default_factory=list)
    """Further items of the same row."""

    def find(self, name: str) -> Any:
        """Return the value of a field of the layout; None if the row has none."""
        if name in self.given:
            return self.given[name]
        for path in self.layout.path(name):
            value = find(self.view, path)
            if value is not None:
                return value
        return None

    def found_at(self, name: str) -> str:
        """Return the path of a field's value, for errors."""
        paths = self.layout.path(name)
        if len(paths) == 1:
            return paths[0]
        return next((path for path in paths if find(self.view, path) is not None), name)

    @property
    def label(self) -> str | bool | None:
        """Which side of a pair is better, or whether a single response is good. None: unknown."""
        if self.kind == SINGLE and not self.layout.coding:
            value = self.find("label")
            words = {"true": True, "false": False}
            if isinstance(value, str):
                value = words.get(value.strip().lower())
            return value if isinstance(value, bool) else None
        if "label" in self.given:
            label: str | bool | None = self.given["label"]
            return label
        coding = self.layout.coding
        if coding == "first":
            # Where both have the same score, the better side was drawn.
            scores = self.scores
            is_drawn = scores is not None and scores[0] is not None and scores[0] == scores[1]
            return TIE if self.kind == PAIR and is_drawn else A
        return read_label(coding, self.find("label"), self.found_at("label")) if coding else None

    @property
    def score(self) -> float | None:
        """The rating of a single response, as it is stored."""
        return self._number(self.find("score"), self.found_at("score"))

    @property
    def scores(self) -> list[float | None] | None:
        """A rating of each response, as they are stored."""
        if self.kind == PAIR and "scores" not in self.given:
            paths = [part[0] for part in self.layout.paths.get("scores", ())]
            if len(paths) != 2 or any(find(self.view, path) is None for path in paths):
                return None
            return [self._number(find(self.view, path), path) for path in paths]
        return self._numbers("scores")

    @property
    def ranks(self) -> list[float | None] | None:
        """The place of each response; the lowest is best."""
        return self._numbers("ranks")

    @property
    def labels(self) -> list[Any] | None:
        """A label of each response, or of each step of one."""
        value = self.find("labels")
        return value if isinstance(value, list) else None

    @property
    def margin(self) -> float | None:
        """How much better the better side is, 0 or more."""
        value = self.find("margin")
        if value is None:
            return None
        margin = check.number(as_number(value), self.found_at("margin"))
        signed = self.layout.coding == "-3..3"
        if margin < 0 and not signed:
            reason = f"{show(value)} is no margin: a number, 0 or more"
            raise BadField(self.found_at("margin"), reason)
        return abs(margin)

    @property
    def reference(self) -> str | None:
        """The reference answer; None without one, or with a blank one."""
        value = self.find("reference")
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        return value if isinstance(value, str) and value.strip() else None

    @property
    def rubric(self) -> str | list[Any] | None:
        """The criteria: items as the row holds them, or one text."""
        value = self.find("rubric")
        if not isinstance(value, str):
            return value if isinstance(value, list) and value else None
        if self.layout.rubric_as == "text":
            return value
        if self.layout.rubric_as == "item":
            return [value]
        if self.layout.rubric_as == "lines":
            return [line.strip() for line in value.splitlines() if line.strip()] or None
        if self.layout.rubric_as == "numbered":
            return _numbered_items(value) or None
        items = load(value)
        return items if isinstance(items, list) else value

    def _number(self, value: Any, name: str) -> float | None:
        value = as_number(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number else None

    def _numbers(self, name: str) -> list[float | None] | None:
        values = load(self.find(name))
        if not isinstance(values, list) or len(values) != len(self.responses):
            return None
        numbers = [int(value) if isinstance(value, bool) else value for value in values]
        return [self._number(value, name) for value in numbers]


PairPlaces = list[tuple[int, int, str]]
"""Pairs of a row's responses, each as two places and its label."""


def pairs_of(item: Item) -> PairPlaces:
    """Return the pairs of a row's responses.

    A group gives every two responses of which one is better, or the pairs that the row itself
    names. Raises BadField for a row without a label or without such a pair, and for a group too
    large.
    """
    if item.kind == PAIR:
        label = item.label
        if not isinstance(label, str):
            raise BadField(
                item.found_at("label"), "no label: neither response is said to be better"
            )
        return [(0, 1, label)]
    if item.kind != GROUP:
        raise BadField("responses", explain_kind(item, PAIR))
    pairs: PairPlaces = item.given["pairs"] if "pairs" in item.given else _pair_all(item)
    if not pairs:
        raise BadField("responses", "no two responses of which one is better")
    return pairs


def _pair_all(item: Item) -> PairPlaces:
    """Return every two responses of a group of which one is better, by their numbers."""
    values = item.scores
    if values is None and item.ranks is not None:
        values = [None if rank is None else -rank for rank in item.ranks]
    if values is None and item.labels is not None:
        values = [int(label) if isinstance(label, bool) else None for label in item.labels]
    if values is None:
        raise BadField("scores", "no label, score or rank says which response is better")
    if len(values) > MAX_PAIRED:
        raise BadField("responses", f"{len(values)} responses; pairs are made of {MAX_PAIRED}")
    pairs = []
    for second in range(len(values)):
        for first in range(second):
            label = label_of_numbers((values[first], values[second]))
            if label is not None and (label != TIE or len(values) == 2):
                pairs.append((first, second, label))
    return pairs


def read_texts(item: Item, sides: Sequence[Any] | None = None, prompt: Any = None) -> None:
    """Read prompt and responses at the layout's paths.

    sides, prompt: values that a reader found in place of those at the paths.
    """
    if sides is None:
        sides = _find_sides(item)
    if prompt is None:
        prompt = _find_prompt(item)
    before = read_before(item)
    values = _read_sides(item, sides)
    if isinstance(prompt, str) and item.prompt_name != "query" and is_dialogue(prompt):
        prompt = read_dialogue(prompt)
        values = [value.strip() if isinstance(value, str) else value for value in values]
    if item.layout.lacks and prompt is None:
        item.responses = list(values)
        return
    if item.kind == PROMPT or not values:
        item.kind = PROMPT
        if prompt is not None:
            set_asked(item, ask_sides(prompt, [], [], before))
    elif item.kind == SINGLE and prompt is None and isinstance(values[0], list):
        turns, answer = split_answer(values[0])
        item.prompt_name = item.names[0]
        if not answer:
            item.kind = PROMPT
            item.names = []
        asked = ask_sides(turns, [answer] if answer else [], item.names, before)
        set_asked(item, asked)
    else:
        set_asked(item, ask_sides(prompt, values, item.names, before))
    add_media(item)


def set_asked(item: Item, asked: Asked) -> None:
    item.prompt, item.responses, item.thoughts = asked.prompt, asked.responses, asked.thoughts


def _find_prompt(item: Item) -> Text | None:
    """Return the value of the prompt's column, as a text or messages; None without one."""
    value = None
    for path in item.layout.path("prompt"):
        value = find(item.view, path)
        # A table's column may be empty in rows whose prompt is in another one.
        if value is not None and value != []:
            item.prompt_name = path
            break
    if value is None:
        return None
    prompt = read_value(value, item.prompt_name, listed=item.prompt_name != "query")
    if isinstance(prompt, str):
        if not prompt.strip():
            raise BadField(item.prompt_name, f"blank: {show(prompt)}")
        more = item.find("more")
        if more is not None and check.require_text(more, item.found_at("more")).strip():
            prompt += "\n" + more
    # The responses of a row take the place of an answer that its conversation ends with.
    while isinstance(prompt, list) and prompt and prompt[-1]["role"] == "assistant":
        prompt.pop()
    if prompt == []:
        raise BadField(item.prompt_name, "no turn of the user before the response")
    return prompt


def _find_sides(item: Item) -> list[Any]:
    """Return the values of the responses, and set their names."""
    layout, view = item.layout, item.view
    if layout.kind == PAIR:
        values = []
        for alternatives in layout.paths["sides"]:
            name = alternatives[0]
            value = None
            for path in alternatives:
                value = find(view, path)
                if value is not None:
                    name = path
                    break
            item.names.append(name)
            values.append(value)
        for name, value in zip(item.names, values, strict=True):
            if value is None:
                raise BadField(name, f"not a string: {show(find(view, name))}")
        return values
    if layout.kind == GROUP:
        name = item.found_at("responses")
        value = item.find("responses")
        if value is None:
            return []
        listed = load(value) if isinstance(value, str) else value
        if not isinstance(listed, list):
            raise BadField(name, f"not a list: {show(value)}")
        if not 1 <= len(listed) <= check.MAX_RESPONSES:
            raise BadField(name, f"{len(listed)} responses; give 1 to {check.MAX_RESPONSES}")
        item.names = [_name_in(name, n) for n in range(len(listed))]
        return listed
    if layout.kind == SINGLE:
        value = item.find("response")
        if value is None:
            return []
        item.names = [item.found_at("response")]
        return [value]
    return []


def _name_in(path: str, place: int) -> str:
    """Return the name of one of several values at a path."""
    if "[*]" in path:
        return path.replace("[*]", f"[{place}]", 1)
    return path.replace("#", str(place + 1), 1) if "#" in path else f"{path}[{place}]"


def _read_sides(item: Item, values: Sequence[Any]) -> list[Text | None]:
    """Return the responses as texts or messages.

    A response that is a text stays one, whatever it looks like, since a policy wrote it. Lists as
    JSON in texts are read where both sides of a pair, or the one conversation, hold such.
    """
    texts = [value for value in values if isinstance(value, str)]
    listed: list[Any] = []
    if item.kind == PAIR or (item.kind == SINGLE and not item.layout.path("prompt")):
        listed = [load_messages(text) for text in texts]
    as_lists = bool(texts) and len(listed) == len(values) and None not in listed
    if as_lists:
        values = listed
    return [
        read_value(value, name, listed=False)
        for value, name in zip(values, item.names, strict=True)
    ]


def read_before(item: Item) -> list[Message]:
    """Return the turns before the prompt: a system turn, and earlier ones."""
    turns: list[Message] = []
    system = item.find("system")
    if isinstance(system, str) and system.strip():
        turns.append({"role": "system", "content": check.require_text(system, "system")})
    history = item.find("history")
    if history:
        turns += read_history(history, item.found_at("history"))
    return turns


def add_media(item: Item) -> None:
    """Put the media of columns on the last turn of the user's, so that they are not lost."""
    media = {}
    for name, value in item.view.items():
        if value and MEDIA_COLUMNS.fullmatch(name):
            media[name] = value
    if item.view.get("rejected_images"):
        raise BadField("rejected_images", "the sides of the pair have different pictures")
    if not media or item.prompt is None:
        return
    turns = item.prompt
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    for n in range(len(turns) - 1, -1, -1):
        if turns[n]["role"] == "user":
            turns = [*turns[:n], turns[n] | media, *turns[n + 1 :]]
            break
    item.prompt = turns


def _numbered_items(text: str) -> list[str]:
    """Return the items of a text with numbered lines, of which an item may fill several."""
    items: list[str] = []
    for line in text.splitlines():
        numbered = NUMBERED.fullmatch(line)
        if numbered:
            items.append(numbered[1].strip())
        elif line.strip() and items:
            items[-1] += " " + line.strip()
        elif line.strip():
            items.append(line.strip())
    return items


def explain_kind(item: Item, wanted: str) -> str:
    """Return why a row is not what a command asks for."""
    names = " and ".join(item.names[:2]) if item.kind == PAIR else f"{len(item.responses)} of them"
    if item.layout.lacks:
        return item.layout.lacks
    if item.kind == PROMPT:
        return f"missing; the row has {show(list(item.fields))}"
    if wanted == SINGLE:
        return (
            f"the row holds several responses ({names}): `autoj compare` and `autoj rank` judge "
            "them, or name one in columns.response"
        )
    if item.kind == SINGLE:
        return f"the row holds one response ({item.names[0]}): `autoj score` rates it"
    return f"{len(item.responses)} responses, and a pair has two: `autoj rank` judges them"
