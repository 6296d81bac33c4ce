"""Rubric items: what a good response has or avoids, with the points for each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from autoj_reward.errors import InputError

RUBRIC = "rubric"
"""Name of the column of a row's items, and of the context field that shows them as one text."""
ROW_NAMES = (RUBRIC, "rubrics")
"""Names under which a row may hold its items."""
Choices = tuple[tuple[str, float], ...]
"""Answers to an item, each with its share of the item's points, 0 to 1."""
YES_NO: Choices = (("Yes", 1.0), ("No", 0.0))
"""Default choices."""
KIND_POINTS = {"essential": 1.0, "important": 0.7, "optional": 0.3, "pitfall": -0.9}
"""Kinds of items, and the points of an item that names a kind and no points.

The sizes are the weights of Rubrics as Rewards (arXiv 2507.17746); there, too, a pitfall counts
against the response.
"""
MIN_POINTS, MAX_POINTS = 1e-6, 1e6
"""Least and largest size of an item's points, unless they are 0. Within these, sums and shares of
points stay finite and exact."""
MAX_ITEMS = 100
"""Largest number of items of a rubric."""
MAX_CHOICES = 10
"""Largest number of choices of an item."""
ANSWER = re.compile(r"[^\W_](?:[\w '-]{0,38}[^\W_])?")
"""Pattern of a choice: letters, digits and spaces, so that a judge can write it as its answer."""
KIND_WORD = re.compile(
    r"\s*(essential|important|optional|pitfall)\s+criteria\s*:\s*", re.IGNORECASE
)
"""Beginning of a description in the data of Rubrics as Rewards, which tells the item's kind."""
KEYS = {"criterion", "points", "kind", "choices", "tags"}
ALIASES = {
    "description": "criterion",
    "rubric_item": "criterion",
    "Ingredient": "criterion",
    "weight": "points",
}
"""Keys of an item in public data, and this package's names for them."""
NAMES = {"title", "id", "Handle"}
"""Keys of an item that name it alone, which no log sums up."""
SLIP = 0.8
"""Similarity to a known key from which an unknown one counts as a slip."""
MAX_TAG = 80
"""Longest tag that is made of a key that is not known, in characters."""
RULE = "rule"
"""Key of an item that a program checks and no judge: its function and parameters."""


@dataclass(frozen=True, slots=True)
class RubricItem:
    """One criterion of a rubric."""

    criterion: str
    """Statement that holds for a response or does not."""
    points: float = 1.0
    """Points of a response for which the criterion holds. Negative for a fault (a pitfall)."""
    kind: str = ""
    """`essential`, `important`, `optional` or `pitfall`; empty if the rubric has no kinds."""
    choices: Choices = YES_NO
    """Answers that the judge chooses from."""
    tags: tuple[str, ...] = ()
    """Names under which logs sum up items."""

    @property
    def question(self) -> RubricItem:
        """Return what a judge of this item alone is shown: the criterion and its choices."""
        return RubricItem(self.criterion, choices=self.choices)

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of the item that a prompt may show."""
        return (self.criterion, *(label for label, _ in self.choices))

    def record(self) -> dict[str, Any]:
        """Return the item as JSON data, as `read_items` reads it. Defaults are left out."""
        fields: dict[str, Any] = {"criterion": self.criterion, "points": self.points}
        fields |= {"kind": self.kind} if self.kind else {}
        fields |= {"choices": dict(self.choices)} if self.choices != YES_NO else {}
        return fields | ({"tags": list(self.tags)} if self.tags else {})


class BadRubric(InputError):
    """Error for rubric items that cannot be read."""

    def __init__(self, where: str, reason: str) -> None:
        """Record the place in the rubric, such as `[2].points`, and what is wrong there."""
        super().__init__(f"rubric{where}: {reason}")
        self.where, self.reason = where, reason


def read_items(value: Any) -> tuple[RubricItem, ...]:
    """Return the items of a rubric as data holds it.

    value: a list of items, or the JSON text of one. An item is a text, worth one point, or a
    mapping with `criterion` and, if given, `points`, `kind`, `choices` (a mapping of answers to
    shares) and `tags`. HealthBench's items have this form. Names of other public sets are read too,
    and keys that are not known are kept as tags.

    Raises BadRubric that names the item for one that is malformed, and for a rubric in which no
    item has positive points.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BadRubric("", f"a list of items, not the text {value!r:.60}") from None
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise BadRubric("", f"a list of items, not {value!r:.60}")
    if not 1 <= len(value) <= MAX_ITEMS:
        raise BadRubric("", f"{len(value)} items: give 1 to {MAX_ITEMS}")
    items = tuple(_parse_item(item, f"[{n}]") for n, item in enumerate(value))
    require_positive(items)
    return items


def items_in(row: Mapping[str, Any], names: Sequence[str]) -> tuple[RubricItem, ...]:
    """Return the rubric items of a row, which stand under the first of these names that it has.

    Returns none for a row without items. Raises BadRubric like `read_items`.
    """
    value: Any = next((row[name] for name in names if row.get(name) is not None), None)
    if hasattr(value, "tolist"):  # numpy and torch
        value = value.tolist()
    is_missing = isinstance(value, float) and math.isnan(value)  # how pandas writes a missing value
    is_blank = isinstance(value, str) and not value.strip()
    return () if value is None or is_missing or is_blank or value == [] else read_items(value)


