"""JSON objects in a judge's text, each member with its place in the text.

Python's own reader tells no places, and takes the last of two equal keys without a word. A judge
writes what it likes around its object and errs inside it. So commas before a closing bracket, line
breaks in strings, keys in single quotes, values without quotes and comments between members are
read, and nothing else is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

MAX_DEPTH = 32
"""Largest number of brackets around a member. A deeper object is not read."""
_COMMENT = r"(?://[^\n]{0,200}+(?=\n|\Z)|/\*(?:[^*]|\*(?!/)){0,200}+\*/)\s*+"
_START = re.compile(
    rf"""\{{\s*+(?:{_COMMENT}){{0,3}}+(?:"[^"\\\n]{{1,200}}+"|'[^'\\\n]{{1,200}}+')\s*+:"""
)
"""Beginning of an object. A brace in prose or LaTeX begins none."""
_START_AT_END = re.compile(r"""\{\s*+(?:["'][^"'\\\n]{0,200}+["']?\s*+)?\Z""")
_SPACE = re.compile(rf"\s*+(?:{_COMMENT})*+")
_KEY = re.compile(r"""("[^"\\\n]{0,200}+"|'[^'\\\n]{0,200}+')\s*+:\s*+""")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)(")?', re.DOTALL)
_BARE = re.compile(r"""[^\s,:{}\[\]"]++""")
_FENCE = re.compile(r"(?:\s*+(?:`{3,}+|~{3,}+))?")

CUT_OFF = "the JSON object is cut off"
"""Problems of an object."""
NOT_JSON = "the JSON object is malformed"


@dataclass(frozen=True, slots=True)
class Member:
    """Member of an object: a key with its value."""

    path: tuple[str, ...]
    """Its key after those of the objects around it, in small letters."""
    depth: int
    """Number of objects and lists around it."""
    start: int
    """Offset of the key's quote."""
    value: int
    """Offset of the value; of a string, that of its first character."""
    end: int
    """Offset after the value; of a string, that of its closing quote. For an object or list, the
    same as `value`: it holds no verdict itself."""


@dataclass(slots=True)
class JsonObject:
    """Object that stands in a text, whole or broken off."""

    start: int
    """Offset of its opening brace."""
    end: int = 0
    """Offset after its closing brace and the end of a code block around it."""
    members: list[Member] = field(default_factory=list)
    """Its members and those of objects inside it, in their order."""
    problem: str = ""
    """Why it cannot be read; empty for a whole object."""
    keep: int = 0
    """Offset up to which a broken object is kept, so that it can be continued."""
    lead: str = ""
    """Text after that offset which ends what the object has begun, so that a key may follow."""


@dataclass(slots=True)
class _Container:
    """Object or list that is open."""

    closing: str
    path: tuple[str, ...]
    has_value: bool = False
    """Whether a value precedes, so that a comma must follow."""
    is_used: bool = False
    """Whether it has any value."""


@lru_cache(maxsize=16)
def read_objects(text: str) -> tuple[JsonObject, ...]:
    """Return the outermost objects in a text in order, in time linear in its length.

    Nothing is read after an object that breaks off: what follows may be a part of it.
    """
    objects: list[JsonObject] = []
    place = 0
    while (place := text.find("{", place)) >= 0:
        if not (_START.match(text, place) or _START_AT_END.match(text, place)):
            place += 1
            continue
        found = _read_object(text, place)
        objects.append(found)
        if found.problem:
            break
        place = found.end
    return tuple(objects)


def _read_object(text: str, start: int) -> JsonObject:
    found = JsonObject(start, keep=start + 1)
    stack = [_Container("}", ())]
    place = start + 1
    while stack:
        place = _skip_space(text, place)
        if place == len(text):
            found.problem = CUT_OFF
            return found
        container = stack[-1]
        char = text[place]
        if char == container.closing:
            stack.pop()
            place += 1
            if stack:
                _note_value(found, stack, place)
            continue
        if container.has_value:
            if char != ",":
                break
            container.has_value = False
            place += 1
            continue
        path = container.path
        key_start = place
        if container.closing == "}":
            key = _KEY.match(text, place)
            if key is None:
                # A key that the end of the text cuts off is no error of the judge.
                is_cut = "\n" not in text[place:] and text[place:].count('"') < 2
                found.problem = CUT_OFF if is_cut and char == '"' else NOT_JSON
                break
            path = (*path, key[1][1:-1].strip().casefold())
            place = key.end()
            if place == len(text):
                found.problem = CUT_OFF
                return found
            char = text[place]
        # Elements of a list have no key, and are no members.
        is_member = container.closing == "}"
        if char in "{[":
            if len(stack) == MAX_DEPTH:
                break
            if is_member:
                found.members.append(Member(path, len(stack), key_start, place, place))
            container.is_used = True
            place += 1
            stack.append(_Container("}" if char == "{" else "]", path))
            found.keep = place
            found.lead = _close_all(stack)
            continue
        if char == '"':
            string = _STRING.match(text, place)
            assert string is not None
            if not string[2]:
                # An escape that is cut off is left out.
                escape = len(text) - len(text.rstrip("\\"))
                found.keep = len(text) - escape % 2
                container.is_used = True
                found.lead = '"' + _close_all(stack)
                found.problem = CUT_OFF
                if is_member:
                    found.members.append(Member(path, len(stack), key_start, place, place))
                return found
            value, end, place = string.start(1), string.end(1), string.end()
        else:
            bare = _BARE.match(text, place)
            if bare is None:
                break
            value, end, place = place, bare.end(), bare.end()
        if is_member:
            found.members.append(Member(path, len(stack), key_start, value, end))
        _note_value(found, stack, place)
    else:
        fence = _FENCE.match(text, place)
        found.end = fence.end() if fence else place
        return found
    found.problem = found.problem or NOT_JSON
    if found.problem == NOT_JSON:
        # The text goes on in no known state, so that a new object has to follow.
        found.keep = len(text)
        found.lead = ""
        found.members.clear()
    return found


def _note_value(found: JsonObject, stack: list[_Container], place: int) -> None:
    """Note that a value ends here, after which a broken object may be continued."""
    stack[-1].has_value = True
    stack[-1].is_used = True
    found.keep = place
    found.lead = _close_all(stack)


def _close_all(stack: list[_Container]) -> str:
    """Return the text after which the outermost object takes a key."""
    closing = "".join(container.closing for container in reversed(stack[1:]))
    return closing + (", " if stack[0].is_used else "")


def _skip_space(text: str, place: int) -> int:
    space = _SPACE.match(text, place)
    return space.end() if space else place