def require_positive(items: Sequence[RubricItem]) -> None:
    """Raise BadRubric if no item has positive points, since no score could then be earned."""
    if not any(item.points > 0 for item in items):
        raise BadRubric("", "no item has positive points, so that no response can earn any")


def read_item_fields(value: Any, where: str) -> dict[str, Any]:
    """Return the fields of an item as data holds it, under this package's names.

    Keys that are not known become tags. RubricHub's mapping of tags, and tags such as
    `verifier:rule`, tell of an item that a program checks: it stands under RULE.
    """
    if isinstance(value, str):
        value = {"criterion": value}
    if not isinstance(value, Mapping):
        raise BadRubric(where, f"an item is a text or a mapping, not {value!r:.60}")
    fields: dict[str, Any] = {}
    unknown: list[str] = []
    for name, field in value.items():
        # Tables write a key that some items lack as null.
        if field is None or name in NAMES:
            continue
        known = ALIASES.get(name, name)
        if known in KEYS:
            fields.setdefault(known, field)
        elif isinstance(field, str | int | float):
            _refuse_slip(str(name), where)
            unknown.append(f"{name}:{field}"[:MAX_TAG])
    fields |= _read_rule(fields)
    if unknown:
        fields["tags"] = [*_parse_tags(fields.get("tags", ()), where), *unknown]
    return fields


def _refuse_slip(name: str, where: str) -> None:
    """Raise BadRubric for a key that is almost a known one, whose value would be lost as a tag."""
    near = get_close_matches(name[:MAX_TAG], [*KEYS, *ALIASES], 1, SLIP)
    if near:
        raise BadRubric(f"{where}.{name:.40}", f"unknown key: did you mean `{near[0]}`?")


def _read_rule(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule that an item's tags name, and the tags without it."""
    tags = fields.get("tags")
    if isinstance(tags, Mapping):
        named = dict(tags)
        rest: list[Any] = []
    elif isinstance(tags, Sequence) and not isinstance(tags, str):
        parts = [tag.partition(":") for tag in tags if isinstance(tag, str)]
        named = {
            key: text for key, _, text in parts if key in ("verifier", "function", "parameters")
        }
        rest = [
            tag for tag in tags if not isinstance(tag, str) or tag.partition(":")[0] not in named
        ]
    else:
        return {}
    if named.get("verifier") != "rule":
        return {"tags": rest}
    rule = {"function": named.get("function"), "parameters": named.get("parameters")}
    return {"tags": rest, RULE: rule}


def _parse_item(value: Any, where: str) -> RubricItem:
    fields = read_item_fields(value, where)
    if RULE in fields:
        function = fields[RULE]["function"]
        raise BadRubric(
            where, f"a program checks it by the rule {function!r:.60}, and no judge can"
        )
    criterion, text_kind = _parse_criterion(fields.get("criterion"), where)
    kind = _parse_kind(fields.get("kind", text_kind), where)
    points = fields.get("points", KIND_POINTS.get(kind, 1.0))
    if isinstance(points, bool) or not isinstance(points, int | float):
        raise BadRubric(f"{where}.points", f"a number, not {points!r:.40}")
    if points != 0 and not MIN_POINTS <= abs(points) <= MAX_POINTS:
        raise BadRubric(
            f"{where}.points", f"0, or a number of the size {MIN_POINTS:g} to {MAX_POINTS:g}"
        )
    choices = _parse_choices(fields["choices"], where) if "choices" in fields else YES_NO
    return RubricItem(
        criterion, float(points), kind, choices, _parse_tags(fields.get("tags", ()), where)
    )


def _parse_criterion(value: Any, where: str) -> tuple[str, str]:
    """Return the criterion and the kind that its text begins with."""
    if not isinstance(value, str) or not value.strip():
        raise BadRubric(f"{where}.criterion", f"a text that says what is judged, not {value!r:.60}")
    prefix = KIND_WORD.match(value)
    return (value[prefix.end() :], prefix[1].lower()) if prefix else (value, "")


def _parse_kind(value: Any, where: str) -> str:
    kind = str(value).lower()
    if kind and kind not in KIND_POINTS:
        raise BadRubric(f"{where}.kind", f"one of {', '.join(KIND_POINTS)}, not {value!r:.40}")
    return kind


def _parse_choices(value: Any, where: str) -> Choices:
    path = f"{where}.choices"
    if isinstance(value, Mapping):  # tables write the answers of other items as null
        value = {label: share for label, share in value.items() if share is not None}
    if not isinstance(value, Mapping) or not 2 <= len(value) <= MAX_CHOICES:
        raise BadRubric(path, f"2 to {MAX_CHOICES} answers, each with its share, not {value!r:.60}")
    for label, share in value.items():
        if not isinstance(label, str) or not ANSWER.fullmatch(label):
            raise BadRubric(
                path, f"an answer is up to 40 letters, digits and spaces, not {label!r:.60}"
            )
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise BadRubric(path, f"the share of {label!r} is 0 to 1, not {share!r:.40}")
    if len({label.casefold() for label in value}) < len(value):
        raise BadRubric(path, "two answers differ by their case alone")
    if len(set(value.values())) == 1:
        raise BadRubric(path, "all answers have the same share, so that the item decides nothing")
    return tuple((label, float(share)) for label, share in value.items())


def _parse_tags(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadRubric(f"{where}.tags", f"a list of texts, not {value!r:.60}")
    if bad_tags := [tag for tag in value if not isinstance(tag, str)]:
        raise BadRubric(f"{where}.tags", f"a list of texts, not {bad_tags[0]!r:.60} in it")
    return tuple(value)
